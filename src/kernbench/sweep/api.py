"""`kernbench.sweep`: many runs of a function from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from kernbench.common.errors import UsageError
from kernbench.sweep.driver import SweepProgress
from kernbench.sweep.objectives import Objective, read_objectives
from kernbench.sweep.points import JsonValue, checked_axes, plain_value
from kernbench.sweep.request import AxesMode, SweepRequest, run_sweep
from kernbench.sweep.rows import SweepRow
from kernbench.sweep.search import BATCH, TRIALS, Method, Search
from kernbench.sweep.target import Function, target_of
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.layers import Overrides, Source
from kernbench.topology.spec import MachineSpec


def sweep(
    fn: Function,
    over: Mapping[str, Iterable[object]] | None = None,
    *,
    points: Sequence[Mapping[str, object]] | None = None,
    mode: AxesMode = "grid",
    params: Mapping[str, object] | None = None,
    topology: Source | TopologyGraph = None,
    overrides: Overrides | None = None,
    name: str | None = None,
    device: str | int = "all",
    verify_data: bool = False,
    search: Method | None = None,
    trials: int = TRIALS,
    seed: int = 0,
    batch: int = BATCH,
    storage: str | None = None,
    objectives: str | Sequence[Objective] = (),
    cost: Callable[[MachineSpec], float] | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    out: str | os.PathLike[str] | None = None,
    retry_failed: bool = False,
    resume_anyway: bool = False,
    point_timeout_s: float | None = None,
    progress: Callable[[SweepProgress], None] | None = None,
) -> list[SweepRow]:
    """Run `fn(torch, **params)` once for each point and return a row for each, in order of the points.

    `over` has the axes: {"m": [128, 256], "machine:system.sips.count": [1, 2]}; their grid is run, or with `mode="zip"`
    their values pairwise, or the samples of a `search` ("random", "optuna"). `points` is a list of such settings
    instead. `params`, `topology` and `overrides` are common to all points. A point that fails is a row that is not `ok`
    and has an `error`. `cost` is a function of a MachineSpec for the column of that name.

    Points run in `workers` processes, by default one per core; 0 is this process. A function that other processes
    cannot import runs in this one. `cluster` is the address of a dask scheduler. With `out`, every row is written to
    that folder as soon as it is complete, a second call runs only missing points, and tables and a plot are written.
    Rows there that were made with another source of the function or of KernBench are an error, unless `resume_anyway`.
    A point that runs longer than `point_timeout_s` is stopped and becomes a row with an error; that needs worker
    processes. Raises UsageError or TopologyError for faults that affect all points.
    """
    _check_kinds(over=over, params=params, overrides=overrides, points=points, name=name, device=device, out=out,
                 storage=storage, cluster=cluster, workers=workers, objectives=objectives,
                 progress=progress)  # fmt: skip
    shared = {key: plain_value(value, f"params['{key}']") for key, value in (params or {}).items()}
    settings = None if points is None else [_setting(point) for point in points]
    request = SweepRequest(
        target=target_of(fn),
        title=name or str(getattr(fn, "__name__", "bench")),
        axes=checked_axes(over or {}),
        points=settings,
        mode=mode,
        params=shared,
        topology=topology,
        overrides=overrides,
        device=str(device),
        verify_data=verify_data,
        search=None if search is None else Search(search, trials, seed, batch, storage),
        objectives=read_objectives(objectives) if isinstance(objectives, str) else tuple(objectives),
        cost=None if cost is None else target_of(cost),
        workers=workers,
        cluster=cluster,
        out=None if out is None else Path(out),
        retry_failed=retry_failed,
        resume_anyway=resume_anyway,
        point_timeout_s=point_timeout_s,
    )
    return run_sweep(request, progress).rows


_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {  # of arguments that are not None: what they may be, in words
    **dict.fromkeys(("over", "params", "overrides"), ((Mapping,), "a mapping of names to values")),
    "points": ((list, tuple), "a list of mappings: [{'m': 128}, {'m': 256}]"),
    **dict.fromkeys(("name", "storage", "cluster"), ((str,), "a text")),
    "device": ((str, int), '"all", "whole", "sip:N" or a number'),
    "out": ((str, os.PathLike), "the path of a folder"),
    "workers": ((int,), "a whole number of processes, or 0 for this one"),
    "objectives": ((str, list, tuple), "a text as total_ns:min,cost:min, or a list of Objective"),
    "progress": ((Callable,), "a function of a SweepProgress"),  # type: ignore[dict-item]  # isinstance takes it
}


def _check_kinds(**given: object) -> None:
    """Raise UsageError for an argument of another kind."""
    for name, value in given.items():
        kinds, what = _KINDS[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise UsageError(f"{name} is {repr(value)[:80]}", where="kernbench.sweep", hint=f"give {what}")
    objectives = given["objectives"]
    if isinstance(objectives, list | tuple) and not all(isinstance(each, Objective) for each in objectives):
        raise UsageError(
            f"objectives is {repr(objectives)[:80]}", where="kernbench.sweep", hint=f"give {_KINDS['objectives'][1]}"
        )


def _setting(point: Mapping[str, object]) -> dict[str, JsonValue]:
    if not isinstance(point, Mapping):
        raise UsageError(f"{point!r} is no point", hint="give mappings: {'m': 128, 'machine:system.sips.count': 2}")
    return {str(name): plain_value(value, f"point value '{name}'") for name, value in point.items()}
