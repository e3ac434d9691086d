"""Builds the request of `kernbench sweep` from its options and file. Options override the file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kernbench.benches._params import Param, read_params
from kernbench.benches.registry import BenchSpec, resolve
from kernbench.cli.sweep_file import SweepFile, read_sweep_file
from kernbench.cli.sweep_values import split_values
from kernbench.common.errors import UsageError
from kernbench.runtime_api.bench_params import no_such_param
from kernbench.sweep.objectives import read_objectives
from kernbench.sweep.points import MACHINE, Value, plain_value
from kernbench.sweep.request import Mode, SweepRequest
from kernbench.sweep.search import Search
from kernbench.sweep.target import read_target, target_of
from kernbench.topology.yaml_marks import parse_yaml, plain_scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The options of the command line; those left out are None or empty."""

    file: str | None
    bench: str | None
    over: tuple[str, ...]
    zip: bool
    param: tuple[str, ...]
    topology: str | None
    set: tuple[str, ...]
    device: str | None
    verify_data: bool
    search: str | None
    trials: int | None
    seed: int | None
    batch: int | None
    storage: str | None
    objective: str | None
    cost: str | None
    workers: int | None
    cluster: str | None
    out: str | None
    retry_failed: bool
    resume_anyway: bool
    point_timeout: float | None
    plot: bool


def request_of(options: SweepOptions) -> SweepRequest:
    """The request; raises UsageError for invalid options or files before anything is run or written."""
    file = read_sweep_file(options.file) if options.file is not None else SweepFile(Path("."))
    texts = file.texts
    identifier = options.bench or (file.near(texts["bench"]) if "bench" in texts else None)
    if identifier is None:
        raise UsageError("no bench to sweep", hint="give --bench NAME, or a file with `bench:`")
    spec = resolve(identifier)
    if spec.is_evaluation:
        raise UsageError(
            f"bench '{spec.name}' is an evaluation: a sweep already",
            hint=f"kernbench run --bench {spec.name} --out DIR",
        )
    known = {param.name: param for param in spec.params}
    axes = _axes(options, file, known)
    points = _points(file, known) if file.points is not None else None
    always = [*axes] if points is None else [name for name in known if all(name in point for point in points)]
    cost = options.cost or (file.near(texts["cost"]) if "cost" in texts else None)
    objective = options.objective or file.objective
    topology = options.topology or (file.near(texts["topology"]) if "topology" in texts else None)
    return SweepRequest(
        target=target_of(spec.run),
        title=spec.name,
        axes=axes,
        points=points,
        mode=cast(Mode, "zip" if options.zip else texts.get("mode", "grid")),
        params=_shared(options, file, spec, always),
        topology=topology,
        overrides=_overrides(options, file),
        device=spec.device_for(options.device or texts.get("device")),
        verify_data=options.verify_data or file.verify_data,
        search=_search(options, file),
        objectives=read_objectives(objective) if objective is not None else (),
        cost=read_target(cost) if cost is not None else None,
        workers=options.workers or file.workers,
        cluster=options.cluster or texts.get("cluster"),
        out=_out(options, file, spec),
        retry_failed=options.retry_failed,
        resume_anyway=options.resume_anyway,
        point_timeout_s=file.point_timeout if options.point_timeout is None else options.point_timeout,
        plot=options.plot,
    )


def _out(options: SweepOptions, file: SweepFile, spec: BenchSpec) -> Path:
    if options.out is not None:
        if not options.out.strip():
            raise UsageError("--out takes a folder, not an empty name", hint="leave it out for NAME.sweep")
        return Path(options.out)
    if "out" in file.texts:
        return file.path.parent / file.texts["out"]
    name = Path(options.file).stem if options.file is not None else spec.name.replace(":", "-")
    return Path(f"{name}.sweep")


# -------------------------------------------------------------------------------------------------------------- axes


def _axes(options: SweepOptions, file: SweepFile, known: Mapping[str, Param]) -> dict[str, list[Value]]:
    axes: dict[str, list[Value]] = {}
    for name, values in file.over.items():
        where = file.places[f"over.{name}"]
        key = _name(name, known, where)
        parts = split_values(values, where) if isinstance(values, str) else values
        axes[key] = [_value(name, part, known, where) for part in parts]
        if not parts:
            raise UsageError(f"axis '{name}' has no values", where=where, hint="give at least one")
    given: list[str] = []
    for text in options.over:
        name, equals, values = text.partition("=")
        where = f"--over {text}"[:80]
        if not equals or not name.strip():
            raise UsageError(f"--over takes NAME=VALUES, not '{text[:40]}'", hint="write for example --over m=128,256")
        key = _name(name.strip(), known, where)
        if key in given:
            raise UsageError(f"axis '{key}' is given twice", where=where, hint="give all its values at once")
        given.append(key)
        axes[key] = [_value(key, part, known, where) for part in split_values(values, where)]
    return axes


def _points(file: SweepFile, known: Mapping[str, Param]) -> list[dict[str, Value]]:
    where = file.places["points"]
    return [
        {_name(name, known, where): _value(name, value, known, where) for name, value in point.items()}
        for point in file.points or []
    ]


def _name(name: str, known: Mapping[str, Param], where: str) -> str:
    """The name of an axis; raises UsageError when the bench has no such parameter."""
    if name.startswith(MACHINE):
        return name
    if name.replace("-", "_") not in known:
        raise no_such_param(name, {param.name: param.type_name for param in known.values()}, where)
    return name.replace("-", "_")


def _value(name: str, value: Value, known: Mapping[str, Param], where: str) -> Value:
    """A value of the type that the parameter has, or as YAML reads it for the machine."""
    if not name.startswith(MACHINE):
        return known[name.replace("-", "_")].parse(str(value), where)
    if not isinstance(value, str):
        return value
    return plain_value(parse_yaml(value, where).plain() if value[:1] in "[{'\"" else plain_scalar(value), where)


# ------------------------------------------------------------------------------------------------------ what is shared


def _shared(options: SweepOptions, file: SweepFile, spec: BenchSpec, always: Sequence[str]) -> dict[str, Value]:
    """The parameters that not all points set."""
    settings = [f"{name}={value}" for name, value in file.param.items()] + list(options.param)
    for setting in settings:
        name = setting.partition("=")[0].strip().replace("-", "_")
        if name in always:
            raise UsageError(f"parameter '{name}' is an axis and a fixed value", hint="leave one of them out")
    others = [param for param in spec.params if param.name not in always]
    return dict(read_params(others, settings, os.environ))


def _overrides(options: SweepOptions, file: SweepFile) -> dict[str, object]:
    overrides: dict[str, object] = dict(file.set)
    for setting in options.set:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"--set takes KEY=VALUE, not '{setting}'", hint="write for example --set system.sips.count=4"
            )
        overrides.pop(key.strip(), None)
        overrides[key.strip()] = value
    return overrides


def _search(options: SweepOptions, file: SweepFile) -> Search | None:
    given: dict[str, Any] = dict(file.search)
    if isinstance(given.get("storage"), str):
        given["storage"] = file.near(given["storage"])
    typed = {"method": options.search, "trials": options.trials, "seed": options.seed}
    typed |= {"batch": options.batch, "storage": options.storage}
    given |= {name: value for name, value in typed.items() if value is not None}
    if not given:
        return None
    if "method" not in given:
        raise UsageError(f"{', '.join(given)} without a search", hint="give --search random or --search optuna")
    return Search(**given)
