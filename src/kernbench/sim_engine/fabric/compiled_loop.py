"""The loop of flits that contend, compiled by numba: what `FlitEngine._move` does for plain flits.

Flits that have left a link are ready for their next ones in the order in which they left, so every link has a queue of
them. Flits whose times are known beforehand, as they depart or come back from a plan, wait in queues of their own.

No flit is ready for a further link sooner than a certain time after it was ready for this one, the *window*. So all
that happens within one window from the first flit on is in the queues when it begins: the flits of a window are sorted
by the link that they are ready for, and every link takes its own in order of (time, order, flit), whatever other links
do.
Last flits may be quicker, since they may be smaller, and on the last link of all, which does not count for the window.
When those that are queued can be through is known, and the first of them ends the window: what an end schedules may be
in the way of any flit.

Reads that depart together (`loop_reads.py`) wait in one queue until they are at their memories, a node each. A memory
is to them what a link is to flits: it takes them in order, puts their bursts on its channels, and a flit is ready for
the first link when its burst, and those before it, are through. Where that may be within a window, it ends the window
as a quick flit does. Only the last read of those that depart together is reported when it ends.

All state lies in the arrays of `LoopState` (`loop_state.py`), the flits in queues (`loop_queues.py`). What Python calls
takes an array that says where they lie. Imported only where numba is.
"""

from __future__ import annotations

import numpy as np

from kernbench.sim_engine.fabric.loop_queues import (
    append,
    filled_queues,
    join,
    look_further,
    next_quick,
    note_quick,
    place_in_window,
    put,
    put_all,
    release_node,
    release_queue,
    remove_from,
    take_queue,
)
from kernbench.sim_engine.fabric.loop_state import (
    AT_MEMORY,
    BLOCK,
    BY_LINK,
    CHANNEL,
    EACH_ITS_OWN,
    END,
    ENDS,
    EVENTS,
    FAR,
    FAR_NS,
    FIRST,
    FIRST_END,
    FIRST_HERE,
    FLIT,
    FREE,
    GROUP,
    HEAD,
    HOP,
    HOPS,
    INJECTION,
    IS_IN_SERIES,
    IS_WRITE,
    LAST,
    LAST_BURST,
    LAST_GRANULES,
    LATEST,
    LEAST_LAST,
    LEFT,
    LINK,
    MASK,
    NEAR,
    NEAR_NS,
    NEXT,
    NEXT_NS,
    OCCUPY,
    OCCUPY_LAST,
    ORDER,
    QUEUE,
    TAIL,
    TAIL_NS,
    TOGETHER,
    TRANSFER,
    USERS,
    WHOLE,
    WINDOW,
    WORST,
    WORST_AT,
    WRITES,
    Array,
    called_from_python,
    compiled,
    in_line,
    state_at,
)


@compiled
def _hand_out(
    memories: int, stop: float, until: float, other_ns: float, other_order: float, node_ns: Array, node_order: Array,
    node_ints: Array, queues: Array, head_ns: Array, near: Array, far: Array, link_ints: Array, touched: Array,
    transfers: Array, traversal_ints: Array, counts: Array, clock: Array, read_ints: Array,
) -> int:  # fmt: skip
    """Hand the flits of near queues that are ready before `stop`, up to `until` and before what happens at `other_ns`,
    to their links, and reads to their memories: each in its place there, mostly behind the latest one. Returns how many
    of these have some.
    """
    links, size, count = len(link_ints) - memories, counts[NEAR], 0
    near_ns, far_ns, nears, fars, next_ns = clock[NEAR_NS], clock[FAR_NS], 0, counts[FAR], np.inf
    for at in range(size):
        queue = near[at]
        time = head_ns[queue]
        if time < stop and time <= until and time <= other_ns:
            order = queue if queue < links else queues[queue, ORDER]
            node = queues[queue, HEAD]
            has_own_orders = order == EACH_ITS_OWN
            if has_own_orders:
                order = node_order[node]
            while time < stop and time <= until and (time < other_ns or (time == other_ns and order < other_order)):
                following, transfer, hop = node_ints[node, NEXT], node_ints[node, TRANSFER], node_ints[node, HOP]
                if hop == AT_MEMORY:
                    link = links + read_ints[transfer, GROUP]
                else:
                    link = traversal_ints[transfers[transfer, FIRST] + hop, LINK]
                if link_ints[link, FIRST_HERE] < 0:
                    touched[count] = link
                    count += 1
                node_order[node] = order
                place_in_window(node, link, node_ns, node_order, node_ints, link_ints)
                node = following
                time = node_ns[node] if node >= 0 else np.inf
                if has_own_orders and node >= 0:
                    order = node_order[node]
            queues[queue, HEAD] = node
            head_ns[queue] = time
            if node < 0:
                if queue >= links:
                    release_queue(queue, queues, counts)
                continue
        if time < near_ns:
            near[nears] = queue
            nears += 1
            next_ns = min(next_ns, time)
        else:
            far[fars] = queue
            fars += 1
            far_ns = min(far_ns, time)
    clock[NEXT_NS], clock[FAR_NS], counts[NEAR], counts[FAR] = next_ns, far_ns, nears, fars
    return count


@compiled
def _read(
    node: int, node_ns: Array, node_ints: Array, queues: Array, head_ns: Array, near: Array, far: Array,
    quick_ns: Array, transfers: Array, traversal_ints: Array, traversal_ns: Array, link_ints: Array, counts: Array,
    clock: Array, read_ints: Array, read_ns: Array, group_ints: Array, burst_ns: Array, channel_ns: Array,
    granules: Array,
) -> None:  # fmt: skip
    """Reads are at one memory, from `node` on: its channels take their bursts as in `ChannelGroup.commit_reads`."""
    while node >= 0:
        following, transfer, now = node_ints[node, NEXT], node_ints[node, TRANSFER], node_ns[node]
        group, queue, last = read_ints[transfer, GROUP], read_ints[transfer, QUEUE], transfers[transfer, LAST]
        flit, latest = queues[queue, HEAD], 0.0
        for i in range(last + 1):
            channel = group_ints[group, CHANNEL] + ((read_ints[transfer, BLOCK] + i) & group_ints[group, MASK])
            start = channel_ns[FREE, channel]
            if start <= now:
                start = now
            elif start - now > channel_ns[WORST, channel]:
                channel_ns[WORST, channel] = start - now
                channel_ns[WORST_AT, channel] = now
            finish = start + (read_ns[transfer, LAST_BURST] if i == last else burst_ns[group])
            channel_ns[FREE, channel] = finish
            granules[channel] += read_ints[transfer, LAST_GRANULES] if i == last else group_ints[group, WHOLE]
            latest = max(latest, finish)
            node_ns[flit] = latest
            flit = node_ints[flit, NEXT]
        first = transfers[transfer, FIRST]
        for hop in range(transfers[transfer, HOPS]):
            link_ints[traversal_ints[first + hop, LINK], USERS] += 1
        head_ns[queue] = node_ns[queues[queue, HEAD]]
        put(queue, head_ns[queue], near, far, counts, clock)
        if traversal_ns[first, LEAST_LAST] < clock[WINDOW]:
            note_quick(quick_ns, counts, latest + traversal_ns[first, LEAST_LAST])
        release_node(node, node_ints, counts)
        counts[EVENTS] += 1
        node = following


@compiled
def _end(
    transfer: int, leave: float, link: int, end_ns: Array, end_ints: Array, counts: Array, clock: Array,
    read_ints: Array, read_ns: Array, joined_ints: Array, joined_ns: Array,
) -> None:  # fmt: skip
    """The last flit of a transfer arrives over `link` at `leave`: that is reported, of reads that depart together when
    it is the last one.
    """
    together, end, by_link, whose = read_ints[transfer, TOGETHER], leave, link, transfer
    if together >= 0:
        read_ns[transfer, END] = leave
        latest, end = joined_ints[together, LATEST], joined_ns[together]
        if leave > end or (leave == end and read_ints[transfer, INJECTION] > read_ints[latest, INJECTION]):
            joined_ns[together] = end = leave
            joined_ints[together, LATEST], joined_ints[together, BY_LINK] = transfer, link
        joined_ints[together, LEFT] -= 1
        if joined_ints[together, LEFT]:
            return
        whose, by_link = joined_ints[together, LATEST], joined_ints[together, BY_LINK]
    ends = counts[ENDS]
    end_ns[ends] = end
    end_ints[ends, 0], end_ints[ends, 1] = by_link, whose
    counts[ENDS] = ends + 1
    clock[FIRST_END] = min(clock[FIRST_END], end)


@in_line
def _cross(
    traversal: int, is_last: bool, ready: float, traversal_ints: Array, traversal_ns: Array, link_ns: Array,
    link_ints: Array,
) -> float:  # fmt: skip
    """A link takes a flit by the rule of `fifo.leave_ns`: when it has left."""
    link, leave = traversal_ints[traversal, LINK], traversal_ns[traversal, OCCUPY_LAST if is_last else OCCUPY]
    start = link_ns[link, FREE]
    if start > ready:
        if start - ready > link_ns[link, WORST]:
            link_ns[link, WORST] = start - ready
            link_ns[link, WORST_AT] = ready
        leave += start
    else:
        leave += ready
    link_ns[link, FREE] = leave
    if is_last:
        link_ints[link, USERS] -= 1
    return leave + traversal_ns[traversal, TAIL_NS]  # type: ignore[no-any-return]  # an array of numba has no types


@compiled
def _take(
    count: int, node_ns: Array, node_ints: Array, queues: Array, head_ns: Array, near: Array, far: Array,
    touched: Array, quick_ns: Array, transfers: Array, traversal_ints: Array, traversal_ns: Array,
    link_ns: Array, link_ints: Array, end_ns: Array, end_ints: Array, write_ns: Array, write_ints: Array, counts: Array,
    clock: Array, read_ints: Array, read_ns: Array, joined_ints: Array, joined_ns: Array, group_ints: Array,
    burst_ns: Array, channel_ns: Array, granules: Array,
) -> None:  # fmt: skip
    """The `count` links that were handed flits take them, each by the rule of `fifo.leave_ns`, and those in series with
    it do so at once; memories take their reads.
    """
    window, writes, events = clock[WINDOW], counts[WRITES], 0
    for at in range(count):
        node, link_ints[touched[at], FIRST_HERE] = link_ints[touched[at], FIRST_HERE], -1
        if touched[at] >= len(link_ns):
            _read(
                node, node_ns, node_ints, queues, head_ns, near, far, quick_ns, transfers, traversal_ints, traversal_ns,
                link_ints, counts, clock, read_ints, read_ns, group_ints, burst_ns, channel_ns, granules,
            )  # fmt: skip
            continue
        while node >= 0:
            following = node_ints[node, NEXT]
            transfer, leave = node_ints[node, TRANSFER], node_ns[node]
            is_last = node_ints[node, FLIT] == transfers[transfer, LAST]
            traversal = transfers[transfer, FIRST] + node_ints[node, HOP]
            leave = _cross(traversal, is_last, leave, traversal_ints, traversal_ns, link_ns, link_ints)
            while traversal_ints[traversal, IS_IN_SERIES]:
                traversal += 1
                leave = _cross(traversal, is_last, leave, traversal_ints, traversal_ns, link_ns, link_ints)
            link = traversal_ints[traversal, LINK]
            traversal += 1
            events += 1
            hop = traversal - transfers[transfer, FIRST]
            if hop < transfers[transfer, HOPS]:
                node_ns[node] = leave
                node_ints[node, HOP] = hop
                if queues[link, HEAD] < 0:
                    head_ns[link] = leave
                    put(link, leave, near, far, counts, clock)
                join(node, link, node_ints, queues)
                if is_last and traversal_ns[traversal, LEAST_LAST] < window:
                    note_quick(quick_ns, counts, leave + traversal_ns[traversal, LEAST_LAST])
            else:
                if transfers[transfer, IS_WRITE]:
                    write_ns[writes] = leave
                    write_ints[writes, 0], write_ints[writes, 1] = link, node_ints[node, FLIT]
                    write_ints[writes, 2] = transfer
                    writes += 1
                if is_last:
                    _end(
                        transfer, leave, link, end_ns, end_ints, counts, clock, read_ints, read_ns, joined_ints,
                        joined_ns,
                    )  # fmt: skip
                release_node(node, node_ints, counts)
            node = following
    counts[WRITES] = writes
    counts[EVENTS] += events


@called_from_python
def move(until: float, other_ns: float, other_order: float, addresses: Array) -> None:
    """Move flits up to `until`, or to the next event outside the loop, or to the first end to be reported."""
    (
        node_ns, node_order, node_ints, queues, head_ns, near, far, touched, quick_ns, transfers, traversal_ints,
        traversal_ns, link_ns, link_ints, end_ns, end_ints, write_ns, write_ints, counts, clock, read_ints, read_ns,
        joined_ints, joined_ns, group_ints, burst_ns, channel_ns, granules,
    ) = state_at(addresses)  # fmt: skip
    counts[ENDS] = counts[WRITES] = counts[EVENTS] = 0
    clock[FIRST_END] = np.inf
    while True:
        now = clock[NEXT_NS]
        if now > until or now > other_ns or now >= clock[FIRST_END] or now == np.inf:
            break
        if now >= clock[NEAR_NS]:
            look_further(now, head_ns, near, far, counts, clock)
        quick = next_quick(quick_ns, counts, now)
        stop = min(now + clock[WINDOW], clock[NEAR_NS], clock[FIRST_END], quick)
        count = _hand_out(
            len(burst_ns), stop, until, other_ns, other_order, node_ns, node_order, node_ints, queues, head_ns, near,
            far, link_ints, touched, transfers, traversal_ints, counts, clock, read_ints,
        )  # fmt: skip
        _take(
            count, node_ns, node_ints, queues, head_ns, near, far, touched, quick_ns, transfers, traversal_ints,
            traversal_ns, link_ns, link_ints, end_ns, end_ints, write_ns, write_ints, counts, clock, read_ints, read_ns,
            joined_ints, joined_ns, group_ints, burst_ns, channel_ns, granules,
        )  # fmt: skip
        clock[NEXT_NS] = min(clock[NEXT_NS], clock[FAR_NS])
        if not count:
            break


@called_from_python
def add_reads(places: Array, times: Array, addresses: Array) -> None:
    """Reads depart together, in order of when they will be at their memories. Their flits have a queue each."""
    state = state_at(addresses)
    queues, counts, read_ints, last = state.queues, state.counts, state.read_ints, state.transfers[:, LAST]
    waiting = take_queue(queues, counts)
    queues[waiting, ORDER] = EACH_ITS_OWN
    for at in range(len(places)):
        place, time = places[at], times[at]
        queue = take_queue(queues, counts)
        queues[queue, ORDER] = read_ints[place, INJECTION]
        read_ints[place, QUEUE] = queue
        for flit in range(last[place] + 1):
            append(queue, place, flit, 0, 0.0, state.node_ns, state.node_ints, queues, counts)
        append(waiting, place, 0, AT_MEMORY, time, state.node_ns, state.node_ints, queues, counts)
        state.node_order[queues[waiting, TAIL]] = read_ints[place, INJECTION]
        first_ns = state.burst_ns[read_ints[place, GROUP]] if last[place] else state.read_ns[place, LAST_BURST]
        if first_ns < state.clock[WINDOW]:
            note_quick(state.quick_ns, counts, time + first_ns)
    state.head_ns[waiting] = times[0]
    put(waiting, times[0], state.near, state.far, counts, state.clock)
    state.clock[NEXT_NS] = min(state.clock[NEXT_NS], times[0])


@called_from_python
def take_reads(group: int, addresses: Array) -> Array:
    """Take out the reads that are on their way to a memory: rows of transfer and time of arrival, in no order."""
    state = state_at(addresses)
    node_ints, queues, counts = state.node_ints, state.queues, state.counts
    filled, found = filled_queues(state), 0
    rows = np.empty((len(state.transfers), 2))
    for queue in filled:
        if queue < len(state.link_ns) or queues[queue, ORDER] != EACH_ITS_OWN:
            continue
        node, queues[queue, HEAD] = queues[queue, HEAD], -1
        while node >= 0:
            following, transfer = node_ints[node, NEXT], node_ints[node, TRANSFER]
            if state.read_ints[transfer, GROUP] == group:
                rows[found, 0], rows[found, 1] = transfer, state.node_ns[node]
                found += 1
                release_node(node, node_ints, counts)
                own = state.read_ints[transfer, QUEUE]
                remove_from(own, transfer, node_ints, queues, counts)
                release_queue(own, queues, counts)
            else:
                join(node, queue, node_ints, queues)
            node = following
    put_all(filled, state)
    return rows[:found]
