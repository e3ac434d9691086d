"""The course of a launch in one region: what its kernels asked for, when they ended, and what that left behind.

It is found on a private machine, on which nothing but the kernels of that region runs, and told from the launch's
begin. What leaves the region has no course of its own: others may be there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from simpy.core import EmptySchedule

from kernbench.common.ids import PeId, PeKey
from kernbench.common.ipcq import Communicator, Peer, RingConfig
from kernbench.common.messages import KernelLaunchMsg, PeResult
from kernbench.components.builtin.pe_cpu import PeCpuComponent
from kernbench.components.builtin.pe_ipcq import PeIpcqComponent
from kernbench.policy.address.allocator import TcmLease
from kernbench.sim_engine.fabric.counters import DoneCounts
from kernbench.sim_engine.fabric.engine import FlitEngine
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.op_copies import RecordedRows
from kernbench.sim_engine.op_tally import EngineWork, WorkKey
from kernbench.sim_engine.steady.launch_places import LaunchPlaces, Offsets, PartKey, Pointers
from kernbench.sim_engine.steady.private_machine import PrivateMachine, Span, UnknownWriters, WritersOf
from kernbench.sim_engine.steady.recorded_contents import RecordedContents
from kernbench.sim_engine.steady.regions import Region
from kernbench.sim_engine.steady.value_program import ValueProgram
from kernbench.triton_emu.tl_core import KernelEnv
from kernbench.triton_emu.traced import Trace, TracingTl

Moved = tuple[tuple[str, ...], int, int, int]  # path, bytes of the last flit, whole flits, transfers
MOST_STEPS = 1 << 18  # of the clock, for a launch in a region: the largest of a GPT-3 layer takes a quarter
STEPS = 1 << 10
FEW_EVENTS = 2_000  # after which a compiled loop that another fabric has loaded is worth while
ChannelRows = list[tuple[int, float, float]]  # of each channel: bursts, longest wait, when it began


class Messages(NamedTuple):
    """Rings that messages went through, and which direction of which PE leads to whom."""

    config: RingConfig
    peers: list[tuple[PeKey, str, Peer]]

    def are_alike(self, other: Communicator | None, shift: Callable[[PeKey], PeKey]) -> bool:
        """Whether another communicator has the same rings between PEs that are elsewhere."""
        if other is None or other.failure is not None or other.config != self.config:
            return False
        return all(
            other.peer_of(shift(key), direction) == Peer(shift(peer.pe), peer.direction)
            for key, direction, peer in self.peers
        )


@dataclass(eq=False)
class LaunchCourse:
    """Names are those of the region where it was found, and times of records and results those of when."""

    began_ns: float
    region: Region
    keys: list[PeKey]
    places: LaunchPlaces
    leases: list[TcmLease]  # TCM that each kernel had
    turned: list[tuple[int, ...]]  # the region's channels when it began, where turning them takes time
    traces: list[Trace]
    results: list[PeResult]
    work: dict[WorkKey, EngineWork]
    rows: RecordedRows | None
    pointers: list[Pointers]  # of each kernel
    memory: UnknownWriters | None  # what kernels have read and written, where there is a log
    messages: Messages | None  # where kernels have sent some
    quiet_ns: float  # from the begin until nothing is under way any more: messages may be later than kernels
    moved: list[Moved]
    waits: list[tuple[tuple[str, str], float, float]]  # by link: the longest, and when it began
    channels: list[tuple[str, ChannelRows, tuple[int, ...]]]  # by memory: what they did, and how they are turned then
    contents: ValueProgram | None = None  # what kernels did with them, where the run keeps some

    def can_be_at(self, offsets: Sequence[Offsets]) -> bool:
        """Whether kernels that are elsewhere in their parts, by so much each, take the course: each is within its parts
        still, and where one writes no other one is, or was.
        """
        if not any(by for each in offsets for by in each.values()):
            return True
        if self.memory is None or not self.places.are_apart:
            return False
        touched: dict[PartKey, list[tuple[Span, int]]] = {}
        for key, each in zip(self.keys, offsets, strict=True):
            for part, span in self.memory.spans.get(str(PeId(*key)), {}).items():
                if part not in each or span.first + each[part] < 0:
                    return False
                if span.end + each[part] > self.places.part_of(part).nbytes:
                    return False
                touched.setdefault(part, []).append((span, each[part]))
        return all(_are_apart(users) for users in touched.values())


def _are_apart(users: Sequence[tuple[Span, int]]) -> bool:
    """Whether kernels in one part do not meet, there or where they were; or are all as far away."""
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


def turned_channels(machine: Machine, memories: Sequence[int]) -> list[tuple[int, ...]]:
    """How the channels of some nodes are turned, where turning them takes time."""
    groups = machine.fabric.engine.groups
    return [groups[node].directions if groups[node].penalty_ns else () for node in memories]


class Explorer:
    """Runs kernels of launches on a private machine, region by region."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._private: PrivateMachine | None = None

    def explore(
        self, launch: KernelLaunchMsg, region: Region, keys: list[PeKey], places: LaunchPlaces, memories: Sequence[int]
    ) -> LaunchCourse | None:
        """The course of a launch on these PEs of a region, with `memories` as nodes that have channels; None where it
        has none: it leaves the region, fails, or cannot be compared with others.
        """
        if self._private is None:
            self._private = PrivateMachine(self._machine)
        _share_compiled_loop(self._private.fabric.engine, self._machine.fabric.engine)
        exploration = _Exploration(self._private, self._machine, launch, region, keys, places, memories)
        course = exploration.run()
        _share_compiled_loop(self._machine.fabric.engine, self._private.fabric.engine)
        if not exploration.is_over:
            self._private = None  # something may be under way there
        return course


def _share_compiled_loop(engine: FlitEngine, other: FlitEngine) -> None:
    """Where one of two has loaded the loop, it is worth while for the other one sooner."""
    if other.queues is not None and engine.queues is None:
        engine.compile_after = min(engine.compile_after, engine.events + FEW_EVENTS)


class _Exploration:
    """One launch in one region."""

    def __init__(
        self,
        private: PrivateMachine,
        machine: Machine,
        launch: KernelLaunchMsg,
        region: Region,
        keys: list[PeKey],
        places: LaunchPlaces,
        memories: Sequence[int],
    ) -> None:
        self._private, self._machine = private, machine
        self._launch = replace(launch, target_start_ns=None)  # it begins at once
        self._region, self._keys, self._places, self._memories = region, keys, places, memories
        self._begin_ns = private.env.now
        self._results: dict[PeKey, PeResult] = {}
        self._traces = [Trace() for _ in keys]
        self._contents = RecordedContents(private.values, places) if machine.data else None
        self.is_over = False  # whether all kernels have ended well

    def run(self) -> LaunchCourse | None:
        private, memories = self._private, self._memories
        fabric, here = private.fabric, self._machine.fabric.engine.groups
        groups = fabric.engine.groups
        turned = turned_channels(self._machine, memories)
        for node in memories:
            groups[node].turn_to(here[node].directions)
            groups[node].take_waits()
        fabric.engine.links.take_waits()
        before = fabric.done_so_far()
        bursts = [[done[0] for done in groups[node].done()] for node in memories]
        if private.tally is not None:
            private.tally.watch(self._launch.id)
        traces, pointers = self._traces, [Pointers(self._places) for _ in self._keys]
        memory = None if private.log is None else UnknownWriters(self._places)
        communicator = private.join(self._launch.communicator)
        leases = [self._begin(*each, memory) for each in zip(self._keys, traces, pointers, strict=True)]
        self._go_on()
        messages = None if communicator is None else self._messages(communicator)
        if not self.is_over:
            return None
        log = private.log
        work = {} if private.tally is None else private.tally.take(self._launch.id)
        rows = None if log is None else log.take_rows()
        moved = self._moved(before, fabric.done_so_far())
        if moved is None or not all(trace.is_usable for trace in traces):
            return None
        contents = None if self._contents is None else self._contents.take_program()
        for node in memories:
            groups[node].flush(private.env.now)
        names = [str(name) for name in fabric.network.names]
        channels = [
            (names[node], self._since(groups[node].done(), had), groups[node].directions)
            for node, had in zip(memories, bursts, strict=True)
        ]
        ends = fabric.network.link_ends
        waits = [
            ((names[ends[link][0]], names[ends[link][1]]), wait, at - self._begin_ns)
            for link, wait, at in fabric.engine.links.take_waits()
        ]
        results = [self._results[key] for key in self._keys]
        return LaunchCourse(
            self._begin_ns, self._region, self._keys, self._places, leases, turned, traces, results, work, rows,
            pointers, memory, messages, private.env.now - self._begin_ns, moved, waits, channels,
            contents,
        )  # fmt: skip

    def _begin(self, key: PeKey, trace: Trace, pointers: Pointers, memory: UnknownWriters | None) -> TcmLease:
        private = self._private
        pe, contents = str(PeId(*key)), self._contents
        writers = None if memory is None else WritersOf(memory, pe)

        def tl_of(env: KernelEnv) -> TracingTl:
            known = env.memory if contents is None else contents.memory_of(pe)
            return TracingTl(replace(env, writers=writers, memory=known), trace, pointers.place_of)

        cpu = private.component(private.resolver.find_pe_part(*key, "pe_cpu"))
        assert isinstance(cpu, PeCpuComponent)
        cpu.tl_of = tl_of
        cpu.serve_alone(self._launch, partial(self._results.__setitem__, key))
        return private.lease_tcm(*key, self._launch.stream)

    def _go_on(self) -> None:
        """Let all kernels run to their ends, and all that they set going; not those that never end, or that cannot be
        compared.
        """
        step = self._private.env.step
        try:
            for _ in range(MOST_STEPS // STEPS):
                for _ in range(STEPS):
                    step()
                if any(trace.is_given_up for trace in self._traces):
                    return
            return
        except EmptySchedule:
            pass
        ended = [result for result in self._results.values() if result.error is None]
        self.is_over = len(ended) == len(self._keys)

    def _messages(self, communicator: Communicator) -> Messages | None:
        """With whom kernels have exchanged messages; those that nobody has received are a failure."""
        private = self._private
        self.is_over = self.is_over and not communicator.unreceived
        peers: list[tuple[PeKey, str, Peer]] = []
        for key in self._keys:
            queue = private.component_so_far(private.resolver.find_pe_part(*key, "pe_ipcq"))
            if isinstance(queue, PeIpcqComponent):
                peers += [(key, direction, peer) for direction, peer in queue.used(communicator)]
        communicator.close()
        return Messages(communicator.config, peers) if peers else None

    def _moved(self, before: DoneCounts, after: DoneCounts) -> list[Moved] | None:
        """What was moved; None where that was not only within the region."""
        found: list[Moved] = []
        node_of = self._private.graph.node
        for last_flit, (flits, transfers) in after.items():
            flits_before, transfers_before = before.get(last_flit, (0, 0))
            if transfers == transfers_before:
                continue
            path = tuple(str(node) for node in last_flit.route.path)
            places = [node_of(node).place for node in path]
            if not all(self._region.holds(place.sip, place.cube) for place in places):
                return None
            found.append((path, last_flit.nbytes, flits - flits_before, transfers - transfers_before))
        return found

    def _since(self, done: ChannelRows, before: Sequence[int]) -> ChannelRows:
        return [(bursts - had, wait, at - self._begin_ns) for (bursts, wait, at), had in zip(done, before, strict=True)]
