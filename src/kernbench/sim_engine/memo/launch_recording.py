"""Record: what a launch does in one region. The `tl` calls of its kernels, when they ended, and all that was committed.

It is made by `launch_recorder.py`; times are relative to the launch's begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kernbench.common.ids import PeId, PeKey
from kernbench.common.ipcq import Communicator, Peer, RingConfig
from kernbench.common.messages import PeResult
from kernbench.policy.address.allocator import TcmLease
from kernbench.sim_engine.fabric.done_tally import DoneTransfers
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.memo.late_credits import LateCredit
from kernbench.sim_engine.memo.launch_places import LaunchPlaces, PartKey, PartOffsets, Pointers, Shift
from kernbench.sim_engine.memo.private_machine import TouchedBytes, UnknownWriters
from kernbench.sim_engine.memo.regions import AnyRegion
from kernbench.sim_engine.memo.value_program import ValueProgram
from kernbench.sim_engine.memory_traffic import LegTraffic
from kernbench.sim_engine.op_copies import RecordedRows
from kernbench.sim_engine.op_tally import EngineWork, WorkKey
from kernbench.triton_emu.recording_tl import Trace

CALL_BYTES, ADDRESS_BYTES = 512, 40  # of memory: a call of a kernel, or a step with values; an address
POINTER_BYTES = 8  # a call that another kernel has made, too
Moved = tuple[tuple[str, ...], int, int, int, int]  # path, bytes and spare of the last flit, whole flits, transfers
ChannelRows = list[tuple[int, float, float]]  # of each channel: granules, longest wait, when it began


class RecordedRings(NamedTuple):
    """Rings that messages went through, and the peer in each direction of each PE."""

    config: RingConfig
    peers: list[tuple[PeKey, str, Peer]]
    senders: list[tuple[PeKey, str]]  # PEs and directions that they have sent to

    def are_alike(self, other: Communicator | None, shift: Callable[[PeKey], PeKey]) -> bool:
        """Whether another communicator has the same rings between PEs that are elsewhere."""
        if other is None or other.failure is not None or other.config != self.config:
            return False
        return all(
            other.peer_of(shift(key), direction) == Peer(shift(peer.pe), peer.direction)
            for key, direction, peer in self.peers
        )


class RecordedTraffic(NamedTuple):
    """What a recorded launch moves in one region: by kind of transfer, by link, and by node with channels."""

    moved: list[DoneTransfers]
    waits: list[tuple[int, float, float]]
    channels: list[tuple[int, ChannelRows, tuple[int, ...]]]


@dataclass(eq=False)
class LaunchRecording:
    """Names are those of the region where it was found, and times of records and results those of when."""

    began_ns: float
    region: AnyRegion
    keys: list[PeKey]
    places: LaunchPlaces
    leases: list[TcmLease]  # TCM that each kernel had
    directions: list[tuple[int, ...]]  # the region's channels when it began, where turning them takes time
    traces: list[Trace]
    results: list[PeResult]
    work: list[dict[WorkKey, EngineWork]]  # of each launch
    rows: RecordedRows | None
    pointers: list[Pointers]  # of each kernel
    memory: UnknownWriters | None  # what kernels have read and written, where there is a log
    messages: RecordedRings | None  # where kernels have sent some
    quiet_ns: float  # from the begin until nothing but `late` is under way any more
    moved: list[Moved]
    waits: list[tuple[tuple[str, str], float, float]]  # by link: the longest, and when it began
    channels: list[tuple[str, ChannelRows, tuple[int, ...]]]  # by memory: what they did, and how they are turned then
    ended: list[int]  # the kernels, in the order in which they ended
    late: list[LateCredit]
    legs: list[LegTraffic]
    contents: ValueProgram | None = None  # what kernels did with them, where the run keeps some
    placed: dict[AnyRegion, RecordedTraffic] = field(default_factory=dict)  # by region where it was taken
    moved_here: list[DoneTransfers] | None = None  # as the network has it where it was found

    @property
    def nbytes(self) -> int:
        """About how much memory it takes, by what there may be much of."""
        made = sum(len(trace.calls) for trace in self.traces)
        calls = len({id(call) for trace in self.traces for call in trace.calls})
        addresses = sum(len(each.addresses) for each in self.pointers)
        asked = 0 if self.memory is None else len(self.memory.asked) + len(self.memory.pe_of_op)
        rows = 0 if self.rows is None else self.rows.nbytes
        steps = 0 if self.contents is None else len(self.contents.steps) + len(self.contents.needed)
        return rows + CALL_BYTES * (calls + asked + steps) + POINTER_BYTES * made + ADDRESS_BYTES * addresses

    def traffic_in(self, shift: Shift, network: Network) -> RecordedTraffic:
        """What it moves where a shift leads, as the network has it there."""
        found = self.placed.get(shift.region)
        if found is None:
            last_flit = network.counterparts(self.region.name, shift.region.name).last_flit
            found = self.placed[shift.region] = RecordedTraffic(
                [
                    DoneTransfers(last_flit(here), flits, transfers)
                    for here, flits, transfers in self._moved_here(network)
                ],
                [
                    (network.link_index(shift.name(src), shift.name(dst)), wait, at)
                    for (src, dst), wait, at in self.waits
                ],
                [(network.node_index(shift.name(node)), rows, directions) for node, rows, directions in self.channels],
            )
        return found

    def _moved_here(self, network: Network) -> list[DoneTransfers]:
        """What it moves in its own region."""
        if self.moved_here is None:
            self.moved_here = [
                DoneTransfers(network.route(path).last_flit(network, kind_bytes, spare), flits, transfers)
                for path, kind_bytes, spare, flits, transfers in self.moved
            ]
        return self.moved_here

    def can_be_at(self, offsets: Sequence[PartOffsets]) -> bool:
        """Whether kernels that are elsewhere in their parts, by so much each, replay the recording: each is within its
        parts still, and where one writes no other one is, or was.
        """
        if not any(by for each in offsets for by in each.values()):
            return True
        if self.memory is None or not self.places.are_apart:
            return False
        touched: dict[PartKey, list[tuple[TouchedBytes, int]]] = {}
        for key, each in zip(self.keys, offsets, strict=True):
            moved: dict[int, int] = {}  # by tensor: an access may lie in several parts, and moves in all of them alike
            for part, span in self.memory.spans.get(str(PeId(*key)), {}).items():
                if part not in each or moved.setdefault(part[0], each[part]) != each[part]:
                    return False
                if span.first + each[part] < 0 or span.end + each[part] > self.places.part_of(part).nbytes:
                    return False
                touched.setdefault(part, []).append((span, each[part]))
        return all(_are_apart(users) for users in touched.values())


def _are_apart(users: Sequence[tuple[TouchedBytes, int]]) -> bool:
    """Whether no kernel accesses what another one writes, at the new places or at the recorded ones; or all of
    them have moved by the same distance.
    """
    if len({by for _, by in users}) == 1:
        return True
    for at, (one, by) in enumerate(users):
        for other, other_by in users[:at]:
            if (one.is_written or other.is_written) and not (
                (one.end <= other.first or other.end <= one.first)
                and (one.end + by <= other.first + other_by or other.end + other_by <= one.first + by)
            ):
                return False
    return True
