"""A Triton program on a PE: what its operations ask of the engines, and when it waits.

Commands are issued in program order and depend on each other through the data they use. The program itself waits where
numbers decide what follows: branches, loop bounds, addresses and masks; at atomics; where TCM is full; and in loops,
where the loads of an iteration may run ahead of the work of at most `num_stages - 1` iterations before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from kernbench.common.commands import WaitCmd
from kernbench.triton.addresses import LaneAccess, Storages, refuse_replicated_write
from kernbench.triton.dtypes import kb_dtype
from kernbench.triton.handles import Compute, Countdown, DeviceHandle, shape_of, without_room
from kernbench.triton.internals import native, np_dtype_of
from kernbench.triton.origins import origins_of
from kernbench.triton.spinning import MOST_POLLED, Polls
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import PendingHandle
from kernbench.triton_emu.pointer import TensorPtr
from kernbench.triton_emu.tl_context import TLContext

Commands = tuple[PendingHandle, ...]


class PeProgram:
    """The programs that one PE runs, one after the other. `index_ops` counts operations on index data. One that does
    not compute is only timed: its stores have no effect, and numbers are computed where they decide what follows.
    """

    has_effects = True
    is_recording = False

    def __init__(
        self,
        tl: TLContext,
        storages: Storages,
        pointers: Sequence[TensorPtr],
        grid: tuple[int, int, int],
        num_stages: int,
        cycles_per_op: int,
        computes: bool = True,
    ) -> None:
        self.tl = tl
        tl._arena.advice = "with fewer num_stages"
        self._computes = computes
        self.grid = grid
        self.program_id = (0, 0, 0)
        self.index_ops = 0
        self.num_stages = num_stages
        self._storages = storages
        self._pointers = pointers
        self._cycles_per_op = cycles_per_op
        self._charged_ops = 0
        self.before_load: list[Callable[[], object]] = []
        self._issued: list[PendingHandle] = []  # loads and work of this program, in program order
        self._fenced = 0  # how many of them a fence has waited for
        self._stores: deque[PendingHandle] = deque()
        # Commands that may have yet to read TCM, in program order, and what they read: but accumulators in their place.
        self._readers: deque[tuple[PendingHandle, tuple[int, ...]]] = deque()
        self.polls = Polls(storages.polls, self._has_stored)
        self._polled: tuple[Any, DeviceHandle] | None = None  # the latest load, with its addresses

    # ---- one program after the other

    def begin(self, program_id: tuple[int, int, int]) -> None:
        """Start the next program: loads and work of the one before are done by now, its stores may be under way."""
        self.wait_for(tuple(self._issued))
        self._issued.clear()
        self._fenced = 0
        self.program_id = program_id
        self.polls.reset()
        self._polled = None
        self.tl._runner.begin_program(program_id)

    def finish(self) -> None:
        """The last program is over."""
        self.polls.end()
        self._charge_index_ops()
        self.wait_for(tuple(self._issued))
        self._issued.clear()

    def complete(self) -> None:
        """Let time pass until the program so far is over, with its stores."""
        self._charge_index_ops()
        self.fence()
        self._issued.clear()

    @property
    def now_ns(self) -> float:
        return self.tl._runner.now_ns

    # ---- waiting

    def wait_for(self, commands: Commands) -> None:
        """Let time pass until these commands are done."""
        runner = self.tl._runner
        numbers = tuple([h.command.number for h in commands if h.command.number >= 0])
        pending = tuple([number for number in numbers if not runner.is_done(number)])
        if pending:
            self.tl._call(WaitCmd(pending))
        for number in numbers:
            runner.note_waited(number)
        self.tl._raise_failure()

    def materialize(self, handle: Any) -> Any:
        """The numbers of a handle at the instant at which the machine has them."""
        if isinstance(handle, DeviceHandle):
            self.wait_for(handle.after)
        return handle.data

    def fence(self) -> None:
        """Let time pass until all that this PE has issued is done."""
        self.wait_for((*self._issued[self._fenced :], *self._stores))
        self._fenced = len(self._issued)
        self._stores.clear()

    def _charge_index_ops(self) -> None:
        """Scalar work so far, where it is to cost anything."""
        if self._cycles_per_op and self.index_ops > self._charged_ops:
            self.tl.cycles((self.index_ops - self._charged_ops) * self._cycles_per_op)
        self._charged_ops = self.index_ops

    # ---- loops

    def loop(self, items: Iterable[Any], num_stages: int | None) -> Iterator[Any]:
        """Iterations of a loop. One begins when the loads and the work of that `num_stages` before it are done."""
        pipeline = self.pipeline(num_stages)
        pipeline.is_counted = not isinstance(items, repeat)
        for item in items:
            pipeline.begin()
            yield item
            pipeline.end()

    def pipeline(self, num_stages: int | None) -> _Pipeline:
        """The iterations of a loop that begins."""
        return _Pipeline(self, self.num_stages if num_stages is None else num_stages)

    # ---- data

    def _device(self, handle: Any) -> DeviceHandle:
        """A handle with room in TCM; index data and constants get there at no cost."""
        if isinstance(handle, DeviceHandle) and handle.buffer is not None:
            return handle
        data = self.materialize(handle)
        made = DeviceHandle.of(shape_of(handle), handle.dtype, self._room(data.shape, handle.dtype), lambda: data)
        made.data = data
        return made

    def _room(self, shape: tuple[int, ...], dtype: Any) -> TensorHandle:
        return self.tl.buffer(shape, kb_dtype(dtype))

    def view(self, compute: Compute, inputs: tuple[DeviceHandle, ...], shape: tuple[int, ...], dtype: Any) -> Any:
        """The same data seen another way, or addresses made from it: no engine."""
        first, after = inputs[0], _after(inputs)
        buffer = first.buffer
        if buffer is not None and dtype.scalar.is_ptr():
            buffer = None
        elif buffer is not None:
            buffer = self.tl.alias(buffer, shape)
        return DeviceHandle.of(shape, dtype, buffer, compute, inputs, after)

    def math(
        self,
        op: str,
        compute: Compute,
        inputs: tuple[DeviceHandle, ...],
        shape: tuple[int, ...],
        dtype: Any,
        held: Any,
        elements: int | None = None,
    ) -> DeviceHandle:
        """A command of MATH. `held` is the type that the result has in TCM."""
        self._charge_index_ops()
        buffers = [each.buffer for each in inputs if each.buffer is not None]
        out = self._room(shape, held)
        node = DeviceHandle.of(shape, dtype, out, compute, inputs)
        handle = self.tl.charge(op, out, buffers, elements=elements, after=_after(inputs), done=self._when_done(node))
        self._note_reader(handle, buffers)
        return self._made(node, handle)

    def dot(self, compute: Compute, a: Any, b: Any, acc: Any, scales: Sequence[Any] = ()) -> DeviceHandle:
        """A command of GEMM; one that adds to an accumulator costs the same."""
        self._charge_index_ops()
        x, y = self._device(a), self._device(b)
        z = acc if isinstance(acc, DeviceHandle) else None
        extra = tuple([each for each in scales if isinstance(each, DeviceHandle)])
        inputs = tuple([each for each in (x, y, z, *extra) if each is not None])
        shape = shape_of(acc)
        after = _after(inputs)
        added = None if z is None else z.buffer
        assert x.buffer is not None
        assert y.buffer is not None
        # A product that is added to an accumulator stays in its place, unless that has yet to be read for another use.
        is_operand = added is not None and added.address in (x.buffer.address, y.buffer.address)
        is_in_place = added is not None and not is_operand and not self._has_reader(added, after)
        out = added if added is not None and is_in_place else self._room(shape, acc.dtype)
        node = DeviceHandle.of(shape, acc.dtype.scalar, out, compute, inputs)
        m, n = shape[-2:]
        left, right = _as_matrices(self.tl, x.buffer, y.buffer, m, n)
        handle = self.tl.charge_dot(out, left, right, added, after=after, done=self._when_done(node))
        self._note_reader(handle, (left, right) if added is None or is_in_place else (left, right, added))
        return self._made(node, handle)

    def _note_reader(self, handle: PendingHandle, buffers: Iterable[TensorHandle]) -> None:
        readers, runner = self._readers, self.tl._runner
        while readers and runner.is_done(readers[0][0].command.number):
            readers.popleft()
        readers.append((handle, tuple([each.address for each in buffers])))

    def _has_reader(self, buffer: TensorHandle, ended: Commands) -> bool:
        """Whether a command has yet to read a buffer, other than those that have ended by then."""
        is_done = self.tl._runner.is_done
        return any(
            buffer.address in read and not is_done(handle.command.number) and handle not in ended
            for handle, read in self._readers
        )

    def _when_done(self, node: DeviceHandle) -> Callable[[], object] | None:
        return node.numbers.evaluate if self._computes else None

    def _made(self, node: DeviceHandle, handle: PendingHandle) -> DeviceHandle:
        node.after = (handle,)
        self._issued.append(handle)
        return node

    # ---- memory

    def load(self, ptrs: Any, mask: Any, other: Any) -> DeviceHandle:
        """A block of pointers to DMA reads. Addresses and the mask are waited for, the data is not."""
        self._charge_index_ops()
        for observer in self.before_load:
            observer()
        addresses, live = self._lanes(ptrs, mask)
        self._note_polled()
        dtype = ptrs.get_element_ty()
        found = np_dtype_of(dtype)
        fill = other if isinstance(other, DeviceHandle) else None
        other = without_room(other)
        shape = addresses.shape
        room = self._room(shape, dtype)

        def read() -> Any:
            held = np.zeros(shape, found) if other is None else np.broadcast_to(other.data, shape)
            return native.load(addresses, live, np.ascontiguousarray(held), found)

        inputs = () if fill is None else (fill,)
        node = DeviceHandle.of(shape, dtype, room, read, inputs)
        handles = []
        pending = Countdown(node.numbers.evaluate if self._computes else lambda: None)
        accesses = self._accesses("load", ptrs, addresses, live, dtype)
        for access in accesses:
            pending.left += 1
            pointer = self._pointer(access)
            after = () if fill is None else fill.after
            handles.append(self.tl.read_into(room, pointer, access.lanes, after=after, done=pending.one_done))
        pending.start()
        node.after = (*handles, *(() if fill is None else fill.after))
        if addresses.size <= MOST_POLLED:
            self._polled = addresses, node
        else:
            self.polls.reset()
        self._issued += handles
        return node

    def store(self, ptrs: Any, value: Any, mask: Any) -> None:
        """A block of pointers to DMA writes, issued when the value is there, and not waited for."""
        self._charge_index_ops()
        self.polls.reset()
        addresses, live = self._lanes(ptrs, mask)
        source = self._device(value)
        numbers = source.numbers
        dtype = ptrs.get_element_ty()
        assert source.buffer is not None
        for access in self._accesses("store", ptrs, addresses, live, dtype):
            refuse_replicated_write("store", access)
            where = access.live

            def write(where: Any = where) -> None:
                if not self._computes:
                    return
                sent = np.ascontiguousarray(np.broadcast_to(numbers.evaluate(), addresses.shape))
                native.store(addresses, sent, where)

            pointer = self._pointer(access)
            handle = self.tl.write_from(source.buffer, pointer, access.lanes, after=source.after, done=write)
            self._stores.append(handle)
            self._note_reader(handle, (source.buffer,))
        while self._stores and self.tl._runner.is_done(self._stores[0].command.number):
            self._stores.popleft()

    def atomic(
        self,
        op: str,
        ptrs: Any,
        values: Sequence[Any],
        mask: Any,
        change: Callable[[Any, Any, Any], Any],
        dtype: Any,
    ) -> DeviceHandle:
        """A block of pointers to atomics at the memory. All that the PE has issued is done before, and the old contents
        are waited for.
        """
        self._charge_index_ops()
        addresses, live = self._lanes(ptrs, mask)
        sent = [
            np.ascontiguousarray(np.broadcast_to(self.materialize(each), addresses.shape)).reshape(-1)
            for each in values
        ]
        self.fence()
        found = np_dtype_of(dtype)
        held = np.zeros(addresses.size, found)
        flat = np.ascontiguousarray(addresses).reshape(-1)
        room = self._room(addresses.shape, dtype)
        for access in self._accesses("atomic", ptrs, addresses, live, dtype):
            refuse_replicated_write("atomic", access)

            def apply(first: int, count: int) -> None:
                part = slice(first, first + count)
                ones = np.ones(count, bool)
                held[part] = change(flat[part], [each[part] for each in sent], ones)

            self.tl.charge_atomic(op, self._pointer(access), access.lanes, apply)
        self._note_polled()
        self.polls.read(addresses, held, self.program_id)
        numbers = held.reshape(addresses.shape)
        node = DeviceHandle.of(addresses.shape, dtype, room, lambda: numbers)
        node.numbers.evaluate()
        return node

    def _lanes(self, ptrs: Any, mask: Any) -> tuple[Any, Any]:
        """Addresses and which of them are accessed."""
        addresses = self.materialize(ptrs)
        if mask is None:
            return addresses, np.ones(addresses.shape, bool)
        return addresses, np.ascontiguousarray(np.broadcast_to(self.materialize(mask), addresses.shape))

    def _accesses(self, op: str, ptrs: Any, addresses: Any, live: Any, dtype: Any) -> list[LaneAccess]:
        size, kind = np_dtype_of(dtype).itemsize, kb_dtype(dtype)
        return self._storages.accesses(op, addresses, live, size, kind, self.program_id, origins_of(ptrs))

    def _has_stored(self) -> bool:
        """Whether no store is under way."""
        return all(self.tl._runner.is_done(each.command.number) for each in self._stores)

    def _note_polled(self) -> None:
        """Another read begins: what the latest load brought is known by now if the program waits for it."""
        polled, self._polled = self._polled, None
        if polled is not None and polled[1].numbers.array is not None:
            self.polls.read(polled[0], polled[1].numbers.array, self.program_id)

    def _pointer(self, access: LaneAccess) -> int:
        return self._pointers[access.storage.position] + access.offset


class _Pipeline:
    """A loop of which `stages` iterations are under way at a time."""

    def __init__(self, program: PeProgram, stages: int) -> None:
        self._program, self._stages = program, stages
        self._ends: deque[tuple[int, int]] = deque()
        self._first = 0
        self.is_counted = True  # the number of its iterations is known: not that of a `while`

    def begin(self) -> None:
        issued = self._program._issued
        if self.is_counted:
            self._program.polls.reset()
        if len(self._ends) >= self._stages:
            first, end = self._ends.popleft()
            self._program.wait_for(tuple(issued[first:end]))
        self._first = len(issued)

    def end(self) -> None:
        self._ends.append((self._first, len(self._program._issued)))


def _after(inputs: Iterable[DeviceHandle]) -> Commands:
    return tuple(dict.fromkeys([handle for each in inputs for handle in each.after]))


def _as_matrices(tl: TLContext, a: TensorHandle, b: TensorHandle, m: int, n: int) -> tuple[TensorHandle, TensorHandle]:
    """Operands as matrices of m rows and n columns: packed types have fewer elements than the product says."""
    k = a.shape[-1]
    if b.shape[-2] == k and a.shape[-2] == m and b.shape[-1] == n:
        return a, b
    k = max(k, b.shape[-2])
    return tl.alias(a, (*a.shape[:-2], m, k)), tl.alias(b, (*b.shape[:-2], k, n))
