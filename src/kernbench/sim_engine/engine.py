"""The engine: puts a machine's blocks on a clock, lets requests in at their entry, and reports when each is done.

It decides nothing about routes, fan-out or timing: requests enter at a PCIe endpoint or a PE's DMA engine, blocks do
the rest. Engines share a machine's routes and network but no state, so several can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Protocol

import simpy
from simpy.core import EmptySchedule

from kernbench.common.blocked import hint_for
from kernbench.common.errors import ComponentError, DeadlockError, MessageError, StoppedRun, TimeLimitError, UsageError
from kernbench.common.messages import (
    Completion,
    CubeCommand,
    HostMessage,
    KernelLaunchMsg,
    PeResult,
    Request,
    RequestId,
)
from kernbench.common.race import Race
from kernbench.common.units import format_ns
from kernbench.components.base import Process, Served, TransferTrace
from kernbench.components.builtin.pcie_ep import PcieEpComponent
from kernbench.components.recording import NO_REF, Release
from kernbench.sim_engine.blank_memory import BlankMemory
from kernbench.sim_engine.command_order import CommandOrder
from kernbench.sim_engine.entry import entry_node, with_envelope
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fabric.planned_trains import Mode
from kernbench.sim_engine.fast_paths import EXACT, FastPaths, fast_paths_of
from kernbench.sim_engine.gc_threshold import another_machine, raised_gc_threshold
from kernbench.sim_engine.handles import Handle
from kernbench.sim_engine.hop_trace import leg_trace
from kernbench.sim_engine.host_data import (
    DataMessage,
    addresses_of,
    check_value,
    is_write,
    read_contents,
    value_to_write,
)
from kernbench.sim_engine.host_ops import HOST_KIND, host_op
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.simulation_stats import NOT_REPEATABLE
from kernbench.topology.graph import Node, TopologyGraph
from kernbench.triton_emu.repeatable import is_repeatable
from kernbench.values.graph import Value

__all__ = ["EXACT", "EntryPoint", "GraphEngine", "Handle"]

STEPS_PER_REPORT = 1024
INFINITY = float("inf")


class EntryPoint(Protocol):
    """A block that serves what is submitted to it, and returns a `Served`, or only the path that was taken."""

    node: Node

    def serve(self, request: Request, trace: TransferTrace) -> Process: ...


class GraphEngine(Machine):
    """Runs requests on a compiled machine.

    `trace_hops` records when the first and last flit arrived at and left every node; `mode` is the fabric's; `op_log`
    records the ops of every engine of every PE. `data=False` keeps no tensor contents: every load reads zeros.
    `check_races` compares the memory accesses of kernels and host programs; `found_races` returns the races. `fast`
    selects the fast paths (`fast_paths.py`): all of them, or those of a `FastPaths`; `fast=False` runs every kernel and
    simulates every tile, as the environment variable KERNBENCH_EXACT=tiles does for all engines. Times, records and
    counters are the same. An `activity` observes every flit of the fabric. `progress` is called with the time now and
    then while time passes. `stats` has what was replayed.
    """

    def __init__(
        self,
        graph: TopologyGraph,
        *,
        trace_hops: bool = False,
        mode: Mode = "adaptive",
        op_log: OpLog | None = None,
        data: bool = True,
        check_races: bool = False,
        fast: bool | FastPaths | None = None,
        activity: Activity | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        another_machine(graph.spec.n_pes)
        super().__init__(graph, op_log, data, check_races, fast_paths_of(fast, mode), activity)
        self._replay_set = False  # whether launches may be replayed
        self._why_simulated = ""  # why none may
        if not data:
            self._enable_launch_replay()
        self.host_records: dict[RequestId, int] = {}  # of requests that are done: number of the record
        self.trace_hops = trace_hops
        self._progress = progress
        self._max_time_ns = INFINITY
        self._command_order = CommandOrder(self)
        self._handles: list[Handle] = []
        self._answered: list[tuple[int, simpy.Event]] = []  # at this instant: number of the request, what it waits for

    @property
    def now_ns(self) -> float:
        return self.env.now

    def limit_time(self, max_time_ns: float | None) -> None:
        """Let nothing happen after so much simulated time, None for no limit: `run_until` raises TimeLimitError then.
        Raises UsageError for what is no time.
        """
        is_number = isinstance(max_time_ns, int | float) and not isinstance(max_time_ns, bool)
        if max_time_ns is not None and not (is_number and max_time_ns > 0):
            raise UsageError(f"max_time_ns is {max_time_ns!r}", hint="give nanoseconds of simulated time, more than 0")
        self._max_time_ns = INFINITY if max_time_ns is None else max_time_ns

    def drop_contents(self) -> None:
        """Keep no tensor contents from now on; raises UsageError where some are kept once a request was let in."""
        if not self.data:
            return
        if self._handles:
            raise UsageError(
                "contents are dropped after the first tensor or launch", hint="call torch.timing_only() before it"
            )
        self.data, self.memory = False, BlankMemory(self.values, is_unknown_to_kernels=True)
        self._enable_launch_replay()

    def _enable_launch_replay(self) -> None:
        if self._replay_set:
            return
        self._replay_set = True
        # Runs without repeatable kernels do not import it.
        from kernbench.sim_engine.memo.launch_memo import LaunchMemo, why_all_are_simulated

        self._why_simulated = why_all_are_simulated(self)
        if not self._why_simulated:
            self.launch_replayer = LaunchMemo(self)

    def abandon(self) -> None:
        """End all kernels, as far as possible, of a machine that is not used any more."""
        from kernbench.components.builtin.pe_cpu import PeCpuComponent  # probes do without

        for component in list(self._components.values()):  # ending kernels may create further blocks
            if isinstance(component, PeCpuComponent):
                component.abandon()

    @property
    def requests(self) -> int:
        """How many requests were let in so far."""
        return len(self._handles)

    def submit(self, msg: HostMessage, value: Value | None = None) -> Handle:
        """Let a request in now; raises MessageError, AddressError or RoutingError for one that cannot be served.

        `value` is what a write leaves in memory when it is done, instead of its pattern. What a read found is
        `Handle.contents` when it is done.
        """
        msg = with_envelope(msg, len(self._handles))
        self._check_kernel(msg)
        check_value(msg, value)
        entry = self._entry_of(msg)
        return self._enter(msg, entry, self._hold_ns(msg, entry), value)

    def submit_together(self, launches: Sequence[KernelLaunchMsg]) -> list[Handle]:
        """Let launches on several SIPs in now, all of whose PEs start at one instant: when the last of them can."""
        entries = []
        launches = [launch.located() for launch in launches]
        for launch in launches:
            self._check_kernel(launch)
            entries.append(self._entry_of(with_envelope(launch, 0)))
        holds_ns = [self._hold_ns(launch, entry) for launch, entry in zip(launches, entries, strict=True)]
        leads_ns = [
            hold_ns + (entry.lead_ns(launch) if isinstance(entry, PcieEpComponent) else 0.0)
            for launch, entry, hold_ns in zip(launches, entries, holds_ns, strict=True)
        ]
        start_ns = self.env.now + max(leads_ns, default=0.0)
        handles = []
        for launch, entry, hold_ns in zip(launches, entries, holds_ns, strict=True):
            msg = with_envelope(replace(launch, target_start_ns=start_ns), len(self._handles))
            handles.append(self._enter(msg, entry, hold_ns))
        return handles

    def wait(self, handle: Handle) -> Completion:
        """Let time pass until the request is done; raises DeadlockError when it can never be."""
        self._check_ours(handle)
        if handle.done is not None and not self.run_until_done(handle.done):
            blocked = self.blocked_kernels()
            raise DeadlockError(
                f"request {handle.request.request_id} is never answered",
                blocked,
                where=f"{handle.entry}, {type(handle.request).__name__} submitted at {handle.start_ns} ns",
                hint=hint_for(blocked, ()) or "a component on its path neither answers a packet nor sends it on",
            )
        self.note_waited((handle,))
        return handle.completion

    def note_waited(self, handles: Sequence[Handle]) -> None:
        """The host program that runs knows that these requests are done."""
        if self.races is not None:
            for handle in handles:
                self.races.waited(handle.number)

    def found_races(self) -> list[Race]:
        """The races so far, each pair of lines once; none where they are not looked for."""
        return [] if self.races is None else self.races.detector.races()

    def run_until_done(self, event: simpy.Event) -> bool:
        """Let time pass until `event` has happened; False when nothing is left that could."""
        if event.callbacks is None:
            return True
        happened: list[simpy.Event] = []
        event.callbacks.append(happened.append)
        return self.run_until(happened)

    def run_until(self, happened: Collection[object]) -> bool:
        """Let time pass until there is something in `happened`, which callbacks fill; False when nothing is left that
        could happen. Raises TimeLimitError when it would happen after the limit of the run.
        """
        step, progress = self.env.step, self._progress
        is_limited = self._max_time_ns < INFINITY
        steps = 0
        with raised_gc_threshold():
            try:
                while not happened:
                    if is_limited and self._max_time_ns < self.env.peek() < INFINITY:
                        raise self._out_of_time()
                    step()
                    steps += 1
                    if progress is not None and steps % STEPS_PER_REPORT == 0:
                        progress(self.env.now)
            except EmptySchedule:
                return False
            except KeyboardInterrupt as stopped:  # wherever it comes between two steps
                raise StoppedRun(self.env.now, self.standing_kernels()) from stopped
        return True

    def _out_of_time(self) -> TimeLimitError:
        return TimeLimitError(
            f"the run takes more than {format_ns(self._max_time_ns)} of simulated time, its limit",
            self.blocked_kernels(),
            hint="look for a loop that waits for what never comes, such as a lock that is not released, or set a "
            "higher limit",
        )

    def wait_all(self) -> None:
        """Let time pass until every request is done."""
        for handle in self._handles:
            self.wait(handle)

    def get_completion(self, handle: Handle) -> tuple[Completion, dict[str, Any]]:
        """How a request ended, and its trace: `total_ns`, `start_ns`, `end_ns`, `path`; `hops` when they are traced.

        The trace of a launch also has `pes`, one PeResult each, and the longest of their `pe_exec_ns`, `dma_ns` and
        `compute_ns`.
        """
        self._check_ours(handle)
        if handle.end_ns is None:
            raise UsageError(f"request {handle.request.request_id} is not done", hint="wait for it first")
        trace: dict[str, Any] = {
            "total_ns": handle.end_ns - handle.start_ns,
            "start_ns": handle.start_ns,
            "end_ns": handle.end_ns,
            "path": list(handle.path),
        }
        if isinstance(handle.request, KernelLaunchMsg):
            trace["pes"] = list(handle.results)
            for name in ("pe_exec_ns", "dma_ns", "compute_ns"):
                trace[name] = max((getattr(result, name) for result in handle.results), default=0.0)
        if handle.transfers is not None:
            trace["hops"] = [leg_trace(self.fabric, transfer) for transfer in handle.transfers]
        return handle.completion, trace

    def _check_ours(self, handle: Handle) -> None:
        number = handle.number if isinstance(handle, Handle) else len(self._handles)
        if not any(handle is ours for ours in self._handles[number : number + 1]):
            raise UsageError("that handle is not one of this engine's", hint="ask the engine whose submit returned it")

    def _entry_of(self, msg: HostMessage) -> EntryPoint:
        node = entry_node(self.graph, self._wiring, msg)
        entry = self.component(node)
        if not hasattr(entry, "serve"):
            raise ComponentError(
                f"{node} serves no requests", where=f"impl {entry.node.impl}", hint="give its class a serve method"
            )
        return entry

    def _hold_ns(self, msg: HostMessage, entry: EntryPoint) -> float:
        """How long a request waits at its entry, so that no command overtakes one submitted before it."""
        return self._command_order.admit(msg, entry.node.id) if isinstance(msg, CubeCommand) else 0.0

    def _enter(self, msg: HostMessage, entry: EntryPoint, hold_ns: float, value: Value | None = None) -> Handle:
        transfers: TransferTrace = [] if self.trace_hops else None
        handle = Handle(len(self._handles), msg, entry.node.id, value, start_ns=self.env.now, transfers=transfers)
        if self.races is not None:
            self.races.submitted(handle.number, msg, self.env.now)
        if isinstance(msg, KernelLaunchMsg):
            self._note_begin(msg)
        handle.done = self.env.process(self._follow(handle, entry, hold_ns))
        self._handles.append(handle)
        return handle

    def _check_kernel(self, msg: HostMessage) -> None:
        if isinstance(msg, KernelLaunchMsg) and msg.kernel_ref.name not in self.kernels:
            known = ", ".join(self.kernels) or "none yet"
            raise MessageError(f"no kernel '{msg.kernel_ref.name}' is known here", hint=f"known kernels: {known}")
        if (
            not self._replay_set
            and isinstance(msg, KernelLaunchMsg)
            and is_repeatable(self.kernels[msg.kernel_ref.name])
        ):
            self._enable_launch_replay()

    def _note_begin(self, launch: KernelLaunchMsg) -> None:
        """A launch is simulated for these reasons, unless it is found out later that it is not."""
        is_known = is_repeatable(self.kernels[launch.kernel_ref.name])
        self.note_launch(launch, self._why_simulated if is_known else NOT_REPEATABLE)

    def _follow(self, handle: Handle, entry: EntryPoint, hold_ns: float) -> Process:
        if hold_ns:
            yield self.env.timeout(hold_ns)
        served = yield from entry.serve(handle.request, handle.transfers)
        if isinstance(served, Served):
            handle.path = served.path
            if isinstance(served.payload, tuple):
                handle.results = tuple(item for item in served.payload if isinstance(item, PeResult))
        else:
            handle.path = served
        handle.end_ns = self.env.now
        if self.races is not None:
            self.races.done(handle.number, handle.request, handle.end_ns)
        op = self._record(handle)
        if isinstance(handle.request, DataMessage):
            if is_write(handle.request):
                self._leave_in_memory(handle, handle.request, op)
            elif self.data:
                handle.contents = read_contents(self.memory, self.graph.spec, handle.request)
        yield self._in_order(handle.number)

    def _in_order(self, number: int) -> simpy.Event:
        """Happens at the end of this instant: requests that are answered at one instant are done in the order in which
        they were submitted, whatever the order of their last messages.
        """
        if not self._answered:
            self.env.at_end_of_instant(self._end_answered)
        done = self.env.event()
        self._answered.append((number, done))
        return done

    def _end_answered(self, _: simpy.Event) -> None:
        answered, self._answered = sorted(self._answered, key=itemgetter(0)), []
        for _number, done in answered:
            done.succeed()

    def _record(self, handle: Handle) -> int | None:
        """Write a request down that is done; returns the id of its record, if it has one."""
        entry = host_op(handle.request) if self.log is not None else None
        if self.log is None or entry is None or handle.end_ns is None:
            return None
        name, params = entry
        causes = (0, Release.HOST, handle.start_ns, NO_REF)
        number = self.log.record(handle.start_ns, handle.end_ns, handle.entry, HOST_KIND, name, params, causes=causes)
        if self.activity is not None:
            self.host_records[handle.request.id] = number
        return number

    def _leave_in_memory(self, handle: Handle, write: DataMessage, op: int | None) -> None:
        given, handle.value = handle.value, None  # a handle outlives its write and must not hold the tensor
        value = value_to_write(self.values, write, given) if self.data else None
        for pa in addresses_of(self.graph.spec, write):
            if self.writers is not None:
                self.writers.note(pa, write.nbytes, op)
            if value is not None:
                self.memory.write(pa, value)
