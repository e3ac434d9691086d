"""The loop of flits in finite buffers: plain Python on lists, and the same functions compiled by numba on arrays.

An event is one of four kinds; those of one instant come in this order, and within a kind by index:
CREDIT  a slot of a buffer for which a flit waits is free again.
BUFFER  the first flit of a queue asks for its next link.
SOURCE  the next flit of the transfers that begin on a link asks for it.
LINK    a link that arbitrates by round robin is free, and flits wait for it.

A flit that asks needs, unless the link is its last, a credit of the link's buffer; with `packets`, the first flit of a
packet needs a virtual channel of the link first, which its packet owns until its last flit is granted. What cannot be
granted waits in order of asking. A granted flit starts on the link as soon as the link is free, in order of grants, or
by round robin over inputs: the next one behind that which took the link just before; of credits, behind that which was
granted one, unless none has waited since. So an idle link does not advance the round-robin pointer. When a flit
starts, the queue behind it moves up, and `credit_ns` later its slot is credited.

A flit of a multicast that forks is copied to one branch after another: it stays first in its queue, or joins the queue
of the next output, and asks for the next branch when it has started on the one before. Its slot is credited after the
last. It holds nothing but that slot meanwhile, so that dependencies are those of the routes of all branches. With
`packets` a packet is copied whole, and then to the next branch, so that it owns one of them at a time; it fits into the
buffer, so that all of it comes there.

State lies in the records of `buffer_records.py`. numba compiles `move` and puts what it calls in line: compiled code
that is called for each flit doubles its cost (`buffered_flits.py`).
"""

from __future__ import annotations

from kernbench.sim_engine.fabric.buffer_grants import (
    call_link,
    find_channel,
    note,
    pass_channel_on,
    return_credit,
    take_credit,
    take_credit_or_wait,
    take_link_or_wait,
    take_next,
)
from kernbench.sim_engine.fabric.buffer_records import (
    AT_LINK,
    AT_NS,
    BRANCH,
    BUFFER,
    CREDIT,
    ENDED,
    ENTERED,
    ENTERS,
    FIRST,
    FLAGS,
    FLIT,
    FLIT_NS,
    FORK_ROW,
    FORKS,
    FREE,
    GRANTED,
    GRANTED_LAST,
    GROUP,
    HEAD,
    HEAP,
    HOPS_DONE,
    INDEX_MASK,
    IS_CALLED,
    IS_FINAL,
    IS_FULL,
    KEPT,
    KEPT_LAST,
    KIND,
    KIND_BITS,
    LAST,
    LAST_NS,
    LEFT,
    LENGTH,
    LINK,
    LINK_LAST,
    LOG,
    LOG_FLIT,
    LOG_LINK,
    LOG_NS,
    LOG_READY_NS,
    LOG_ROW,
    LOG_TRANSFER,
    MOST_PUSHES,
    NEXT,
    NEXT_EVENT_NS,
    NEXT_FLIT,
    NEXT_TRANSFER,
    NOW_NS,
    OUTPUT,
    OWNED,
    PACE,
    PACKET,
    PASSED,
    PASSES,
    PUSHES,
    READY_NS,
    ROW,
    SIBLING,
    SLOT,
    SOURCE,
    STARTED_NS,
    TAIL,
    TAIL_NS,
    TRANSFER,
    UNTIL_NS,
    WORDS,
    WRITES,
    WRITTEN,
    BufferLoopState,
    Cells,
    Rules,
)
from kernbench.sim_engine.fabric.event_heap import replace_first


def report(
    s: BufferLoopState, kind: int, time: float, transfer: int, link: int, flit: int, ready: float, row: int
) -> None:
    """An entry of the log."""
    at = s.counts[LOG]
    s.counts[LOG] = at + WORDS
    s.log[at + KIND], s.log_ns[at + LOG_NS], s.log[at + LOG_LINK], s.log[at + LOG_FLIT] = kind, time, link, flit
    s.log[at + LOG_TRANSFER], s.log_ns[at + LOG_READY_NS], s.log[at + LOG_ROW] = transfer, ready, row


def pass_links(s: BufferLoopState, came: int, transfer: int, row: int, flit: int, ready: float, start: float) -> float:
    """A flit starts on a link, and passes all links in series with it; returns when it has arrived."""
    is_last, flags = flit == s.transfer[transfer + LAST], s.transfer[transfer + FLAGS]
    leave, begin = ready, start
    for at in range(row, row + s.row[row + LENGTH], WORDS):
        link, ready_there = s.row[at + AT_LINK], leave
        if at > row:
            begin = max(leave, s.free_ns[link])
        if begin - ready_there > s.worst_ns[link]:
            s.worst_ns[link], s.worst_at_ns[link] = begin - ready_there, ready_there
        leave = begin + s.row_ns[at + (LAST_NS if is_last else FLIT_NS)]
        s.free_ns[link] = leave
        if flags & PASSES:
            report(s, PASSED, leave, transfer, link, flit, ready_there, at - s.transfer[transfer + FIRST])
        if flags & ENTERS and is_last and at == row and s.inputs[came + SLOT] < 0:
            report(s, ENTERED, leave, transfer, link, flit, ready_there, 0)
            s.clock[UNTIL_NS] = min(s.clock[UNTIL_NS], s.clock[NOW_NS])
        leave += s.row_ns[at + TAIL_NS]
    s.counts[HOPS_DONE] += 1
    return leave


def next_branch(s: BufferLoopState, transfer: int, row: int) -> int:
    """The branch that a flit of a multicast is copied to after it has started on a row; -1 if there is none."""
    if row == s.transfer[transfer + FIRST]:  # it is in a branch itself
        fork, row = s.transfer[transfer + SIBLING], s.transfer[transfer + FORK_ROW]
    else:
        fork = s.transfer[transfer + BRANCH]
    while fork >= 0 and s.transfer[fork + FORK_ROW] < row:
        fork = s.transfer[fork + SIBLING]
    return fork if fork >= 0 and s.transfer[fork + FORK_ROW] == row else -1


def move_to_branch(s: BufferLoopState, rules: Rules, came: int, node: int, fork: int, start: float) -> None:
    """A flit asks for the link of its next branch, in its queue or in that of another output."""
    s.cell[node + TRANSFER], s.cell[node + ROW] = fork, s.transfer[fork + FIRST]
    s.cell_ns[node + AT_NS] = start
    if rules.packets:
        keep_packet(s, came, node, fork, start)
        return
    if rules.outputs == 1:
        note(s, start, (BUFFER << KIND_BITS) | came)
        return
    move_up(s, came, s.cell[node + NEXT], start)
    queue = s.inputs[came + SLOT] * rules.outputs + s.row[s.transfer[fork + FIRST] + OUTPUT] * WORDS
    append(s, queue, node, start)


def keep_packet(s: BufferLoopState, came: int, node: int, fork: int, start: float) -> None:
    """A flit that is copied waits until all of its packet have started on a branch; then all ask for the next one."""
    flit, packet, following = s.cell[node + FLIT], s.transfer[fork + PACKET], s.cell[node + NEXT]
    if s.inputs[came + KEPT] < 0:
        s.inputs[came + KEPT] = node
    else:
        s.cell[s.inputs[came + KEPT_LAST] + NEXT] = node
    s.inputs[came + KEPT_LAST] = node
    if flit == s.transfer[fork + LAST] or (packet and (flit + 1) % packet == 0):
        if following < 0:
            s.inputs[came + TAIL] = node
        following = s.inputs[came + KEPT]
        s.inputs[came + KEPT] = -1
    move_up(s, came, following, start)


def move_up(s: BufferLoopState, came: int, following: int, start: float) -> None:
    """The next flit of a queue is its first."""
    s.inputs[came + HEAD] = following
    if following >= 0:
        note(s, max(s.cell_ns[following + AT_NS], start), (BUFFER << KIND_BITS) | came)


def append(s: BufferLoopState, queue: int, node: int, time: float) -> None:
    """A flit is put at the end of a queue."""
    s.cell[node + NEXT] = -1
    if s.inputs[queue + HEAD] < 0:
        s.inputs[queue + HEAD] = node
        note(s, max(time, s.inputs_ns[queue + STARTED_NS]), (BUFFER << KIND_BITS) | queue)
    else:
        s.cell[s.inputs[queue + TAIL] + NEXT] = node
    s.inputs[queue + TAIL] = node


def depart(s: BufferLoopState, came: int, transfer: int, flit: int, start: float) -> None:
    """A flit has left its source: the next one of the transfer, or the next transfer, asks."""
    s.transfer[transfer + NEXT_FLIT] = flit + 1
    following = transfer
    if flit == s.transfer[transfer + LAST]:
        following = s.transfer[transfer + NEXT_TRANSFER]
        s.inputs[came + HEAD] = following
    if following >= 0:
        note(s, max(ready_at_source(s, following), start), (SOURCE << KIND_BITS) | came)


def ready_at_source(s: BufferLoopState, transfer: int) -> float:
    """When the next flit of a transfer is ready to depart."""
    pace = s.transfer[transfer + PACE]
    if pace >= 0:
        return s.pace_ns[pace + s.transfer[transfer + NEXT_FLIT]]  # type: ignore[no-any-return]  # cells have no types
    return s.transfer_ns[transfer + READY_NS]  # type: ignore[no-any-return]  # cells have no types


def arrive(
    s: BufferLoopState, rules: Rules, node: int, transfer: int, row: int, flit: int, buffer: int, leave: float
) -> None:
    """A flit arrives in its next buffer, or at the end."""
    if not s.row[row + IS_FINAL]:
        if node < 0:
            node = s.counts[FREE]
            s.counts[FREE] = s.cell[node + NEXT]
        following = row + s.row[row + LENGTH]
        s.cell_ns[node + AT_NS], s.cell[node + TRANSFER] = leave, transfer
        s.cell[node + ROW], s.cell[node + FLIT] = following, flit
        if rules.outputs > 1:
            buffer = buffer * rules.outputs + s.row[following + OUTPUT] * WORDS
        append(s, buffer, node, leave)
        return
    if node >= 0:
        s.cell[node + NEXT] = s.counts[FREE]
        s.counts[FREE] = node
    link = s.row[row + s.row[row + LENGTH] - WORDS + AT_LINK]
    if s.transfer[transfer + FLAGS] & WRITES:
        report(s, WRITTEN, leave, transfer, link, flit, leave, 0)
    s.transfer[transfer + LEFT] -= 1
    if not s.transfer[transfer + LEFT]:
        report(s, ENDED, leave, transfer, link, flit, leave, 0)
        s.clock[UNTIL_NS] = min(s.clock[UNTIL_NS], leave)


def start_on_link(
    s: BufferLoopState,
    rules: Rules,
    came: int,
    node: int,
    transfer: int,
    row: int,
    flit: int,
    ready: float,
    buffer: int,
) -> None:
    """A granted flit starts, what is behind it moves up, and its slot is credited."""
    link = s.row[row + AT_LINK]
    start = max(s.clock[NOW_NS], s.free_ns[link])
    leave = pass_links(s, came, transfer, row, flit, ready, start)
    if rules.round_robin:
        call_link(s, link, start)
    s.inputs_ns[came + STARTED_NS] = start
    if node < 0:
        depart(s, came, transfer, flit, start)
    else:
        fork = next_branch(s, transfer, row) if s.transfer[transfer + FLAGS] & FORKS else -1
        if fork >= 0:
            move_to_branch(s, rules, came, node, fork, start)
            node = -1  # the copy needs one of its own
        else:
            return_credit(s, s.inputs[came + SLOT], start + rules.credit_ns)
            move_up(s, came, s.cell[node + NEXT], start)
    arrive(s, rules, node, transfer, row, flit, buffer, leave)
    if rules.packets:
        pass_channel_on(s, came, transfer, s.row[row + GROUP], flit, buffer, start)


def happen(s: BufferLoopState, rules: Rules, kind: int, at: int, now: float) -> None:
    """Let one event happen."""
    came = at
    if kind == CREDIT:
        came = take_credit(s, rules, at, now)
        if came < 0:
            return
    elif kind == LINK:
        s.link[at * WORDS + IS_CALLED] = 0
        first = at * WORDS + GRANTED
        came = take_next(s, s.link, first, first - GRANTED + GRANTED_LAST, s.link[at * WORDS + LINK_LAST], True)
    node = transfer = s.inputs[came + HEAD]
    if s.inputs[came + SLOT] >= 0:
        transfer, row, flit = s.cell[node + TRANSFER], s.cell[node + ROW], s.cell[node + FLIT]
        ready = s.cell_ns[node + AT_NS]
    else:
        node, row, flit = -1, s.transfer[transfer + FIRST], s.transfer[transfer + NEXT_FLIT]
        ready = ready_at_source(s, transfer)
    buffer = s.row[row + GROUP]
    if kind in (BUFFER, SOURCE):
        if rules.packets:
            buffer = find_channel(s, rules, came, buffer)
            if buffer < 0:
                return
        if not s.row[row + IS_FINAL] and not take_credit_or_wait(s, came, buffer, now):
            return
    elif rules.packets:
        buffer = s.inputs[came + OWNED]
    if rules.round_robin:
        link = s.row[row + AT_LINK]
        if kind != LINK and not take_link_or_wait(s, came, link, now):
            return
        s.link[link * WORDS + LINK_LAST] = came
    start_on_link(s, rules, came, node, transfer, row, flit, ready, buffer)


def move(
    until: float, room: int, channels: int, outputs: int, packets: bool, round_robin: bool, credit_ns: float,
    heap_ns: Cells, heap_key: Cells, cell: Cells, cell_ns: Cells, inputs: Cells, inputs_ns: Cells, buffer: Cells,
    group: Cells, link: Cells, free_ns: Cells, worst_ns: Cells, worst_at_ns: Cells, transfer: Cells, transfer_ns: Cells,
    pace_ns: Cells, row: Cells, row_ns: Cells, log: Cells, log_ns: Cells, counts: Cells, clock: Cells,
) -> None:  # fmt: skip
    """Let events happen up to `until`, or up to the first end or the first sender that may go on.

    Stops early with IS_FULL where the log has fewer than `room` words left, or there is no room for events or flits.
    It takes the sequences of a `BufferLoopState` one by one, since numba takes longer to receive a `BufferLoopState`.
    """
    s = BufferLoopState(
        heap_ns, heap_key, cell, cell_ns, inputs, inputs_ns, buffer, group, link, free_ns, worst_ns, worst_at_ns,
        transfer, transfer_ns, pace_ns, row, row_ns, log, log_ns, counts, clock,
    )  # fmt: skip
    rules = Rules(channels, outputs, packets, round_robin, credit_ns)
    most_events, most_log = len(heap_ns) - MOST_PUSHES, len(log) - room
    counts[LOG] = counts[HOPS_DONE] = counts[IS_FULL] = 0
    clock[UNTIL_NS] = until
    while counts[HEAP] and heap_ns[0] <= clock[UNTIL_NS]:
        if counts[HEAP] >= most_events or counts[FREE] < 0 or counts[LOG] > most_log:
            counts[IS_FULL] = 1
            break
        now, key = heap_ns[0], heap_key[0]
        clock[NOW_NS] = now
        counts[PUSHES] = 0
        happen(s, rules, key >> KIND_BITS, key & INDEX_MASK, now)
        replace_first(heap_ns, heap_key, counts)
    clock[NEXT_EVENT_NS] = heap_ns[0] if counts[HEAP] else float("inf")
