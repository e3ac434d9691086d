"""Memory as bytes that hold values: one sparse address space per simulation.

A write puts a value at an address; a read gives the value that the bytes hold at that moment. Values never change,
so nothing that is written later alters what was read. A read of exactly what was written gives the same Value; a
read of part of it, or with another shape or dtype, gives a `view` of it; a read across several writes gives a
`gather`. Nothing is copied until pass 2.

Addresses are plain integers (PhysAddr encodings). Timing, capacity and allocation are not known here. Bytes that
were never written, or were freed, cannot be read unless the caller asks for zeros in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, TypeAlias, cast

from kernbench.common.access_observers import AccessObservers
from kernbench.common.dtypes import DType, dtype_of
from kernbench.common.errors import DataError
from kernbench.sim_engine.byte_map import ByteMap, StridedCopy
from kernbench.values.graph import Value, ValueGraph
from kernbench.values.op import TensorType

StridedBlock: TypeAlias = tuple[int, int, int, int]  # start, rows, bytes per row, bytes between rows


class StridedLayout(NamedTuple):
    """Where the elements of a strided tensor lie, counted from its address, and whether no two share a byte."""

    blocks: list[StridedBlock]
    disjoint: bool


class MemoryStore:
    """`graph` makes the values that reads give."""

    def __init__(self, graph: ValueGraph) -> None:
        self._graph = graph
        self._map = ByteMap()
        self._layouts: dict[tuple[TensorType, tuple[int, ...]], StridedLayout] = {}
        self.access_observers = AccessObservers()  # called with the address before bytes are touched

    def __len__(self) -> int:
        """How many stretches of values memory holds."""
        return len(self._map)

    def is_unknown(self, value: Value) -> bool:
        """Whether a value depends on bytes with unknown contents."""
        return False

    def write(self, addr: int, value: Value) -> None:
        """Bytes [addr, addr + value.nbytes) hold `value` from now on."""
        self._begin_use(addr)
        if value.nbytes:
            self._map.put(addr, addr + value.nbytes, value)

    def read(self, addr: int, shape: Sequence[int], dtype: DType | str, *, zero_fill: bool = False) -> Value:
        """What the bytes from `addr` on hold, as a tensor. Raises DataError for bytes never written."""
        self._begin_use(addr)
        type_ = self._graph.type_of(shape, dtype_of(dtype))
        if not type_.nbytes:
            return self._graph.full(type_.shape, 0, type_.dtype)
        held = self._map.holder(addr, addr + type_.nbytes)
        if held is not None:
            return self._one(type_, held[0], held[1], 0, 1)
        copies: list[StridedCopy] = []
        self._map.collect(addr, 1, type_.nbytes, 0, 0, copies)
        return self._value(type_, copies, addr, [(0, 1, type_.nbytes, 0)], zero_fill)

    def write_strided(self, addr: int, value: Value, strides_bytes: Sequence[int]) -> None:
        """Element (i, j, ...) of `value` goes to addr + i * strides_bytes[0] + j * strides_bytes[1] + ...

        Raises DataError for strides that put two elements in one place.
        """
        self._begin_use(addr)
        if not value.nbytes:
            return
        blocks, disjoint = self._layout(value.type, strides_bytes)
        if not disjoint:
            raise DataError(
                f"strides {tuple(strides_bytes)} of shape {value.shape} overlap", hint="write elements apart"
            )
        offset = 0
        for start, rows, run, stride in blocks:
            if rows == 1:
                self._map.put(addr + start, addr + start + run, value, offset)
            else:
                self._map.put_rows(addr + start, rows, run, stride, value, offset)
            offset += rows * run

    def read_strided(
        self,
        addr: int,
        shape: Sequence[int],
        strides_bytes: Sequence[int],
        dtype: DType | str,
        *,
        zero_fill: bool = False,
    ) -> Value:
        """The tensor whose element (i, j, ...) is at addr + i * strides_bytes[0] + j * strides_bytes[1] + ..."""
        self._begin_use(addr)
        type_ = self._graph.type_of(shape, dtype_of(dtype))
        if not type_.nbytes:
            return self._graph.full(type_.shape, 0, type_.dtype)
        blocks, _ = self._layout(type_, strides_bytes)
        if len(blocks) == 1:
            _, rows, run, stride = blocks[0]
            held = self._map.holder(addr, addr + (rows - 1) * stride + run)
            if held is not None:
                return self._one(type_, held[0], held[1], stride, rows)
        copies: list[StridedCopy] = []
        dst = 0
        for start, rows, run, stride in blocks:
            self._map.collect(addr + start, rows, run, stride, dst, copies)
            dst += rows * run
        return self._value(type_, copies, addr, blocks, zero_fill)

    def free(self, addr: int, nbytes: int) -> None:
        """Forgets [addr, addr + nbytes). Values taken before stay as they are."""
        self._begin_use(addr)
        if nbytes > 0:
            self._map.clear(addr, addr + nbytes)

    def gaps(self, addr: int, nbytes: int) -> list[tuple[int, int]]:
        """Which bytes of [addr, addr + nbytes) were never written: (first, end), counted from `addr`, in order."""
        self._begin_use(addr)
        if not nbytes or self._map.holder(addr, addr + nbytes) is not None:
            return []
        copies: list[StridedCopy] = []
        self._map.collect(addr, 1, nbytes, 0, 0, copies)
        if sum(copy.rows * copy.run for copy in copies) == nbytes:
            return []
        found: list[tuple[int, int]] = []
        reached = 0
        for start, run in _covered(copies):
            if start > reached:
                found.append((reached, start))
            reached = start + run
        return found if reached == nbytes else [*found, (reached, nbytes)]

    def _begin_use(self, addr: int) -> None:
        if addr < 0:
            raise DataError(f"address {addr} is negative", hint="addresses count from 0")
        if self.access_observers:
            self.access_observers.notify(addr)

    def _layout(self, type_: TensorType, strides_bytes: Sequence[int]) -> StridedLayout:
        key = (type_, tuple(strides_bytes))
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = StridedLayout(strided_blocks(*key), _is_disjoint(*key))
        return found

    def _value(
        self, type_: TensorType, copies: list[StridedCopy], addr: int, blocks: list[StridedBlock], zero_fill: bool
    ) -> Value:
        if len(copies) == 1:
            source, src, src_stride, _, _, rows, run = copies[0]
            if rows * run == type_.nbytes:
                return self._one(type_, source, src, src_stride, rows)
        held = sum([copy.rows * copy.run for copy in copies])
        if held < type_.nbytes and not zero_fill:
            first = addr + _first_gap(copies, blocks)
            raise DataError(
                f"{type_.nbytes - held} of {type_.nbytes} bytes were never written, the first at {first:#x}",
                hint="store to the whole tensor first, or make it with zeros() or full()",
            )
        if not copies:
            return self._graph.full(type_.shape, 0, type_.dtype)
        return self._graph.gather(type_, [copy[0] for copy in copies], [copy[1:] for copy in copies])

    def _one(self, type_: TensorType, source: Value, offset: int, stride: int, rows: int) -> Value:
        """What one strided block of one value holds."""
        if source.type is type_ and (rows == 1 or stride * rows == type_.nbytes):
            return source
        size = type_.dtype.itemsize
        if source.op == "full" and source.dtype is type_.dtype and offset % size == 0 and stride % size == 0:
            return self._graph.full(type_.shape, cast(float, source.params[1]), type_.dtype)
        return self._graph.view(source, type_, offset, stride, rows)


def strided_blocks(type_: TensorType, strides: Sequence[int]) -> list[StridedBlock]:
    """A strided tensor, in C order, as blocks of contiguous runs; a block of a row-major tensor is one."""
    if len(strides) != len(type_.shape) or any(stride < 0 for stride in strides):
        raise DataError(
            f"strides {tuple(strides)} of a tensor of shape {type_.shape}",
            hint="give one stride of 0 or more per dimension",
        )
    dims = [(n, stride) for n, stride in zip(type_.shape, strides, strict=True) if n != 1]
    run = type_.dtype.itemsize
    while dims and dims[-1][1] == run:
        run *= dims.pop()[0]
    outer: list[tuple[int, int]] = []
    for n, stride in dims:
        if outer and outer[-1][1] == n * stride:
            outer[-1] = (outer[-1][0] * n, stride)
        else:
            outer.append((n, stride))
    if not outer:
        return [(0, 1, run, 0)]
    rows, stride = outer.pop()
    steps = product(*([at * step for at in range(n)] for n, step in outer))
    return [(sum(offsets), rows, run, stride) for offsets in steps]


def _is_disjoint(type_: TensorType, strides: Sequence[int]) -> bool:
    """Each stride passes what lies within it: sufficient, and true of every padded or permuted layout."""
    reach = type_.dtype.itemsize
    for stride, n in sorted(zip(strides, type_.shape, strict=True)):
        if n > 1:
            if stride < reach:
                return False
            reach += stride * (n - 1)
    return True


def _covered(copies: list[StridedCopy]) -> list[tuple[int, int]]:
    """What copies cover of what was asked: (start, bytes), in order; they do not overlap."""
    return sorted((p.dst_offset + row * p.dst_stride, p.run) for p in copies for row in range(p.rows))


def _first_gap(copies: list[StridedCopy], blocks: list[StridedBlock]) -> int:
    """The first place asked for that no copy covers, counted from the address asked for."""
    reached = 0
    for start, run in _covered(copies):
        if start > reached:
            break
        reached = max(reached, start + run)
    for start, rows, run, stride in blocks:
        if reached < rows * run:
            return start + reached // run * stride + reached % run
        reached -= rows * run
    return blocks[0][0]
