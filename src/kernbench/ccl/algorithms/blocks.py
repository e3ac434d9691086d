"""Blocks from rank to rank in one round: every rank sends to, and receives from, all others at once.

Loads, sends and receives of all blocks are issued before the first message is waited for. Of a block of several chunks,
sends run `LAG` chunks ahead of receives. There is no deadlock: a send waits for the one `WINDOW` chunks before it,
which the slowest rank has received already, since `WINDOW` exceeds `LAG`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from kernbench.ccl.algorithms.parts import AHEAD, CollectiveChannel
from kernbench.common.array_types import Span
from kernbench.triton_emu.tl_context import TensorHandle

Load = Callable[[Iterable[tuple[int, Span]]], Iterator[TensorHandle]]

LAG = 1
WINDOW = LAG + 1


class ElementBlock(NamedTuple):
    """Elements at an address."""

    address: int
    size: int


class Outgoing(NamedTuple):
    """Elements that are loaded once, for several directions; and where they are stored here, if they are."""

    block: ElementBlock
    to: tuple[str, ...]
    copy: int | None = None


class Incoming(NamedTuple):
    """Elements from a direction, and where they are stored."""

    direction: str
    block: ElementBlock


class Reduced(NamedTuple):
    """Elements that this PE reduces: its own addends, the directions of those of every other rank, by rank, and where
    the result is stored.
    """

    own: ElementBlock
    directions: tuple[str | None, ...]  # None: this rank
    result: int


def live_exchange(n: int) -> int:
    """Chunks in TCM at a time in an exchange between n ranks: loaded ahead, being sent, received ahead, and being
    stored. Both ends of a message have the same chunks, so this does not depend on the PE.
    """
    return n * (AHEAD + 2) + (AHEAD + 1) + WINDOW + 2


def exchange(
    channel: CollectiveChannel,
    outgoing: Sequence[Outgoing],
    incoming: Sequence[Incoming],
    *,
    together: bool,
    pause: int = 0,
) -> None:
    """Send and receive blocks, all at once. `together`: the blocks to send are of one tensor; `pause`: cycles between
    the first loads and the first send.
    """
    leaving = [channel.spans(each.block.size) for each in outgoing]
    arriving = [channel.spans(each.block.size) for each in incoming]
    loads = _loaded(channel, [each.block for each in outgoing], channel.loads, together)
    channel.tl.cycles(pause)
    arrivals: list[Iterator[TensorHandle]] = []
    for step in range(max(map(len, leaving + arriving), default=0) + LAG):
        for sent, spans, loaded in zip(outgoing, leaving, loads, strict=True):
            if step < len(spans):
                x = next(loaded)
                for direction in sent.to:
                    channel.send(direction, x)
                if sent.copy is not None:
                    channel.store(sent.copy, spans[step], x)
        if not step:  # nothing arrives before the first sends are on their way
            arrivals = [
                channel.receives(each.direction, [count for _, count in spans])
                for each, spans in zip(incoming, arriving, strict=True)
            ]
            continue
        for got, spans, messages in zip(incoming, arriving, arrivals, strict=True):
            if step - LAG < len(spans):
                channel.store(got.block.address, spans[step - LAG], next(messages))


def _loaded(
    channel: CollectiveChannel, sources: Sequence[ElementBlock], load: Load, together: bool
) -> list[Iterator[TensorHandle]]:
    """The chunks of each block. Small blocks of one tensor that lie end to end may be loaded `together`, since a PE has
    one load in flight.
    """
    order = sorted(sources)
    ends = [block.address + block.size * channel.itemsize for block in order]
    total = sum(block.size for block in order)
    is_run = all(end == block.address for end, block in zip(ends, order[1:], strict=False))
    if len(order) < 2 or not together or not is_run or total > channel.chunk:
        return [load([(block.address, span) for span in channel.spans(block.size)]) for block in sources]
    start = order[0].address
    whole = load([(start, (0, total))])
    taken: list[TensorHandle] = []

    def part(block: ElementBlock) -> Iterator[TensorHandle]:
        if not taken:
            taken.append(next(whole))
        first = (block.address - start) // channel.itemsize
        yield taken[0][first : first + block.size]

    return [part(block) for block in sources]


def live_reduced(n: int) -> int:
    """As `live_exchange`, for `reduce_scatter`."""
    return n * (2 * (AHEAD + 1) + WINDOW) + LAG + 5


def reduce_scatter(
    channel: CollectiveChannel, n: int, outgoing: Sequence[Outgoing], reduced: Sequence[Reduced], *, together: bool
) -> None:
    """Send addends to the ranks that reduce them, and reduce those of this rank, combined by rank."""
    leaving = [channel.spans(each.block.size) for each in outgoing]
    kept = [channel.spans(each.own.size) for each in reduced]
    load = partial(channel.addends, count=n)
    loads = _loaded(channel, [each.block for each in outgoing], load, together)
    mine = _loaded(channel, [each.own for each in reduced], load, together)
    arrivals: list[list[Iterator[TensorHandle] | None]] = []
    held: deque[TensorHandle] = deque()
    for step in range(max(map(len, leaving + kept), default=0) + LAG):
        for each, spans, loaded in zip(outgoing, leaving, loads, strict=True):
            if step < len(spans):
                x = next(loaded)
                for direction in each.to:
                    channel.send(direction, x)
        for spans, loaded in zip(kept, mine, strict=True):
            if step < len(spans):
                held.append(next(loaded))
        if not step:
            for result, spans in zip(reduced, kept, strict=True):
                counts = [count for _, count in spans]
                arrivals.append([None if to is None else channel.receives(to, counts) for to in result.directions])
            continue
        for result, spans, messages in zip(reduced, kept, arrivals, strict=True):
            if step - LAG < len(spans):
                x = _combined(channel, held.popleft(), messages)
                channel.store(result.result, spans[step - LAG], channel.finish(x, n))


def _combined(
    channel: CollectiveChannel, own: TensorHandle, messages: Sequence[Iterator[TensorHandle] | None]
) -> TensorHandle:
    """The next chunks of all ranks, combined by rank."""
    found = None
    for each in messages:
        x = own if each is None else next(each)
        found = x if found is None else channel.combine(found, x)
    assert found is not None
    return found
