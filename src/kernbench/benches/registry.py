"""Benches by name: `@bench` registers a function of `torch`, `resolve` finds it again by name or number.

Every module of this package that does not begin with an underscore holds benches; one that registers none is a mistake
and is refused when the table is made. Numbers count the names in alphabetical order from 1. They are for people at a
terminal: a new bench shifts those after it, so scripts use names.

A bench may have an evaluation: points, rows and figures instead of one run (`kernbench.evaluation`). One that
`evaluation_bench` registers is nothing else.

The table is built on first use, not on import. A bench requested by name is found without the table: only modules whose
text has the name in quotes are imported, usually one. Benches of a user's file or module are not in the table, and may
have the names of shipped ones.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args

from kernbench.benches._params import Param, params_of
from kernbench.common.errors import ComponentError, UsageError
from kernbench.common.frozen import frozen
from kernbench.common.nearest import nearest
from kernbench.evaluation.contract import Evaluation
from kernbench.runtime_api.bench_params import AtLeast
from kernbench.runtime_api.bench_runner import WHOLE
from kernbench.runtime_api.user_module import is_file, load_user_module, split_identifier

__all__ = [
    "AtLeast",
    "BenchSpec",
    "audit",
    "bench",
    "evaluation_bench",
    "list_all",
    "numbered",
    "registered_in",
    "resolve",
]

BenchFunction = Callable[..., object]
Advice = Callable[[str, Mapping[str, Any]], Mapping[str, object]]  # (cause, parameters) -> parameters to change
RunsOn = Literal["each", "whole"]
F = TypeVar("F", bound=BenchFunction)
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
PACKAGE = __package__ or "kernbench.benches"


@frozen
class BenchSpec:
    """A bench: `run(torch, **params)`. `number` is 0 for one that was found without the table. `env` begins the names
    of variables. `devices` is whether it runs once for each device, or once with the whole tray. One that
    `is_evaluation` is only evaluated: `run` is one point of it. `advice` returns the parameters to change when a run
    has lost time by a cause of `report.explain.causes`; none if it knows no better ones.
    """

    name: str
    description: str
    run: BenchFunction
    env: str | None = None
    number: int = 0
    devices: RunsOn = "each"
    evaluation: Evaluation | None = None
    is_evaluation: bool = False
    advice: Advice | None = None

    def advised(self, cause: str, params: Mapping[str, object]) -> dict[str, object]:
        """The parameters to change against a cause; empty if there is no advice."""
        return {} if self.advice is None else dict(self.advice(cause, params))

    @property
    def params(self) -> tuple[Param, ...]:
        """The parameters of `--param`: the typed arguments after `torch`, or those of its
        evaluation if it has no run.
        """
        if self.is_evaluation:
            return self.evaluation_params
        return params_of(self.run, self.env, self.name)

    @property
    def meanings(self) -> dict[str, str]:
        """What each parameter means."""
        return {param.name: param.meaning for param in self.params}

    @property
    def evaluation_params(self) -> tuple[Param, ...]:
        """What `--param` sets of its evaluation: the typed arguments of `points` after the machine."""
        return () if self.evaluation is None else params_of(self.evaluation.points, self.env, self.name)

    def device_for(self, asked: str | None) -> str:
        """What to run it on: as asked, or else as it was written for. Raises UsageError for one SIP of a bench that
        drives the whole tray.
        """
        if self.devices == "each":
            return "all" if asked is None else asked
        if asked is not None and asked.strip().lower() not in ("all", WHOLE):
            raise UsageError(
                f"bench '{self.name}' drives the whole tray, not {asked}", hint="leave --device out, or give whole"
            )
        return WHOLE


_registered: list[BenchSpec] = []  # by every import so far, this package's and users'


def bench(
    *,
    name: str,
    description: str,
    env: str | None = None,
    devices: RunsOn = "each",
    evaluation: Evaluation | None = None,
    advice: Advice | None = None,
) -> Callable[[F], F]:
    """Register the decorated function, which is returned as it is.

    `name` is kebab-case. With `env="MATMUL"`, parameter m is taken from MATMUL_M where the caller does not give it.
    With `devices="whole"` it runs once and drives all SIPs itself, instead of once for each of them. With an
    `evaluation`, `kernbench run --out` evaluates it. `advice(cause, params)` returns the parameters to try next, for
    the command that `kernbench run` prints.
    Raises UsageError for a name, description or devices that will not do.
    """
    _check(name, description, devices)

    def register(fn: F) -> F:
        spec = BenchSpec(name, description.strip(), fn, env, devices=devices, evaluation=evaluation, advice=advice)
        _registered.append(spec)
        return fn

    return register


def evaluation_bench(*, name: str, description: str, evaluation: Evaluation) -> Evaluation:
    """Register an evaluation as a bench of its own; raises UsageError for a name or description that will not do."""
    _check(name, description, "whole")
    spec = BenchSpec(name, description.strip(), evaluation.point, None, 0, "whole", evaluation, is_evaluation=True)
    _registered.append(spec)
    return evaluation


def _check(name: str, description: str, devices: str) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(f"a bench cannot be named {name!r}", hint="use lower case, digits and dashes: gemm-single-pe")
    if not isinstance(description, str) or not description.strip():
        raise UsageError(f"bench '{name}' has no description", hint="say in one line what it measures")
    if devices not in get_args(RunsOn):
        raise UsageError(f"bench '{name}' has devices={devices!r}", hint="use 'each' or 'whole'")


def registered_in(module: str) -> list[BenchSpec]:
    """What a module registered, in order of appearance; of the same name, what was registered last."""
    return list({spec.name: spec for spec in _registered if spec.run.__module__ == module}.values())


def list_all() -> tuple[BenchSpec, ...]:
    """The shipped benches, by name."""
    return _table()


def resolve(identifier: str) -> BenchSpec:
    """The bench of a name or number, or of a user's `file.py[:name]` or `package.module[:name]`.

    Raises UsageError when there is none.
    """
    wanted = identifier.strip()
    if not wanted:
        raise UsageError("the bench has no name", hint="kernbench list shows what there is")
    found = _by_name(wanted)
    if found is not None:
        return found
    table = _table()
    for spec in table:
        if wanted == spec.name or (wanted.isascii() and wanted.isdecimal() and int(wanted) == spec.number):
            return spec
    if wanted.isdecimal():
        raise UsageError(f"no bench has number {wanted}", hint=f"numbers go from 1 to {len(table)}: kernbench list")
    if any(mark in wanted for mark in ".:/\\"):
        return _in_user_module(wanted)
    names = [spec.name for spec in table]
    close = nearest(wanted, names)
    suggestion = f"; did you mean '{close}'?" if close else ""
    raise UsageError(
        f"no bench '{wanted[:60]}'{suggestion}",
        hint=f"use one of {', '.join(names)}, or a file of yours: --bench path/to/file.py",
    )


def _by_name(name: str) -> BenchSpec | None:
    """The shipped bench of a name that stands in the text of its module; the table's own where that was made."""
    if not NAME.fullmatch(name):
        return None
    if _table.cache_info().currsize:
        return next((spec for spec in _table() if spec.name == name), None)
    for module in _modules_of(PACKAGE, naming=f'"{name}"'.encode()):
        import_module(module)
        found = [spec for spec in registered_in(module) if spec.name == name]
        if found:
            return found[0]
    return None


@cache
def _table() -> tuple[BenchSpec, ...]:
    modules = _modules_of(PACKAGE)
    for module in modules:
        import_module(module)
    audit(modules, _registered)
    ours = [spec for spec in _registered if spec.run.__module__.startswith(f"{PACKAGE}.")]
    return numbered(ours)


def _modules_of(package: str, naming: bytes = b"") -> list[str]:
    """The modules of a package and of those in it, without the registry and what begins with an underscore; of those
    that can be read as text, the ones that have `naming` in it.
    """
    found: list[str] = []
    for module in pkgutil.iter_modules(import_module(package).__path__):
        name = f"{package}.{module.name}"
        if module.name != "registry" and not module.name.startswith("_"):
            if module.ispkg:
                found += _modules_of(name, naming)
            elif not naming or naming in _text_of(module):
                found.append(name)
    return found


def _text_of(module: pkgutil.ModuleInfo) -> bytes:
    """A module as it is written; nothing where only its compiled form is installed."""
    spec = module.module_finder.find_spec(module.name, None)
    loader = spec.loader if spec is not None else None
    return loader.get_data(loader.path) if isinstance(loader, SourceFileLoader) else b""


def audit(modules: Sequence[str], registered: Sequence[BenchSpec]) -> None:
    """Raise ComponentError when one of the modules registered nothing."""
    found = {spec.run.__module__ for spec in registered}
    idle = [module for module in modules if module not in found]
    if idle:
        raise ComponentError(
            f"no @bench in {', '.join(idle)}",
            hint="decorate its function with @bench(name=..., description=...), or let the file's name begin with _",
        )


def numbered(specs: Sequence[BenchSpec]) -> tuple[BenchSpec, ...]:
    """Benches by name, numbered from 1; raises ComponentError for two of one name."""
    ordered = sorted(specs, key=lambda spec: spec.name)
    for first, second in pairwise(ordered):
        if first.name == second.name:
            places = " and ".join(sorted({first.run.__module__, second.run.__module__}))
            raise ComponentError(f"two benches are named '{first.name}'", where=places, hint="rename one")
    return tuple(replace(spec, number=number) for number, spec in enumerate(ordered, 1))


def _in_user_module(identifier: str) -> BenchSpec:
    """The bench that a user's file or module has by a name; without one its only bench, or its function `run`."""
    place, name = split_identifier(identifier)
    module = load_user_module(place)
    benches = registered_in(module.__name__)
    if name is not None:
        named = [spec for spec in benches if name in (spec.name, getattr(spec.run, "__name__", ""))]
        return named[0] if named else _plain_function(module, benches, name, place)
    if len(benches) == 1:
        return benches[0]
    if benches:
        names = ", ".join(spec.name for spec in benches)
        raise UsageError(f"{place} has {len(benches)} benches", hint=f"choose one: {place}:NAME with {names}")
    return _plain_function(module, benches, "run", place)


def _plain_function(module: ModuleType, benches: Sequence[BenchSpec], name: str, place: str) -> BenchSpec:
    """A function without @bench, by its own name."""
    found = getattr(module, name, None)
    if callable(found) and not isinstance(found, type):
        about = (found.__doc__ or "").strip().splitlines()
        return BenchSpec(f"{Path(place).stem if is_file(place) else place}:{name}", about[0] if about else "", found)
    names = ", ".join(spec.name for spec in benches)
    raise UsageError(
        f"{place} has no bench '{name}'",
        hint=f"it has {names}" if names else "decorate a function with @bench, or name it run: def run(torch)",
    )
