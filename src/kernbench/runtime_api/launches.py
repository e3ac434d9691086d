"""A launch as the host sees it: its PEs, its times, how long each PE was busy, and how much work was done.

Figures (`flops`, `bytes_hbm`, `engines`, times of PEs) count this launch only, whatever else runs concurrently, with
one exception: while a PE runs a compute and a communication kernel at the same time, `bytes_hbm` and the busy times of
its DMA and TCM ports count both. The figures of a failed launch cover the PEs whose kernel ended by itself, normally or
with the failure; the work of aborted PEs is left out. A failure is reported at once; the launch is over, and releases
its tensors, when all of its PEs have stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import ReferenceType, ref

from greenlet import getcurrent, greenlet

from kernbench.ccl.install import check_received
from kernbench.common.channel_traffic import NO_TRAFFIC, ChannelTraffic
from kernbench.common.errors import LaunchError, StoppedMessagesError
from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId, memory_kind
from kernbench.common.ipcq import Unreceived
from kernbench.common.message_traffic import NodePath
from kernbench.common.messages import KernelFailure, KernelLaunchMsg, PeResult
from kernbench.common.work_units import flops_of
from kernbench.sim_engine.handles import Handle
from kernbench.sim_engine.op_tally import EngineWork, WorkKey

PER_PE = ("sip", "cube", "pe", "pe_exec_ns", "dma_ns", "compute_ns", "tcm_peak_bytes")  # of a PeResult, for JSON
# Engines whose channels work in parallel: the PE reports how long at least one channel was busy.
OVERLAPPING: Mapping[str, Callable[[PeResult], float]] = {
    "pe_dma": lambda result: result.dma_ns,
    "pe_fetch_store": lambda result: result.tcm_ns,
}


@frozen
class EngineUse:
    """One kind of engine during a launch, over all PEs. An engine with several channels is busy
    while any of them is.
    """

    ops: int
    busy_ns: float  # sum over PEs
    busy_ns_max: float  # of the busiest PE
    amounts: Mapping[str, int]  # work done, by unit (`common/work_units.py`)

    @property
    def flops(self) -> int:
        return sum(flops_of(unit, amount) for unit, amount in self.amounts.items())

    def as_json(self) -> dict[str, float | int]:
        return {"ops": self.ops, "busy_ns": self.busy_ns, "busy_ns_max": self.busy_ns_max, "flops": self.flops}


@dataclass(eq=False)
class Launch:
    """A kernel launch, running or done. Its times are valid once it is done: wait for it."""

    name: str
    handles: list[Handle] = field(repr=False)
    keeps: tuple[object, ...] = field(default=(), repr=False)  # its tensors, which must not be freed before it is over
    engines: dict[str, EngineUse] = field(default_factory=dict)  # by kind of engine
    links: dict[tuple[str, str], float] = field(
        default_factory=dict, repr=False
    )  # busy ns of its SIPs' links meanwhile
    is_measured: bool = field(default=False, repr=False)  # whether `engines` and `links` are set
    stops: list[Handle] = field(default_factory=list, repr=False)  # requests to stop it after a failure
    rank: ReferenceType[greenlet] = field(default_factory=lambda: ref(getcurrent()), repr=False)  # which launched it
    is_aborted: bool = field(default=False, repr=False)  # on some SIPs, because it failed on another
    is_waited: bool = field(default=False, repr=False)  # whether its failures were reported
    unreceived: tuple[Unreceived, ...] = field(default=(), repr=False)  # messages that cannot be received any more
    called_at: str = field(default="", repr=False)  # of a tensor operation or a collective: the program's line
    is_tensor_op: bool = field(default=False, repr=False)  # so the lines of its kernel mean nothing to the program
    on_end: list[Callable[[Launch], None]] = field(default_factory=list, repr=False)  # called once it is measured

    @property
    def is_done(self) -> bool:
        return all(handle.is_done for handle in self.handles)

    @property
    def is_over(self) -> bool:
        """Whether it is running on no PE any more; after a failure that is later than `is_done`."""
        return self.is_done and all(stop.is_done for stop in self.stops)

    def release_tensors(self) -> None:
        """Release its tensors if it is over: until then PEs may write them."""
        if self.is_over:
            self.keeps = ()

    @property
    def sips(self) -> tuple[int, ...]:
        """The SIPs it runs on."""
        requests = [handle.request for handle in self.handles]
        return tuple(request.sip for request in requests if isinstance(request, KernelLaunchMsg))

    @property
    def kernel_ref(self) -> str:
        """The name under which the kernel is registered with the device."""
        request = self.handles[0].request
        return request.kernel_ref.name if isinstance(request, KernelLaunchMsg) else self.name

    @property
    def start_ns(self) -> float:
        """When the host submitted it."""
        return min(handle.start_ns for handle in self.handles)

    @property
    def end_ns(self) -> float:
        """When the host received its completion."""
        return max(handle.end_ns or 0.0 for handle in self.handles)

    @property
    def total_ns(self) -> float:
        return self.end_ns - self.start_ns

    @property
    def pes(self) -> tuple[PeResult, ...]:
        """The result of every PE, by SIP, cube and PE."""
        return tuple(result for handle in self.handles for result in handle.results)

    @property
    def ended(self) -> tuple[PeResult, ...]:
        """The results of PEs that were not aborted."""
        return tuple(result for result in self.pes if not result.is_aborted)

    @property
    def exec_span(self) -> tuple[float, float]:
        """When its first PE began and when its last one ended."""
        ran = [result for result in self.ended if result.pe_exec_ns]
        return min((r.start_ns for r in ran), default=0.0), max((r.end_ns for r in ran), default=0.0)

    @property
    def exec_ns(self) -> float:
        """The length of `exec_span`: the time of the slowest PE, unless PEs began at different times."""
        start, end = self.exec_span
        return end - start

    @property
    def pe_exec_ns_max(self) -> float:
        return max((result.pe_exec_ns for result in self.ended), default=0.0)

    @property
    def pe_exec_ns_min(self) -> float:
        return min((result.pe_exec_ns for result in self.ended), default=0.0)

    @property
    def flops(self) -> int:
        return sum(use.flops for use in self.engines.values())

    @property
    def bytes_hbm(self) -> int:
        """Bytes that its PEs moved to and from HBM on any SIP, in whole bursts."""
        return sum(result.bytes_hbm for result in self.ended)

    @property
    def bytes_hbm_requested(self) -> int:
        """Bytes that its PEs requested from and to HBM; at most `bytes_hbm`, which counts whole bursts."""
        return sum(result.bytes_hbm_requested for result in self.ended)

    @property
    def tcm_peak(self) -> PeResult | None:
        """The PE with the highest peak TCM use by its kernel's tensors; the first of several."""
        return max(self.ended, key=lambda result: result.tcm_peak_bytes, default=None)

    @property
    def memories(self) -> dict[str, ChannelTraffic]:
        """The traffic of its PEs with each memory that they accessed, by node."""
        found: dict[str, ChannelTraffic] = {}
        for result in self.ended:
            for node, use in result.memories:
                found[node] = found.get(node, NO_TRAFFIC).plus(use)
        return found

    @property
    def hbm(self) -> dict[str, ChannelTraffic]:
        """Of those, the HBM slices and stacks, by controller."""
        return {node: use for node, use in self.memories.items() if memory_kind(node) == "hbm"}

    @property
    def bytes_far(self) -> int:
        """Bytes that its PEs moved to and from far memory, in whole bursts."""
        return sum(use.burst_bytes for node, use in self.memories.items() if memory_kind(node) == "far")

    @property
    def bytes_sent(self) -> int:
        """Bytes that its PEs sent in messages."""
        return sum(result.messages.sent_bytes for result in self.ended)

    @property
    def messages(self) -> dict[NodePath, int]:
        """Bytes of messages transferred while it ran, by path. Both ends count a message between two of its PEs; it is
        reported once.
        """
        found: dict[NodePath, int] = {}
        for result in self.ended:
            for path, nbytes in result.messages.carried:
                found[path] = max(found.get(path, 0), nbytes)
        return found

    @property
    def failures(self) -> tuple[KernelFailure, ...]:
        return tuple(failure for handle in self.handles for failure in handle.failures)

    def raise_failures(self) -> None:
        """Raise LaunchError if the kernel failed on a PE, UnreceivedError if messages it sent were never received."""
        failures = self.failures
        if not failures:
            check_received(self.unreceived, f"kernel '{self.name}' has ended: ")
            return
        first = next((each for each in failures if each.kind != StoppedMessagesError.__name__), failures[0])
        more = f" (and {len(failures) - 1} more PEs)" if len(failures) > 1 else ""
        raise LaunchError(
            f"kernel '{self.name}' failed on sip {first.sip}, cube {first.cube}, pe {first.pe}{more}: "
            f"{first.kind}: {first.message}",
            failures,
            where=self.called_at if self.is_tensor_op and self.called_at else first.where,
            hint=first.hint,
        )

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "sips": list(self.sips),
            "total_ns": self.total_ns,
            "pe_exec_ns_max": self.pe_exec_ns_max,
            "pe_exec_ns_min": self.pe_exec_ns_min,
            "flops": self.flops,
            "bytes_hbm": self.bytes_hbm,
            "engines": {kind: use.as_json() for kind, use in self.engines.items()},
            "per_pe": [{name: getattr(result, name) for name in PER_PE} for result in self.ended],
            "bytes_hbm_requested": self.bytes_hbm_requested,
            "tcm_peak_bytes": self.tcm_peak.tcm_peak_bytes if self.tcm_peak is not None else 0,
            "bytes_sent": self.bytes_sent,
            **({"bytes_far": self.bytes_far} if self.bytes_far else {}),
        }


def engine_use(work: Mapping[WorkKey, EngineWork], results: Sequence[PeResult]) -> dict[str, EngineUse]:
    """The engine use of the PEs that have these results, by kind of engine."""
    answers = {str(PeId(result.sip, result.cube, result.pe)): result for result in results}
    found: dict[str, dict[str, list[tuple[str, EngineWork]]]] = {}  # by kind and PE
    for (component, unit), did in work.items():
        pe, _, kind = component.rpartition(".")
        if pe in answers:
            found.setdefault(kind, {}).setdefault(pe, []).append((unit, did))
    return {kind: _use(kind, found[kind], answers) for kind in sorted(found)}


def _use(
    kind: str, works: Mapping[str, Sequence[tuple[str, EngineWork]]], answers: Mapping[str, PeResult]
) -> EngineUse:
    """The use of one kind of engine, over all PEs that used it."""
    union = OVERLAPPING.get(kind)
    busy = [sum(did.busy_ns for _, did in works[pe]) if union is None else union(answers[pe]) for pe in works]
    done = [each for own in works.values() for each in own]
    amounts: dict[str, int] = {}
    for unit, did in done:
        amounts[unit] = amounts.get(unit, 0) + did.amount
    return EngineUse(sum(did.ops for _, did in done), sum(busy), max(busy), dict(sorted(amounts.items())))
