"""Run a bench on a machine: once for each chosen device, all in one simulation, and return the result.

A bench is a function of `torch` (a RuntimeContext) that works on one device. On several devices it runs as several
concurrent ranks, each with its own current device, so that they contend for the hardware; on all devices they are the
ranks of `torch.distributed`, like programs started by torchrun. A bench that drives the whole tray runs once, and its
current device is 0 until it selects another. Simulated time ends when the last rank and everything it issued is done;
freeing tensors afterwards and verification take no simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

from kernbench.common.argument_types import CALLED, NAMED, SWITCH, TEXT, check_arguments, instance_of, is_switch, one_of
from kernbench.common.errors import FastCheckError, KernBenchError, UsageError
from kernbench.common.frozen import frozen
from kernbench.common.messages import Completion
from kernbench.common.whole_numbers import whole_number
from kernbench.runtime_api.bench_params import check_params
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.check_fast import CheckFast, check_fast
from kernbench.runtime_api.checks import Checks
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.host_line import at_host_line
from kernbench.runtime_api.observation import Observation, Observer, is_plain
from kernbench.runtime_api.script_errors import shorten_uncaught_errors
from kernbench.runtime_api.workers import Team, Worker, spawns_ranks
from kernbench.sim_engine.data_executor import DataExecutor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fabric.planned_trains import Mode
from kernbench.sim_engine.fast_paths import FastPaths, fast_paths_of, is_check_wanted
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.layers import Overrides, Source
from kernbench.values.backends import backend_named
from kernbench.values.evaluate import thread_count
from kernbench.values.op import BackendName

Bench = Callable[..., object]
WHOLE = "whole"  # as a device: all of them, for one run of the bench
NO_REFERENCE = "NO_REFERENCE"  # a run was to be verified, and its bench never called `torch.check`


_KINDS = {
    "overrides": NAMED,
    "name": TEXT,
    "params": NAMED,
    "verify_data": SWITCH,
    "debug_ops": SWITCH,
    "op_log": instance_of(OpLog, "an OpLog"),
    "data": SWITCH,
    "check_races": SWITCH,
    "mode": one_of(*get_args(Mode)),
    "fast": (lambda value: isinstance(value, FastPaths) or is_switch(value), "True, False or a FastPaths"),
    "check_fast": (lambda value: value == "each" or is_switch(value), "True, False or 'each'"),
    "backend": one_of(*get_args(BackendName)),
    "progress": CALLED,
}


@frozen(kw_only=True)
class RunOptions:
    """How a bench is run. See `kernbench.run`."""

    device: str | int = "all"
    verify_data: bool = False
    debug_ops: bool = False
    op_log: OpLog | None = None
    data: bool = True
    check_races: bool = False
    mode: Mode = "adaptive"
    fast: bool | FastPaths | None = None
    check_fast: CheckFast = False
    threads: int | None = None
    backend: BackendName = "numpy"
    progress: Callable[[float], None] | None = None
    max_time_ns: float | None = None
    activity: Activity | None = None  # sees every flit on every link and channel
    may_be_idle: bool = False  # a run that asks nothing of the device is no failure
    announce_data_pass: Callable[[float], None] | None = None  # called with the estimated seconds, if over 10

    @property
    def verifies(self) -> bool:
        """Whether the references given to `torch.check` are compared."""
        return self.verify_data or self.debug_ops


def run(
    fn: Bench,
    topology: Source | TopologyGraph = None,
    overrides: Overrides | None = None,
    *,
    name: str | None = None,
    params: Mapping[str, object] | None = None,
    device: str | int = "all",
    verify_data: bool = False,
    debug_ops: bool = False,
    op_log: OpLog | None = None,
    data: bool = True,
    check_races: bool = False,
    mode: Mode = "adaptive",
    fast: bool | FastPaths | None = None,
    check_fast: CheckFast = False,
    threads: int | None = None,
    backend: BackendName = "numpy",
    progress: Callable[[float], None] | None = None,
    max_time_ns: float | None = None,
) -> BenchResult:
    """Run `fn(torch, **params)` on a machine and return the result.

    `topology` is a file, a mapping, a compiled machine, or None for the shipped one; `overrides` changes single values:
    {"system.sips.count": 4}. `device` is "all" (the function runs once for each SIP), "sip:N" or N, or "whole": it runs
    once and drives all SIPs itself, as with "all" does one that calls `torch.multiprocessing.spawn`. `verify_data`
    compares the references given to `torch.check`, `debug_ops` every intermediate op too. `op_log` receives the records
    (in memory unless it streams).
    `data=False` carries no tensor contents. `check_races` detects unordered accesses to the same bytes, and the result
    lists them as `races`. `fast=False` simulates every tile of every composite, with the same times; so does the
    environment variable KERNBENCH_EXACT=tiles; a `FastPaths` selects the fast paths that are used. `check_fast` runs
    the function a second time with all of them off and compares everything observable: `fast_check` of the result has
    the first difference; `check_fast="each"` also disables them one at a time. KERNBENCH_EXACT=check does so for every
    run. `progress` is called from time to time with the simulated time.
    `backend="torch"` computes tensors with PyTorch, on a GPU where there is one, and keeps them there until the host
    reads them. A run that needs more simulated time than `max_time_ns` ends with a TimeLimitError, which shows where
    every kernel is blocked.

    A run that is to be verified and states no reference is not ok: its completion has the code NO_REFERENCE. Raises
    UsageError for parameters that the function does not take and for the torch backend where PyTorch is missing,
    LaunchError when a kernel fails, and whatever the function raises.
    """
    check_arguments("kernbench.run", _KINDS, locals())
    shorten_uncaught_errors()
    options = RunOptions(
        device=device,
        verify_data=verify_data,
        debug_ops=debug_ops,
        op_log=op_log,
        data=data,
        check_races=check_races,
        mode=mode,
        fast=fast,
        check_fast=check_fast,
        threads=threads,
        backend=backend,
        progress=progress,
        max_time_ns=max_time_ns,
    )
    return run_bench(fn, _compiled(topology, overrides), options, name=name, params=params)


def _compiled(topology: Source | TopologyGraph, overrides: Overrides | None) -> TopologyGraph:
    """The machine of a run; raises UsageError for overrides of one that is compiled already."""
    if not isinstance(topology, TopologyGraph):
        return load_topology(topology, overrides)
    if overrides:
        raise UsageError("overrides for a machine that is compiled already", hint="load_topology takes overrides")
    return topology


def run_bench(
    fn: Bench,
    graph: TopologyGraph,
    options: RunOptions | None = None,
    *,
    name: str | None = None,
    params: Mapping[str, object] | None = None,
) -> BenchResult:
    """Run a bench on a compiled machine. See `run`."""
    chosen, params = options or RunOptions(), params or {}
    _check(fn, chosen, params)
    if chosen.device == "all" and spawns_ranks(fn):
        chosen = replace(chosen, device=WHOLE)
    one = partial(_run_once, fn, graph, title=name or str(getattr(fn, "__name__", "bench")), params=params)
    if chosen.check_fast or is_check_wanted():
        return _run_checked(one, chosen)
    return one(chosen)


RunOnce = Callable[..., BenchResult]  # (options, on_observed): see `_run_once`


def _run_checked(one: RunOnce, options: RunOptions) -> BenchResult:
    """Run a bench as usual, and again without fast paths. The result is that of the first run, or of the second if only
    the first fails. Raises what both raise, and FastCheckError where they raise different things.
    """
    results: list[BenchResult] = []
    errors: list[Exception] = []

    def observed(paths: FastPaths, log: OpLog | None = None, asked: RunOptions | None = None) -> Observation:
        seen: list[Observation] = []
        keeps_lines = options.op_log is not None and options.op_log.lines
        log = OpLog(lines=keeps_lines) if log is None else log
        plain = replace(options, op_log=log, activity=None, fast=paths, mode="adaptive", announce_data_pass=None)
        try:
            results.append(one(asked or plain, seen.append))
        except Exception as error:
            errors.append(error)
            return Observation(error=f"{type(error).__name__}: {error}")
        return seen[0]

    paths = fast_paths_of(options.fast, options.mode)
    first = observed(paths, asked=options)
    result = results[0] if results else None
    if result is not None and (type(options.op_log) not in (OpLog, type(None)) or options.activity is not None):
        first = observed(paths)  # a log that was streamed to a file cannot be compared
    check = check_fast(first, paths, observed, each=options.check_fast == "each")
    if result is None and check.ok:
        raise errors[0]
    if result is None and not results:
        what = f"the run fails, and with all fast paths off it fails in another way\n{check.as_text()}"
        raise FastCheckError(what, errors[0], errors[1], hint="the second failure is the program's own")
    result = result or results[0]
    result.fast_check = check
    return result


def _run_once(
    fn: Bench,
    graph: TopologyGraph,
    chosen: RunOptions,
    on_observed: Callable[[Observation], object] | None = None,
    *,
    title: str,
    params: Mapping[str, object],
) -> BenchResult:
    session = RunSession(graph, chosen, title)
    observer = None if on_observed is None else Observer(session.torch)
    try:
        with session.engine.stats.phase("simulate"):
            returned = _run_ranks(session.torch, session.ranks, fn, params)
        result = session.finish(returned)
        notes = [*filter(is_plain, returned), [(check.tensor, check.ok) for check in result.data]]
        seen = None if observer is None else observer.take(notes)
        session.close()
        if on_observed is not None and seen is not None:
            on_observed(seen)
    except BaseException:
        session.abandon()
        raise
    return result


class RunSession:
    """A new machine and the host's context on it, from the first request of a program to its result."""

    def __init__(self, graph: TopologyGraph, options: RunOptions, title: str) -> None:
        self._options, self._title = options, title
        self._devices = devices_of(options.device, graph.spec.n_sips)
        self._backend = backend_named(options.backend)
        self.engine = _engine(graph, options)
        self.ranks = self._devices[:1] if is_whole(options.device) else self._devices
        self._checks = Checks(enabled=options.verifies, name_devices=len(self.ranks) > 1)
        self.torch = RuntimeContext(self.engine, device=self._devices[0], correlation_id=title, checks=self._checks)

    def finish(self, returned: list[object]) -> BenchResult:
        """The result of a program that has ended; contents are verified if that was asked for."""
        options, engine, checks = self._options, self.engine, self._checks
        executor = DataExecutor(
            threads=options.threads,
            backend=self._backend,
            debug_ops=options.debug_ops,
            sites=engine.values.sites,
            announce=options.announce_data_pass,
        )
        total_ns = engine.now_ns
        engine.limit_time(None)  # what follows is not part of the run
        with engine.stats.phase("verify"):
            data = checks.verify(executor) if options.verifies else []
        idle_code = None if options.may_be_idle else "NO_REQUESTS"
        completion = _completion(self.torch, idle_code, stated=len(checks) > 0 or not options.verifies)
        result = BenchResult(
            self._title, completion, total_ns, self._devices, self.torch.launches, data, executor.ops, returned, engine
        )
        result.races = engine.found_races()
        result.backend, result.backend_device = self._backend.name, self._backend.device
        return result

    def close(self) -> None:
        """Free everything."""
        self.torch.close()

    def abandon(self) -> None:
        """Give the machine up after an error."""
        self.torch.close(wait=False)
        self.engine.abandon()


def _check(fn: Bench, options: RunOptions, params: Mapping[str, object]) -> None:
    """Raise UsageError for what cannot be run."""
    if not callable(fn):
        raise UsageError(f"a bench is a function of torch, not {fn!r}", hint="give the function itself")
    check_params(fn, params)
    if options.verifies and not options.data:
        raise UsageError("a run without data cannot be verified", hint="leave data=False out")
    thread_count(options.threads)


def _engine(graph: TopologyGraph, options: RunOptions) -> GraphEngine:
    """A new, idle machine for a run."""
    engine = GraphEngine(
        graph,
        mode=options.mode,
        op_log=options.op_log if options.op_log is not None else OpLog(),
        data=options.data,
        check_races=options.check_races,
        fast=options.fast,
        activity=options.activity,
        progress=options.progress,
    )
    engine.limit_time(options.max_time_ns)
    engine.values.backend = options.backend
    if options.debug_ops:
        engine.values.sites = {}
    return engine


def _run_ranks(torch: RuntimeContext, devices: Sequence[int], fn: Bench, params: Mapping[str, object]) -> list[object]:
    """Run the bench once on each of these devices, concurrently, and return what it returned there. Several devices are
    a team of ranks.
    """
    if len(devices) == 1:
        return torch.ranks.run([partial(_on_device, torch, devices[0], None, fn, params)])
    team = Team(len(devices))
    bodies = [partial(_on_device, torch, device, team, fn, params) for device in devices]
    returned = torch.ranks.run(bodies, [f"device {device}" for device in devices])
    torch.team_ends(team, failed=False)
    return returned


def _completion(torch: RuntimeContext, idle_code: str | None, *, stated: bool) -> Completion:
    """The completion of a run that raised nothing. `idle_code`: the error of a run that asked nothing of the device.
    `stated`: whether it stated a reference, if it is to be verified.
    """
    if not torch.engine.requests:
        message = "the bench asked nothing of the device"
        return Completion(ok=idle_code is None, error_code=idle_code, error_message=message if idle_code else None)
    if not stated:
        message = "the bench states no reference, so nothing was compared"
        return Completion(ok=False, error_code=NO_REFERENCE, error_message=message)
    return Completion(ok=True)


def _on_device(
    torch: RuntimeContext, device: int, team: Team | None, fn: Bench, params: Mapping[str, object]
) -> object:
    torch.ahbm.set_device(device)
    if team is not None:
        torch.workers.bind(Worker(team, device))
    try:
        returned = fn(torch, **params)
    except KernBenchError as error:
        at_host_line(error)
        raise
    torch.wait_all()
    if team is not None:
        team.ended.append(device)
    return returned


def is_whole(selector: str | int) -> bool:
    """Whether the device selector is "whole": one run of the bench for the whole tray."""
    return str(selector).strip().lower() == WHOLE


def devices_of(selector: str | int, n_sips: int) -> tuple[int, ...]:
    """The SIPs that "all", "whole", "sip:N" or N names, in any case; raises UsageError when there is no such SIP."""
    text = str(selector).strip().lower().removeprefix("sip:")
    if text == "all" or is_whole(selector):
        return tuple(range(n_sips))
    number = None if isinstance(selector, bool) else whole_number(text)
    if number is None or number >= n_sips:
        raise UsageError(f"no device '{selector!s:.40}'", hint=f"use all, whole, or sip:0 to sip:{n_sips - 1}")
    return (number,)
