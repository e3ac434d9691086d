"""`tl`: atomics. The memory that holds the bytes changes them, in order of arrival, and returns their old contents.

A block travels there like a store, and its old contents return like those of a load; both are charged to the DMA's
write channel, to the links each way, and at the memory to the channels of every burst twice, for write and read.
`offsets` are distances from the pointer in elements, one per lane. All elements of one run change at the instant at
which the last of them arrives. Atomics order memory: what a PE did before one is seen by a PE whose atomic on the same
bytes comes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from kernbench.common.commands import AtomicCmd, DmaRequest, Operand, Segment
from kernbench.common.dtypes import DType, dtype_of
from kernbench.common.errors import KernBenchError
from kernbench.triton_emu.block_access import Block
from kernbench.triton_emu.call_site import at_kernel_line, kernel_line
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.kernel_runner import Records
from kernbench.triton_emu.pointer import Address
from kernbench.triton_emu.tl_access import TlAccess
from kernbench.triton_emu.tl_lanes import OffsetsLike
from kernbench.triton_emu.tl_math import Tensorish
from kernbench.values.evaluate import materialize
from kernbench.values.graph import Value


class TlAtomics(TlAccess):
    """Read-modify-writes at the memory."""

    def atomic_add(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TensorHandle:
        """Add to memory; returns what it held. Shape: value's, a single number for a number. dtype: the tensor's that
        `ptr` points into, float or integer. Engine: DMA (write channel), and the memory.
        """
        return self._atomic("add", ptr, (value,), mask, rows, offsets)

    def atomic_max(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TensorHandle:
        """Keep the larger; returns what memory held. Shape, dtype, engine: as atomic_add."""
        return self._atomic("max", ptr, (value,), mask, rows, offsets)

    def atomic_min(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TensorHandle:
        """Keep the smaller; returns what memory held. Shape, dtype, engine: as atomic_add."""
        return self._atomic("min", ptr, (value,), mask, rows, offsets)

    def atomic_and(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TensorHandle:
        """Bitwise and; returns what memory held. Shape, engine: as atomic_add. dtype: integers."""
        return self._atomic("and", ptr, (value,), mask, rows, offsets)

    def atomic_or(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TensorHandle:
        """Bitwise or; returns what memory held. Shape, engine: as atomic_add. dtype: integers."""
        return self._atomic("or", ptr, (value,), mask, rows, offsets)

    def atomic_xor(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TensorHandle:
        """Bitwise exclusive or; returns what memory held. Shape, engine: as atomic_add. dtype: integers."""
        return self._atomic("xor", ptr, (value,), mask, rows, offsets)

    def atomic_xchg(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TensorHandle:
        """Put a value there; returns what memory held. Shape, engine: as atomic_add. dtype: any."""
        return self._atomic("xchg", ptr, (value,), mask, rows, offsets)

    def atomic_cas(
        self, ptr: int, cmp: Tensorish, value: Tensorish, *, offsets: OffsetsLike | None = None
    ) -> TensorHandle:
        """Put `value` where memory holds `cmp`; returns what it held. Shape, engine: as atomic_add. dtype: any."""
        return self._atomic("cas", ptr, (cmp, value), None, None, offsets)

    # ---- inside

    _differing: tuple[Value, Value] | None = None  # contents and `cmp` of the last swap that was known to fail

    def _atomic(
        self,
        op: str,
        ptr: int,
        operands: Sequence[Tensorish],
        mask: TensorHandle | bool | None,
        rows: TensorHandle | Sequence[int] | None,
        offsets: OffsetsLike | None,
    ) -> TensorHandle:
        access = self._access(op, ptr, operands, mask, rows, offsets)
        block, pieces, target = access.block, access.pieces, access.target
        tcm = self._arena.alloc(block.lanes.nbytes)
        held: dict[int, Value] = {}
        failed: list[KernBenchError] = []
        records: Records = ()
        if pieces:
            self._wait_for_pending(block.segments, writing=True)
            line = kernel_line()

            def apply(number: int) -> None:  # outside the kernel
                try:
                    held[number] = self._change(op, block.lanes.dtype, pieces[number], access.operands, line)
                except KernBenchError as error:
                    failed.append(error)

            deps = [number for x in operands if isinstance(x, TensorHandle) for number in x.records]
            deps += self._written_by(block.segments)
            cmd = AtomicCmd(op, target, self._next_name(), access.requests, apply, tuple(dict.fromkeys(deps)))
            records = self._call(cmd, lambda ids: self._note_writers(block.segments, ids))
        if failed:
            raise at_kernel_line(failed[0])
        return self._handle(target.shape, target.dtype, "tcm", tcm.address, self._old(block, held), tcm, records)

    def _access(
        self,
        op: str,
        ptr: int,
        operands: Sequence[Tensorish],
        mask: TensorHandle | bool | None,
        rows: TensorHandle | Sequence[int] | None,
        offsets: OffsetsLike | None,
    ) -> _Access:
        """What an atomic touches and sends. That of numbers at a plain address is kept: a loop asks for it again."""
        base = ptr.base if isinstance(ptr, Address) else None
        is_plain = mask is rows is offsets is None and all(type(x) in (int, float) for x in operands)
        key = (op, type(ptr), ptr, id(base), repr(operands)) if is_plain else None
        found = self._accesses.get(key) if key is not None else None
        if found is not None and self._pieces(found.target.address, found.block.lanes.nbytes) == found.segments:
            return found
        found = self._new_access(op, ptr, operands, mask, rows, offsets)
        if key is not None and len(found.segments) == 1:
            if len(self._accesses) >= _MAX_ACCESSES:
                self._accesses.clear()
            self._accesses[key] = found
        return found

    @cached_property
    def _accesses(self) -> dict[tuple[object, ...], _Access]:
        return {}

    def _new_access(
        self,
        op: str,
        ptr: int,
        operands: Sequence[Tensorish],
        mask: TensorHandle | bool | None,
        rows: TensorHandle | Sequence[int] | None,
        offsets: OffsetsLike | None,
    ) -> _Access:
        title = f"atomic_{op}"
        tensor = self._tensor_at(title, ptr, False)
        element = dtype_of(tensor.dtype)
        if op in _BITWISE and element.is_float:
            self._fail(f"{title}: '{tensor.name}' holds {element}", "bits are for integers")
        known = self._operands_of(title, operands, element)
        shape = known[0].shape
        numbers = self._row_numbers(title, ptr, rows)
        lanes_mask, distances = self._mask(title, mask, shape), self._distances(title, offsets)
        lanes = self._lanes(title, ptr, shape, element, None, numbers, lanes_mask, distances)
        block = self._placed(title, ptr, tensor, lanes)
        pieces = block.pieces
        requests = tuple([((pa, nbytes),) for pa, nbytes, _ in pieces])  # each is changed when it arrives
        target = Operand(self._address(title, ptr), shape, element.name, tensor.space)
        return _Access(ptr, target, known, block, list(block.segments), pieces, requests)

    def _operands_of(self, title: str, operands: Sequence[Tensorish], element: DType) -> list[Value]:
        """The operands to send, all of one shape and of the memory's type."""
        found: list[Value] = []
        for x in operands:
            if not isinstance(x, TensorHandle):
                found.append(self._fitting(title, x, element))
                continue
            tensor = self._local(title, x, "value")
            if tensor.dtype != element.name:
                self._fail(f"{title}: memory holds {element}, got {tensor.dtype}", f"tl.cast(value, '{element}') first")
            found.append(self._known(tensor))
        if any(value.shape != found[-1].shape for value in found):
            self._fail(f"{title}: shapes {found[0].shape} and {found[-1].shape}", "give both the same shape")
        return found

    def _change(
        self, op: str, dtype: DType, piece: tuple[int, int, int], operands: Sequence[Value], line: str
    ) -> Value:
        """Change the bytes of a piece that has arrived at its memory; returns their old contents."""
        values, (pa, nbytes, at) = self._values, piece
        if nbytes == operands[0].nbytes:
            type_, parts = operands[0].type, list(operands)
        else:
            type_ = values.type_of((nbytes // dtype.itemsize,), dtype)
            parts = [values.view(operand, type_, at, nbytes, 1) for operand in operands]
        old = self._read(((pa, nbytes),), type_.shape, type_.dtype)
        if op == "xchg":
            new = parts[0]
        elif op == "cas":
            new = self._compared(line, old, parts)
        else:
            new = self._at_once(self._apply_at(line, _VALUE_OPS[op], (old, parts[0]), dtype=type_.dtype), old)
        self._env.memory.write(pa, new)
        return old

    def _compared(self, line: str, old: Value, parts: Sequence[Value]) -> Value:
        """What a compare-and-swap leaves: the very value that memory held, where that is known to differ. A poll of a
        word that does not change makes no values.
        """
        if self._differing is not None and self._differing[0] is old and self._differing[1] is parts[0]:
            return old
        same = self._at_once(self._apply_at(line, "eq", (old, parts[0])), old)
        found = same.array()
        if found is not None and not found.any():
            self._differing = old, parts[0]
            return old
        return self._at_once(self._apply_at(line, "where", (same, parts[1], old)), old)

    def _at_once(self, value: Value, old: Value) -> Value:
        """A small result of what is known is computed now: many atomics on a word make no chain of values for later."""
        values = self._values
        if (
            value.nbytes <= _SMALL_BYTES
            and values.backend == "numpy"
            and values.sites is None
            and all(_is_known(each) for each in value.inputs)
            and not self._env.memory.is_unknown(old)
        ):
            materialize([value])
        return value

    def _old(self, block: Block, held: dict[int, Value]) -> Value:
        """The old contents of a block; zeros where it is masked out."""
        values, lanes = self._values, block.lanes
        if not held:
            return values.full(lanes.shape, 0, lanes.dtype)
        if len(held) == 1 and held[0].nbytes == lanes.nbytes:
            return held[0]
        patches = [(0, nbytes, lane, nbytes, 1, nbytes) for _, nbytes, lane in block.pieces]
        parts = [held[number] for number in range(len(patches))]
        return values.gather(values.type_of(lanes.shape, lanes.dtype), parts, patches)


def _is_known(value: Value) -> bool:
    """Whether a value is computed, or only bytes of one that is."""
    return value.data is not None or (value.op in ("full", "view") and all(x.data is not None for x in value.inputs))


class _Access(NamedTuple):
    """What an atomic touches and sends."""

    ptr: int  # keeps the tensor argument that it was counted from
    target: Operand
    operands: list[Value]
    block: Block
    segments: list[Segment]
    pieces: list[tuple[int, int, int]]
    requests: tuple[DmaRequest, ...]


_MAX_ACCESSES = 64  # kept per kernel
_SMALL_BYTES = 64
_BITWISE = ("and", "or", "xor")
_VALUE_OPS = {
    "add": "add",
    "max": "maximum",
    "min": "minimum",
    "and": "bit_and",
    "or": "bit_or",
    "xor": "bit_xor",
}
