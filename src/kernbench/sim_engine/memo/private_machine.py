"""Record: a private machine for a launch, with its own clock, fabric and op log, on the same graph. What happens there
has no effect on the machine.

Its PEs are given what those of the machine have: mappings, TCM, kernels. It keeps no contents; what kernels would do
with them can be recorded (`recorded_contents.py`). Which op wrote bytes before is not known there: an op that waits for
such bytes waits for a placeholder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernbench.common.ids import PeKey
from kernbench.common.ipcq import BufferKind, Communicator
from kernbench.common.messages import LaunchStream
from kernbench.common.writers import Writers
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.components.builtin.pe_mmu import PeMmuComponent
from kernbench.policy.address.allocator import TcmLease, TcmRingAllocator
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.blank_memory import BlankMemory
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.memo.launch_places import LaunchPlaces, PartKey
from kernbench.sim_engine.op_copies import PLACEHOLDER
from kernbench.sim_engine.op_log import OpLog

ALIGN = 64  # of rings, at least
Ranges = list[tuple[int, int]]  # physical address, bytes


class TouchedBytes:
    """From the first byte of a part that a kernel has touched to the end of the last, and whether it has written."""

    __slots__ = ("end", "first", "is_written")

    def __init__(self, first: int, end: int, is_written: bool) -> None:
        self.first, self.end, self.is_written = first, end, is_written


class UnknownWriters(Writers):
    """The op that wrote each byte; bytes that no recorded op has written have a
    placeholder. `places` says in which parts they lie.
    """

    __slots__ = ("asked", "pe_of_op", "places", "spans")

    def __init__(self, places: LaunchPlaces) -> None:
        super().__init__()
        self.places = places
        self.asked: list[tuple[str, Ranges]] = []  # what each placeholder stands for: whose, and which bytes
        self.spans: dict[str, dict[PartKey, TouchedBytes]] = {}  # by PE
        self.pe_of_op: dict[int, str] = {}  # the PE of every op that has written

    def written(self) -> list[tuple[str, int, int, int]]:
        """All ranges that were written: the PE, physical address, bytes, op."""
        rows = zip(self._starts, self._stretches, strict=True)
        return [(self.pe_of_op[op], start, end - start, op) for start, (end, op) in rows]

    def touch(self, pe: str, pa: int, nbytes: int, *, is_written: bool) -> None:
        """A kernel reads or writes bytes; those that are not in the region end its recording elsewhere."""
        part = self.places.part_at(pa)
        if part is None:
            return
        first, spans = pa - part.pa, self.spans.setdefault(pe, {})
        span = spans.get(part.key)
        if span is None:
            spans[part.key] = TouchedBytes(first, first + nbytes, is_written)
            return
        span.first, span.end = min(span.first, first), max(span.end, first + nbytes)
        span.is_written = span.is_written or is_written

    def is_untouched(self, start: int, end: int) -> bool:
        """Whether no op has written any of these bytes."""
        first, past = self._touched(start, end)
        return first == past

    def gaps(self, start: int, end: int) -> Ranges:
        """The ranges of these bytes that no op has written."""
        first, past = self._touched(start, end)
        found: Ranges = []
        at = start
        for number in range(first, past):
            if self._starts[number] > at:
                found.append((at, self._starts[number] - at))
            at = self._stretches[number][0]
        if at < end:
            found.append((at, end - at))
        return found


class WritersOf(Writers):
    """The same for the kernel of one PE."""

    __slots__ = ("_all", "_pe")

    def __init__(self, writers: UnknownWriters, pe: str) -> None:
        super().__init__()
        self._all, self._pe = writers, pe

    def note(self, address: int, nbytes: int, op: int | None) -> None:
        assert op is not None
        self._all.note(address, nbytes, op)
        self._all.pe_of_op[op] = self._pe
        self._all.touch(self._pe, address, nbytes, is_written=True)

    def note_all(self, segments: Sequence[tuple[int, int]], op: int | None) -> None:
        assert op is not None
        self._all.note_all(segments, op)
        self._all.pe_of_op[op] = self._pe
        for address, nbytes in segments:
            self._all.touch(self._pe, address, nbytes, is_written=True)

    def of(self, address: int, nbytes: int) -> tuple[int, ...]:
        writers = self._all
        writers.touch(self._pe, address, nbytes, is_written=False)
        known, gaps = writers.of(address, nbytes), writers.gaps(address, address + nbytes)
        if not gaps:
            return known
        writers.asked.append((self._pe, gaps))
        return (PLACEHOLDER + len(writers.asked) - 1, *known)


class PrivateMachine(Machine):
    """A private copy of `machine`; idle except while a recording is made on it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        log = None if machine.log is None else OpLog()
        super().__init__(machine.graph, log, data=False, fast=machine.fast_paths)
        self.kernels = machine.kernels
        self.values.backend = machine.values.backend
        if isinstance(machine.memory, BlankMemory):
            self.memory = BlankMemory(self.values, is_unknown_to_kernels=machine.memory.is_unknown_to_kernels)

    def join(self, name: str) -> Communicator | None:
        """A communicator as the machine has it, with rings of its own in TCM; None where there is none to be had."""
        theirs = self._machine.communicators.get(name)
        self.communicators.clear()
        if theirs is None or theirs.failure is not None or theirs.config.buffer_kind != "tcm":
            return None
        rings: dict[PeKey, TcmRingAllocator] = {}

        def allocate(pe: PeKey, nbytes: int, kind: BufferKind, anywhere: bool) -> int:
            if pe not in rings:
                whole = self._machine.communication_rings(*pe).tcm
                rings[pe] = TcmRingAllocator(*pe, TcmLease(whole.base, whole.capacity_bytes))
            held = rings[pe].alloc(nbytes, min(ALIGN, nbytes), anywhere=anywhere)
            sizes[held.raw] = pe, held, nbytes
            return held.raw

        def free(address: int) -> None:
            pe, held, nbytes = sizes.pop(address)
            rings[pe].free(held, nbytes)

        sizes: dict[int, tuple[PeKey, PhysAddr, int]] = {}
        made = Communicator(name, theirs.config, theirs.peer_of, theirs.directions_of, allocate, free)
        self.communicators[name] = made
        return made

    def take_mappings(self, pes: Iterable[PeKey]) -> None:
        """Let the MMUs, or the segment tables, of some PEs translate as those of the machine do now."""
        part = "pe_dma" if self.graph.spec.system.address_model == "la" else "pe_mmu"
        for pe in pes:
            node = self.resolver.find_pe_part(*pe, part)
            theirs = self._machine.component_so_far(node)
            if isinstance(theirs, PeMmuComponent):  # else nothing was mapped yet
                own = self.component(node)
                assert isinstance(own, PeMmuComponent)
                own.table = theirs.table.copy()
            elif isinstance(theirs, PeDmaComponent) and theirs.baaw is not None:
                engine = self.component(node)
                assert isinstance(engine, PeDmaComponent)
                engine.baaw = theirs.baaw.copy()

    def lease_tcm(self, sip: int, cube: int, pe: int, stream: LaunchStream) -> TcmLease:
        """What the machine would allocate now; a kernel that never ends here keeps nothing there."""
        return self._machine.tcm_for(sip, cube, pe, stream)

    def end_lease(self, sip: int, cube: int, pe: int, stream: LaunchStream) -> None:
        """Nothing was taken."""
