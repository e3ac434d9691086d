"""Reduce-scatter and all-gather around a ring of PEs, in chunks, from memory to memory.

There is a piece for each PE. In a reduce-scatter, piece k starts at the PE after PE k, and every PE on its way adds its
own addend; so it is complete when it arrives at PE k. In an all-gather the pieces circulate once. Every step moves up
to `depth` chunks, and a chunk is forwarded as soon as it arrives, so steps overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kernbench.ccl.algorithms.parts import AHEAD, CollectiveChannel, parts_of
from kernbench.common.array_types import Span
from kernbench.triton_emu.tl_context import TensorHandle

DEPTH = 4  # chunks of a piece that are in flight at a time


def window_of(depth: int) -> int:
    """How many sends may be in flight: the peer receives a step's chunks one step later."""
    return depth + 1


def live_of(depth: int) -> int:
    """Chunks in TCM: being sent, kept, received and loaded ahead, sums and stores."""
    return window_of(depth) + depth + 2 * (AHEAD + 1) + 3


WINDOW, LIVE = window_of(DEPTH), live_of(DEPTH)


class RingPosition(NamedTuple):
    """A PE's position in a ring of `size`, and the directions of the next and previous PE."""

    position: int
    size: int
    following: str
    previous: str


def rank_ring(rank: int, n: int) -> RingPosition:
    """All ranks of a group, by their numbers."""
    return RingPosition(rank, n, f"rank_{(rank + 1) % n}", f"rank_{(rank - 1) % n}")


def number_ring(numbers: Sequence[int], own: int, prefix: str) -> RingPosition:
    """Cubes or PEs by their numbers: `cube_3`, `intra_3`."""
    at, n = numbers.index(own), len(numbers)
    return RingPosition(at, n, f"{prefix}_{numbers[(at + 1) % n]}", f"{prefix}_{numbers[at - 1]}")


def mesh_cycle(w: int, h: int) -> list[int]:
    """All cubes of a mesh, each next to the one before; the last next to the first too where the mesh allows it."""
    if h % 2 and not w % 2:
        return [(at % h) * w + at // h for at in mesh_cycle(h, w)]
    if w == 1 or h == 1:
        return list(range(w * h))
    there = [y * w + x for y in range(h) for x in (range(1, w) if y % 2 == 0 else range(w - 1, 0, -1))]
    return [*there, *(y * w for y in range(h - 1, -1, -1))]


def columns(channel: CollectiveChannel, pieces: Sequence[Span], depth: int = DEPTH) -> Iterator[list[list[Span]]]:
    """Pieces in steps of `depth` chunks: for each step, the chunks of every piece."""
    width = depth * channel.chunk
    for start in range(0, max(count for _, count in pieces), width):
        yield [channel.spans(max(min(width, count - start), 0), first + start) for first, count in pieces]


PointerOf = Callable[[int], int]  # the pointer that a piece's spans are relative to


def reduce_scatter(
    channel: CollectiveChannel, ring: RingPosition, cells: Sequence[Sequence[Span]], source: PointerOf, addends: int
) -> list[TensorHandle]:
    """The chunks of this PE's own piece, reduced over the ring. `addends` is the number of addends of the whole
    reduction, or 1 for data that is partly reduced already.
    """
    order = [(ring.position - 1 - step) % ring.size for step in range(ring.size)]
    loads = channel.addends(((source(k), span) for k in order for span in cells[k]), addends)
    arrivals = channel.receives(ring.previous, [count for k in order[1:] for _, count in cells[k]])
    mine: list[TensorHandle] = []
    for k in order:
        for _ in cells[k]:
            x = next(loads) if k == order[0] else channel.combine(next(arrivals), next(loads))
            if k == ring.position:
                mine.append(x)
            else:
                channel.send(ring.following, x)
    return mine


def all_gather(
    channel: CollectiveChannel,
    ring: RingPosition,
    cells: Sequence[Sequence[Span]],
    own: Iterable[TensorHandle],
    target: PointerOf,
) -> None:
    """Store all PEs' pieces where `target` says; `own` are the chunks of this PE's piece, which it sends."""
    order = [(ring.position - step) % ring.size for step in range(ring.size)]
    arrivals = channel.receives(ring.previous, [count for k in order[1:] for _, count in cells[k]])
    for x in own:
        if ring.size > 1:
            channel.send(ring.following, x)
    for k in order[1:]:
        for span in cells[k]:
            x = next(arrivals)
            if k != order[-1]:
                channel.send(ring.following, x)
            channel.store(target(k), span, x)


def all_reduce(
    channel: CollectiveChannel,
    ring: RingPosition,
    ptr: int,
    n: int,
    addends: int,
    *,
    begun: bool = False,
    depth: int = DEPTH,
) -> None:
    """Both, in place: every PE of the ring gets the reduction of n elements; `begun`: they are partly reduced already.
    `depth` is the number of chunks of a piece in flight at a time.
    """
    pieces = parts_of(n, ring.size, channel.itemsize)
    for cells in columns(channel, pieces, depth):
        reduced = reduce_scatter(channel, ring, cells, lambda _: ptr, 1 if begun else addends)
        mine = [channel.finish(x, addends) for x in reduced]
        for span, x in zip(cells[ring.position], mine, strict=True):
            channel.store(ptr, span, x)
        all_gather(channel, ring, cells, mine, lambda _: ptr)


def reduce_scatter_in_place(
    channel: CollectiveChannel, ring: RingPosition, ptr: int, pieces: Sequence[Span], addends: int
) -> None:
    """Reduce this PE's own piece in place, as the first step of a reduction of `addends`."""
    for cells in columns(channel, pieces):
        reduced = reduce_scatter(channel, ring, cells, lambda _: ptr, addends)
        for span, x in zip(cells[ring.position], reduced, strict=True):
            channel.store(ptr, span, x)


def all_gather_in_place(channel: CollectiveChannel, ring: RingPosition, ptr: int, pieces: Sequence[Span]) -> None:
    """All PEs get every PE's piece, in place."""
    for cells in columns(channel, pieces):
        own = channel.loads((ptr, span) for span in cells[ring.position])
        all_gather(channel, ring, cells, own, lambda _: ptr)
