"""Replay and interrupt at the scope of a launch on one SIP, or of a collective's launches on several: each PE has one
event, its end. What the kernels would have done is committed when all is over, translated to this place and time. An
interfering access before that rewinds the clock, and the kernels are simulated from their begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kernbench.common.composite_use import CompositeUse
from kernbench.common.errors import AllocationError
from kernbench.common.ids import PeId
from kernbench.common.message_traffic import MessageTraffic
from kernbench.common.messages import KernelLaunchMsg, PeResult
from kernbench.common.writers import Writers
from kernbench.components.builtin.launch_job import LaunchJob
from kernbench.components.builtin.pe_cpu import PeCpuComponent
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.components.builtin.pe_ipcq import PeIpcqComponent
from kernbench.components.recording import NO_REF, op_ref
from kernbench.sim_engine.fabric.reservations import Reservation
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.memo.late_credits import LateCredit, expect_late
from kernbench.sim_engine.memo.launch_places import Shift
from kernbench.sim_engine.memo.launch_recording import LaunchRecording
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.sim_engine.memory_traffic import LegTraffic
from kernbench.sim_engine.op_copies import RowsCopy

Ended = tuple[PeCpuComponent, LaunchJob, PeResult]
Jobs = list[tuple[PeCpuComponent, LaunchJob]]


class RegionReplay(NamedTuple):
    """A recording that is replayed in another region."""

    recording: LaunchRecording
    shift: Shift
    jobs: Jobs  # in the order of the recording's PEs

    def try_make_rings(self, machine: Machine) -> bool:
        """Make the rings that its kernels would have; False where there is no room, and those that are made stay."""
        messages, communicator = self.recording.messages, machine.communicators.get(self.jobs[0][1].launch.communicator)
        if messages is None:
            return True
        assert communicator is not None
        try:
            for key, direction in messages.senders:
                queue = machine.component(machine.resolver.find_pe_part(*self.shift.key(key), "pe_ipcq"))
                assert isinstance(queue, PeIpcqComponent)
                queue.make_ring(communicator, direction)
        except AllocationError:
            return False
        return True

    def finds_its_bytes(self, memory: MemoryStore) -> bool:
        """Whether all that its kernels read was written."""
        contents = self.recording.contents
        return contents is None or contents.finds_its_bytes(memory, self.shift)


class ReplayedLaunch:
    """A launch on one SIP, or those of a collective on several, that replays recordings."""

    def __init__(
        self,
        machine: Machine,
        launches: Sequence[KernelLaunchMsg],
        under_way: dict[int, ReplayedLaunch],
        on_end: Callable[[int], object],
        on_interrupt: Callable[[], object],
    ) -> None:
        self._on_end = on_end  # called with the number of regions that replayed their recordings to the end
        self._on_interrupt = on_interrupt
        self._machine = machine
        self._launches = launches
        self._under_way = under_way
        self._begin_ns = machine.env.now
        self._replays: list[RegionReplay] = []
        self._jobs: Jobs = []
        self._reservation: Reservation | None = None
        self._quiet_ns = 0.0  # when the last kernel has ended, and all that it has sent is there but late credits
        self._is_interrupted = False

    def begin(self, reservation: Reservation, replays: list[RegionReplay], jobs: Jobs) -> None:
        """Replay recordings; the copies are in the order in which their kernels would start."""
        machine = self._machine
        self._reservation, self._replays, self._jobs = reservation, replays, jobs
        self._under_way.update((launch.sip, self) for launch in self._launches)
        ends: dict[float, list[Ended]] = {}
        for replay in replays:
            for number in replay.recording.ended:
                (cpu, job), result = replay.jobs[number], replay.recording.results[number]
                launch = job.launch
                machine.begin_launch(str(PeId(*cpu.key)), launch.id, launch.stream)
                self._dma_of(cpu).access_observers.add(self.interrupt)
                job.lease = machine.lease_tcm(*cpu.key, launch.stream)
                answer = self._translated(result, replay)
                ends.setdefault(answer.end_ns, []).append((cpu, job, answer))
        self._quiet_ns = self._begin_ns + max(replay.recording.quiet_ns for replay in replays)
        for end_ns, ended in ends.items():
            machine.at(end_ns, self._end, ended)
        if self._quiet_ns not in ends:
            machine.at(self._quiet_ns, self._end, [])

    def _dma_of(self, cpu: PeCpuComponent) -> PeDmaComponent:
        dma = self._machine.component(self._machine.resolver.find_pe_part(*cpu.key, "pe_dma"))
        assert isinstance(dma, PeDmaComponent)
        return dma

    def _translated(self, result: PeResult, replay: RegionReplay) -> PeResult:
        """What a PE answers, there and then."""
        recording, shift = replay.recording, replay.shift
        sip, cube, pe = shift.key((result.sip, result.cube, result.pe))
        start_ns = self._begin_ns
        return replace(
            result,
            sip=sip,
            cube=cube,
            pe=pe,
            start_ns=start_ns,
            end_ns=start_ns + result.end_ns - recording.began_ns,
            memories=tuple((shift.name(node), use) for node, use in result.memories),
            composites=tuple(_translated_use(use, shift) for use in result.composites),
            messages=_translated_traffic(result.messages, shift),
        )

    # ---- uninterrupted

    def _end(self, ended: list[Ended]) -> None:
        """Kernels would end now."""
        if self._reservation is None:
            return
        if self._machine.env.now == self._quiet_ns:
            self._over()
            late = [credit for replay in self._replays for credit in self._commit(replay)]
            if late:
                expect_late(self._machine, self._machine.communicators[self._launches[0].communicator], late)
            self._on_end(len(self._replays))
        for cpu, job, result in ended:
            if self._is_interrupted:  # by a launch that was next on the one before: this one runs, and ends by itself
                return
            cpu.end_replayed(job, result)

    def _over(self) -> None:
        assert self._reservation is not None
        self._reservation.release()
        self._reservation = None
        for launch in self._launches:
            del self._under_way[launch.sip]
        for cpu, _ in self._jobs:
            self._dma_of(cpu).access_observers.remove(self.interrupt)

    def _commit(self, replay: RegionReplay) -> list[LateCredit]:
        """Commit the effects of the kernels of a region; returns credits that are still under way."""
        machine, (recording, shift, _) = self._machine, replay
        engine, traffic = machine.fabric.engine, recording.traffic_in(shift, machine.fabric.network)
        for last_flit, flits, transfers in traffic.moved:
            engine.counters.count(last_flit, flits, transfers)
        for block, memory, use in recording.legs:
            machine.traffic.add_legs(LegTraffic(shift.name(block), shift.name(memory), use))
        for link, wait, at in traffic.waits:
            engine.links.note_wait(link, wait, self._begin_ns + at)
        for node, rows, directions in traffic.channels:
            group = engine.groups[node]
            group.add_done(rows, self._begin_ns)
            group.set_directions(directions)
        if recording.contents is not None:
            recording.contents.carry_out(machine.values, machine.memory, shift)
        first = 0 if machine.log is None else self._record(replay)
        on = 0 if recording.rows is None else first - recording.rows.first
        return [
            LateCredit(
                shift.key(credit.sender),
                credit.direction,
                self._begin_ns + credit.at_ns,
                credit.by if credit.by == NO_REF else op_ref(-2 - credit.by + on),
            )
            for credit in recording.late
        ]

    def _record(self, replay: RegionReplay) -> int:
        """Copy the records of a region's kernels; returns the number of the first."""
        machine, (recording, shift, _) = self._machine, replay
        log, tally, writers = machine.log, machine.tally, machine.writers
        assert log is not None
        assert tally is not None
        assert writers is not None
        assert recording.rows is not None
        memory = recording.memory
        assert memory is not None
        replayed = [
            _written_by(writers, [(shift.pa(pe, pa), nbytes) for pa, nbytes in ranges]) for pe, ranges in memory.asked
        ]
        later_ns = self._begin_ns - recording.began_ns
        first = log.record_copy(
            RowsCopy(recording.rows, later_ns, shift.pes(), shift.address, replayed, self._launches[0].communicator)
        )
        for pe, pa, nbytes, number in memory.written():
            writers.note(shift.pa(pe, pa), nbytes, first + number - recording.rows.first)
        for launch, work in zip(self._launches, recording.work, strict=True):
            tally.add(launch.id, {(shift.name(component), unit): did for (component, unit), did in work.items()})
        return first

    # ---- interrupted

    def on_interrupt(self, now: float) -> None:
        """An interfering access reaches a reserved link or memory."""
        self.interrupt()

    def interrupt(self) -> None:
        """Let the kernels run from their begin up to now, and go on."""
        if self._reservation is None:
            return
        self._is_interrupted = True
        self._over()
        self._on_interrupt()
        self._machine.env.rewind(self._begin_ns, self._start_late)

    def _start_late(self) -> None:
        for cpu, job in self._jobs:
            cpu.start_job(job)


def _written_by(writers: Writers, ranges: list[tuple[int, int]]) -> tuple[int, ...]:
    """The ops that wrote some bytes, each once, in order of id."""
    if len(ranges) == 1:
        return writers.of(*ranges[0])
    return tuple(sorted({op for pa, nbytes in ranges for op in writers.of(pa, nbytes)}))


def _translated_use(use: CompositeUse, shift: Shift) -> CompositeUse:
    paths = tuple(path and replace(path, memory=shift.name(path.memory)) for path in use.paths)
    return use._replace(paths=paths)


def _translated_traffic(traffic: MessageTraffic, shift: Shift) -> MessageTraffic:
    carried = sorted((tuple(map(shift.name, path)), nbytes) for path, nbytes in traffic.carried)
    return MessageTraffic(traffic.sent_bytes, tuple(carried))
