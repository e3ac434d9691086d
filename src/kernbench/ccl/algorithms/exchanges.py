"""Exchanges: PEs that each hold a chunk reduce it among them, in rounds. Used by `parts.in_rounds` and
`trees.all_reduce`.

Every exchange ends with the same bits on all PEs: all of them combine chunks in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import isqrt

from kernbench.ccl.algorithms.parts import CollectiveChannel, Rounds, arrived, parts_of
from kernbench.common.array_types import Span
from kernbench.triton_emu.tl_context import TensorHandle

DirectionOfPosition = Callable[[int], str]  # of the PE at a position


def doubling(
    channel: CollectiveChannel, x: TensorHandle, position: int, size: int, direction: DirectionOfPosition
) -> Rounds:
    """Recursive doubling: in round i, PEs whose positions differ in bit i exchange all they have.

    If size is not a power of two, the first PEs form pairs: the even one of a pair sends its chunk to the odd one
    before the rounds, and receives the result after them.
    """
    tl, count = channel.tl, x.size
    full = 1 << (size.bit_length() - 1)
    paired = 2 * (size - full)
    bits = range(full.bit_length() - 1)
    if position < paired and position % 2 == 0:
        channel.send(direction(position + 1), x)
        result = tl.recv_async(direction(position + 1), (count,), channel.dtype)
        for _ in range(len(bits) + 2):
            yield
        return arrived(tl.wait(result))
    if position < paired:
        folded = tl.recv_async(direction(position - 1), (count,), channel.dtype)
        yield
        x = channel.combine(arrived(tl.wait(folded)), x)
    elif paired:
        yield
    # Among the `full` PEs that remain, the odd ones of the pairs come first.
    rank = position // 2 if position < paired else position - paired // 2
    for bit in bits:
        other = rank ^ (1 << bit)
        peer = direction(2 * other + 1 if 2 * other < paired else other + paired // 2)
        channel.send(peer, x)
        message = tl.recv_async(peer, (count,), channel.dtype)
        yield
        theirs = arrived(tl.wait(message))
        x = channel.combine(x, theirs) if rank < other else channel.combine(theirs, x)
    if position < paired:
        channel.send(direction(position - 1), x)
    return x


def doubling_rounds(size: int) -> int:
    """How often `doubling` waits."""
    full = 1 << (size.bit_length() - 1)
    return full.bit_length() - 1 + (2 if size > full else 0)


def direct(
    channel: CollectiveChannel, x: TensorHandle, position: int, size: int, direction: DirectionOfPosition
) -> Rounds:
    """Every PE reduces one piece of the chunk, which all others send to it, and sends the result to all others: two
    rounds, for networks in which all distances are equal, as between SIPs on one switch.
    """
    if size == 1:
        return x
    pieces = parts_of(x.size, size, channel.itemsize)
    mine = yield from _reduce_own_piece(channel, x, pieces, position, direction)
    del x
    return (yield from _gather_pieces(channel, mine, pieces, position, direction))


DIRECT_ROUNDS = 2


def direct_in_rows(
    channel: CollectiveChannel, x: TensorHandle, position: int, size: int, direction: DirectionOfPosition
) -> Rounds:
    """As `direct`, with fewer peers per PE: PEs form rows and columns (`row_width`). PEs of a row reduce a piece each,
    PEs of a column reduce their piece, and PEs of a row exchange the results.
    """
    width = row_width(size)
    place = position % width

    def in_row(at: int) -> str:
        return direction(position - place + at)

    pieces = parts_of(x.size, width, channel.itemsize)
    mine = yield from _reduce_own_piece(channel, x, pieces, place, in_row)
    del x
    if mine.size:
        mine = yield from direct(
            channel, mine, position // width, size // width, lambda at: direction(at * width + place)
        )
    else:
        for _ in range(DIRECT_ROUNDS):
            yield
    return (yield from _gather_pieces(channel, mine, pieces, place, in_row))


IN_ROWS_ROUNDS = DIRECT_ROUNDS + 2


def row_width(size: int) -> int:
    """The number of PEs in a row: the largest divisor of `size` up to its square root; 1 for a prime number."""
    return max(width for width in range(1, isqrt(size) + 1) if size % width == 0)


def direct_whole(
    channel: CollectiveChannel, x: TensorHandle, position: int, size: int, direction: DirectionOfPosition
) -> Rounds:
    """Every PE sends its whole chunk to all others, and reduces them by position: one round, for small chunks."""
    tl = channel.tl
    others = _others(position, size)
    theirs = {k: tl.recv_async(direction(k), (x.size,), channel.dtype) for k in others}
    for k in others:
        channel.send(direction(k), x)
    if others:
        yield
    return _reduced(channel, [x if k == position else arrived(tl.wait(theirs.pop(k))) for k in range(size)])


def ring_pieces(
    channel: CollectiveChannel, x: TensorHandle, position: int, size: int, direction: DirectionOfPosition
) -> Rounds:
    """A ring all-reduce of one chunk: as `direct`, over neighbours only, in 2 * (size - 1) rounds."""
    tl = channel.tl
    spans = parts_of(x.size, size, channel.itemsize)
    pieces = [x[first : first + count] for first, count in spans]
    to, back = direction((position + 1) % size), direction((position - 1) % size)
    for step in range(2 * (size - 1)):
        reducing = step < size - 1
        sent, got = (position - 1 - step) % size, (position - 2 - step) % size
        if spans[sent][1]:
            channel.send(to, pieces[sent])
        message = tl.recv_async(back, (spans[got][1],), channel.dtype) if spans[got][1] else None
        yield
        if message is not None:
            theirs = arrived(tl.wait(message))
            pieces[got] = channel.combine(theirs, pieces[got]) if reducing else theirs
    return _joined(channel, [piece for piece in pieces if piece.size])


def ring_values(channel: CollectiveChannel, x: TensorHandle, position: int, size: int, to: str, back: str) -> Rounds:
    """Every PE's whole chunk circulates a ring once, in size - 1 rounds; then each PE combines them by position."""
    tl = channel.tl
    values = {position: x}
    for step in range(size - 1):
        channel.send(to, values[(position - step) % size])
        message = tl.recv_async(back, (x.size,), channel.dtype)
        yield
        values[(position - step - 1) % size] = arrived(tl.wait(message))
    return _reduced(channel, [values[at] for at in range(size)])


def line_values(channel: CollectiveChannel, x: TensorHandle, position: int, size: int, to: str, back: str) -> Rounds:
    """Chunks are combined along a line towards its first PE, and the result is sent back along it, one PE per round."""
    tl, count = channel.tl, x.size
    behind = size - 1 - position
    if behind:
        theirs = tl.recv_async(to, (count,), channel.dtype)
        for _ in range(behind):
            yield
        x = channel.combine(x, arrived(tl.wait(theirs)))
    if position:
        channel.send(back, x)
        result = tl.recv_async(back, (count,), channel.dtype)
        for _ in range(2 * position):
            yield
        x = arrived(tl.wait(result))
    if behind:
        channel.send(to, x)
        for _ in range(behind):
            yield
    return x


def _reduce_own_piece(
    channel: CollectiveChannel, x: TensorHandle, pieces: Sequence[Span], place: int, direction: DirectionOfPosition
) -> Rounds:
    """One round: every PE sends the others their pieces of its chunk, and reduces its own piece by position."""
    tl, others = channel.tl, _others(place, len(pieces))
    first, count = pieces[place]
    theirs = {k: tl.recv_async(direction(k), (count,), channel.dtype) for k in others if count}
    for k in others:
        if pieces[k][1]:
            channel.send(direction(k), x[pieces[k][0] : sum(pieces[k])])
    yield
    mine = x[first : first + count]
    if not count:
        return mine
    return _reduced(channel, [mine if k == place else arrived(tl.wait(theirs.pop(k))) for k in range(len(pieces))])


def _gather_pieces(
    channel: CollectiveChannel, mine: TensorHandle, pieces: Sequence[Span], place: int, direction: DirectionOfPosition
) -> Rounds:
    """One round: every PE sends its piece, if it has one, to all others, so that all have the whole chunk."""
    tl, others = channel.tl, _others(place, len(pieces))
    if mine.size:
        for k in others:
            channel.send(direction(k), mine)
    theirs = {k: tl.recv_async(direction(k), (pieces[k][1],), channel.dtype) for k in others if pieces[k][1]}
    yield
    having = [k for k, (_, count) in enumerate(pieces) if count]
    return _joined(channel, [mine if k == place else arrived(tl.wait(theirs.pop(k))) for k in having])


def _others(place: int, size: int) -> list[int]:
    """The other positions, beginning after `place`, so that PEs do not all send to the same PE first."""
    return [(place + step) % size for step in range(1, size)]


def _reduced(channel: CollectiveChannel, values: Sequence[TensorHandle]) -> TensorHandle:
    """Values combined by position, so that all PEs get the same bits."""
    return reduce(channel.combine, values)


def _joined(channel: CollectiveChannel, pieces: Sequence[TensorHandle]) -> TensorHandle:
    """Pieces, concatenated."""
    return channel.tl.cat(pieces) if len(pieces) > 1 else pieces[0]
