"""`tl`: transfers between memory and TCM: loads, stores and references; dense, strided, masked, or by row numbers.

Strides are in elements, as PyTorch and Triton count them. A lane that is masked out touches no memory and costs
nothing: a load gives `other` there (0 without it), a store leaves memory as it is. The bytes touched, each once, make
runs in ascending order; runs of one length at one distance are one request of the DMA engine, any others a request
each, of which the engine has `outstanding` under way. A request pays for each burst that it touches, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod

from kernbench.common.commands import DmaReadCmd, DmaWriteCmd, Operand
from kernbench.common.dtypes import I8, DType, dtype_of
from kernbench.common.errors import DataError, KernBenchError, KernelError
from kernbench.triton_emu.block_access import (
    Block,
)
from kernbench.triton_emu.call_site import at_kernel_line, kernel_line
from kernbench.triton_emu.handle import Scalar, TensorHandle
from kernbench.triton_emu.kernel_runner import Records, RecordsCallback
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.pointer import TensorPtr
from kernbench.triton_emu.tl_lanes import OffsetsLike, TlLanes
from kernbench.values.graph import Value

_FEW_PATCHES = 16  # of a block, that memory is asked for one by one
_SPARSE = 8  # bytes from the first to the last, for each one touched: more are not read around them


class TlAccess(TlLanes):
    """Loads, stores, references."""

    def load(
        self,
        ptr: int,
        shape: object = None,
        dtype: object = None,
        *,
        mask: TensorHandle | bool | None = None,
        other: Scalar | None = None,
        strides: Sequence[int] | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TensorHandle:
        """Load a block from memory into TCM and wait for it. It holds the bytes as they are when the last one arrives.

        `strides` are in elements, one per axis; `rows` are numbers of rows of the tensor that `ptr` points into,
        counted from `ptr` on; `offsets` are distances from `ptr` in elements, one per lane and in any order; `mask`
        says which lanes are touched, and `other` is what the rest hold. Shape: as given; without, the local shape of
        the tensor, with `rows` as many rows, with `offsets` theirs. dtype: the tensor's own, or `dtype`, as which its
        bytes are read. Engine: DMA (read channel); none where nothing is touched. Waits for what this kernel has yet to
        write there.
        """
        source, block, fill = self._source("load", ptr, shape, dtype, mask, other, strides, rows, offsets)
        tcm = self._arena.alloc(source.nbytes)
        records: Records = ()
        if block.requests:
            self._wait_for_pending(block.segments)
            records = self._call(DmaReadCmd(source, self._next_name(), block.requests, self._writers_of(block)))
        value = self._filled(self._read_block(block), fill)
        return self._handle(source.shape, source.dtype, "tcm", tcm.address, value, tcm, records)

    def load_async(
        self,
        ptr: int,
        shape: object = None,
        dtype: object = None,
        *,
        mask: TensorHandle | bool | None = None,
        other: Scalar | None = None,
        strides: Sequence[int] | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TransferHandle:
        """As `load`, without waiting for it: `tl.wait` does, and returns the tensor. Its place in TCM is taken now."""
        source, block, fill = self._source("load_async", ptr, shape, dtype, mask, other, strides, rows, offsets)
        tcm = self._arena.alloc(source.nbytes)
        handle, line = TransferHandle(self), kernel_line()
        command = handle.command

        def arrived(records: Records) -> None:  # outside the kernel, whose line is `line`
            self._under_way.end(command)
            try:
                value = self._filled(self._read_block(block), fill, line)
            except KernBenchError as error:
                raise KernelError(f"load_async at {line}: {error.what}", hint=error.hint) from None
            out = self._handle(source.shape, source.dtype, "tcm", tcm.address, value, tcm, records)
            command.finish(records, out)

        if not block.requests:
            arrived(())
            return handle
        self._wait_for_pending(block.segments)
        cmd = DmaReadCmd(source, self._next_name(), block.requests, self._writers_of(block))
        self._under_way.begin_reading(command, block.segments)
        command.number = self._issue_command(cmd, arrived)
        return handle

    def store(
        self,
        ptr: int,
        value: TensorHandle,
        *,
        mask: TensorHandle | bool | None = None,
        strides: Sequence[int] | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> None:
        """Write a tensor to memory and wait for the acknowledgement; memory has the new contents from then on.

        Shape: any; with `rows` the first axis has as many, `offsets` have the same. dtype: the tensor's that `ptr`
        points into. Engine: DMA (write channel); none where nothing is touched. Of two lanes at one place the later one
        stays. Waits for what this kernel has yet to write or read there.
        """
        cmd, block, known = self._target_of("store", ptr, value, mask, strides, rows, offsets)
        if cmd is not None:
            # Written when the engine is done, even if the kernel has been aborted by then.
            self._call(cmd, partial(self._write_block, block, known))

    def store_async(
        self,
        ptr: int,
        value: TensorHandle,
        *,
        mask: TensorHandle | bool | None = None,
        strides: Sequence[int] | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> TransferHandle:
        """As `store`, without waiting for it: `tl.wait` does. What is written is what `value` holds now."""
        cmd, block, known = self._target_of("store_async", ptr, value, mask, strides, rows, offsets)
        handle = TransferHandle(self, (value,))
        command = handle.command

        def written(records: Records) -> None:
            self._write_block(block, known, records)
            self._under_way.end(command)
            command.finish(records)

        if cmd is None:
            command.finish(())
        else:
            self._under_way.begin(command, block.segments)
            command.number = self._issue_command(cmd, written)
        return handle

    def ref(self, ptr: int, shape: object = None, dtype: object = None) -> TensorHandle:
        """Name a dense tensor in memory without moving it: for tl.composite, which streams it tile by tile.

        Shape and dtype: as in `load`. Engine: none.
        """
        source, block, _ = self._source("ref", ptr, shape, dtype)
        if not source.elements:
            return self._new(self._values.full(source.shape, 0, source.dtype))
        return self._handle(
            source.shape, source.dtype, source.space, source.address, None, segments=block.segments,
            layout=source.layout,
        )  # fmt: skip

    def _issue_command(self, cmd: DmaReadCmd | DmaWriteCmd, done: RecordsCallback) -> int:
        try:
            return self._runner.issue(cmd, done)
        except KernBenchError as error:
            raise at_kernel_line(error) from None

    # ---- requests

    def _source(
        self,
        op: str,
        ptr: int,
        shape: object,
        dtype: object,
        mask: TensorHandle | bool | None = None,
        other: Scalar | None = None,
        strides: Sequence[int] | None = None,
        rows: TensorHandle | Sequence[int] | None = None,
        offsets: OffsetsLike | None = None,
    ) -> tuple[Operand, Block, tuple[Value, Scalar] | None]:
        """The source of a load: its operand, its block, and what masked lanes hold."""
        distances = self._distances(op, offsets)
        if shape is None and distances is not None:
            shape = distances.shape
        if shape is None and rows is None and isinstance(ptr, TensorPtr):
            ptr = ptr.local
        address = self._address(op, ptr)
        element = None if dtype is None else self._dtype(dtype)
        numbers = self._row_numbers(op, ptr, rows)
        if shape is None:
            shape = self._own_shape(op, ptr, element, numbers)
        dims = self._shape(op, shape)
        if mask is None and strides is None and rows is None and distances is None:
            ptr = self._on_shard(op, ptr, dims, streams=op == "ref")
        tensor = self._tensor_at(op, ptr, not prod(dims))
        element = element or dtype_of(tensor.dtype)
        if mask is not None or strides is not None or distances is not None:
            self._arena.check_size(prod(dims) * element.itemsize)  # before its lanes are listed
        lanes_mask = self._mask(op, mask, dims)
        if other is not None and lanes_mask is None:
            self._fail(f"{op}: other= without mask=", "other is what lanes hold that the mask leaves out: give a mask")
        lanes = self._lanes(op, ptr, dims, element, strides, numbers, lanes_mask, distances)
        block = self._placed(op, ptr, tensor, lanes)
        source = Operand(address, dims, element.name, tensor.space, segments=block.segments, layout=tensor.layout)
        fill = None
        if lanes_mask is not None and other is not None:
            self._fitting(op, other, element)
            fill = (self._values.constant(lanes_mask, "bool"), self._number(op, other))
        return source, block, fill

    def _target_of(
        self,
        op: str,
        ptr: int,
        value: TensorHandle,
        mask: TensorHandle | bool | None,
        strides: Sequence[int] | None,
        rows: TensorHandle | Sequence[int] | None,
        offsets: OffsetsLike | None = None,
    ) -> tuple[DmaWriteCmd | None, Block, Value]:
        """The command of a store, its block and its value; no command where nothing is touched."""
        x = self._local(op, value, "value")
        known = self._known(x)
        distances = self._distances(op, offsets)
        if mask is None and strides is None and rows is None and distances is None:
            ptr = self._on_shard(op, ptr, x.shape)
        tensor = self._tensor_at(op, ptr, not x.size)
        if tensor.dtype != x.dtype:
            self._fail(
                f"{op}: '{tensor.name}' holds {tensor.dtype}, got {x.dtype}", f"tl.cast(value, '{tensor.dtype}') first"
            )
        numbers = self._row_numbers(op, ptr, rows)
        lanes_mask = self._mask(op, mask, x.shape)
        lanes = self._lanes(op, ptr, x.shape, known.dtype, strides, numbers, lanes_mask, distances)
        block = self._placed(op, ptr, tensor, lanes)
        if not block.requests:
            return None, block, known
        target = Operand(self._address(op, ptr), x.shape, x.dtype, tensor.space)
        deps = tuple(dict.fromkeys((*x.records, *self._wait_for_pending(block.segments, writing=True))))
        return DmaWriteCmd(x.operand(), target, self._next_name(), block.requests, deps), block, known

    def _next_name(self) -> str:
        self._tensors_made += 1
        return f"t{self._tensors_made}"

    # ---- contents

    def _filled(self, value: Value, fill: tuple[Value, Scalar] | None, line: str | None = None) -> Value:
        """A value with `other` where lanes are masked out; `line` is the kernel's, where it does not call this."""
        if fill is None:
            return value
        lanes, other = fill
        return self._apply_at(line, "where", (lanes, value, other), dtype=value.dtype)

    def _fitting(self, op: str, x: object, element: DType) -> Value:
        """A number as a single element of a type that can hold it."""
        number = self._number(op, x)
        try:
            return self._values.scalar(number, element)
        except DataError as error:
            self._fail(f"{op}: {number} does not fit {element}", error.hint or "use another number")

    def _writers_of(self, block: Block) -> Records:
        written = self._written_by(block.segments)
        return written if len(written) < 2 else tuple(dict.fromkeys(written))

    def _read_block(self, block: Block) -> Value:
        """What memory holds of a block now; zeros where it is masked out."""
        lanes, patches = block.lanes, block.patches
        if not patches:
            return self._values.full(lanes.shape, 0, lanes.dtype)
        if block.is_in_one_piece and lanes.strides_bytes is not None and len(lanes.runs) > 1:
            return self._read_strided(patches[0].at, lanes.shape, lanes.strides_bytes, lanes.dtype)
        if block.is_whole and len(lanes.runs) == len(patches) == 1:
            return self._read(((patches[0].at, lanes.nbytes),), lanes.shape, lanes.dtype)
        type_ = self._values.type_of(lanes.shape, lanes.dtype)
        around = self._around(block)
        if around is None:
            parts = [self._read_strided(at, (rows, run), (step, 1), I8) for at, step, _, _, rows, run in patches]
            return self._values.gather(type_, parts, [(0, p.run, *p[2:]) for p in patches])
        first, bytes_there = around
        return self._values.gather(type_, [bytes_there] * len(patches), [(p.at - first, *p[1:]) for p in patches])

    def _around(self, block: Block) -> tuple[int, Value] | None:
        """All bytes from a block's first to its last, and where they begin: cheaper than many patches one by one. None
        for few patches, for bytes that lie far apart, and where some between them were never written.
        """
        if len(block.patches) <= _FEW_PATCHES or not block.is_in_one_piece:
            return None
        first, end = block.segments[0][0], sum(block.segments[-1])
        if end - first > _SPARSE * block.lanes.touched_bytes:
            return None
        try:
            return first, self._env.memory.read(first, (end - first,), I8)
        except DataError:
            return None

    def _write_block(self, block: Block, value: Value, records: Records) -> None:
        """Write the lanes of a value to memory."""
        values, memory, lanes, patches = self._values, self._env.memory, block.lanes, block.patches
        self._note_writers(block.segments, records)
        if block.is_whole and len(patches) == 1 and patches[0].rows == 1:
            memory.write(patches[0].at, value)
            return
        is_once = lanes.touched_bytes == sum([nbytes for _, nbytes in block.segments])
        around = self._around(block) if is_once else None
        if around is not None:
            memory.write(around[0], self._patched(block, value, *around))
            return
        for at, step, lane, lane_step, rows, run in patches:
            part = values.view(value, values.type_of((rows, run), I8), lane, lane_step, rows)
            if rows == 1:
                memory.write(at, part)
            else:
                memory.write_strided(at, part, (step, 1))

    def _patched(self, block: Block, value: Value, first: int, held: Value) -> Value:
        """Bytes that memory holds from `first` on, with the lanes of a value in their places."""
        sources = [value] * len(block.patches)
        copies = [(p.lane_offset, p.lane_step, p.at - first, p.step, p.rows, p.run) for p in block.patches]
        for (pa, nbytes), (following, _) in pairwise(block.segments):
            at, gap = pa + nbytes - first, following - pa - nbytes
            sources.append(held)
            copies.append((at, gap, at, gap, 1, gap))
        return self._values.gather(held.type, sources, copies)
