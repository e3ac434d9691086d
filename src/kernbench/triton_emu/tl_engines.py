"""`tl`: engines without numbers, for front ends that compute the numbers themselves.

A *buffer* is a tensor in TCM that has a shape and a type and no value. The calls here keep the engines busy exactly as
loads, stores, products and math on tensors of that shape do, and return at once with a handle. `after` are handles of
commands that must be done first, and `done` is called at the instant at which the command ends: there a front end
reads or writes its own copy of memory; what it raises there is the kernel's failure. Contents of the machine's memory
are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from kernbench.common.commands import AtomicCmd, DmaReadCmd, DmaWriteCmd, GemmCmd, MathCmd, Operand, SimpleCmd, WaitCmd
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import KernBenchError, KernelError
from kernbench.triton_emu.block_access import Block, Lanes
from kernbench.triton_emu.call_site import at_kernel_line, kernel_place
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.kernel_runner import Records
from kernbench.triton_emu.pending_handle import PendingCommand, PendingHandle, TransferHandle
from kernbench.triton_emu.tl_atomics import TlAtomics
from kernbench.triton_emu.tl_core import BUFFER

DoneCallback: TypeAlias = Callable[[], object]


class TlEngines(TlAtomics):
    """Buffers, and commands on them."""

    def buffer(self, shape: object, dtype: object) -> TensorHandle:
        """Room in TCM for a tensor without numbers. Waits for commands of this kernel that are under way while they
        take the room. Shape and dtype: as given. Engine: none.
        """
        dims, element = self._shape("buffer", shape), self._dtype(dtype)
        type_ = self._values.type_of(dims, element)
        while not self._arena.has_room(type_.nbytes) and (numbers := self._runner.under_way):
            self._call(WaitCmd((next(iter(numbers)),)))
        block = self._arena.alloc(type_.nbytes)
        value = self._values.make(type_, BUFFER, (), ())
        return self._handle(dims, element.name, "tcm", block.address, value, block)

    def alias(self, x: TensorHandle, shape: object) -> TensorHandle:
        """The same room in TCM as a buffer of another shape and the same or fewer elements. Engine: none."""
        buffer = self._buffer("alias", x)
        dims = self._shape("alias", shape)
        value = self._values.make(self._values.type_of(dims, dtype_of(buffer.dtype)), BUFFER, (), ())
        return self._alias(buffer, value)

    def read_into(
        self,
        buffer: TensorHandle,
        ptr: int,
        lanes: Lanes,
        *,
        after: Sequence[PendingHandle] = (),
        done: DoneCallback | None = None,
    ) -> TransferHandle:
        """Bring lanes that are counted from `ptr` in bytes into a buffer (`block_access.of_offsets` makes them). Waits
        for what this kernel has yet to write there. Engine: DMA (read channel); none where nothing is touched.
        """
        room = self._buffer("read_into", buffer)
        tensor = self._tensor_at("read_into", ptr, not lanes.runs)
        block = self._placed("read_into", ptr, tensor, lanes)
        handle = TransferHandle(self, (room,))
        if not block.requests:
            return _finished(handle, done)
        self._wait_for_pending(block.segments)
        source = Operand(self._address("read_into", ptr), lanes.shape, lanes.dtype.name, tensor.space)
        cmd = DmaReadCmd(source, self._next_name(), block.requests, self._writers_of(block))
        self._under_way.begin_reading(handle.command, block.segments)
        return self._issued(handle, cmd, after, done)

    def write_from(
        self,
        buffer: TensorHandle,
        ptr: int,
        lanes: Lanes,
        *,
        after: Sequence[PendingHandle] = (),
        done: DoneCallback | None = None,
    ) -> TransferHandle:
        """Send a buffer to lanes that are counted from `ptr` in bytes. Waits for what this kernel has yet to write or
        read there. Engine: DMA (write channel); none where nothing is touched.
        """
        room = self._buffer("write_from", buffer)
        tensor = self._tensor_at("write_from", ptr, not lanes.runs)
        block = self._placed("write_from", ptr, tensor, lanes)
        handle = TransferHandle(self, (room,))
        if not block.requests:
            return _finished(handle, done)
        deps = tuple(dict.fromkeys((*room.records, *self._wait_for_pending(block.segments, writing=True))))
        target = Operand(self._address("write_from", ptr), lanes.shape, lanes.dtype.name, tensor.space)
        cmd = DmaWriteCmd(room.operand(), target, self._next_name(), block.requests, deps)
        self._under_way.begin(handle.command, block.segments)
        return self._issued(handle, cmd, after, done, block)

    def charge(
        self,
        op: str,
        out: TensorHandle,
        inputs: Sequence[TensorHandle] = (),
        *,
        elements: int | None = None,
        dtype: object = None,
        after: Sequence[PendingHandle] = (),
        done: DoneCallback | None = None,
    ) -> TransferHandle:
        """Keep MATH busy as `op` would, from buffers into a buffer: it goes through the largest of them once, or
        through `elements`, at the lanes of the slowest type among them, or of `dtype`. Engine: MATH.
        """
        tensors = [self._buffer(op, x) for x in (*inputs, out)]
        work = max(x.size for x in tensors) if elements is None else elements
        slowest = min((dtype_of(x.dtype) for x in tensors), key=lambda found: found.compute_scale)
        lanes = slowest if dtype is None else self._dtype(dtype)
        named = tuple([x.operand() for x in tensors[:-1]])
        cmd = MathCmd(op, named, out.operand(), work, lanes.name, None, self._made_by(tensors[:-1]) if inputs else ())
        return self._issued(TransferHandle(self, tuple(tensors)), cmd, after, done)

    def charge_dot(
        self,
        out: TensorHandle,
        a: TensorHandle,
        b: TensorHandle,
        acc: TensorHandle | None = None,
        *,
        dtype: object = None,
        after: Sequence[PendingHandle] = (),
        done: DoneCallback | None = None,
    ) -> TransferHandle:
        """Keep GEMM busy as `tl.dot` of buffers into a buffer would, at the rate of the slower operand's type or of
        `dtype`. Shape: (..., M, K) by (..., K, N) into (..., M, N). Engine: GEMM.
        """
        x, y = self._buffer("charge_dot", a), self._buffer("charge_dot", b)
        held = (x, y, out) if acc is None else (x, y, out, acc)
        m, n = out.shape[-2:]
        slower = min((x.dtype, y.dtype), key=lambda name: dtype_of(name).compute_scale)
        name = slower if dtype is None else self._dtype(dtype).name
        added = None if acc is None else acc.operand()
        deps = self._made_by(held)
        cmd = GemmCmd(
            x.operand(), y.operand(), out.operand(), m, x.shape[-1], n, name, out.size // (m * n), deps, added
        )
        return self._issued(TransferHandle(self, held), cmd, after, done)

    def charge_atomic(self, op: str, ptr: int, lanes: Lanes, apply: Callable[[int, int], object]) -> None:
        """Send lanes that are counted from `ptr` in bytes to their memory and wait for what they were.
        `apply(first, count)` is called when lanes, numbered in row-major order, have arrived there: a front end changes
        its own copy then. Waits for all that this kernel has yet to write. Engine: DMA (write channel), and the memory.
        """
        title = f"atomic_{op}"
        tensor = self._tensor_at(title, ptr, not lanes.runs)
        block = self._placed(title, ptr, tensor, lanes)
        pieces, size = block.pieces, lanes.dtype.itemsize
        if not pieces:
            return
        self._wait_for_pending(block.segments, writing=True)
        requests = tuple([((pa, nbytes),) for pa, nbytes, _ in pieces])
        target = Operand(self._address(title, ptr), lanes.shape, lanes.dtype.name, tensor.space)

        failures: list[KernelError] = []
        place = kernel_place()

        def arrived(number: int) -> None:
            _, nbytes, first = pieces[number]
            try:
                apply(first // size, nbytes // size)
            except Exception as error:  # the clock goes on: it is the kernel's failure
                failures.append(_failure(error, place))

        deps = tuple(dict.fromkeys(self._written_by(block.segments)))
        cmd = AtomicCmd(op, target, self._next_name(), requests, arrived, deps)
        self._call(cmd, lambda ids: self._note_writers(block.segments, ids))
        if failures:
            raise at_kernel_line(failures[0])

    # ---- inside

    def _buffer(self, op: str, x: TensorHandle) -> TensorHandle:
        tensor = self._local(op, x)
        if self._known(tensor).op != BUFFER:
            self._fail(f"{op}: a tensor that has numbers", "give a buffer: tl.buffer(shape, dtype)")
        return tensor

    def _issued(
        self,
        handle: TransferHandle,
        cmd: SimpleCmd,
        after: Sequence[PendingHandle],
        done: DoneCallback | None,
        written: Block | None = None,
    ) -> TransferHandle:
        command = handle.command
        place = ("", 0) if done is None else kernel_place()

        def ended(records: Records) -> None:
            if written is not None:
                self._note_writers(written.segments, records)
            if self._has_pending:
                self._under_way.end(command)
            command.finish(records)
            if done is not None:
                try:
                    done()
                except Exception as error:
                    raise _failure(error, place) from error

        awaited: list[PendingCommand] = [each.command for each in after]
        records = [record for each in awaited for record in each.records]
        if records:
            cmd = cmd._replace(deps=tuple(dict.fromkeys((*cmd.deps, *records))))
        try:
            command.number = self._runner.issue(cmd, ended, [each.number for each in awaited])
        except KernBenchError as error:
            raise at_kernel_line(error) from None
        return handle


def _failure(error: Exception, place: tuple[str, int]) -> KernelError:
    """What a front end's function raised at the end of a command that was issued at this line of the kernel."""
    if isinstance(error, KernelError):
        return error
    file, line = place
    what = error.what if isinstance(error, KernBenchError) else f"{type(error).__name__}: {error}"
    return KernelError(what, where=f"{file}:{line}", hint=f"its command was issued at {file}:{line}")


def _finished(handle: TransferHandle, done: DoneCallback | None) -> TransferHandle:
    handle.command.finish(())
    if done is not None:
        done()
    return handle
