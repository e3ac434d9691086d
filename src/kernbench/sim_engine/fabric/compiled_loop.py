"""The loop of flits that meet, compiled by numba: what `FlitEngine._move` does for plain flits.

Flits that have left a link are ready for their next ones in the order in which they left, so every link has a queue of
them. Flits whose times are known beforehand, as they set out or come back from a plan, wait in queues of their own.

No flit is ready for a further link sooner than a certain time after it was ready for this one, the *window*. So all
that happens within one window from the first flit on is in the queues when it begins: the flits of a window are sorted
by the link that they are ready for, and every link takes its own in order of (time, order, flit), whatever other links
do.
Last flits may be quicker, since they may be smaller, and on the last link of all, which does not count for the window.
When those that are queued can be through is known, and the first of them ends the window: what an end sets off may be
in the way of any flit.

Reads that set out together (`loop_reads.py`) wait in one queue until they are at their memories, a node each. A memory
is to them what a link is to flits: it takes them in order, puts their bursts on its channels, and a flit is ready for
the first link when its burst, and those before it, are through. Where that may be within a window, it ends the window
as a quick flit does. Only the last read of those that set out together is reported when it ends.

Queues whose first flit comes within a window of some moment are *near*, and looked at whenever flits are moved; the
others are *far*, and looked at when no near ones are left before the next window.

All state lies in the arrays of `State`; columns of those with several are named here. What is called often takes arrays
one by one, since numba takes longer to receive a `State`; what happens to every flit is written out in `_hand_out` and
`_take`, since arrays that are handed over for each flit double its cost. It is one file, because numba looks for what
has changed in the file of a function only when it takes compiled code from its cache. Imported only where numba is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from kernbench.sim_engine.gc_threshold import collect_after_compiling

FREE_NODE, FREE_NODES, FREE_QUEUE, FREE_QUEUES, NEAR, FAR, QUICK, ENDS, WRITES, EVENTS = range(10)  # of `counts`
TRANSFER, FLIT, HOP, NEXT = range(4)  # of `node_ints`
HEAD, TAIL, ORDER = range(3)  # of `queues`
FIRST, HOPS, LAST, IS_WRITE = range(4)  # of `transfers`
OCCUPY, OCCUPY_LAST, TAIL_NS, LEAST_LAST = range(4)  # of `crossing_ns`
LINK, IS_IN_SERIES = range(2)  # of `crossing_ints`
FREE, WORST, WORST_AT = range(3)  # of `link_ns` and `channel_ns`
GROUP, BLOCK, QUEUE, TOGETHER, LAST_GRANULES, INJECTION = range(6)  # of `read_ints`
LAST_BURST, END = range(2)  # of `read_ns`
LEFT, LATEST, BY_LINK = range(3)  # of `joined_ints`: reads that have not ended, the one that ended last, by which link
CHANNEL, MASK, WHOLE = range(3)  # of `group_ints`: the first channel, channels - 1, granules of a whole burst
AT_MEMORY = -1  # the hop of a read that is not at its memory yet
EACH_ITS_OWN = -1  # the order of a queue whose nodes have one each
NEXT_NS, WINDOW, NEAR_NS, FAR_NS, FIRST_END = range(
    5
)  # of `clock`: the next flit, the window, where far begins, its first flit

Array = Any  # numba knows the types by what it is called with


class State(NamedTuple):
    """All that the loop knows. A flit has a node, in one queue at a time; nodes and queues that are free are lists."""

    node_ns: Array  # when the flit is ready for its hop
    node_order: Array  # its place among what happens then, while it is in an inbox
    node_ints: Array
    queues: Array  # of every link, then those of flits whose times are known
    head_ns: Array  # of every queue: when its first flit is ready
    near: Array  # queues that have flits, which of them are near,
    far: Array  # and which are not
    inbox: Array  # of every link, flits of this window: the first, and the one that came last
    touched: Array  # links that have some
    quick_ns: Array  # a heap: when last flits that may be quicker than a window can be through
    transfers: Array
    crossing_ints: Array
    crossing_ns: Array
    link_ns: Array
    users: Array
    end_ns: Array  # of last flits that have arrived
    end_ints: Array
    write_ns: Array  # of flits that have arrived at a memory
    write_ints: Array
    counts: Array
    clock: Array
    read_ints: Array  # of reads that set out together, by transfer
    read_ns: Array
    joined_ints: Array  # of those that set out together, as one
    joined_ns: Array  # when the latest so far has ended
    group_ints: Array  # of memories
    burst_ns: Array
    channel_ns: Array
    granules: Array  # that channels were given


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compiled when first called; the outcome is kept on disk where there is a place for it."""
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor among the user's files
        return njit(**options)(function)


def called_from_python(function: Callable[..., Any]) -> Any:
    """The same for a function that Python calls: after its first call garbage is collected, and from then on its name
    stands for the compiled function itself.
    """
    dispatcher = compiled(function)

    def first_call(*arguments: Any) -> Any:
        outcome = dispatcher(*arguments)
        collect_after_compiling(function.__name__)
        function.__globals__[function.__name__] = dispatcher
        return outcome

    return first_call


@compiled
def _note_quick(heap: Array, counts: Array, time: float) -> None:
    """A last flit that is quicker than a window can be through at `time`."""
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
def _next_quick(heap: Array, counts: Array, now: float) -> float:
    """When the first of those that can be through after `now` can; infinity if there is none."""
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
def _comes_first(time: float, order: int, flit: int, other_ns: float, other_order: int, other_flit: int) -> bool:
    """Whether one flit is before another. Several queues may have flits of one transfer, of one order."""
    return time < other_ns or (
        time == other_ns and (order < other_order or (order == other_order and flit < other_flit))
    )


@compiled
def _put(queue: int, time: float, near: Array, far: Array, counts: Array, clock: Array) -> None:
    """A queue whose first flit is ready at `time` takes its place."""
    if time < clock[NEAR_NS]:
        near[counts[NEAR]] = queue
        counts[NEAR] += 1
        clock[NEXT_NS] = min(clock[NEXT_NS], time)
    else:
        far[counts[FAR]] = queue
        counts[FAR] += 1
        clock[FAR_NS] = min(clock[FAR_NS], time)


@called_from_python
def add(
    times: Array, order: int, transfer: int, flit: int, hop: int, node_ns: Array, node_ints: Array, queues: Array,
    head_ns: Array, near: Array, far: Array, quick_ns: Array, transfers: Array, crossing_ns: Array, counts: Array,
    clock: Array,
) -> None:  # fmt: skip
    """Flits from `flit` on are ready for `hop` at `times`: they wait in a queue of their own. If the last flit of the
    transfer is among them, and may be quicker than a window, that is noted.
    """
    queue = counts[FREE_QUEUE]
    counts[FREE_QUEUE] = queues[queue, TAIL]
    counts[FREE_QUEUES] -= 1
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
    head_ns[queue] = times[0]
    _put(queue, times[0], near, far, counts, clock)
    clock[NEXT_NS] = min(clock[NEXT_NS], times[0])
    least_last = crossing_ns[transfers[transfer, FIRST] + hop, LEAST_LAST]
    if flit + len(times) > transfers[transfer, LAST] and least_last < clock[WINDOW]:
        _note_quick(quick_ns, counts, times[-1] + least_last)


@compiled
def _look_further(now: float, head_ns: Array, near: Array, far: Array, counts: Array, clock: Array) -> None:
    """Far queues whose first flit comes within a window from `now` on are near."""
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
def _hand_out(
    memories: int, stop: float, until: float, other_ns: float, other_order: float, node_ns: Array, node_order: Array,
    node_ints: Array, queues: Array, head_ns: Array, near: Array, far: Array, inbox: Array, touched: Array,
    transfers: Array, crossing_ints: Array, counts: Array, clock: Array, read_ints: Array,
) -> int:  # fmt: skip
    """Hand the flits of near queues that are ready before `stop`, up to `until` and before what happens at `other_ns`,
    to their links, and reads to their memories: each in its place there, mostly behind the latest one. Returns how many
    of these have some.
    """
    links, size, count = len(inbox) - memories, counts[NEAR], 0
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
                    link = crossing_ints[transfers[transfer, FIRST] + hop, LINK]
                before, after = -1, inbox[link, 0]
                if after < 0:
                    touched[count] = link
                    count += 1
                else:
                    last, flit = inbox[link, 1], node_ints[node, FLIT]
                    if _comes_first(node_ns[last], node_order[last], node_ints[last, FLIT], time, order, flit):
                        before, after = last, node_ints[last, NEXT]
                    while after >= 0 and _comes_first(
                        node_ns[after], node_order[after], node_ints[after, FLIT], time, order, flit
                    ):
                        before, after = after, node_ints[after, NEXT]
                node_order[node] = order
                node_ints[node, NEXT] = after
                if before < 0:
                    inbox[link, 0] = node
                else:
                    node_ints[before, NEXT] = node
                inbox[link, 1] = node
                node = following
                time = node_ns[node] if node >= 0 else np.inf
                if has_own_orders and node >= 0:
                    order = node_order[node]
            queues[queue, HEAD] = node
            head_ns[queue] = time
            if node < 0:
                if queue >= links:
                    queues[queue, TAIL] = counts[FREE_QUEUE]
                    counts[FREE_QUEUE] = queue
                    counts[FREE_QUEUES] += 1
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
    quick_ns: Array, transfers: Array, crossing_ints: Array, crossing_ns: Array, users: Array, counts: Array,
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
            users[crossing_ints[first + hop, LINK]] += 1
        head_ns[queue] = node_ns[queues[queue, HEAD]]
        _put(queue, head_ns[queue], near, far, counts, clock)
        if crossing_ns[first, LEAST_LAST] < clock[WINDOW]:
            _note_quick(quick_ns, counts, latest + crossing_ns[first, LEAST_LAST])
        node_ints[node, NEXT] = counts[FREE_NODE]
        counts[FREE_NODE] = node
        counts[FREE_NODES] += 1
        counts[EVENTS] += 1
        node = following


@compiled
def _end(
    transfer: int, leave: float, link: int, end_ns: Array, end_ints: Array, counts: Array, clock: Array,
    read_ints: Array, read_ns: Array, joined_ints: Array, joined_ns: Array,
) -> None:  # fmt: skip
    """The last flit of a transfer arrives over `link` at `leave`: that is reported, of reads that set out together when
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


@compiled
def _take(
    count: int, node_ns: Array, node_ints: Array, queues: Array, head_ns: Array, near: Array, far: Array,
    inbox: Array, touched: Array, quick_ns: Array, transfers: Array, crossing_ints: Array, crossing_ns: Array,
    link_ns: Array, users: Array, end_ns: Array, end_ints: Array, write_ns: Array, write_ints: Array, counts: Array,
    clock: Array, read_ints: Array, read_ns: Array, joined_ints: Array, joined_ns: Array, group_ints: Array,
    burst_ns: Array, channel_ns: Array, granules: Array,
) -> None:  # fmt: skip
    """The `count` links that were handed flits take them, each by the rule of `fifo.leave_ns`, and those in series with
    it do so at once; memories take their reads.
    """
    window, writes, events = clock[WINDOW], counts[WRITES], 0
    for at in range(count):
        node, inbox[touched[at], 0] = inbox[touched[at], 0], -1
        if touched[at] >= len(users):
            _read(
                node, node_ns, node_ints, queues, head_ns, near, far, quick_ns, transfers, crossing_ints, crossing_ns,
                users, counts, clock, read_ints, read_ns, group_ints, burst_ns, channel_ns, granules,
            )  # fmt: skip
            continue
        while node >= 0:
            following = node_ints[node, NEXT]
            transfer, leave = node_ints[node, TRANSFER], node_ns[node]
            is_last = node_ints[node, FLIT] == transfers[transfer, LAST]
            crossing = transfers[transfer, FIRST] + node_ints[node, HOP]
            while True:
                link, ready = crossing_ints[crossing, LINK], leave
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
                crossing += 1
                if not crossing_ints[crossing - 1, IS_IN_SERIES]:
                    break
            events += 1
            hop = crossing - transfers[transfer, FIRST]
            if hop < transfers[transfer, HOPS]:
                node_ns[node] = leave
                node_ints[node, HOP] = hop
                node_ints[node, NEXT] = -1
                if queues[link, HEAD] >= 0:
                    node_ints[queues[link, TAIL], NEXT] = node
                else:
                    queues[link, HEAD] = node
                    head_ns[link] = leave
                    _put(link, leave, near, far, counts, clock)
                queues[link, TAIL] = node
                if is_last and crossing_ns[crossing, LEAST_LAST] < window:
                    _note_quick(quick_ns, counts, leave + crossing_ns[crossing, LEAST_LAST])
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
                node_ints[node, NEXT] = counts[FREE_NODE]
                counts[FREE_NODE] = node
                counts[FREE_NODES] += 1
            node = following
    counts[WRITES] = writes
    counts[EVENTS] += events


@called_from_python
def move(
    until: float, other_ns: float, other_order: float, node_ns: Array, node_order: Array, node_ints: Array,
    queues: Array, head_ns: Array, near: Array, far: Array, inbox: Array, touched: Array, quick_ns: Array,
    transfers: Array, crossing_ints: Array, crossing_ns: Array, link_ns: Array, users: Array, end_ns: Array,
    end_ints: Array, write_ns: Array, write_ints: Array, counts: Array, clock: Array, read_ints: Array, read_ns: Array,
    joined_ints: Array, joined_ns: Array, group_ints: Array, burst_ns: Array, channel_ns: Array, granules: Array,
) -> None:  # fmt: skip
    """Move flits up to `until`, or to the next event outside the loop, or to the first end to be reported."""
    counts[ENDS] = counts[WRITES] = counts[EVENTS] = 0
    clock[FIRST_END] = np.inf
    while True:
        now = clock[NEXT_NS]
        if now > until or now > other_ns or now >= clock[FIRST_END] or now == np.inf:
            break
        if now >= clock[NEAR_NS]:
            _look_further(now, head_ns, near, far, counts, clock)
        quick = _next_quick(quick_ns, counts, now)
        stop = min(now + clock[WINDOW], clock[NEAR_NS], clock[FIRST_END], quick)
        count = _hand_out(
            len(burst_ns), stop, until, other_ns, other_order, node_ns, node_order, node_ints, queues, head_ns, near,
            far, inbox, touched, transfers, crossing_ints, counts, clock, read_ints,
        )  # fmt: skip
        _take(
            count, node_ns, node_ints, queues, head_ns, near, far, inbox, touched, quick_ns, transfers, crossing_ints,
            crossing_ns, link_ns, users, end_ns, end_ints, write_ns, write_ints, counts, clock, read_ints, read_ns,
            joined_ints, joined_ns, group_ints, burst_ns, channel_ns, granules,
        )  # fmt: skip
        clock[NEXT_NS] = min(clock[NEXT_NS], clock[FAR_NS])
        if not count:
            break


@compiled
def _filled(state: State) -> Array:
    """All queues that have flits."""
    near, far = state.near[: state.counts[NEAR]], state.far[: state.counts[FAR]]
    return np.concatenate((near, far))


@called_from_python
def next_order(state: State) -> int:
    """The place of the next flit among what happens at its time."""
    found = np.iinfo(np.int64).max
    for queue in _filled(state):
        if state.head_ns[queue] == state.clock[NEXT_NS]:
            order = queue if queue < len(state.users) else state.queues[queue, ORDER]
            found = min(found, state.node_order[state.queues[queue, HEAD]] if order == EACH_ITS_OWN else order)
    return found


@called_from_python
def find(state: State, transfer: int) -> Array:
    """Where the flits of a transfer stand: rows of hop, flit and time."""
    node_ints, found, rows = state.node_ints, 0, np.empty((0, 3))
    for is_second_pass in range(2):
        if is_second_pass:
            rows = np.empty((found, 3))
            found = 0
        for queue in _filled(state):
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
def remove(state: State, transfer: int) -> None:
    """The flits of a transfer are no longer moved one by one."""
    filled = _filled(state)
    for queue in filled:
        _remove_from(queue, transfer, state.node_ints, state.queues, state.counts)
    _put_all(filled, state)


@compiled
def _put_all(filled: Array, state: State) -> None:
    """These queues have lost some of their flits: those that have any left take their places, the others are free."""
    counts, queues, clock = state.counts, state.queues, state.clock
    counts[NEAR] = counts[FAR] = 0
    clock[NEAR_NS], clock[FAR_NS] = 0.0, np.inf
    for queue in filled:
        if queues[queue, HEAD] >= 0:
            state.head_ns[queue] = state.node_ns[queues[queue, HEAD]]
            _put(queue, state.head_ns[queue], state.near, state.far, counts, clock)
        elif queue >= len(state.users):
            queues[queue, TAIL] = counts[FREE_QUEUE]
            counts[FREE_QUEUE] = queue
            counts[FREE_QUEUES] += 1
    clock[NEXT_NS] = clock[FAR_NS]


@compiled
def _remove_from(queue: int, transfer: int, node_ints: Array, queues: Array, counts: Array) -> None:
    node, before = queues[queue, HEAD], -1
    queues[queue, HEAD] = -1
    while node >= 0:
        following = node_ints[node, NEXT]
        if node_ints[node, TRANSFER] == transfer:
            node_ints[node, NEXT] = counts[FREE_NODE]
            counts[FREE_NODE] = node
            counts[FREE_NODES] += 1
        else:
            if before < 0:
                queues[queue, HEAD] = node
            else:
                node_ints[before, NEXT] = node
            node_ints[node, NEXT] = -1
            queues[queue, TAIL] = before = node
        node = following


@called_from_python
def add_reads(places: Array, times: Array, state: State) -> None:
    """Reads set out together, in order of when they will be at their memories. Their flits have a queue each."""
    queues, counts, read_ints, last = state.queues, state.counts, state.read_ints, state.transfers[:, LAST]
    waiting = _free_queue(queues, counts)
    queues[waiting, ORDER], queues[waiting, HEAD] = EACH_ITS_OWN, -1
    for at in range(len(places)):
        place, time = places[at], times[at]
        queue = _free_queue(queues, counts)
        queues[queue, ORDER], queues[queue, HEAD] = read_ints[place, INJECTION], -1
        read_ints[place, QUEUE] = queue
        for flit in range(last[place] + 1):
            _append(queue, place, flit, 0, 0.0, state.node_ns, state.node_ints, queues, counts)
        _append(waiting, place, 0, AT_MEMORY, time, state.node_ns, state.node_ints, queues, counts)
        state.node_order[queues[waiting, TAIL]] = read_ints[place, INJECTION]
        first_ns = state.burst_ns[read_ints[place, GROUP]] if last[place] else state.read_ns[place, LAST_BURST]
        if first_ns < state.clock[WINDOW]:
            _note_quick(state.quick_ns, counts, time + first_ns)
    state.head_ns[waiting] = times[0]
    _put(waiting, times[0], state.near, state.far, counts, state.clock)
    state.clock[NEXT_NS] = min(state.clock[NEXT_NS], times[0])


@compiled
def _free_queue(queues: Array, counts: Array) -> int:
    queue = counts[FREE_QUEUE]
    counts[FREE_QUEUE] = queues[queue, TAIL]
    counts[FREE_QUEUES] -= 1
    return queue  # type: ignore[no-any-return]  # an array of numba has no types


@compiled
def _append(
    queue: int, transfer: int, flit: int, hop: int, time: float, node_ns: Array, node_ints: Array, queues: Array,
    counts: Array,
) -> None:  # fmt: skip
    """A node for a flit, at the end of a queue."""
    node = counts[FREE_NODE]
    counts[FREE_NODE] = node_ints[node, NEXT]
    counts[FREE_NODES] -= 1
    node_ns[node] = time
    node_ints[node, TRANSFER], node_ints[node, FLIT] = transfer, flit
    node_ints[node, HOP], node_ints[node, NEXT] = hop, -1
    if queues[queue, HEAD] < 0:
        queues[queue, HEAD] = node
    else:
        node_ints[queues[queue, TAIL], NEXT] = node
    queues[queue, TAIL] = node


@called_from_python
def take_reads(group: int, state: State) -> Array:
    """Take out the reads that are on their way to a memory: rows of transfer and time of arrival, in no order."""
    node_ints, queues, counts = state.node_ints, state.queues, state.counts
    filled, found = _filled(state), 0
    rows = np.empty((len(state.transfers), 2))
    for queue in filled:
        if queue < len(state.users) or queues[queue, ORDER] != EACH_ITS_OWN:
            continue
        node, before = queues[queue, HEAD], -1
        queues[queue, HEAD] = -1
        while node >= 0:
            following, transfer = node_ints[node, NEXT], node_ints[node, TRANSFER]
            if state.read_ints[transfer, GROUP] == group:
                rows[found, 0], rows[found, 1] = transfer, state.node_ns[node]
                found += 1
                node_ints[node, NEXT] = counts[FREE_NODE]
                counts[FREE_NODE] = node
                counts[FREE_NODES] += 1
                own = state.read_ints[transfer, QUEUE]
                _remove_from(own, transfer, node_ints, queues, counts)
                queues[own, TAIL] = counts[FREE_QUEUE]
                counts[FREE_QUEUE] = own
                counts[FREE_QUEUES] += 1
            else:
                if before < 0:
                    queues[queue, HEAD] = node
                else:
                    node_ints[before, NEXT] = node
                node_ints[node, NEXT] = -1
                queues[queue, TAIL] = before = node
            node = following
    _put_all(filled, state)
    return rows[:found]
