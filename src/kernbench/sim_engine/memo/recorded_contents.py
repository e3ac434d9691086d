"""Record: what kernels on a private machine do with tensor contents, which that machine does not have.

Each kernel has a memory of its own here. A read gives a value that stands for whatever the bytes will hold; a write is
noted with its value. Values know what they were made of, so that nothing else has to be noted: the program
is found by going back from what was written, and has nothing that does not lead there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.common.array_types import Shape
from kernbench.common.dtypes import I8, DType, dtype_of
from kernbench.sim_engine.memo.launch_places import LaunchPlaces, TensorPart
from kernbench.sim_engine.memo.private_machine import UnknownWriters
from kernbench.sim_engine.memo.value_program import (
    Anchor,
    Constant,
    MakeStep,
    NeededBytes,
    ReadStep,
    Step,
    ValueProgram,
    WriteStep,
    merged,
)
from kernbench.sim_engine.memory_store import strided_blocks
from kernbench.values.graph import Value, ValueGraph
from kernbench.values.op import TensorType

UNKNOWN = "unknown"  # the op of a value that stands for what memory will hold
ANY_WRITER = 0  # the writer's identity does not matter here


class _Read(NamedTuple):
    pe: str
    pa: int
    strides_bytes: tuple[int, ...] | None


class _Write(NamedTuple):
    after: int  # id of the last value made before
    pe: str
    pa: int
    value: Value


class RecordedContents:
    """What the kernels of one region do."""

    def __init__(self, graph: ValueGraph, places: LaunchPlaces) -> None:
        self.graph = graph
        self._places = places
        self._reads: dict[int, _Read] = {}  # by id of the value
        self._writes: list[_Write] = []
        self._written = UnknownWriters(places)
        self._needed: dict[str, list[tuple[int, int]]] = {}  # by PE: ranges that were read and not written before
        self._seen: set[tuple[_Read, TensorType]] = set()

    def memory_of(self, pe: str) -> RecordingMemory:
        return RecordingMemory(self, pe)

    # ---- what kernels do

    def read(self, pe: str, pa: int, shape: Shape, dtype: DType, strides_bytes: tuple[int, ...] | None) -> Value:
        type_ = self.graph.type_of(shape, dtype)
        if not type_.nbytes:
            return self.graph.full(shape, 0, dtype)
        value = self.graph.make(type_, UNKNOWN, (), ())
        read = self._reads[value.id] = _Read(pe, pa, strides_bytes)
        if (read, type_) not in self._seen:
            self._seen.add((read, type_))
            self._need(read, type_)
        return value

    def write(self, pe: str, pa: int, value: Value) -> None:
        if value.nbytes:
            self._writes.append(_Write(self.graph.count, pe, pa, value))
            self._written.note(pa, value.nbytes, ANY_WRITER)

    def is_unknown(self, value: Value) -> bool:
        """Whether a value depends on what memory will hold."""
        return any(one.id in self._reads for one in _below([value]))

    def _need(self, read: _Read, type_: TensorType) -> None:
        needed = self._needed.setdefault(read.pe, [])
        if read.strides_bytes is None:
            needed += self._written.gaps(read.pa, read.pa + type_.nbytes)
            return
        for start, rows, run, stride in strided_blocks(type_, read.strides_bytes):
            first = read.pa + start
            if stride and self._written.is_untouched(first, first + (rows - 1) * stride + run):
                needed += [(at, run) for at in range(first, first + rows * stride, stride)]
                continue
            for row in range(rows):
                at = first + row * stride
                needed += self._written.gaps(at, at + run)

    # ---- as a program

    def take_program(self) -> ValueProgram:
        """All of it, once: nothing of it is kept here. What kernels have touched lies in the region."""
        program = _Compilation(self._places, self._reads).program(self._writes, self._needed)
        self._reads, self._writes, self._needed, self._seen = {}, [], {}, set()
        return program


class RecordingMemory:
    """The memory of one kernel (`KernelMemory`)."""

    def __init__(self, contents: RecordedContents, pe: str) -> None:
        self._contents, self._pe = contents, pe

    def read(self, address: int, shape: tuple[int, ...], dtype: DType | str) -> Value:
        return self._contents.read(self._pe, address, shape, dtype_of(dtype), None)

    def read_strided(
        self, address: int, shape: tuple[int, ...], strides_bytes: tuple[int, ...], dtype: DType | str
    ) -> Value:
        return self._contents.read(self._pe, address, shape, dtype_of(dtype), tuple(strides_bytes))

    def write(self, address: int, value: Value) -> None:
        self._contents.write(self._pe, address, value)

    def write_strided(self, address: int, value: Value, strides_bytes: Sequence[int]) -> None:
        graph, at = self._contents.graph, 0
        for start, rows, run, stride in strided_blocks(value.type, strides_bytes):
            for row in range(rows):
                self.write(address + start + row * stride, graph.view(value, graph.type_of((run,), I8), at, run, 1))
                at += run

    def is_unknown(self, value: Value) -> bool:
        return self._contents.is_unknown(value)


def _below(roots: list[Value]) -> list[Value]:
    """Some values and all that they depend on, in order of id. What is known depends on nothing."""
    found = {value.id: value for value in roots}
    left = list(found.values())
    while left:
        value = left.pop()
        if value.data is None:
            for each in value.inputs:
                if each.id not in found:
                    found[each.id] = each
                    left.append(each)
    return [found[number] for number in sorted(found)]


class _Compilation:
    """Of one program."""

    def __init__(self, places: LaunchPlaces, reads: dict[int, _Read]) -> None:
        self._places, self._reads = places, reads
        self._anchors: dict[Anchor, int] = {}
        self._types: dict[tuple[Shape, DType], int] = {}
        self._numbers: dict[int, int] = {}  # of values in the program, by id

    def program(self, writes: list[_Write], needed: dict[str, list[tuple[int, int]]]) -> ValueProgram:
        values = _below([write.value for write in writes])
        constants = [self._constant(value) for value in values if self._is_constant(value)]
        steps = self._steps([value for value in values if not self._is_constant(value)], writes)
        listed = [item for pe, ranges in needed.items() for item in self._needed(pe, ranges)]
        return ValueProgram(list(self._anchors), list(self._types), constants, steps, listed)

    def _is_constant(self, value: Value) -> bool:
        return value.data is not None or (not value.inputs and value.id not in self._reads)

    def _constant(self, value: Value) -> Constant:
        self._numbers[value.id] = len(self._numbers)
        return Constant(self._type(value), value.op, value.params, value.array())

    def _steps(self, values: list[Value], writes: list[_Write]) -> list[Step]:
        """Values and writes in the order in which they were made."""
        steps: list[Step] = []
        at = 0
        for write in writes:
            while at < len(values) and values[at].id <= write.after:
                steps.append(self._step(values[at]))
                at += 1
            steps.append(WriteStep(self._numbers[write.value.id], *self._place(write.pe, write.pa)))
        assert at == len(values), "what is written was made before"
        return steps

    def _step(self, value: Value) -> Step:
        read = self._reads.get(value.id)
        inputs = tuple(self._numbers[each.id] for each in value.inputs)
        self._numbers[value.id] = len(self._numbers)
        if read is None:
            return MakeStep(self._type(value), value.op, value.params, inputs)
        return ReadStep(self._type(value), *self._place(read.pe, read.pa), read.strides_bytes)

    def _needed(self, pe: str, ranges: list[tuple[int, int]]) -> list[NeededBytes]:
        by_anchor: dict[int, list[tuple[int, int]]] = {}
        found: list[tuple[int, int]] = []
        start = end = 0  # of the part that `found` is of: what is read one after the other mostly lies in one
        for pa, nbytes in ranges:
            if not start <= pa < end:
                part = self._part(pa)
                start, end = part.pa, part.pa + part.nbytes
                found = by_anchor.setdefault(self._anchor(pe, part), [])
            found.append((pa - start, nbytes))
        return [NeededBytes(anchor, *each) for anchor, found in by_anchor.items() for each in merged(sorted(found))]

    def _type(self, value: Value) -> int:
        return self._types.setdefault((value.shape, value.dtype), len(self._types))

    def _place(self, pe: str, pa: int) -> tuple[int, int]:
        """A physical address as anchor and offset."""
        part = self._part(pa)
        return self._anchor(pe, part), pa - part.pa

    def _part(self, pa: int) -> TensorPart:
        part = self._places.part_at(pa)
        assert part is not None, "a recording does not leave its region"
        return part

    def _anchor(self, pe: str, part: TensorPart) -> int:
        return self._anchors.setdefault((pe, part.key), len(self._anchors))
