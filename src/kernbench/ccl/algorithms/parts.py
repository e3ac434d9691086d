"""What collective kernels share: which elements a PE works on, chunks, the reduction, and transfers under way.

A collective works on *lanes*: a lane is the same cube and PE number on every SIP of the group, and lanes never talk to
each other unless an algorithm lets them. A lane's elements are cut into chunks. Loads and receives are asked for ahead
of their use, sends and stores are waited for later, so that all of them overlap; how many are under way is bounded, and
with it the TCM that a lane takes.

Elements are combined two at a time in their own type: a sum of f16 is rounded at every step. The order is that of the
algorithm, the same in every run and on every rank. For a mean, addends are scaled before they are added, as NCCL does,
since their sum may be more than the type holds: by a power of two, which rounds nothing but numbers near the type's
smallest; the rest of the division is the last step. Sums of integers wrap around, and are divided at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from math import prod
from typing import TypeVar

from kernbench.ccl.work import Spread
from kernbench.common.dtypes import dtype_of
from kernbench.triton_emu.handle import TransferHandle
from kernbench.triton_emu.tl_context import TensorHandle, TensorPtr, TLContext

T = TypeVar("T")
Span = tuple[int, int]  # first element and how many
Rounds = Generator[None, None, TensorHandle]  # what is done with a chunk: it yields where it would wait for messages

SIP_TOPO_RING, SIP_TOPO_TORUS, SIP_TOPO_MESH = 0, 1, 2
TOPO_NAME_TO_KIND = {"ring_1d": SIP_TOPO_RING, "torus_2d": SIP_TOPO_TORUS, "mesh_2d_no_wrap": SIP_TOPO_MESH}

BURST_BYTES = 256
AHEAD = 1  # loads, and receives from each direction, that are under way besides the one in use


def kernel_args(world_size: int, n_elem: int, *, cube_w: int = 4, cube_h: int = 4) -> tuple[int, int, int, int]:
    """The standard arguments of a collective kernel: elements of a part, the cube mesh, how many SIPs."""
    return n_elem, cube_w, cube_h, world_size


# ------------------------------------------------------------------------------------------------------- who has what


def parts_of(n: int, parts: int, itemsize: int) -> list[Span]:
    """n elements over so many parts, in order, cut at bursts: some are empty where there is too little."""
    unit = max(BURST_BYTES // itemsize, 1)
    size, more = divmod(-(-n // unit), parts)
    bounds = [min((at * size + min(at, more)) * unit, n) for at in range(parts + 1)]
    return [(bounds[at], bounds[at + 1] - bounds[at]) for at in range(parts)]


def lane_of(tl: TLContext, spread: Spread) -> tuple[int, int]:
    """This PE's number among those that split a tensor, and how many there are."""
    over_pes, over_cubes = spread
    index, count = (tl.program_id(1), tl.num_programs(1)) if over_cubes else (0, 1)
    if over_pes:
        index, count = index * tl.num_programs(0) + tl.program_id(0), count * tl.num_programs(0)
    return index, count


def my_part(t_ptr: TensorPtr, tl: TLContext, spread: Spread | None, n_elem: int | None = None) -> tuple[int, int]:
    """Where this PE's elements of a tensor begin, and how many there are: its own part, or with `spread` its share of
    the whole. `n_elem` counts those of one cube, of which the PEs of that cube then have a share each.
    """
    if spread is None:
        return t_ptr.local, prod(t_ptr.local_shape)
    if n_elem is not None:
        cube = t_ptr.local if t_ptr.space == "sram" else t_ptr.storage + tl.program_id(1) * n_elem * t_ptr.itemsize
        first, count = parts_of(n_elem, tl.num_programs(0), t_ptr.itemsize)[tl.program_id(0)]
        return cube + first * t_ptr.itemsize, count
    index, lanes = lane_of(tl, spread)
    first, count = parts_of(prod(t_ptr.shape), lanes, t_ptr.itemsize)[index]
    return t_ptr.storage + first * t_ptr.itemsize, count


# --------------------------------------------------------------------------------------------------------------- lanes


class Lane:
    """One PE's transfers and arithmetic. `live` is how many chunks are in TCM at a time, at most; `window` is how many
    sends to one direction may be under way. A chunk that does not fit into a slot takes whole slots, since a slot with
    little in it costs a message and a credit all the same; unless `is_sparse`: a direction has few chunks under way,
    and what counts is that there are few of them.
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
        self._sends: dict[str, deque[TransferHandle]] = {}
        self._stores: deque[TransferHandle] = deque()

    def spans(self, n: int, first: int = 0) -> list[Span]:
        """n elements from `first` on, in chunks."""
        return [(at, min(self.chunk, first + n - at)) for at in range(first, first + n, self.chunk)]

    def loads(self, spans: Iterable[tuple[int, Span]]) -> Iterator[TensorHandle]:
        """Elements from memory, one after the other; each comes with the pointer that it is counted from."""
        tl, itemsize = self.tl, self.itemsize
        return self._ahead(lambda at: tl.load_async(at[0] + at[1][0] * itemsize, (at[1][1],)), spans)

    def receives(self, direction: str, counts: Iterable[int]) -> Iterator[TensorHandle]:
        """Messages from a direction, of so many elements each."""
        tl, dtype = self.tl, self.dtype
        return self._ahead(lambda count: tl.recv_async(direction, (count,), dtype), counts)

    def send(self, direction: str, x: TensorHandle) -> None:
        """Send without waiting, unless `window` of them are under way to that direction."""
        under_way = self._sends.setdefault(direction, deque())
        if len(under_way) == self._window:
            self.tl.wait(under_way.popleft())
        under_way.append(self.tl.send_async(direction, x))

    def store(self, ptr: int, span: Span, x: TensorHandle) -> None:
        """Store without waiting, unless two are under way."""
        if len(self._stores) == 2:
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
        """The last step of a reduction: for a mean, what is left of the division; integers are cut towards zero."""
        left = count / _power_of_two(count)
        if self.op != "avg" or count == 1 or (self._is_float and left == 1.0):
            return x
        if self._is_float:
            return (x / left).to(self.dtype)
        down = x // count
        inexact = (x < 0) & (down * count != x)
        return (down + inexact.to(self.dtype)).to(self.dtype)

    def _ahead(self, ask: Callable[[T], TransferHandle], items: Iterable[T]) -> Iterator[TensorHandle]:
        """What is asked for, one after the other, always with `AHEAD` more under way; the first ones from now on."""
        left = iter(items)
        under_way = deque(ask(item) for item in islice(left, AHEAD))

        def results() -> Iterator[TensorHandle]:
            while under_way:
                oldest = under_way.popleft()
                under_way.extend(ask(item) for item in islice(left, 1))
                yield arrived(self.tl.wait(oldest))
                del oldest

        return results()


def arrived(x: TensorHandle | None) -> TensorHandle:
    """What `tl.wait` returns of a load or a receive, which always leaves a tensor."""
    assert x is not None
    return x


def _power_of_two(count: int) -> int:
    """The least that is not below `count`."""
    return 1 << (count - 1).bit_length()


# --------------------------------------------------------------------------------------------------- rounds of chunks


UnderWay = deque[tuple[Span, Rounds]]


def alone(x: TensorHandle) -> Rounds:
    """No round at all."""
    yield from ()
    return x


def advance(under_way: UnderWay, finished: Callable[[Span, TensorHandle], None]) -> None:
    """One round of every chunk under way, the oldest first. PEs that do the same number of rounds, each sending and
    asking for messages in the same ones, so send and receive in the same order.
    """
    for _ in range(len(under_way)):
        span, rounds = under_way.popleft()
        try:
            next(rounds)
        except StopIteration as end:
            finished(span, end.value)
        else:
            under_way.append((span, rounds))


def in_rounds(lane: Lane, ptr: int, n: int, rounds: Callable[[TensorHandle], Rounds], addends: int) -> None:
    """Load chunks, take each through its rounds while others are in theirs, and store what they become."""
    under_way: UnderWay = deque()

    def finished(span: Span, x: TensorHandle) -> None:
        lane.store(ptr, span, lane.finish(x, addends))

    spans = lane.spans(n)
    for span, x in zip(spans, lane.addends(((ptr, span) for span in spans), addends), strict=True):
        under_way.append((span, rounds(x)))
        advance(under_way, finished)
    while under_way:
        advance(under_way, finished)
