"""What flits in finite buffers wait for: credits, virtual channels and, with round robin, links (`buffer_loop.py`)."""

from __future__ import annotations

from kernbench.sim_engine.fabric.buffer_records import (
    AT_NS,
    BUFFER,
    CHANNEL_WAITING,
    CHANNEL_WAITING_LAST,
    CREDIT_LAST,
    CREDITS,
    FREE,
    GRANTED,
    GRANTED_LAST,
    HEAP,
    IS_CALLED,
    IS_OWNED,
    KIND_BITS,
    LAST,
    LINK,
    NEXT,
    NEXT_INPUT,
    OWNED,
    PACKET,
    PUSHES,
    RETURNING,
    RETURNING_LAST,
    SLOT,
    SOURCE,
    WAITING,
    WAITING_LAST,
    WORDS,
    BufferLoopState,
    Cells,
    Rules,
)


def note(s: BufferLoopState, time: float, key: int) -> None:
    """An event that the current one causes."""
    at = s.counts[HEAP] + s.counts[PUSHES]
    s.heap_ns[at], s.heap_key[at] = time, key
    s.counts[PUSHES] += 1


def join(s: BufferLoopState, lists: Cells, first: int, last: int, came: int) -> None:
    """An input is put at the end of a list of those that wait, whose ends are `lists[first]` and `lists[last]`."""
    s.inputs[came + NEXT_INPUT] = -1
    if lists[first] < 0:
        lists[first] = came
    else:
        s.inputs[lists[last] + NEXT_INPUT] = came
    lists[last] = came


def take_next(s: BufferLoopState, lists: Cells, first: int, last: int, turn: int, round_robin: bool) -> int:
    """Take an input from such a list: the first, or by round robin the first behind the one of the latest turn."""
    came, before = lists[first], -1
    if round_robin:
        best, ahead, other = -1, -1, came
        while other >= 0:
            if best < 0 or (other > turn) > (best > turn) or ((other > turn) == (best > turn) and other < best):
                best, before = other, ahead
            ahead, other = other, s.inputs[other + NEXT_INPUT]
        came = best
    following = s.inputs[came + NEXT_INPUT]
    if before < 0:
        lists[first] = following
    else:
        s.inputs[before + NEXT_INPUT] = following
    if lists[last] == came:
        lists[last] = before
    return came  # type: ignore[no-any-return]  # cells have no types


def take_credit(s: BufferLoopState, rules: Rules, at: int, now: float) -> int:
    """The input that gets the first credit of a buffer that is back, or -1."""
    buffer = s.buffer
    credit = buffer[at + RETURNING]
    if buffer[at + WAITING] < 0 or credit < 0 or s.cell_ns[credit + AT_NS] > now:
        return -1
    following = s.cell[credit + NEXT]
    buffer[at + RETURNING] = following
    s.cell[credit + NEXT] = s.counts[FREE]
    s.counts[FREE] = credit
    came = take_next(s, buffer, at + WAITING, at + WAITING_LAST, buffer[at + CREDIT_LAST], rules.round_robin)
    buffer[at + CREDIT_LAST] = came if buffer[at + WAITING] >= 0 else -1
    if buffer[at + WAITING] >= 0 and following >= 0:
        note(s, s.cell_ns[following + AT_NS], at)
    return came


def find_channel(s: BufferLoopState, rules: Rules, came: int, group: int) -> int:
    """The virtual channel that a flit's packet owns or now takes; -1 where it waits for one."""
    owned = s.inputs[came + OWNED]
    if owned >= 0:
        return owned  # type: ignore[no-any-return]  # cells have no types
    for channel in range(rules.channels):
        at = group + channel * WORDS
        if not s.buffer[at + IS_OWNED]:
            s.buffer[at + IS_OWNED] = 1
            s.inputs[came + OWNED] = at
            return at
    lists = group >> 2
    join(s, s.group, lists + CHANNEL_WAITING, lists + CHANNEL_WAITING_LAST, came)
    return -1


def take_credit_or_wait(s: BufferLoopState, came: int, at: int, now: float) -> bool:
    """Take a credit of a buffer; returns False where there is none and the flit waits for one."""
    buffer, cell = s.buffer, s.cell
    credit = buffer[at + RETURNING]
    if buffer[at + WAITING] < 0:
        while credit >= 0 and s.cell_ns[credit + AT_NS] <= now:  # they are back
            buffer[at + CREDITS] += 1
            following = cell[credit + NEXT]
            cell[credit + NEXT] = s.counts[FREE]
            s.counts[FREE] = credit
            credit = following
        buffer[at + RETURNING] = credit
        if buffer[at + CREDITS] > 0:
            buffer[at + CREDITS] -= 1
            return True
        if credit >= 0:
            note(s, s.cell_ns[credit + AT_NS], at)
    join(s, buffer, at + WAITING, at + WAITING_LAST, came)
    return False


def return_credit(s: BufferLoopState, slot: int, time: float) -> None:
    """A slot of a buffer is credited at `time`."""
    buffer, cell, cell_ns = s.buffer, s.cell, s.cell_ns
    credit = s.counts[FREE]
    s.counts[FREE] = cell[credit + NEXT]
    cell_ns[credit + AT_NS] = time
    ahead, other = -1, buffer[slot + RETURNING]
    if other >= 0 and cell_ns[buffer[slot + RETURNING_LAST] + AT_NS] <= time:
        ahead, other = buffer[slot + RETURNING_LAST], -1
    while other >= 0 and cell_ns[other + AT_NS] <= time:  # queues of one buffer may start in another order
        ahead, other = other, cell[other + NEXT]
    cell[credit + NEXT] = other
    if other < 0:
        buffer[slot + RETURNING_LAST] = credit
    if ahead >= 0:
        cell[ahead + NEXT] = credit
    else:
        buffer[slot + RETURNING] = credit
        if buffer[slot + WAITING] >= 0:
            note(s, time, slot)


def pass_channel_on(
    s: BufferLoopState, came: int, transfer: int, group: int, flit: int, buffer: int, start: float
) -> None:
    """The last flit of a packet passes its virtual channel on."""
    packet = s.transfer[transfer + PACKET]
    if flit != s.transfer[transfer + LAST] and not (packet and (flit + 1) % packet == 0):
        return
    s.inputs[came + OWNED] = -1
    lists = group >> 2
    other = s.group[lists + CHANNEL_WAITING]
    if other < 0:
        s.buffer[buffer + IS_OWNED] = 0
        return
    s.group[lists + CHANNEL_WAITING] = s.inputs[other + NEXT_INPUT]
    s.inputs[other + OWNED] = buffer
    note(s, start, ((BUFFER if s.inputs[other + SLOT] >= 0 else SOURCE) << KIND_BITS) | other)


def take_link_or_wait(s: BufferLoopState, came: int, link: int, now: float) -> bool:
    """Round robin: take the link now, or wait for it; returns whether the flit starts at once."""
    at = link * WORDS
    if s.link[at + GRANTED] < 0 and s.free_ns[link] <= now:
        return True
    join(s, s.link, at + GRANTED, at + GRANTED_LAST, came)
    call_link(s, link, now)
    return False


def call_link(s: BufferLoopState, link: int, now: float) -> None:
    """Round robin: an event for the time at which the link is free, if inputs wait and there is none."""
    at = link * WORDS
    if s.link[at + GRANTED] >= 0 and not s.link[at + IS_CALLED]:
        s.link[at + IS_CALLED] = 1
        note(s, max(now, s.free_ns[link]), (LINK << KIND_BITS) | link)
