"""Builds the request of `kernbench sweep` from its options and file. Options override the file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kernbench.benches._params import Param, read_params
from kernbench.benches.registry import BenchSpec, resolve
from kernbench.cli.scenario_file import BENCH, read_scenario
from kernbench.cli.sweep_file import SweepFile, read_sweep_file
from kernbench.cli.sweep_values import split_values
from kernbench.common.errors import UsageError
from kernbench.runtime_api.bench_params import no_such_param
from kernbench.sweep.conditions import read_condition
from kernbench.sweep.objectives import read_objectives
from kernbench.sweep.points import COUPLED, MACHINE, JsonValue, check_parts, plain_value
from kernbench.sweep.request import AxesMode, SweepRequest
from kernbench.sweep.scenario import Scenario
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
    scenario: str | None
    where: tuple[str, ...]
    sensitivity: bool


def request_of(options: SweepOptions) -> SweepRequest:
    """The request; raises UsageError for invalid options or files before anything is run or written."""
    file = read_sweep_file(options.file) if options.file is not None else SweepFile(Path("."))
    texts = file.texts
    identifier = options.bench or (file.near(texts["bench"]) if "bench" in texts else None)
    scenario_file = options.scenario or (file.near(texts["scenario"]) if "scenario" in texts else None)
    if scenario_file is not None:
        if identifier is not None:
            raise UsageError("a scenario and a bench", hint=f"leave one of them out: a scenario runs {BENCH}")
        identifier = BENCH
    if identifier is None:
        raise UsageError("no bench to sweep", hint="give --bench NAME or --scenario FILE, or a file with `bench:`")
    spec = resolve(identifier)
    if spec.is_evaluation:
        raise UsageError(
            f"bench '{spec.name}' is an evaluation: a sweep already",
            hint=f"kernbench run --bench {spec.name} --out DIR",
        )
    known = {param.name: param for param in spec.params}
    axes = _axes(options, file, known)
    points = _points(file, known) if file.points is not None else None
    sensitivity = options.sensitivity or file.sensitivity
    scenario = None if scenario_file is None else read_scenario(scenario_file, spec)
    _refuse_work(scenario, [*axes, *(name for point in points or [] for name in point)], options, file)
    always = (
        []
        if sensitivity
        else [*axes]
        if points is None
        else [name for name in known if all(name in point for point in points)]
    )
    cost = options.cost or (file.near(texts["cost"]) if "cost" in texts else None)
    objective = options.objective or file.objective
    topology = options.topology or (file.near(texts["topology"]) if "topology" in texts else None)
    return SweepRequest(
        target=target_of(spec.run),
        title=spec.name,
        axes=axes,
        points=points,
        mode=cast(AxesMode, "zip" if options.zip else texts.get("mode", "grid")),
        params={} if scenario is not None else _shared(options, file, spec, always),
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
        scenario=scenario,
        where=tuple(read_condition(text) for text in (*file.where, *options.where)),
        sensitivity=sensitivity,
    )


def _refuse_work(scenario: Scenario | None, names: Sequence[str], options: SweepOptions, file: SweepFile) -> None:
    """Raise UsageError where something else than the scenario sets a parameter of the bench."""
    own = [name for name in names if not name.startswith(MACHINE)]
    own += [setting.partition("=")[0] for setting in options.param] + list(file.param)
    if scenario is not None and own:
        raise UsageError(f"'{own[0]}' is set beside a scenario", hint="set it in the workloads; axes are machine:KEY")


def _out(options: SweepOptions, file: SweepFile, spec: BenchSpec) -> Path:
    if options.out is not None:
        if not options.out.strip():
            raise UsageError("--out takes a folder, not an empty name", hint="leave it out for NAME.sweep")
        return Path(options.out)
    if "out" in file.texts:
        return file.path.parent / file.texts["out"]
    name = Path(options.file).stem if options.file is not None else spec.name.replace(":", "-")
    if options.scenario is not None and options.file is None:
        name = Path(options.scenario).stem
    return Path(f"{name}.sweep")


# -------------------------------------------------------------------------------------------------------------- axes


def _axes(options: SweepOptions, file: SweepFile, known: Mapping[str, Param]) -> dict[str, list[JsonValue]]:
    axes: dict[str, list[JsonValue]] = {}
    is_sampled = bool(options.search or file.search)
    for name, values in file.over.items():
        where = file.places[f"over.{name}"]
        key = _name(name, known, where)
        parts = split_values(values, where, is_sampled=is_sampled) if isinstance(values, str) else values
        axes[key] = _values(key, parts, known, where)
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
        axes[key] = _values(key, split_values(values, where, is_sampled=is_sampled), known, where)
    return axes


def _values(name: str, given: Sequence[JsonValue], known: Mapping[str, Param], where: str) -> list[JsonValue]:
    """The values of an axis; raises UsageError where one has not a part for each key."""
    if given:
        check_parts(name, [len(_parts(value)) for value in given], where)
    return [_value(name, value, known, where) for value in given]


def _parts(value: JsonValue) -> list[JsonValue]:
    """The parts of a value of coupled axes."""
    return value if isinstance(value, list) else [*str(value).split(COUPLED)]


def _points(file: SweepFile, known: Mapping[str, Param]) -> list[dict[str, JsonValue]]:
    where = file.places["points"]
    return [
        {_name(name, known, where): _value(name, value, known, where) for name, value in point.items()}
        for point in file.points or []
    ]


def _name(name: str, known: Mapping[str, Param], where: str) -> str:
    """The name of an axis; raises UsageError when the bench has no such parameter."""
    if COUPLED in name:
        return COUPLED.join(_name(part.strip(), known, where) for part in name.split(COUPLED))
    if name.startswith(MACHINE):
        return name
    if name.replace("-", "_") not in known:
        raise no_such_param(name, {param.name: param.type_name for param in known.values()}, where)
    return name.replace("-", "_")


def _value(name: str, value: JsonValue, known: Mapping[str, Param], where: str) -> JsonValue:
    """A value of the type that the parameter has, or as YAML reads it for the machine; a list for coupled axes."""
    if COUPLED in name:
        names = name.split(COUPLED)
        parts = _parts(value)
        check_parts(name, [len(parts)], where)
        return [_value(each, parts[at % len(parts)], known, where) for at, each in enumerate(names)]
    if not name.startswith(MACHINE):
        return known[name.replace("-", "_")].parse(str(value), where)
    if not isinstance(value, str):
        return value
    return plain_value(parse_yaml(value, where).plain() if value[:1] in "[{'\"" else plain_scalar(value), where)


# ------------------------------------------------------------------------------------------------------ what is shared


def _shared(options: SweepOptions, file: SweepFile, spec: BenchSpec, always: Sequence[str]) -> dict[str, JsonValue]:
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
