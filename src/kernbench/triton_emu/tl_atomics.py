"""`tl`: atomics. The memory that owns the bytes changes them, in order of arrival, and sends back what they were.

A block travels there as a store does and its old contents come back as a load's do; both are charged to the DMA's write
channel, to the links each way, and at the memory to the channels of every burst twice, for the write and for the read.
All elements of one run change at the instant at which the last of them arrives. Atomics order memory: what a PE did
before one is seen by a PE whose atomic on the same bytes comes later.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.commands import AtomicCmd, Operand
from kernbench.common.dtypes import DType, dtype_of
from kernbench.common.errors import KernBenchError
from kernbench.triton_emu.block_access import Block
from kernbench.triton_emu.call_site import at_kernel_line, kernel_line
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.kernel_runner import Records
from kernbench.triton_emu.tl_access import TlAccess
from kernbench.triton_emu.tl_math import Tensorish
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
    ) -> TensorHandle:
        """Add to memory; returns what it held. Shape: value's, a single number for a number. dtype: the tensor's that
        `ptr` points into, float or integer. Engine: DMA (write channel), and the memory.
        """
        return self._atomic("add", ptr, (value,), mask, rows)

    def atomic_max(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
    ) -> TensorHandle:
        """Keep the larger; returns what memory held. Shape, dtype, engine: as atomic_add."""
        return self._atomic("max", ptr, (value,), mask, rows)

    def atomic_min(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
    ) -> TensorHandle:
        """Keep the smaller; returns what memory held. Shape, dtype, engine: as atomic_add."""
        return self._atomic("min", ptr, (value,), mask, rows)

    def atomic_and(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
    ) -> TensorHandle:
        """Bitwise and; returns what memory held. Shape, engine: as atomic_add. dtype: integers."""
        return self._atomic("and", ptr, (value,), mask, rows)

    def atomic_or(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
    ) -> TensorHandle:
        """Bitwise or; returns what memory held. Shape, engine: as atomic_add. dtype: integers."""
        return self._atomic("or", ptr, (value,), mask, rows)

    def atomic_xor(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
    ) -> TensorHandle:
        """Bitwise exclusive or; returns what memory held. Shape, engine: as atomic_add. dtype: integers."""
        return self._atomic("xor", ptr, (value,), mask, rows)

    def atomic_xchg(
        self,
        ptr: int,
        value: Tensorish,
        *,
        mask: TensorHandle | bool | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
    ) -> TensorHandle:
        """Put a value there; returns what memory held. Shape, engine: as atomic_add. dtype: any."""
        return self._atomic("xchg", ptr, (value,), mask, rows)

    def atomic_cas(self, ptr: int, cmp: Tensorish, value: Tensorish) -> TensorHandle:
        """Put `value` where memory holds `cmp`; returns what it held. Shape, engine: as atomic_add. dtype: any."""
        return self._atomic("cas", ptr, (cmp, value), None, None)

    # ---- inside

    def _atomic(
        self,
        op: str,
        ptr: int,
        operands: Sequence[Tensorish],
        mask: TensorHandle | bool | None,
        rows: TensorHandle | Sequence[int] | None,
    ) -> TensorHandle:
        title = f"atomic_{op}"
        tensor = self._tensor_at(title, ptr, False)
        element = dtype_of(tensor.dtype)
        if op in _BITWISE and element.is_float:
            self._fail(f"{title}: '{tensor.name}' holds {element}", "bits are for integers")
        known = self._operands_of(title, operands, element)
        shape = known[0].shape
        numbers = self._row_numbers(title, ptr, rows)
        lanes = self._lanes(title, ptr, shape, element, None, numbers, self._mask(title, mask, shape))
        block = self._placed(title, ptr, tensor, lanes)
        pieces = block.pieces
        tcm = self._arena.alloc(block.lanes.nbytes)
        held: dict[int, Value] = {}
        failed: list[KernBenchError] = []
        records: Records = ()
        if pieces:
            self._settle(block.segments, writing=True)
            requests = tuple([((pa, nbytes),) for pa, nbytes, _ in pieces])  # each changes by itself, when it arrives
            line = kernel_line()

            def apply(number: int) -> None:  # outside the kernel
                try:
                    held[number] = self._change(op, block.lanes.dtype, pieces[number], known, line)
                except KernBenchError as error:
                    failed.append(error)

            target = Operand(self._address(title, ptr), shape, element.name, tensor.space)
            deps = [number for x in operands if isinstance(x, TensorHandle) for number in x.records]
            deps += self._written_by(block.segments)
            cmd = AtomicCmd(op, target, self._next_name(), requests, apply, tuple(dict.fromkeys(deps)))
            records = self._call(cmd, lambda ids: self._note_writers(block.segments, ids))
        if failed:
            raise at_kernel_line(failed[0])
        value = self._old(block, held)
        return self._handle(shape, element.name, "tcm", tcm.address, value, tcm, records)

    def _operands_of(self, title: str, operands: Sequence[Tensorish], element: DType) -> list[Value]:
        """What is sent, each of one shape and of the memory's type."""
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
        """A piece has arrived at its memory: change what is there; returns what it was."""
        values, (pa, nbytes, at) = self._values, piece
        type_ = values.type_of((nbytes // dtype.itemsize,), dtype)
        old = self._read(((pa, nbytes),), type_.shape, type_.dtype)
        parts = [values.view(operand, type_, at, nbytes, 1) for operand in operands]
        if op == "xchg":
            new = parts[0]
        elif op == "cas":
            same = self._apply_at(line, "eq", (old, parts[0]))
            new = self._apply_at(line, "where", (same, parts[1], old))
        else:
            new = self._apply_at(line, _VALUE_OPS[op], (old, parts[0]), dtype=type_.dtype)
        self._env.memory.write(pa, new)
        return old

    def _old(self, block: Block, held: dict[int, Value]) -> Value:
        """What memory held of a block; zeros where it is masked out."""
        values, lanes = self._values, block.lanes
        if not held:
            return values.full(lanes.shape, 0, lanes.dtype)
        patches = [(0, nbytes, lane, nbytes, 1, nbytes) for _, nbytes, lane in block.pieces]
        parts = [held[number] for number in range(len(patches))]
        return values.gather(values.type_of(lanes.shape, lanes.dtype), parts, patches)


_BITWISE = ("and", "or", "xor")
_VALUE_OPS = {
    "add": "add",
    "max": "maximum",
    "min": "minimum",
    "and": "bit_and",
    "or": "bit_or",
    "xor": "bit_xor",
}
