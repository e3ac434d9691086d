"""The loop of flits that meet, compiled by numba: what `FlitEngine._move` does for plain flits, event by event.

Flits that have left a link are ready for their next ones in the order in which they left, so every link has a queue of
them, and the events to choose from are the heads of the queues: a heap of (time, order). Flits whose times are known
beforehand, as they set out or come back from a plan, wait in queues of their own. Imported only where numba is there.

All state lies in arrays that `flit_queues.py` owns; columns of those with several are named here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

FREE_NODE, FREE_NODES, FREE_QUEUE, HEAPED, ENDS, WRITES, EVENTS = range(7)  # of `counts`
TRANSFER, FLIT, HOP, NEXT = range(4)  # of `node_ints`
HEAD, TAIL, ORDER = range(3)  # of `queues`
FIRST, HOPS, LAST, IS_WRITE = range(4)  # of `transfers`
OCCUPY, OCCUPY_LAST, TAIL_NS = range(3)  # of `crossing_ns`
LINK, IS_IN_SERIES = range(2)  # of `crossing_ints`
FREE, WORST, WORST_AT = range(3)  # of `link_ns`

Array = Any  # numba knows the types by what it is called with


def compiled(function: Callable[..., Any]) -> Any:
    """Compiled when first called; the outcome is kept on disk where there is a place for it."""
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # neither beside this file nor among the user's files
        return njit(function)


@compiled
def _push(heap_ns: Array, heap_ints: Array, counts: Array, time: float, order: int, queue: int) -> None:
    at = counts[HEAPED]
    counts[HEAPED] = at + 1
    while at:
        parent = (at - 1) >> 1
        if heap_ns[parent] < time or (heap_ns[parent] == time and heap_ints[parent, 0] < order):
            break
        heap_ns[at] = heap_ns[parent]
        heap_ints[at, 0] = heap_ints[parent, 0]
        heap_ints[at, 1] = heap_ints[parent, 1]
        at = parent
    heap_ns[at] = time
    heap_ints[at, 0] = order
    heap_ints[at, 1] = queue


@compiled
def _replace_first(heap_ns: Array, heap_ints: Array, size: int, time: float, order: int, queue: int) -> None:
    """The first of `size` entries gives way to another."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            heap_ns[right] < heap_ns[child]
            or (heap_ns[right] == heap_ns[child] and heap_ints[right, 0] < heap_ints[child, 0])
        ):
            child = right
        if time < heap_ns[child] or (time == heap_ns[child] and order < heap_ints[child, 0]):
            break
        heap_ns[at] = heap_ns[child]
        heap_ints[at, 0] = heap_ints[child, 0]
        heap_ints[at, 1] = heap_ints[child, 1]
        at = child
    heap_ns[at] = time
    heap_ints[at, 0] = order
    heap_ints[at, 1] = queue


@compiled
def add(
    times: Array,
    order: int,
    transfer: int,
    flit: int,
    hop: int,
    node_ns: Array,
    node_ints: Array,
    queues: Array,
    heap_ns: Array,
    heap_ints: Array,
    counts: Array,
) -> None:
    """Flits from `flit` on are ready for `hop` at `times`: they wait in a queue of their own."""
    queue = counts[FREE_QUEUE]
    counts[FREE_QUEUE] = queues[queue, TAIL]
    queues[queue, ORDER] = order
    before = -1
    counts[FREE_NODES] -= len(times)
    for i in range(len(times)):
        node = counts[FREE_NODE]
        counts[FREE_NODE] = node_ints[node, NEXT]
        node_ns[node] = times[i]
        node_ints[node, TRANSFER] = transfer
        node_ints[node, FLIT] = flit + i
        node_ints[node, HOP] = hop
        if before < 0:
            queues[queue, HEAD] = node
        else:
            node_ints[before, NEXT] = node
        before = node
    node_ints[before, NEXT] = -1
    queues[queue, TAIL] = before
    _push(heap_ns, heap_ints, counts, times[0], order, queue)


@compiled
def move(
    until: float,
    other_ns: float,
    other_order: float,
    node_ns: Array,
    node_ints: Array,
    queues: Array,
    heap_ns: Array,
    heap_ints: Array,
    transfers: Array,
    crossing_ints: Array,
    crossing_ns: Array,
    link_ns: Array,
    users: Array,
    end_ns: Array,
    end_ints: Array,
    write_ns: Array,
    write_ints: Array,
    counts: Array,
) -> None:
    """Move flits up to `until`, or to the event of somebody else, or to the first end that is still to be told."""
    links = len(users)
    first_end = np.inf
    ends = writes = events = 0
    while counts[HEAPED]:
        time, order, queue = heap_ns[0], heap_ints[0, 0], heap_ints[0, 1]
        if time > until or time >= first_end or time > other_ns or (time == other_ns and order >= other_order):
            break
        if ends == len(end_ns) or writes == len(write_ns):
            break
        node = queues[queue, HEAD]
        following = node_ints[node, NEXT]
        queues[queue, HEAD] = following
        if following >= 0:
            _replace_first(heap_ns, heap_ints, counts[HEAPED], node_ns[following], order, queue)
        else:
            if queue >= links:
                queues[queue, TAIL] = counts[FREE_QUEUE]
                counts[FREE_QUEUE] = queue
            counts[HEAPED] -= 1
            size = counts[HEAPED]
            if size:
                _replace_first(heap_ns, heap_ints, size, heap_ns[size], heap_ints[size, 0], heap_ints[size, 1])
        # The link takes the flit, by the rule of `fifo.leave_ns`, and those in series with it do so at once.
        transfer, flit, hop = node_ints[node, TRANSFER], node_ints[node, FLIT], node_ints[node, HOP]
        is_last = flit == transfers[transfer, LAST]
        ready = time
        while True:
            crossing = transfers[transfer, FIRST] + hop
            link = crossing_ints[crossing, LINK]
            leave = crossing_ns[crossing, OCCUPY_LAST if is_last else OCCUPY]
            start = link_ns[FREE, link]
            if start > ready:
                if start - ready > link_ns[WORST, link]:
                    link_ns[WORST, link] = start - ready
                    link_ns[WORST_AT, link] = ready
                leave += start
            else:
                leave += ready
            link_ns[FREE, link] = leave
            if is_last:
                users[link] -= 1
            leave += crossing_ns[crossing, TAIL_NS]
            if not crossing_ints[crossing, IS_IN_SERIES]:
                break
            ready = leave
            hop += 1
        events += 1
        if hop + 1 < transfers[transfer, HOPS]:
            node_ns[node] = leave
            node_ints[node, HOP] = hop + 1
            node_ints[node, NEXT] = -1
            if queues[link, HEAD] < 0:
                queues[link, HEAD] = queues[link, TAIL] = node
                _push(heap_ns, heap_ints, counts, leave, link, link)
            else:
                node_ints[queues[link, TAIL], NEXT] = node
                queues[link, TAIL] = node
            continue
        node_ints[node, NEXT] = counts[FREE_NODE]
        counts[FREE_NODE] = node
        counts[FREE_NODES] += 1
        if transfers[transfer, IS_WRITE]:
            write_ns[writes] = leave
            write_ints[writes, 0], write_ints[writes, 1], write_ints[writes, 2] = link, flit, transfer
            writes += 1
        if is_last:
            end_ns[ends] = leave
            end_ints[ends, 0], end_ints[ends, 1] = link, transfer
            ends += 1
            first_end = min(first_end, leave)
    counts[ENDS], counts[WRITES], counts[EVENTS] = ends, writes, events


@compiled
def find(transfer: int, node_ns: Array, node_ints: Array, queues: Array, heap_ints: Array, counts: Array) -> Array:
    """Where the flits of a transfer stand: rows of hop, flit and time."""
    found = 0
    for place in range(counts[HEAPED]):
        node = queues[heap_ints[place, 1], HEAD]
        while node >= 0:
            found += node_ints[node, TRANSFER] == transfer
            node = node_ints[node, NEXT]
    rows = np.empty((found, 3))
    at = 0
    for place in range(counts[HEAPED]):
        node = queues[heap_ints[place, 1], HEAD]
        while node >= 0:
            if node_ints[node, TRANSFER] == transfer:
                rows[at, 0], rows[at, 1], rows[at, 2] = node_ints[node, HOP], node_ints[node, FLIT], node_ns[node]
                at += 1
            node = node_ints[node, NEXT]
    return rows


@compiled
def remove(
    transfer: int,
    node_ns: Array,
    node_ints: Array,
    queues: Array,
    heap_ns: Array,
    heap_ints: Array,
    counts: Array,
    links: int,
) -> None:
    """The flits of a transfer are no longer moved one by one."""
    size = counts[HEAPED]
    kept = heap_ints[:size, 1].copy()
    counts[HEAPED] = 0
    for place in range(size):
        queue = kept[place]
        node, before = queues[queue, HEAD], -1
        while node >= 0:
            following = node_ints[node, NEXT]
            if node_ints[node, TRANSFER] == transfer:
                if before < 0:
                    queues[queue, HEAD] = following
                else:
                    node_ints[before, NEXT] = following
                node_ints[node, NEXT] = counts[FREE_NODE]
                counts[FREE_NODE] = node
                counts[FREE_NODES] += 1
            else:
                before = node
            node = following
        if before >= 0:
            queues[queue, TAIL] = before
            first = queues[queue, HEAD]
            _push(heap_ns, heap_ints, counts, node_ns[first], queues[queue, ORDER] if queue >= links else queue, queue)
        elif queue >= links:
            queues[queue, TAIL] = counts[FREE_QUEUE]
            counts[FREE_QUEUE] = queue
