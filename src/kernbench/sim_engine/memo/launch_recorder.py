"""Record: simulates the kernels of a launch on a private machine, on which nothing else runs.

A launch that leaves the region has no recording for it: other traffic may be there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from simpy.core import EmptySchedule

from kernbench.common.ids import PeId, PeKey
from kernbench.common.ipcq import Communicator, Peer
from kernbench.common.messages import KernelLaunchMsg, PeResult
from kernbench.components.builtin.pe_cpu import PeCpuComponent
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.policy.address.allocator import TcmLease
from kernbench.sim_engine.fabric.done_tally import DoneByKind
from kernbench.sim_engine.fabric.engine import FlitEngine
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.memo.late_credits import LateCredits, queue_so_far
from kernbench.sim_engine.memo.launch_places import LaunchPlaces, Pointers
from kernbench.sim_engine.memo.launch_recording import ChannelRows, LaunchRecording, Moved, RecordedRings
from kernbench.sim_engine.memo.private_machine import PrivateMachine, UnknownWriters, WritersOf
from kernbench.sim_engine.memo.recorded_contents import RecordedContents
from kernbench.sim_engine.memo.regions import AnyRegion
from kernbench.triton_emu.kernel_env import KernelEnv
from kernbench.triton_emu.recording_tl import RecordingTl, SharedCalls, Trace

MOST_STEPS = 1 << 18  # of the clock, for a launch in a region: the largest of a GPT-3 layer takes a quarter
STEPS_OF_A_KERNEL = 1 << 10  # the same for each kernel, where many take part
STEPS = 1 << 8
FEW_EVENTS = 2_000  # after which a compiled loop that another fabric has loaded is worth while


def channel_directions(machine: Machine, memories: Sequence[int]) -> list[tuple[int, ...]]:
    """How the channels of some nodes are turned, where turning them takes time."""
    groups = machine.fabric.engine.groups
    return [groups[node].directions if groups[node].penalty_ns else () for node in memories]


class LaunchRecorder:
    """Runs kernels of launches on a private machine, region by region. `note_steps` is called after every `STEPS` steps
    of its clock.
    """

    def __init__(self, machine: Machine, note_steps: Callable[[], object]) -> None:
        self._machine = machine
        self._note_steps = note_steps
        self._private: PrivateMachine | None = None

    def record(
        self,
        launches: Sequence[KernelLaunchMsg],
        region: AnyRegion,
        keys: list[PeKey],
        places: LaunchPlaces,
        memories: Sequence[int],
    ) -> LaunchRecording | None:
        """The recording of a launch, or of several on a SIP each, on these PEs of a region, with `memories` as nodes
        that have channels; None where there is none: it leaves the region, fails, or cannot be compared with others.
        """
        if self._private is None or self._private.fabric.credited_ns > self._private.env.now:
            self._private = PrivateMachine(self._machine)
        self._private.take_mappings(keys)
        _share_compiled_loop(self._private.fabric.engine, self._machine.fabric.engine)
        launch_run = _LaunchRun(
            self._private, self._machine, launches, region, keys, places, memories, self._note_steps
        )
        try:
            return launch_run.run()
        finally:
            _share_compiled_loop(self._machine.fabric.engine, self._private.fabric.engine)
            if self._private.fabric.engine.queues is not None:
                self._machine.stats.is_compiled = True
            if not launch_run.is_over:
                launch_run.abandon()
                self._private = None  # something may be under way there


def _share_compiled_loop(engine: FlitEngine, other: FlitEngine) -> None:
    """Where one of two has loaded the loop, it is worth while for the other one sooner."""
    if other.queues is not None and engine.queues is None:
        engine.compile_after = min(engine.compile_after, engine.events + FEW_EVENTS)


class Tail(NamedTuple):
    """When all kernels have ended, and PEs send nothing any more: credits that are under way, and what was done."""

    now: float
    credits: LateCredits | None
    done: DoneByKind
    waits: list[tuple[int, float, float]]


class _LaunchRun:
    """One launch in one region, or one on each SIP of a tray."""

    def __init__(
        self,
        private: PrivateMachine,
        machine: Machine,
        launches: Sequence[KernelLaunchMsg],
        region: AnyRegion,
        keys: list[PeKey],
        places: LaunchPlaces,
        memories: Sequence[int],
        note_steps: Callable[[], object],
    ) -> None:
        self._private, self._machine, self._note_steps = private, machine, note_steps
        self._launches = {each.sip: replace(each, target_start_ns=None) for each in launches}  # they begin at once
        self._region, self._keys, self._places, self._memories = region, keys, places, memories
        self._begin_ns = private.env.now
        self._results: dict[PeKey, PeResult] = {}
        self._traces, self._shared = [Trace() for _ in keys], SharedCalls()
        self._contents = RecordedContents(private.values, places) if machine.data else None
        self.is_over = False  # whether all kernels have ended well
        self._done_before = private.fabric.done_so_far()
        self._tail: Tail | None = None
        self._communicator: Communicator | None = None

    def run(self) -> LaunchRecording | None:
        private, memories = self._private, self._memories
        fabric, here = private.fabric, self._machine.fabric.engine.groups
        groups = fabric.engine.groups
        directions = channel_directions(self._machine, memories)
        for node in memories:
            groups[node].set_directions(here[node].directions)
            groups[node].take_waits()
        fabric.engine.links.take_waits()
        in_legs = private.traffic.in_legs()
        bursts = [[done[0] for done in groups[node].done()] for node in memories]
        launches, tally = list(self._launches.values()), private.tally
        if tally is not None:
            for launch in launches:
                tally.watch(launch.id)
        traces, pointers = self._traces, [Pointers(self._places) for _ in self._keys]
        memory = None if private.log is None else UnknownWriters(self._places)
        communicator = self._communicator = private.join(launches[0].communicator)
        leases = [self._begin(*each, memory) for each in zip(self._keys, traces, pointers, strict=True)]
        self._go_on()
        self._shared.clear()
        messages = None if communicator is None else self._messages(communicator)
        if not self.is_over:
            return None
        log = private.log
        work = [{} if tally is None else tally.take(launch.id) for launch in launches]
        rows = None if log is None else log.take_rows()
        tail = self._tail
        assert tail is not None
        moved = self._moved(tail.done)
        late = [] if tail.credits is None else tail.credits.arrived
        quiet_ns = max(tail.now, private.fabric.credited_ns)  # its links are reserved until all slots are credited
        if any(self._begin_ns + credit.at_ns < quiet_ns for credit in late):
            return None  # they would be late
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
            ((names[ends[link][0]], names[ends[link][1]]), wait, at - self._begin_ns) for link, wait, at in tail.waits
        ]
        results = [self._results[key] for key in self._keys]
        number_of = {key: number for number, key in enumerate(self._keys)}
        return LaunchRecording(
            self._begin_ns, self._region, self._keys, self._places, leases, directions, traces, results, work, rows,
            pointers, memory, messages, quiet_ns - self._begin_ns, moved, waits, channels,
            [number_of[key] for key in self._results], late, private.traffic.legs_since(in_legs), contents,
        )  # fmt: skip

    def abandon(self) -> None:
        """End kernels that have not ended."""
        for key in self._keys:
            self._cpu_of(key).abandon()

    def _cpu_of(self, key: PeKey) -> PeCpuComponent:
        cpu = self._private.component(self._private.resolver.find_pe_part(*key, "pe_cpu"))
        assert isinstance(cpu, PeCpuComponent)
        return cpu

    def _begin(self, key: PeKey, trace: Trace, pointers: Pointers, memory: UnknownWriters | None) -> TcmLease:
        private = self._private
        pe, contents, shared = str(PeId(*key)), self._contents, self._shared
        writers = None if memory is None else WritersOf(memory, pe)

        def make_tl(env: KernelEnv) -> RecordingTl:
            replayed = env.memory if contents is None else contents.memory_of(pe)
            return RecordingTl(replace(env, writers=writers, memory=replayed), trace, pointers.place_of, shared)

        launch = self._launches[key[0]]
        self._cpu_of(key).serve_without_packet(launch, partial(self._results.__setitem__, key), make_tl)
        return private.lease_tcm(*key, launch.stream)

    def _go_on(self) -> None:
        """Let all kernels run to their ends, and all that they started; not those that never end, or that cannot be
        compared.
        """
        step, results, kernels = self._private.env.step, self._results, len(self._keys)
        try:
            for _ in range(max(MOST_STEPS, kernels * STEPS_OF_A_KERNEL) // STEPS):
                for _ in range(STEPS):
                    step()
                    if len(results) == kernels and self._tail is None:
                        self._tail = self._tail_now()
                self._note_steps()
                if any(trace.is_given_up for trace in self._traces):
                    return
            return
        except EmptySchedule:
            pass
        ended = [result for result in results.values() if result.error is None]
        self.is_over = len(ended) == kernels
        if self.is_over:
            over = self._all_over()
            if self._tail is None or over.done != self._tail.done:  # else nothing but control messages was under way
                self._tail = over

    def _tail_now(self) -> Tail | None:
        """None as long as DMA engines have something to send."""
        private = self._private
        dmas = (private.component_so_far(private.resolver.find_pe_part(*key, "pe_dma")) for key in self._keys)
        if not all(dma.is_idle for dma in dmas if isinstance(dma, PeDmaComponent)):
            return None
        talks = self._communicator
        late = None if talks is None else LateCredits(private, self._keys, talks, self._begin_ns)
        return Tail(private.env.now, late, self._done(), private.fabric.engine.links.take_waits())

    def _all_over(self) -> Tail:
        """The same when nothing is under way any more."""
        private, former = self._private, self._tail
        waits = private.fabric.engine.links.take_waits()
        return Tail(private.env.now, None, self._done(), waits if former is None else former.waits + waits)

    def _done(self) -> DoneByKind:
        """What was moved since the begin."""
        since = self._private.fabric.done_since(self._done_before)
        return {last_flit: (flits, transfers) for last_flit, flits, transfers in since}

    def _messages(self, communicator: Communicator) -> RecordedRings | None:
        """The peers that kernels have exchanged messages with; a message that was never received is a failure."""
        private = self._private
        self.is_over = self.is_over and not communicator.unreceived
        peers: list[tuple[PeKey, str, Peer]] = []
        senders: list[tuple[PeKey, str]] = []
        for key in self._keys:
            queue = queue_so_far(private, key)
            if queue is not None:
                queue.credit_observers.clear()
                peers += [(key, direction, peer) for direction, peer in queue.used(communicator)]
                senders += [(key, direction) for direction in queue.sent_to(communicator)]
        communicator.close()
        return RecordedRings(communicator.config, peers, senders) if peers else None

    def _moved(self, done: DoneByKind) -> list[Moved] | None:
        """What was moved; None where that was not only within the region."""
        found: list[Moved] = []
        node_of = self._private.graph.node
        for last_flit, (flits, transfers) in done.items():
            if not transfers:
                continue
            path = tuple(str(node) for node in last_flit.route.path)
            if not self._region.holds_path([node_of(node).place for node in path]):
                return None
            found.append((path, last_flit.kind_bytes, last_flit.spare, flits, transfers))
        return found

    def _since(self, done: ChannelRows, before: Sequence[int]) -> ChannelRows:
        return [(bursts - had, wait, at - self._begin_ns) for (bursts, wait, at), had in zip(done, before, strict=True)]
