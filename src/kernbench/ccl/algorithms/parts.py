"""Shared by all collective kernels: which elements a PE works on, chunks, the reduction, and pipelined transfers.

A collective works on *channels*, as in NCCL: a channel is the same cube and PE number on every SIP of the group, and
channels do not communicate except in some algorithms. A channel's elements are cut into chunks. Loads and receives are
issued ahead of their use, sends and stores are waited for later, so that all of them overlap; the number in flight is
bounded, and with it the TCM that a channel uses.

Elements are combined two at a time in their own type: a sum of f16 is rounded at every step. The order is that of the
algorithm, the same in every run and on every rank. For a mean, addends are scaled before they are added, as in NCCL,
since their sum may exceed the range of the type: by a power of two, which is exact except for numbers near the type's
smallest; the rest of the division is the last step. Sums of integers wrap around, and are divided at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from math import prod
from typing import TypeVar

from kernbench.ccl.work import Spread
from kernbench.common.array_types import Span
from kernbench.common.dtypes import dtype_of
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.tl_context import TensorHandle, TensorPtr, TLContext

T = TypeVar("T")
Rounds = Generator[None, None, TensorHandle]  # the processing of a chunk: it yields where it waits for messages

SIP_TOPO_RING, SIP_TOPO_TORUS, SIP_TOPO_MESH = 0, 1, 2
TOPO_NAME_TO_KIND = {"ring_1d": SIP_TOPO_RING, "torus_2d": SIP_TOPO_TORUS, "mesh_2d_no_wrap": SIP_TOPO_MESH}

BURST_BYTES = 256
AHEAD = 1  # loads, and receives per direction, in flight besides the one in use


def kernel_args(world_size: int, n_elem: int, *, cube_w: int = 4, cube_h: int = 4) -> tuple[int, int, int, int]:
    """The standard arguments of a collective kernel: elements of a part, the cube mesh, how many SIPs."""
    return n_elem, cube_w, cube_h, world_size


# --------------------------------------------------------------------------------------------------- elements per PE


def parts_of(n: int, parts: int, itemsize: int) -> list[Span]:
    """n elements over `parts` parts, in order, cut at bursts: some are empty if there are too few elements."""
    unit = max(BURST_BYTES // itemsize, 1)
    size, more = divmod(-(-n // unit), parts)
    bounds = [min((at * size + min(at, more)) * unit, n) for at in range(parts + 1)]
    return [(bounds[at], bounds[at + 1] - bounds[at]) for at in range(parts)]


def channel_of(tl: TLContext, spread: Spread) -> tuple[int, int]:
    """This PE's number among those that split a tensor, and how many there are."""
    over_pes, over_cubes = spread
    index, count = (tl.program_id(1), tl.num_programs(1)) if over_cubes else (0, 1)
    if over_pes:
        index, count = index * tl.num_programs(0) + tl.program_id(0), count * tl.num_programs(0)
    return index, count


def my_part(t_ptr: TensorPtr, tl: TLContext, spread: Spread | None, n_elem: int | None = None) -> tuple[int, int]:
    """The address and number of this PE's elements of a tensor: the part that it holds, or with `spread` its share of
    the whole. With `n_elem`, the elements of one cube, the PEs of that cube have a share each.
    """
    if spread is None:
        return t_ptr.local, prod(t_ptr.local_shape)
    if n_elem is not None:
        cube = t_ptr.local if t_ptr.space == "sram" else t_ptr.storage + tl.program_id(1) * n_elem * t_ptr.itemsize
        first, count = parts_of(n_elem, tl.num_programs(0), t_ptr.itemsize)[tl.program_id(0)]
        return cube + first * t_ptr.itemsize, count
    index, channels = channel_of(tl, spread)
    first, count = parts_of(prod(t_ptr.shape), channels, t_ptr.itemsize)[index]
    return t_ptr.storage + first * t_ptr.itemsize, count


# ------------------------------------------------------------------------------------------------------------ channels


class CollectiveChannel:
    """One PE's transfers and arithmetic. `live` is the largest number of chunks in TCM at a time; `window` is the
    number of sends per direction that may be in flight, and `stores` that of stores. A chunk longer than a slot takes
    whole slots, since a partly filled slot also costs a message and a credit; unless `is_sparse`: directions then have
    few chunks in flight, and fewer chunks matter more than full slots.
    """

    def __init__(
        self,
        tl: TLContext,
        t_ptr: TensorPtr,
        *,
        chunk_bytes: int,
        work_bytes: int,
        live: int,
        window: int = 2,
        slot_size: int = BURST_BYTES,
        op: str = "sum",
        is_sparse: bool = False,
        stores: int = 2,
    ) -> None:
        self.tl = tl
        self.op = op
        self.dtype = t_ptr.dtype
        self._is_float = dtype_of(t_ptr.dtype).is_float
        self.itemsize = t_ptr.itemsize
        nbytes = min(chunk_bytes, work_bytes // (live + (op == "avg")))  # a mean has an addend and the scaled one
        if nbytes > slot_size and nbytes % slot_size < slot_size // 2 and not is_sparse:
            nbytes -= nbytes % slot_size
        elif nbytes > BURST_BYTES:
            nbytes -= nbytes % BURST_BYTES
        self.chunk = max(nbytes // self.itemsize, 1)
        self._window = window
        self._most_stores = stores
        self._sends: dict[str, deque[TransferHandle]] = {}
        self._stores: deque[TransferHandle] = deque()

    def spans(self, n: int, first: int = 0) -> list[Span]:
        """n elements from `first` on, in chunks."""
        return [(at, min(self.chunk, first + n - at)) for at in range(first, first + n, self.chunk)]

    def loads(self, spans: Iterable[tuple[int, Span]]) -> Iterator[TensorHandle]:
        """Load elements from memory, in order; each span is relative to the pointer given with it."""
        tl, itemsize = self.tl, self.itemsize
        return self._ahead(lambda at: tl.load_async(at[0] + at[1][0] * itemsize, (at[1][1],)), spans)

    def receives(self, direction: str, counts: Iterable[int]) -> Iterator[TensorHandle]:
        """Receive messages from a direction, with these numbers of elements."""
        tl, dtype = self.tl, self.dtype
        return self._ahead(lambda count: tl.recv_async(direction, (count,), dtype), counts)

    def send(self, direction: str, x: TensorHandle) -> None:
        """Send without waiting, unless `window` sends in that direction are in flight."""
        in_flight = self._sends.setdefault(direction, deque())
        if len(in_flight) == self._window:
            self.tl.wait(in_flight.popleft())
        in_flight.append(self.tl.send_async(direction, x))

    def store(self, ptr: int, span: Span, x: TensorHandle) -> None:
        """Store without waiting, unless `stores` stores are in flight."""
        if len(self._stores) == self._most_stores:
            self.tl.wait(self._stores.popleft())
        self._stores.append(self.tl.store_async(ptr + span[0] * self.itemsize, x))

    def combine(self, a: TensorHandle, b: TensorHandle) -> TensorHandle:
        """One step of the reduction."""
        if self.op == "product":
            return a * b
        if self.op == "max":
            return self.tl.maximum(a, b)
        if self.op == "min":
            return self.tl.minimum(a, b)
        return a + b

    def addends(self, spans: Iterable[tuple[int, Span]], count: int) -> Iterator[TensorHandle]:
        """As `loads`, of elements that enter a reduction of `count` addends."""
        if self.op != "avg" or count == 1 or not self._is_float:
            return self.loads(spans)
        scale = 1.0 / _power_of_two(count)
        return ((x * scale).to(self.dtype) for x in self.loads(spans))

    def finish(self, x: TensorHandle, count: int) -> TensorHandle:
        """The last step of a reduction: for a mean, the rest of the division; integers are rounded towards zero."""
        left = count / _power_of_two(count)
        if self.op != "avg" or count == 1 or (self._is_float and left == 1.0):
            return x
        if self._is_float:
            return (x / left).to(self.dtype)
        down = x // count
        inexact = (x < 0) & (down * count != x)
        return (down + inexact.to(self.dtype)).to(self.dtype)

    def _ahead(self, issue: Callable[[T], TransferHandle], items: Iterable[T]) -> Iterator[TensorHandle]:
        """The results of transfers, in order, always with `AHEAD` more in flight; the first ones are issued now."""
        left = iter(items)
        in_flight = deque(issue(item) for item in islice(left, AHEAD))

        def results() -> Iterator[TensorHandle]:
            while in_flight:
                oldest = in_flight.popleft()
                in_flight.extend(issue(item) for item in islice(left, 1))
                yield arrived(self.tl.wait(oldest))
                del oldest

        return results()


def arrived(x: TensorHandle | None) -> TensorHandle:
    """The result of `tl.wait` for a load or a receive, which is never None."""
    assert x is not None
    return x


def _power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


# --------------------------------------------------------------------------------------------------- rounds of chunks


ChunksInFlight = deque[tuple[Span, Rounds]]


def no_exchange(x: TensorHandle) -> Rounds:
    """An exchange without rounds."""
    yield from ()
    return x


def advance(in_flight: ChunksInFlight, finished: Callable[[Span, TensorHandle], None]) -> None:
    """One round of every chunk in flight, the oldest first. So PEs with the same number of rounds, which send and
    receive in the same rounds, have the same order of messages.
    """
    for _ in range(len(in_flight)):
        span, rounds = in_flight.popleft()
        try:
            next(rounds)
        except StopIteration as end:
            finished(span, end.value)
        else:
            in_flight.append((span, rounds))


def in_rounds(
    channel: CollectiveChannel, ptr: int, n: int, rounds: Callable[[TensorHandle], Rounds], addends: int
) -> None:
    """Load chunks, process the rounds of several chunks concurrently, and store the results."""
    in_flight: ChunksInFlight = deque()

    def finished(span: Span, x: TensorHandle) -> None:
        channel.store(ptr, span, channel.finish(x, addends))

    spans = channel.spans(n)
    for span, x in zip(spans, channel.addends(((ptr, span) for span in spans), addends), strict=True):
        in_flight.append((span, rounds(x)))
        advance(in_flight, finished)
    while in_flight:
        advance(in_flight, finished)


Lane = CollectiveChannel  # its former name, for algorithms of users
