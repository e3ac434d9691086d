"""Which PE sends and receives which elements of tensors with a block for each rank: pure functions.

By *shards*: the same PEs hold the input and the output of every rank, each a part of its own. The PE that holds an
element sends it to the PE that holds its place in the output. Memory of other cubes is as far away as another SIP, so
this takes the shortest time.

By *groups*: PEs share the work wherever tensors lie. Every block has a group of PEs: in order, as many for each block,
or one PE for several blocks if there are fewer PEs than ranks. A PE sends to, and receives from, the PE of the same
number. Groups are named by the block alone, so both ends of a message find the same ones where other blocks have other
sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from kernbench.ccl.algorithms.parts import parts_of
from kernbench.ccl.work import ShardElements, Shards

PeInSip = tuple[int, int]  # cube and PE
Splits = tuple[int, ...]  # elements of each rank's block


class Send(NamedTuple):
    """Elements of the input, and the ranks that they are sent to, each with the PE there; none: the same PE."""

    first: int
    size: int
    to: tuple[tuple[int, PeInSip | None], ...]


class Receive(NamedTuple):
    """Elements of the output, and the rank that they come from, with the PE there."""

    first: int
    size: int
    rank: int
    pe: PeInSip | None


class Own(NamedTuple):
    """Elements of the output that come from this rank's input; in a reduction, `pe` of every other rank sends its
    addends.
    """

    first: int
    size: int
    source: int
    pe: PeInSip | None = None


class Moves(NamedTuple):
    """The work of one PE."""

    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()
    own: tuple[Own, ...] = ()


# -------------------------------------------------------------------------------------------------------------- shards


class _Piece(NamedTuple):
    sender: PeInSip
    receiver: PeInSip
    source: int  # first element in the input
    target: int  # and in the output
    size: int


def _overlaps(shards: Sequence[ShardElements], first: int, count: int) -> Iterator[tuple[PeInSip, int, int]]:
    for cube, pe, start, size in shards:
        low, high = max(start, first), min(start + size, first + count)
        if low < high:
            yield (cube, pe), low, high - low


def _pieces(shards: Shards, source: int, target: int, count: int) -> Iterator[_Piece]:
    """A run of elements of the input and its run in the output, cut where their holders change."""
    for sender, low, size in _overlaps(shards[0], source, count):
        for receiver, at, n in _overlaps(shards[1], target + low - source, size):
            yield _Piece(sender, receiver, source + at - target, at, n)


@lru_cache(maxsize=64)
def by_shards(collective: str, shards: Shards, block: int, rank: int, n: int) -> dict[PeInSip, Moves]:
    """The work of every PE of a rank; `block` is the number of elements per rank."""
    others = [(rank + distance) % n for distance in range(1, n)]
    sends: dict[PeInSip, list[Send]] = {}
    receives: dict[PeInSip, list[Receive]] = {}
    own: dict[PeInSip, list[Own]] = {}
    here, there = (0, rank * block) if collective == "all_gather" else (rank * block, rank * block)
    if collective == "reduce_scatter":
        there = 0
    for piece in _pieces(shards, here, there, block):
        mine = own.setdefault(piece.receiver, [])
        last = mine[-1] if mine and collective != "reduce_scatter" else None
        if last is not None and (last.first, last.source) == (piece.target - last.size, piece.source - last.size):
            mine[-1] = last._replace(size=last.size + piece.size)
        else:
            mine.append(Own(piece.target, piece.size, piece.source, piece.sender))
        if collective == "all_gather" and others:
            to = tuple((k, piece.receiver) for k in others)
            sends.setdefault(piece.sender, []).append(Send(piece.source, piece.size, to))
    for k in others:
        if collective != "all_gather":
            for piece in _pieces(shards, k * block, there, block):
                sends.setdefault(piece.sender, []).append(Send(piece.source, piece.size, ((k, piece.receiver),)))
        if collective != "reduce_scatter":
            for piece in _pieces(shards, here, k * block, block):
                receives.setdefault(piece.receiver, []).append(Receive(piece.target, piece.size, k, piece.sender))
    places = dict.fromkeys((*sends, *receives, *own))
    return {
        place: Moves(tuple(sends.get(place, ())), tuple(receives.get(place, ())), tuple(own.get(place, ())))
        for place in places
    }


# -------------------------------------------------------------------------------------------------------------- groups


def shares_of(index: int, channels: int, n: int) -> dict[int, tuple[int, int]]:
    """The blocks, of n, in whose groups PE `index` of `channels` PEs is: its number there, and the group's size."""
    found = {}
    for k in range(n):
        first = k * channels // n
        size = max((k + 1) * channels // n - first, 1)
        if first <= index < first + size:
            found[k] = (index - first, size)
    return found


def by_groups(collective: str, block: int, rank: int, n: int, itemsize: int, index: int, channels: int) -> Moves:
    """The work of PE `index` of `channels` PEs in an all_gather or a reduce_scatter: all_gather has a group for the
    block of each source, reduce_scatter for that of each destination.
    """
    others = tuple((rank + distance) % n for distance in range(1, n))
    sends: list[Send] = []
    receives: list[Receive] = []
    own: list[Own] = []
    for k, (place, parts) in shares_of(index, channels, n).items():
        first, count = parts_of(block, parts, itemsize)[place]
        if not count:
            continue
        if collective == "reduce_scatter":
            if k == rank:
                own.append(Own(first, count, k * block + first))
            else:
                sends.append(Send(k * block + first, count, ((k, None),)))
        elif k == rank:
            if others:
                sends.append(Send(first, count, tuple((to, None) for to in others)))
            own.append(Own(k * block + first, count, first))
        else:
            receives.append(Receive(k * block + first, count, k, None))
    sends.sort(key=lambda send: (send.to[0][0] - rank) % n)
    return Moves(tuple(sends), tuple(receives), tuple(own))


def by_distance(inputs: Splits, outputs: Splits, rank: int, itemsize: int, index: int, channels: int) -> Moves:
    """The work of a PE in an all_to_all: there is a group for each distance of ranks, so that a PE has few blocks both
    to load and to store.
    """
    n = len(inputs)
    sends: list[Send] = []
    receives: list[Receive] = []
    own: list[Own] = []
    for distance, (place, parts) in shares_of(index, channels, n).items():
        to, back = (rank + distance) % n, (rank - distance) % n
        first, count = parts_of(inputs[to], parts, itemsize)[place]
        at, size = parts_of(outputs[back], parts, itemsize)[place]
        source, target = sum(inputs[:to]) + first, sum(outputs[:back]) + at
        if not distance:
            own.append(Own(target, size, source))
            continue
        sends.append(Send(source, count, ((to, None),)))
        receives.append(Receive(target, size, back, None))
    return Moves(tuple(sends), tuple(receives), tuple(own))
