"""`tl`: which bytes an access touches: its shape, strides, row numbers, offsets and mask, checked, as lanes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from kernbench.common.array_types import Mask
from kernbench.common.dtypes import DType, dtype_of
from kernbench.common.whole_numbers import is_whole
from kernbench.triton_emu.block_access import (
    Block,
    Lanes,
    Offsets,
    dense,
    of_offsets,
    of_rows,
    on_shards,
    placed,
    strided,
)
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.kernel_env import TensorRange
from kernbench.triton_emu.pointer import Address, TensorPtr
from kernbench.triton_emu.tl_core import SEQUENCES, TlCore

OffsetsLike = TensorHandle | Offsets | Sequence[int]
_FARTHEST = 1 << 56  # elements behind a pointer: no machine has as many


class TlLanes(TlCore):
    """The lanes of loads and stores. Raises KernelError at the kernel's line for those that a tensor does not have."""

    def _own_shape(self, op: str, ptr: int, element: DType | None, rows: Offsets | None) -> tuple[int, ...]:
        """The default shape of a load."""
        if not isinstance(ptr, TensorPtr):
            self._fail(f"{op}: no shape", "give one; only a tensor argument itself knows its shape")
        if element is not None and element.itemsize != dtype_of(ptr.dtype).itemsize:
            self._fail(
                f"{op}: no shape for {ptr.dtype} read as {element}", "give the shape in elements of the new dtype"
            )
        return ptr.local_shape if rows is None else (len(rows), *ptr.shape[1:])

    def _mask(self, op: str, mask: TensorHandle | bool | None, dims: tuple[int, ...]) -> Mask | None:
        """The mask as an array of bools; None where all lanes are active."""
        if mask is None or mask is True:
            return None
        if mask is False:
            return np.zeros(dims, bool)
        tensor = self._local(op, mask, "mask")
        if tensor.dtype != "bool":
            self._fail(f"{op}: mask is {tensor.dtype}", "give a bool tensor, say tl.arange(0, 32) < n")
        try:
            return np.broadcast_to(tensor.numpy(), dims).astype(bool)
        except ValueError:
            self._fail(f"{op}: mask has shape {tensor.shape}, the block {dims}", "give a mask that broadcasts to it")

    def _row_numbers(self, op: str, ptr: int, rows: TensorHandle | Sequence[int] | None) -> Offsets | None:
        if rows is None:
            return None
        if not isinstance(ptr, Address):
            self._fail(f"{op}: rows= of a plain number", "give the pointer that a tensor argument is")
        if isinstance(rows, TensorHandle):
            numbers = self._local(op, rows, "rows").numpy()
        else:
            try:
                numbers = np.asarray(rows, np.int64 if isinstance(rows, list | tuple) and not rows else None)
            except ValueError:
                self._fail(f"{op}: rows has lists of several lengths", "give whole numbers along one axis")
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            self._fail(f"{op}: rows is {numbers.dtype}{list(numbers.shape)}", "give whole numbers along one axis")
        return numbers.astype(np.int64)

    def _distances(self, op: str, offsets: OffsetsLike | None) -> Offsets | None:
        """`offsets=` as whole numbers of elements."""
        if offsets is None:
            return None
        if isinstance(offsets, TensorHandle):
            numbers = self._local(op, offsets, "offsets").numpy()
        else:
            try:
                numbers = np.asarray(offsets)
            except ValueError:
                self._fail(f"{op}: offsets has lists of several lengths", "give whole numbers in the block's shape")
        if numbers.dtype.kind not in "iu":
            self._fail(f"{op}: offsets is {numbers.dtype}{list(numbers.shape)}", "give whole numbers of elements")
        return numbers.astype(np.int64, copy=False)

    def _lanes(
        self,
        op: str,
        ptr: int,
        dims: tuple[int, ...],
        element: DType,
        strides: Sequence[int] | None,
        rows: Offsets | None,
        mask: Mask | None,
        offsets: Offsets | None = None,
    ) -> Lanes:
        if offsets is not None:
            if strides is not None or rows is not None:
                self._fail(f"{op}: both offsets= and {'rows' if rows is not None else 'strides'}=", "give one of them")
            if offsets.shape != dims:
                self._fail(f"{op}: offsets of shape {offsets.shape} for a block of {dims}", "give one per lane")
            return of_offsets(offsets * element.itemsize, element, mask)
        if rows is not None:
            if strides is not None:
                self._fail(f"{op}: both rows= and strides=", "give one of them")
            assert isinstance(ptr, Address)  # _row_numbers looked
            base = ptr.base
            row_bytes = prod(base.shape[1:]) * dtype_of(base.dtype).itemsize
            used = (
                rows if mask is None or mask.shape[:1] != rows.shape else rows[mask.reshape(len(rows), -1).any(axis=1)]
            )
            self._check_rows(op, ptr, rows, used, dims, row_bytes, prod(dims[1:]) * element.itemsize)
            return of_rows(rows, row_bytes, dims, element, mask)
        if strides is not None:
            return strided(dims, self._steps(op, strides, dims), element, mask)
        if mask is not None:
            return strided(dims, tuple(prod(dims[axis + 1 :]) for axis in range(len(dims))), element, mask)
        return dense(dims, element)

    def _steps(self, op: str, strides: Sequence[int], dims: tuple[int, ...]) -> tuple[int, ...]:
        steps = tuple(strides) if isinstance(strides, SEQUENCES) else (strides,)
        if len(steps) != len(dims) or not all(is_whole(n) and n >= 0 for n in steps):
            self._fail(
                f"{op}: strides {strides!r} of a block of shape {dims}",
                "give one per axis, in elements, each a whole number of 0 or more",
            )
        if sum((size - 1) * int(n) for size, n in zip(dims, steps, strict=True)) > _FARTHEST:
            self._fail(f"{op}: strides {strides!r} of a block of shape {dims} reach past any memory", "check them")
        return tuple(int(n) for n in steps)

    def _check_rows(
        self,
        op: str,
        ptr: Address,
        rows: Offsets,
        used: Offsets,
        dims: tuple[int, ...],
        row_bytes: int,
        width_bytes: int,
    ) -> None:
        """Rows fit the block, and those of which a lane is let through are there."""
        name, there_are = self._tensor_at(op, ptr, False).name, ptr.base.shape[0]
        if not dims or dims[0] != len(rows):
            hint = (
                f"make its first axis {len(rows)}" if dims else f"give a tensor, say tl.full(({len(rows)}, ...), value)"
            )
            self._fail(f"{op}: {len(rows)} rows for a block of shape {dims}", hint)
        column = (int(ptr) - int(ptr.base)) % row_bytes if row_bytes else 0
        if column + width_bytes > row_bytes:
            begin = f" from byte {column} of a row on" if column else ""
            self._fail(
                f"{op}: rows of {width_bytes} bytes{begin}, '{name}' has rows of {row_bytes}", "take narrower rows"
            )
        wrong = used[(used < 0) | (used >= there_are)]
        if wrong.size:
            self._fail(
                f"{op}: row {int(wrong[0])} of '{name}', which has {there_are}",
                f"use 0 to {there_are - 1}, or mask the others out",
            )

    def _placed(self, op: str, ptr: int, tensor: TensorRange, lanes: Lanes) -> Block:
        """Lanes of a tensor where they lie; an error at the user's line for those that lie outside it."""
        if not lanes.runs and 0 not in lanes.shape:  # all masked out: it may be a block past the end of its tensor
            return Block(lanes, (), (), ())
        first, end = lanes.span
        grid = ptr.base.grid if isinstance(ptr, Address) else None
        if grid is not None and tensor.is_one_of_several:
            self._fail(
                f"{op}: the columns of '{tensor.name}' are split over PEs, of which each reaches its own part only",
                "use x.local, or set system.address_model to va",
            )
        self._check_range(op, ptr, tensor, first, end - first, lanes.dtype.itemsize)
        if grid is None or not lanes.runs:
            return placed(lanes, self._address(op, ptr), self._translation(ptr, lanes.is_gather))
        assert isinstance(ptr, Address)
        behind = self._address(op, ptr) - int(ptr.base)
        found = on_shards(lanes, behind, grid, dtype_of(tensor.dtype).itemsize)
        if found is None:
            self._fail(
                f"{op}: an element of {lanes.dtype.itemsize} bytes lies in two parts of '{tensor.name}', whose columns "
                "are split over PEs",
                f"read it as {tensor.dtype}, or read parts of x.local",
            )
        return placed(found, int(ptr.base), self._translation(ptr, found.is_gather))
