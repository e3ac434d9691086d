"""A heap of events, each a time and a key, for `buffer_loop.py`.

What an event schedules is noted behind the end of the heap, and the first of it takes the place of that event: most
events schedule one, which is then sorted in once.
"""

from __future__ import annotations

from kernbench.sim_engine.fabric.buffer_records import HEAP, PUSHES, Cells


def push(heap_ns: Cells, heap_key: Cells, counts: Cells, time: float, key: int) -> None:
    """Queue an event, from outside the loop."""
    size = counts[HEAP]
    counts[HEAP] = size + 1
    rise(heap_ns, heap_key, size, time, key)


def rise(heap_ns: Cells, heap_key: Cells, at: int, time: float, key: int) -> None:
    """Put an event at the end of the heap, `at`, or above."""
    while at:
        parent = (at - 1) >> 1
        if heap_ns[parent] < time or (heap_ns[parent] == time and heap_key[parent] <= key):
            break
        heap_ns[at], heap_key[at] = heap_ns[parent], heap_key[parent]
        at = parent
    heap_ns[at], heap_key[at] = time, key


def replace_first(heap_ns: Cells, heap_key: Cells, counts: Cells) -> None:
    """The first event has happened: what it scheduled, noted behind the end of the heap, takes its place."""
    size, pushes = counts[HEAP], counts[PUSHES]
    if not pushes:
        size -= 1
    time, key, at, child = heap_ns[size], heap_key[size], 0, 1
    while child < size:
        child_ns, child_key = heap_ns[child], heap_key[child]
        if child + 1 < size:
            other_ns, other_key = heap_ns[child + 1], heap_key[child + 1]
            if other_ns < child_ns or (other_ns == child_ns and other_key < child_key):
                child, child_ns, child_key = child + 1, other_ns, other_key
        if time < child_ns or (time == child_ns and key <= child_key):
            break
        heap_ns[at], heap_key[at] = child_ns, child_key
        at, child = child, 2 * child + 1
    heap_ns[at], heap_key[at] = time, key
    for _ in range(1, pushes):
        rise(heap_ns, heap_key, size, heap_ns[size + 1], heap_key[size + 1])
        size += 1
    counts[HEAP] = size
