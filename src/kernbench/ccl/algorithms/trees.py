"""Reduce along a tree of PEs towards its root, broadcast from the root, or both at once, in chunks.

In an all-reduce every PE but the root runs `lag` chunks ahead: it sends chunk i up before it waits for the result of
chunk i - lag. So both directions of every link are busy. The root may exchange chunks with the roots of other trees, a
round of each chunk per step, before it sends them down.

There is no deadlock, however small the rings: consider the PE that has made least progress. The message it waits for
was sent by a PE that is further ahead, or the message it sends is received by one. The root is the exception: it sends
chunk i down in step i + rounds and its children receive it in step i + lag, so it may have `lag - rounds + 1` in
flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kernbench.ccl.algorithms.parts import AHEAD, ChunksInFlight, CollectiveChannel, Rounds, advance, no_exchange
from kernbench.common.array_types import Span
from kernbench.triton_emu.tl_context import TensorHandle

LAG = 3  # chunks that go up while the result of one comes down
WINDOW = LAG + 1


class Neighbours(NamedTuple):
    """A PE's parent and children in a tree, as directions. Addends of children are combined in this order."""

    parent: str | None
    children: tuple[str, ...]


MOST_IN_MESH = 4  # children of the root of a cube mesh


def live(children: int) -> int:
    """Chunks in TCM at a time if no PE has more than `children`: received and loaded ahead, being sent up and down,
    sums and stores. All PEs use the same chunk size, so this must not depend on the PE.
    """
    return (AHEAD + 1) * (children + 2) + 2 * WINDOW + 4


def live_in_mesh(held: int, window: int = WINDOW) -> int:
    """As `live`, in a cube mesh whose root holds `held` chunks while it exchanges them. The root has four children and
    no parent; all others have at most three children, and exchange nothing. `window` is that of the channel.
    """
    root = (AHEAD + 1) * (MOST_IN_MESH + 1) + window + 4 + held
    others = (AHEAD + 1) * (MOST_IN_MESH + 1) + 2 * window + 4
    return max(root, others)


def most_in_binomial(size: int) -> int:
    """How many children the root of a binomial tree has."""
    return (size - 1).bit_length()


def binomial(position: int, size: int, root: int, direction: Callable[[int], str]) -> Neighbours:
    """Of `size` PEs, the one at `position`: a tree in which the root has log2(size) children."""
    virtual = (position - root) % size
    distance = 1
    children: list[str] = []
    while virtual + distance < size and not virtual & distance:
        children.append(direction((virtual + distance + root) % size))
        distance *= 2
    parent = None if virtual == 0 else direction(((virtual & (virtual - 1)) + root) % size)
    return Neighbours(parent, tuple(children))


def chain(position: int, size: int, root: int, direction: Callable[[int], str]) -> Neighbours:
    """A tree without branches."""
    virtual = (position - root) % size
    following = (direction((position + 1) % size),) if virtual + 1 < size else ()
    return Neighbours(None if virtual == 0 else direction((position - 1) % size), following)


def star(position: int, size: int, root: int, direction: Callable[[int], str]) -> Neighbours:
    """A tree in which all others are children of the root, by position."""
    if position != root:
        return Neighbours(direction(root), ())
    return Neighbours(None, tuple(direction((root + step) % size) for step in range(1, size)))


def cube_mesh(x: int, y: int, w: int, h: int, at: str) -> Neighbours:
    """Along rows to the root's column, and there to the root, from both sides. The root is the center, or the
    south-east corner.
    """
    root_x, root_y = (w // 2, h // 2) if at == "center" else (w - 1, h - 1)
    children: list[str] = []
    if x <= root_x and x > 0:
        children.append("W")
    if x >= root_x and x < w - 1:
        children.append("E")
    if x != root_x:
        return Neighbours("E" if x < root_x else "W", tuple(children))
    if y <= root_y and y > 0:
        children.append("N")
    if y >= root_y and y < h - 1:
        children.append("S")
    parent = None if y == root_y else "S" if y < root_y else "N"
    return Neighbours(parent, tuple(children))


def all_reduce(
    channel: CollectiveChannel,
    ptr: int,
    n: int,
    tree: Neighbours,
    addends: int,
    exchange: Callable[[TensorHandle], Rounds] = no_exchange,
    rounds: int = 0,
) -> None:
    """Every PE of the tree, and of the trees that `exchange` connects in `rounds` rounds, gets the reduction."""
    spans = channel.spans(n)
    counts = [count for _, count in spans]
    lag = rounds + LAG
    loads = channel.addends(((ptr, span) for span in spans), addends)
    arrivals = [channel.receives(child, counts) for child in tree.children]
    results = channel.receives(tree.parent, counts) if tree.parent is not None else iter(())
    in_flight: ChunksInFlight = deque()

    def deliver(span: Span, x: TensorHandle) -> None:
        _pass_on(channel, ptr, span, tree.children, x)

    for step in range(len(spans) + lag):
        if step < len(spans):
            x = next(loads)
            for messages in arrivals:
                x = channel.combine(x, next(messages))
            if tree.parent is None:
                in_flight.append((spans[step], exchange(x)))
            else:
                channel.send(tree.parent, x)
            del x
        if tree.parent is None:
            advance(in_flight, lambda span, x: deliver(span, channel.finish(x, addends)))
        elif step >= lag:
            deliver(spans[step - lag], next(results))


def reduce(channel: CollectiveChannel, ptr: int, n: int, tree: Neighbours, addends: int) -> None:
    """The root gets the reduction; the memory of other PEs does not change."""
    spans = channel.spans(n)
    counts = [count for _, count in spans]
    arrivals = [channel.receives(child, counts) for child in tree.children]
    for span, own in zip(spans, channel.addends(((ptr, span) for span in spans), addends), strict=True):
        x = own
        for messages in arrivals:
            x = channel.combine(x, next(messages))
        if tree.parent is None:
            channel.store(ptr, span, channel.finish(x, addends))
        else:
            channel.send(tree.parent, x)


def broadcast(channel: CollectiveChannel, ptr: int, n: int, tree: Neighbours) -> None:
    """Every PE gets the root's elements."""
    spans = channel.spans(n)
    if tree.parent is None:
        for x in channel.loads((ptr, span) for span in spans):
            for child in reversed(tree.children):
                channel.send(child, x)
        return
    for span, x in zip(spans, channel.receives(tree.parent, [count for _, count in spans]), strict=True):
        _pass_on(channel, ptr, span, tree.children, x)


def _pass_on(channel: CollectiveChannel, ptr: int, span: Span, children: Sequence[str], x: TensorHandle) -> None:
    for child in reversed(children):  # the largest subtree first
        channel.send(child, x)
    channel.store(ptr, span, x)
