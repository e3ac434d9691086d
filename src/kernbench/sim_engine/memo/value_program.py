"""Replay of values: what kernels of a region do with tensor contents, as steps that can be carried out again elsewhere.

A step reads bytes, makes a value of values made before, or writes a value; steps are in the order in which they
happened. Reads are not resolved: they find what memory holds when they are carried out, so that one program serves
other regions and later launches. Bytes are named by PE, part of a tensor, and offset in it.

A program is plain data and belongs to no graph. For one graph its types and constants are made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from kernbench.common.array_types import Array, Shape
from kernbench.common.dtypes import DType
from kernbench.sim_engine.memo.launch_places import PartKey, Shift
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.values.bytes_of import ViewParams
from kernbench.values.graph import Scalar, Value, ValueGraph
from kernbench.values.op import Params

Anchor: TypeAlias = tuple[str, PartKey]  # the PE whose kernel reaches bytes, and the part that they lie in


class Constant(NamedTuple):
    """A value without inputs. Those that are known have `data`."""

    type: int  # among the program's types
    op: str
    params: Params
    data: Array | None


class ReadStep(NamedTuple):
    """Makes the next value: what memory holds."""

    type: int
    anchor: int  # among the program's anchors
    offset: int
    strides_bytes: tuple[int, ...] | None


class MakeStep(NamedTuple):
    """Makes the next value from others, which it names by number: constants first, then those of earlier steps."""

    type: int
    op: str
    params: Params
    inputs: tuple[int, ...]


class WriteStep(NamedTuple):
    """Leaves a value in memory."""

    value: int
    anchor: int
    offset: int


class NeededBytes(NamedTuple):
    """Bytes that kernels read without having written them."""

    anchor: int
    offset: int
    nbytes: int


Step: TypeAlias = ReadStep | MakeStep | WriteStep


@dataclass(eq=False)
class ValueProgram:
    """The steps of all kernels of a region. Holds nothing of a run but constants."""

    anchors: list[Anchor]
    types: list[tuple[Shape, DType]]
    constants: list[Constant]
    steps: list[Step]
    needed: list[NeededBytes]
    _bound: _BoundProgram | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_bound": None}

    def finds_its_bytes(self, memory: MemoryStore, shift: Shift) -> bool:
        """Whether all that kernels read was written: else one of them fails, and has to be run for that."""
        bases = self._bases(shift)
        needed = merged(sorted((bases[at] + offset, nbytes) for at, offset, nbytes in self.needed))
        return not any(memory.gaps(start, nbytes) for start, nbytes in needed)

    def carry_out(self, graph: ValueGraph, memory: MemoryStore, shift: Shift) -> None:
        """Do to memory what the kernels would have done."""
        bound = self._bound
        if bound is None or bound.graph is not graph:
            bound = self._bound = _BoundProgram(self, graph)
        bound.carry_out(memory, self._bases(shift))

    def _bases(self, shift: Shift) -> list[int]:
        """By anchor: the physical address that offsets count from."""
        return [shift.base(pe, part) for pe, part in self.anchors]


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What sorted ranges (start, bytes) cover, in as few ranges as can be."""
    found: list[tuple[int, int]] = []
    for start, nbytes in ranges:
        if found and start <= sum(found[-1]):
            first = found[-1][0]
            found[-1] = first, max(sum(found[-1]), start + nbytes) - first
        else:
            found.append((start, nbytes))
    return found


class _BoundProgram:
    """A program with the types and constants of one graph."""

    def __init__(self, program: ValueProgram, graph: ValueGraph) -> None:
        self.graph = graph
        self._steps = program.steps
        self._types = [graph.type_of(shape, dtype) for shape, dtype in program.types]
        self._constants = [self._made(constant) for constant in program.constants]

    def _made(self, constant: Constant) -> Value:
        type_ = self._types[constant.type]
        if constant.op == "full" and not type_.shape:
            return self.graph.scalar(cast(Scalar, constant.params[1]), type_.dtype)
        data = constant.data
        if isinstance(data, np.ndarray):
            data.setflags(write=False)  # which a copy from another process has lost
        return self.graph.make(type_, constant.op, (), constant.params, data)

    def carry_out(self, memory: MemoryStore, bases: Sequence[int]) -> None:
        """`bases` are the addresses that offsets count from, by anchor."""
        make, view, types = self.graph.make, self.graph.view, self._types
        read, read_strided, write = memory.read, memory.read_strided, memory.write
        values = self._constants.copy()
        append = values.append
        for step in self._steps:
            if type(step) is MakeStep:
                at, op, params, inputs = step
                if op == "view":
                    append(view(values[inputs[0]], types[at], *cast(ViewParams, params)))
                else:
                    append(make(types[at], op, tuple([values[number] for number in inputs]), params))
            elif type(step) is ReadStep:
                at, anchor, offset, strides = step
                type_ = types[at]
                if strides is None:
                    append(read(bases[anchor] + offset, type_.shape, type_.dtype))
                else:
                    append(read_strided(bases[anchor] + offset, type_.shape, strides, type_.dtype))
            else:
                number, anchor, offset = cast(WriteStep, step)
                write(bases[anchor] + offset, values[number])
