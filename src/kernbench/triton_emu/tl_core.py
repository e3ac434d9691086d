"""What all of `tl` stands on: the kernel's place in the grid, its TCM, the tensors it was given, and the way to its
PE.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, partial
from math import prod
from typing import NoReturn, cast

import numpy as np

from kernbench.common.commands import TILED, Command, Segment, Space, TensorLayout, WaitCmd
from kernbench.common.dtypes import I8, DType, dtype_of
from kernbench.common.errors import DataError, KernBenchError
from kernbench.common.whole_numbers import is_whole
from kernbench.triton_emu.block_access import Translate
from kernbench.triton_emu.call_site import at_kernel_line, kernel_error, kernel_line
from kernbench.triton_emu.handle import IssuedCommand, Scalar, TensorHandle, TensorOps
from kernbench.triton_emu.kernel_env import KernelEnv, TensorRange
from kernbench.triton_emu.kernel_runner import Records, RecordsCallback
from kernbench.triton_emu.pending_handle import PendingHandle
from kernbench.triton_emu.pointer import Address
from kernbench.triton_emu.tcm_arena import TcmArena, TcmBlock
from kernbench.triton_emu.under_way import UnderWay
from kernbench.values.graph import Value

_NUMBERS = (bool, int, float)
SEQUENCES = (list, tuple)
BUFFER = "buffer"  # the op of a value that has a type and no numbers


class TlCore:
    """Base of TLContext: nothing here is for kernels."""

    def __init__(self, env: KernelEnv) -> None:
        self._env = env
        self._runner = env.runner
        self._values = env.values
        self._arena = TcmArena(env.tcm_base, env.tcm_bytes, env.tcm_holders)
        self._has_pending = False  # whether any command was issued without waiting for it
        self._tensors_made = 0
        self._receives: dict[int, str] = {}  # lines of those that the kernel has not waited for, by command

    def close(self) -> int:
        """End the kernel; returns the peak TCM of its tensors in bytes."""
        self._arena.close()
        return self._arena.peak_bytes

    @cached_property
    def _under_way(self) -> UnderWay:
        self._has_pending = True
        return UnderWay()

    # ---- errors

    def _fail(self, what: str, hint: str) -> NoReturn:
        raise kernel_error(what, hint)

    # ---- the PE

    def _call(self, cmd: Command, done: RecordsCallback | None = None) -> Records:
        try:
            return self._runner.call(cmd, done)
        except KernBenchError as error:
            raise at_kernel_line(error) from None

    # ---- tensors

    def _number(self, op: str, x: object) -> Scalar:
        if isinstance(x, Address):
            self._fail(
                f"{op}: an operand is a pointer to '{x.base.name}'",
                "pointers take whole numbers of bytes (int(i) of a tensor of one element); load a block with "
                "tl.load(x, shape, ...), choose its elements with rows=, strides= or mask=",
            )
        plain = x.item() if isinstance(x, np.generic) else x
        if not isinstance(plain, _NUMBERS):
            self._fail(f"{op}: an operand is a {type(x).__name__}", "give tensors and Python numbers")
        return plain

    def _apply(self, op: str, inputs: Sequence[Value | Scalar], **params: object) -> Value:
        """Apply a value op; errors name the user's line."""
        return self._apply_at(None, op, inputs, **params)

    def _apply_at(self, line: str | None, op: str, inputs: Sequence[Value | Scalar], **params: object) -> Value:
        """The same when a command ends, outside the kernel: `line` is where the kernel asked for it."""
        values = self._values
        try:
            value = values.apply(op, inputs, **params)
        except DataError as error:
            raise at_kernel_line(error) from None
        if values.sites is not None:
            values.sites[value.id] = line or kernel_line()
        return value

    def _dtype(self, dtype: object) -> DType:
        try:
            return dtype_of(dtype)
        except DataError as error:
            raise at_kernel_line(error) from None

    def _shape(self, op: str, shape: object) -> tuple[int, ...]:
        """A shape of whole numbers. A size may be 0: what a PE holds of a split tensor may be nothing."""
        dims = tuple(shape) if isinstance(shape, SEQUENCES) else (shape,)
        for dim in dims:
            if not is_whole(dim) or dim < 0:
                self._fail(f"{op}: shape is {shape!r}", "give whole numbers of 0 or more, say (32, 64)")
        return tuple([int(dim) for dim in dims])

    def _new(self, value: Value, records: Records = ()) -> TensorHandle:
        """A tensor of its own in TCM. One without elements is known already, whatever it was to be computed from."""
        type_ = value.type
        if not type_.size:
            value = self._values.full(type_.shape, 0, type_.dtype)
        block = self._arena.alloc(type_.nbytes)
        return self._handle(type_.shape, type_.dtype.name, "tcm", block.address, value, block, records)

    def _alias(self, x: TensorHandle, value: Value) -> TensorHandle:
        """A view of the same bytes of TCM."""
        return self._handle(value.shape, value.dtype.name, "tcm", x.address, value, x.block, x.records)

    def _handle(
        self,
        shape: tuple[int, ...],
        dtype: str,
        space: Space,
        address: int,
        value: Value | None,
        block: TcmBlock | None = None,
        records: Records = (),
        transposed: bool = False,
        segments: tuple[Segment, ...] = (),
        layout: TensorLayout = TILED,
    ) -> TensorHandle:
        tl = cast(TensorOps, self)
        return TensorHandle(tl, shape, dtype, space, address, value, block, records, transposed, segments, layout)

    def _tensor(self, op: str, x: object, name: str = "x") -> TensorHandle:
        """A tensor of this kernel; one that a composite has yet to write is waited for."""
        if not isinstance(x, TensorHandle):
            if isinstance(x, PendingHandle):
                self._fail(f"{op}: {name} is a handle of what is under way", "give what tl.wait(h) returns")
            if isinstance(x, Address):
                hint = "tl.load(x) brings it to TCM; tl.composite also takes tl.ref(x), which it streams"
                self._fail(f"{op}: {name} is a pointer to '{x.base.name}'", hint)
            self._fail(f"{op}: {name} is a {type(x).__name__}", "give a tensor, say what tl.load returned")
        if not self._is_own(x):
            self._fail(f"{op}: {name} belongs to another kernel", "pass data between kernels through memory")
        if x.composite is not None:
            self._await(x.composite)
        return x

    def _is_own(self, x: TensorHandle) -> bool:
        """Whether it comes from this kernel."""
        return x.tl is self  # type: ignore[comparison-overlap]  # TLContext has what tensors need of `tl`

    def _local(self, op: str, x: object, name: str = "x") -> TensorHandle:
        """A tensor that is in TCM."""
        if type(x) is TensorHandle and x.value is not None and x.composite is None and self._is_own(x):
            return x
        tensor = self._tensor(op, x, name)
        if tensor.is_reference:
            self._fail(
                f"{op}: {name} is a reference to memory, expected a tensor in TCM",
                "tl.load it first, or give the reference to tl.composite",
            )
        return tensor

    @staticmethod
    def _made_by(tensors: Sequence[TensorHandle]) -> Records:
        """The op-log ids of what made some tensors, each once."""
        if len(tensors) == 1:
            return tensors[0].records
        return tuple(dict.fromkeys([number for x in tensors for number in x.records]))

    @staticmethod
    def _known(x: TensorHandle) -> Value:
        assert x.value is not None
        return x.value

    def _await(self, command: IssuedCommand) -> None:
        """Let time pass until a command is done; what it leaves in TCM stays with its handle."""
        if not self._runner.is_done(command.number):
            self._call(WaitCmd((command.number,)))
        self._runner.note_waited(command.number)
        self._receives.pop(command.number, None)
        self._raise_failure(command.number)

    def _raise_failure(self, number: int | None = None) -> None:
        """Raise what went wrong at the end of a command that was waited for, or of any."""
        failure = self._runner.take_failure(number)
        if failure is not None:
            raise at_kernel_line(failure)

    # ---- memory

    def _pieces(self, address: int, nbytes: int) -> list[Segment]:
        try:
            self._runner.check_inside()  # pages are gone when the kernel is
            return self._env.translate(address, nbytes)
        except KernBenchError as error:
            raise at_kernel_line(error) from None

    def _translation(self, ptr: object, is_gather: bool = False) -> Translate:
        """How ranges of an access are translated. Runs are cut where a shard ends if the access spans shards by its
        nature: its lanes are placed one by one, or it is counted from `storage` or `across`.
        """
        if not isinstance(ptr, Address) or len(ptr.base.part_ends) < 2 or not (is_gather or ptr.base.may_span):
            return self._pieces
        return partial(self._pieces_by_part, int(ptr.base), ptr.base.part_ends)

    def _pieces_by_part(self, start: int, ends: Sequence[int], address: int, nbytes: int) -> list[Segment]:
        found: list[Segment] = []
        end = address + nbytes
        while address < end:
            size = min(start + ends[bisect_right(ends, address - start)], end) - address
            found += self._pieces(address, size)
            address += size
        return found

    def _wait_for_pending(self, segments: Sequence[Segment], *, writing: bool = False) -> Records:
        """Wait for this kernel's writes in flight to these bytes, and before writing also for its reads; returns
        the op-log ids of the writers.
        """
        records: Records = ()
        if not self._has_pending:
            return records
        for writer in self._under_way.writers_of(segments):
            self._await(writer)
            records += writer.records
        if writing:
            for reader in self._under_way.readers_of(segments):
                self._await(reader)
        return records

    def _written_by(self, pieces: Sequence[Segment]) -> Records:
        """The op-log ids of what wrote these bytes."""
        writers = self._env.writers
        if writers is None:
            return ()
        if len(pieces) == 1:
            return writers.of(*pieces[0])
        return tuple([op for pa, nbytes in pieces for op in writers.of(pa, nbytes)])

    def _read_strided(self, pa: int, shape: tuple[int, ...], strides_bytes: tuple[int, ...], dtype: DType) -> Value:
        """The value that strided bytes hold from a physical address on."""
        try:
            return self._env.memory.read_strided(pa, shape, strides_bytes, dtype)
        except DataError as error:
            raise at_kernel_line(error) from None

    def _read(self, pieces: Sequence[Segment], shape: tuple[int, ...], dtype: DType) -> Value:
        """The value that physical pieces hold, one after the other."""
        memory, values = self._env.memory, self._values
        try:
            if len(pieces) == 1:
                return memory.read(pieces[0][0], shape, dtype)
            parts = [memory.read(pa, (nbytes,), I8) for pa, nbytes in pieces]
        except DataError as error:
            raise at_kernel_line(error) from None
        at, patches = 0, []
        for _, nbytes in pieces:
            patches.append((0, nbytes, at, nbytes, 1, nbytes))
            at += nbytes
        return values.gather(values.type_of(shape, dtype), parts, patches)

    def _write(self, pieces: Sequence[Segment], value: Value, records: Records) -> None:
        """Leave a value in physical pieces, one after the other; `records` are the op-log ids of what wrote it."""
        memory, values = self._env.memory, self._values
        self._note_writers(pieces, records)
        if len(pieces) == 1:
            memory.write(pieces[0][0], value)
            return
        at = 0
        for pa, nbytes in pieces:
            memory.write(pa, values.view(value, values.type_of((nbytes,), I8), at, nbytes, 1))
            at += nbytes

    def _note_writers(self, pieces: Sequence[Segment], records: Records) -> None:
        """The ops of these ids have written these bytes."""
        writers = self._env.writers
        if writers is not None:
            writers.note_all(pieces, records[-1] if records else None)

    def _address(self, op: str, ptr: object) -> int:
        if isinstance(ptr, Address):
            return int(ptr)
        if not is_whole(ptr):
            hint = "give the pointer that a tensor argument is, or that plus a whole number of bytes"
            self._fail(f"{op}: the pointer is a {type(ptr).__name__}", hint)
        return int(ptr)

    def _on_shard(self, op: str, ptr: int, dims: tuple[int, ...], *, streams: bool = False) -> int:
        """The address of a dense block. One that is exactly a shard of a tensor whose columns are split, from its first
        element on, is that shard as memory has it: the address is counted from `storage` then.

        Several rows that are as wide as a shard are refused where they are anything else: they could be rows of the
        shard or consecutive elements of the tensor. What `streams` a block needs rows that lie end to end.
        """
        if not isinstance(ptr, Address) or ptr.base.grid is None:
            return ptr
        base, grid, behind = ptr.base, ptr.base.grid, int(ptr) - int(ptr.base)
        tensor = self._tensor_at(op, ptr, not prod(dims))
        first, shard = grid.shard_at(max(behind, 0) // base.itemsize)
        if tensor.is_one_of_several:
            shard = base.local_shape
        if dims == shard and behind == first * base.itemsize:
            return base.storage + behind
        if streams or (len(dims) > 1 and prod(dims[:-1]) > 1 and dims[-1] == shard[-1] < base.shape[-1]):
            self._fail(
                f"{op}: the columns of '{tensor.name}' are split, and a block of {list(dims)} is no part of it",
                f"use x.local, parts of which are {list(shard)} here; x.storage, one part after the other; or strides=",
            )
        return ptr

    def _check_range(self, op: str, ptr: object, tensor: TensorRange, first: int, nbytes: int, itemsize: int) -> None:
        """`nbytes` from `first` behind an address on are touched, which lies in `tensor`.

        All of them must be inside it, whole elements of it, and for an address that was counted from `x.local` inside
        this PE's own part.
        """
        is_part = isinstance(ptr, Address) and ptr.base.is_part
        if isinstance(ptr, Address) and is_part:
            start, size = int(ptr.base), ptr.base.local_nbytes
        else:
            start, size = tensor.start, tensor.end - tensor.start
        at = self._address(op, ptr) - start
        if at % itemsize or not 0 <= at + first <= size - nbytes:
            self._fail_outside(op, tensor, is_part, at, first, nbytes, size, itemsize)

    def _fail_outside(
        self, op: str, tensor: TensorRange, is_part: bool, at: int, first: int, nbytes: int, size: int, itemsize: int
    ) -> NoReturn:
        """Say what is wrong with an access `at` bytes behind the start of a tensor, or of a part of it, of `size`."""
        whose, hint = f"'{tensor.name}'", "check the shape and the offset; offsets are in bytes"
        if itemsize != dtype_of(tensor.dtype).itemsize:
            hint = f"'{tensor.name}' holds {tensor.dtype}, and is read as elements of {itemsize} bytes: check the dtype"
        if is_part:
            whose = f"this PE's part of '{tensor.name}'"
            if nbytes and not size:
                self._fail(
                    f"{op}: this PE holds no part of '{tensor.name}', got {nbytes} bytes",
                    f"leave PEs without a part out: if 0 in {tensor.name}.local_shape: return",
                )
        elif tensor.is_one_of_several:
            whose = f"this PE's part of '{tensor.name}'"
            hint = (
                "with physical addresses the parts of other PEs do not follow it: load only x.local, "
                "or set system.address_model to va"
            )
        if at % itemsize:
            self._fail(
                f"{op}: offset {at} of {whose} is inside an element of {itemsize} bytes",
                f"offsets are in bytes: use a multiple of {itemsize}",
            )
        offset = at + first
        if offset < 0:
            self._fail(f"{op}: {nbytes} bytes at offset {offset} begin before {whose}", hint)
        beyond = f"which has {size} bytes ({offset + nbytes - size} too many)"
        self._fail(f"{op}: {nbytes} bytes at offset {offset} run past {whose}, {beyond}", hint)

    def _tensor_at(self, op: str, ptr: object, is_empty: bool) -> TensorRange:
        """The tensor that an address is in.

        An access of no bytes may be at the very end of a tensor, where another may begin, and one argument may be a
        view of another. A pointer knows which is meant; a plain number is taken as counted from the tensor that ends
        there, or from the largest one around it.
        """
        tensors = self._env.tensors
        if isinstance(ptr, Address):
            at = int(ptr.base)
        else:
            at = self._address(op, ptr)
            for tensor in tensors if is_empty else ():
                if at == tensor.end:
                    return tensor
        around = [tensor for tensor in tensors if tensor.start <= at < tensor.end]
        if around:
            return around[0] if len(around) == 1 else _meant(ptr, around)
        address = self._address(op, ptr)
        listed = ", ".join(f"{t.name} [{t.start:#x}, {t.end:#x})" for t in tensors) or "none"
        raise kernel_error(
            f"{op}: {address:#x} is in no tensor of this kernel", f"its tensors: {listed}; offsets are in bytes"
        )


def _meant(ptr: object, around: Sequence[TensorRange]) -> TensorRange:
    """Which of several tensors around an address is meant: of a pointer, the smallest that holds all of what it points
    to; of a plain number, the largest.
    """
    by_size = sorted(around, key=lambda tensor: tensor.end - tensor.start)
    if not isinstance(ptr, Address):
        return by_size[-1]
    end = int(ptr.base) + prod(ptr.base.shape) * ptr.base.itemsize
    return next((tensor for tensor in by_size if end <= tensor.end), around[0])
