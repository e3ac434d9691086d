"""The queues of the compiled loop (`compiled_loop.py`): flits are put into them, looked for and taken out.

Queues whose first flit comes within a window of some moment are *near*, and looked at whenever flits are moved; the
others are *far*, and looked at when no near ones are left before the next window.
"""

from __future__ import annotations

import numpy as np

from kernbench.sim_engine.fabric.loop_state import (
    EACH_ITS_OWN,
    FAR,
    FAR_NS,
    FIRST,
    FIRST_HERE,
    FLIT,
    FREE,
    FREE_NODE,
    FREE_NODES,
    FREE_QUEUE,
    FREE_QUEUES,
    HEAD,
    HOP,
    HOPS,
    IS_WRITE,
    LAST,
    LAST_HERE,
    LEAST_LAST,
    LINK,
    NEAR,
    NEAR_NS,
    NEXT,
    NEXT_NS,
    OCCUPY,
    OCCUPY_LAST,
    ORDER,
    QUICK,
    TAIL,
    TAIL_NS,
    TOGETHER,
    TRANSFER,
    USERS,
    WINDOW,
    WORST,
    WORST_AT,
    Array,
    LoopState,
    called_from_python,
    compiled,
    in_line,
    state_at,
)


@compiled
def note_quick(heap: Array, counts: Array, time: float) -> None:
    """Push on a heap the earliest time at which a last flit, taking less than a window, has crossed its link."""
    at = counts[QUICK]
    counts[QUICK] = at + 1
    while at:
        parent = (at - 1) >> 1
        if heap[parent] <= time:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = time


@compiled
def next_quick(heap: Array, counts: Array, now: float) -> float:
    """The first of those times after `now`, earlier ones being dropped; infinity if there is none."""
    while counts[QUICK]:
        if heap[0] > now:
            return heap[0]  # type: ignore[no-any-return]  # an array of numba has no types
        counts[QUICK] -= 1
        size, at = counts[QUICK], 0
        last = heap[size]
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            if child + 1 < size and heap[child + 1] < heap[child]:
                child += 1
            if last <= heap[child]:
                break
            heap[at] = heap[child]
            at = child
        heap[at] = last
    return np.inf


@compiled
def put(queue: int, time: float, near: Array, far: Array, counts: Array, clock: Array) -> None:
    """Add a queue whose first flit is ready at `time` to the near or the far ones."""
    if time < clock[NEAR_NS]:
        near[counts[NEAR]] = queue
        counts[NEAR] += 1
        clock[NEXT_NS] = min(clock[NEXT_NS], time)
    else:
        far[counts[FAR]] = queue
        counts[FAR] += 1
        clock[FAR_NS] = min(clock[FAR_NS], time)


@compiled
def look_further(now: float, head_ns: Array, near: Array, far: Array, counts: Array, clock: Array) -> None:
    """Begin a window at `now`: far queues whose first flit comes within it become near."""
    near_ns, far_ns, nears, fars = now + clock[WINDOW], np.inf, counts[NEAR], 0
    for at in range(counts[FAR]):
        queue = far[at]
        time = head_ns[queue]
        if time < near_ns:
            near[nears] = queue
            nears += 1
        else:
            far[fars] = queue
            fars += 1
            far_ns = min(far_ns, time)
    clock[NEAR_NS], clock[FAR_NS], counts[NEAR], counts[FAR] = near_ns, far_ns, nears, fars


@compiled
def filled_queues(state: LoopState) -> Array:
    """All queues that have flits."""
    near, far = state.near[: state.counts[NEAR]], state.far[: state.counts[FAR]]
    return np.concatenate((near, far))


@compiled
def put_all(filled: Array, state: LoopState) -> None:
    """These queues have lost some of their flits: those that have any left take their places, the others are free."""
    counts, queues, clock = state.counts, state.queues, state.clock
    counts[NEAR] = counts[FAR] = 0
    clock[NEAR_NS], clock[FAR_NS] = 0.0, np.inf
    for queue in filled:
        if queues[queue, HEAD] >= 0:
            state.head_ns[queue] = state.node_ns[queues[queue, HEAD]]
            put(queue, state.head_ns[queue], state.near, state.far, counts, clock)
        elif queue >= len(state.link_ns):
            release_queue(queue, queues, counts)
    clock[NEXT_NS] = clock[FAR_NS]


@called_from_python
def take_all(addresses: Array) -> tuple[Array, Array]:
    """Take out all flits: the queues that have some, and the first node of each."""
    state = state_at(addresses)
    filled, counts, clock = filled_queues(state), state.counts, state.clock
    heads = state.queues[:, HEAD][filled]
    for queue in filled:
        state.queues[queue, HEAD] = -1
    counts[NEAR] = counts[FAR] = 0
    clock[NEAR_NS], clock[FAR_NS], clock[NEXT_NS] = 0.0, np.inf, np.inf
    return filled, heads


@called_from_python
def return_all(filled: Array, heads: Array, quick_ns: Array, addresses: Array) -> None:
    """Put flits back that `take_all` has taken out, beside those that are there now, on other links."""
    state = state_at(addresses)
    for at in range(len(filled)):
        assert state.queues[filled[at], HEAD] < 0, "a link has flits of before and of now"
        state.queues[filled[at], HEAD] = heads[at]
    for time in quick_ns:
        note_quick(state.quick_ns, state.counts, time)
    put_all(np.concatenate((filled_queues(state), filled)), state)


@in_line
def take_queue(queues: Array, counts: Array) -> int:
    """A queue that was free, empty."""
    queue = counts[FREE_QUEUE]
    counts[FREE_QUEUE] = queues[queue, TAIL]
    counts[FREE_QUEUES] -= 1
    queues[queue, HEAD] = -1
    return queue  # type: ignore[no-any-return]  # an array of numba has no types


@in_line
def release_queue(queue: int, queues: Array, counts: Array) -> None:
    """A queue is free again."""
    queues[queue, TAIL] = counts[FREE_QUEUE]
    counts[FREE_QUEUE] = queue
    counts[FREE_QUEUES] += 1


@in_line
def release_node(node: int, node_ints: Array, counts: Array) -> None:
    """The node of a flit is free again."""
    node_ints[node, NEXT] = counts[FREE_NODE]
    counts[FREE_NODE] = node
    counts[FREE_NODES] += 1


@in_line
def join(node: int, queue: int, node_ints: Array, queues: Array) -> None:
    """A flit is the last one of a queue."""
    node_ints[node, NEXT] = -1
    if queues[queue, HEAD] < 0:
        queues[queue, HEAD] = node
    else:
        node_ints[queues[queue, TAIL], NEXT] = node
    queues[queue, TAIL] = node


@compiled
def append(
    queue: int, transfer: int, flit: int, hop: int, time: float, node_ns: Array, node_ints: Array, queues: Array,
    counts: Array,
) -> None:  # fmt: skip
    """A node for a flit, at the end of a queue."""
    node = counts[FREE_NODE]
    counts[FREE_NODE] = node_ints[node, NEXT]
    counts[FREE_NODES] -= 1
    node_ns[node] = time
    node_ints[node, TRANSFER], node_ints[node, FLIT], node_ints[node, HOP] = transfer, flit, hop
    join(node, queue, node_ints, queues)


@compiled
def remove_from(queue: int, transfer: int, node_ints: Array, queues: Array, counts: Array) -> None:
    """The flits of a transfer are no longer in this queue."""
    node, queues[queue, HEAD] = queues[queue, HEAD], -1
    while node >= 0:
        following = node_ints[node, NEXT]
        if node_ints[node, TRANSFER] == transfer:
            release_node(node, node_ints, counts)
        else:
            join(node, queue, node_ints, queues)
        node = following


@called_from_python
def add(times: Array, order: int, transfer: int, flit: int, hop: int, addresses: Array) -> None:
    """Flits from `flit` on are ready for `hop` at `times`: they wait in a queue of their own. If the last flit of the
    transfer is among them, and may be quicker than a window, that is noted.
    """
    state = state_at(addresses)
    queues, counts, clock = state.queues, state.counts, state.clock
    queue = take_queue(queues, counts)
    queues[queue, ORDER] = order
    for i in range(len(times)):
        append(queue, transfer, flit + i, hop, times[i], state.node_ns, state.node_ints, queues, counts)
    state.head_ns[queue] = times[0]
    put(queue, times[0], state.near, state.far, counts, clock)
    clock[NEXT_NS] = min(clock[NEXT_NS], times[0])
    least_last = state.traversal_ns[state.transfers[transfer, FIRST] + hop, LEAST_LAST]
    if flit + len(times) > state.transfers[transfer, LAST] and least_last < clock[WINDOW]:
        note_quick(state.quick_ns, counts, times[-1] + least_last)


@called_from_python
def begin(now: float, transfer: int, first: int, hops: int, last: int, is_write: bool, addresses: Array) -> float:
    """A transfer gets its row. Its flits, all ready now, follow one another on the first link, whatever else comes, and
    wait for the second one (`fifo.leave_together`). Returns when the next flit of all is ready.
    """
    state = state_at(addresses)
    queues, counts, clock, transfers, link_ns = state.queues, state.counts, state.clock, state.transfers, state.link_ns
    node_ns, node_ints, traversal_ints, traversal_ns = (
        state.node_ns, state.node_ints, state.traversal_ints, state.traversal_ns,
    )  # fmt: skip
    transfers[transfer, FIRST], transfers[transfer, HOPS] = first, hops
    transfers[transfer, LAST], transfers[transfer, IS_WRITE] = last, is_write
    state.read_ints[transfer, TOGETHER] = -1
    for traversal in range(first + 1, first + hops):
        state.link_ints[traversal_ints[traversal, LINK], USERS] += 1
    link, occupy_ns, tail_ns = traversal_ints[first, LINK], traversal_ns[first, OCCUPY], traversal_ns[first, TAIL_NS]
    start = max(link_ns[link, FREE], now)
    link_ns[link, FREE] = leave = start + last * occupy_ns + traversal_ns[first, OCCUPY_LAST]
    wait = start + last * occupy_ns - now
    if wait > link_ns[link, WORST] or (wait == link_ns[link, WORST] and now < link_ns[link, WORST_AT]):
        link_ns[link, WORST], link_ns[link, WORST_AT] = wait, now
    queue = take_queue(queues, counts)
    queues[queue, ORDER] = link
    for flit in range(last):
        ready = start + (flit + 1) * occupy_ns + tail_ns
        append(queue, transfer, flit, 1, ready, node_ns, node_ints, queues, counts)
    append(queue, transfer, last, 1, leave + tail_ns, node_ns, node_ints, queues, counts)
    time = node_ns[queues[queue, HEAD]]
    state.head_ns[queue] = time
    put(queue, time, state.near, state.far, counts, clock)
    clock[NEXT_NS] = min(clock[NEXT_NS], time)
    least_last = traversal_ns[first + 1, LEAST_LAST]
    if least_last < clock[WINDOW]:
        note_quick(state.quick_ns, counts, leave + tail_ns + least_last)
    return clock[NEXT_NS]  # type: ignore[no-any-return]  # an array of numba has no types


@called_from_python
def next_order(addresses: Array) -> int:
    """The place of the next flit among what happens at its time."""
    state = state_at(addresses)
    found, next_ns = np.iinfo(np.int64).max, state.clock[NEXT_NS]
    for queue in state.near[: state.counts[NEAR]] if next_ns < state.clock[NEAR_NS] else filled_queues(state):
        if state.head_ns[queue] == next_ns:
            order = queue if queue < len(state.link_ns) else state.queues[queue, ORDER]
            found = min(found, state.node_order[state.queues[queue, HEAD]] if order == EACH_ITS_OWN else order)
    return found


@called_from_python
def find(transfer: int, addresses: Array) -> Array:
    """Where the flits of a transfer stand: rows of hop, flit and time."""
    state = state_at(addresses)
    node_ints, found, rows = state.node_ints, 0, np.empty((0, 3))
    for is_second_pass in range(2):
        if is_second_pass:
            rows = np.empty((found, 3))
            found = 0
        for queue in filled_queues(state):
            node = state.queues[queue, HEAD]
            while node >= 0:
                if node_ints[node, TRANSFER] == transfer:
                    if is_second_pass:
                        rows[found, 0], rows[found, 1] = node_ints[node, HOP], node_ints[node, FLIT]
                        rows[found, 2] = state.node_ns[node]
                    found += 1
                node = node_ints[node, NEXT]
    return rows


@called_from_python
def remove(transfer: int, addresses: Array) -> None:
    """The flits of a transfer are no longer moved one by one."""
    state = state_at(addresses)
    filled = filled_queues(state)
    for queue in filled:
        remove_from(queue, transfer, state.node_ints, state.queues, state.counts)
    put_all(filled, state)


@in_line
def is_before(node: int, other: int, node_ns: Array, node_order: Array, node_ints: Array) -> bool:
    """Whether one flit is taken before another. Several queues may have flits of one transfer, of one order."""
    if node_ns[node] != node_ns[other]:
        return node_ns[node] < node_ns[other]  # type: ignore[no-any-return]  # an array of numba has no types
    if node_order[node] != node_order[other]:
        return node_order[node] < node_order[other]  # type: ignore[no-any-return]  # as above
    return node_ints[node, FLIT] < node_ints[other, FLIT]  # type: ignore[no-any-return]  # as above


@in_line
def place_in_window(
    node: int, link: int, node_ns: Array, node_order: Array, node_ints: Array, link_ints: Array
) -> None:
    """A flit takes its place among those of this window for its link, mostly behind the one that came last."""
    before, after = -1, link_ints[link, FIRST_HERE]
    if after >= 0:
        last = link_ints[link, LAST_HERE]
        if is_before(last, node, node_ns, node_order, node_ints):
            before, after = last, node_ints[last, NEXT]
        while after >= 0 and is_before(after, node, node_ns, node_order, node_ints):
            before, after = after, node_ints[after, NEXT]
    node_ints[node, NEXT] = after
    if before < 0:
        link_ints[link, FIRST_HERE] = node
    else:
        node_ints[before, NEXT] = node
    link_ints[link, LAST_HERE] = node
