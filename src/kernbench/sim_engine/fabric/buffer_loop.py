"""The loop of flits in finite buffers: plain Python on lists, and the same function compiled by numba on arrays.

An event is one of four kinds; those of one instant come in this order, and within a kind by index:
CREDIT  a slot of a buffer for which a flit waits is free again.
BUFFER  the first flit of a queue asks for its next link.
SOURCE  the next flit of the transfers that begin on a link asks for it.
LINK    a link that arbitrates by round robin is free, and flits wait for it.

A flit that asks needs, unless the link is its last, a credit of the link's buffer; with `packets`, the first flit of a
packet needs a virtual channel of the link first, which its packet owns until its last flit is granted. What cannot be
granted waits in order of asking. A granted flit starts on the link as soon as the link is free, in order of grants, or
by round robin over inputs. When it starts, the queue behind it moves up, and `credit_ns` later its slot is credited.

A flit of a multicast that forks is copied to one branch after another: it stays first in its queue, or joins the queue
of the next output, and asks for the next branch when it has started on the one before. Its slot is credited after the
last. It holds nothing but that slot meanwhile, so that dependencies are those of the routes of all branches.

The loop is one flat function: arrays that are handed over to another compiled function for each flit double its cost,
as in `compiled_loop.py`, and so does a call in plain Python. Events are kept in a heap, and all state lies in the
sequences of `State`, which it takes one by one, since numba takes longer to receive a `State`. numba compiles it as it
stands (`buffered_flits.py`); without numba it runs on lists.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CREDIT, BUFFER, SOURCE, LINK = range(4)
KIND_BITS = 40  # an event's key is its kind, shifted by these, plus an index
INDEX_MASK = (1 << KIND_BITS) - 1
MOST_PUSHES = 6  # events that one event can set off
HEAP, FREE_NODE, FREE_CREDIT, ENDS, WRITES, ENTERED, PASSAGES, HOPS_DONE, IS_FULL = range(9)  # of `counts`
NEXT_NS, NOW_NS = range(2)  # of `clock`

Cells = Any  # a list, or an array of numba: what is in it is said beside its name


class State(NamedTuple):
    """All that the loop knows. Inputs are the queues of buffers, then one source for each link."""

    heap_ns: Cells
    heap_key: Cells
    push_ns: Cells  # events that the present one sets off
    push_key: Cells
    # nodes: flits in buffers
    node_ns: Cells  # when it is ready in its buffer
    node_transfer: Cells
    node_hop: Cells  # the hop that it is ready for
    node_flit: Cells
    node_next: Cells
    # inputs
    head: Cells  # of a queue: its first node; of a source: its first transfer
    tail: Cells
    next_input: Cells  # in the list in which an input waits
    owned: Cells  # the buffer whose virtual channel the present packet owns
    started_ns: Cells  # when its latest flit has started
    # buffers, by link, layer and virtual channel
    credits: Cells
    is_owned: Cells
    returning: Cells  # the first credit on its way back, and the last
    returning_last: Cells
    waiting: Cells  # the first input that waits for a credit, and the last
    waiting_last: Cells
    credit_turn: Cells  # round robin: the input that was granted last
    # credits on their way back, in order of time; an event is queued for the first, and only where an input waits
    credit_at_ns: Cells
    credit_next: Cells
    # groups of virtual channels, by link and layer: inputs that wait for one
    channel_waiting: Cells
    channel_waiting_last: Cells
    # links
    free_ns: Cells
    worst_ns: Cells
    worst_at_ns: Cells
    granted: Cells  # round robin: the first input that waits for the link, and the last
    granted_last: Cells
    link_turn: Cells
    is_called: Cells  # whether a LINK event is queued
    # transfers
    first: Cells  # of its hops
    hops: Cells
    last: Cells  # its last flit
    packet: Cells  # flits per packet; 0 where it is one packet
    next_flit: Cells  # that sets out
    ready_ns: Cells  # of all its flits, where they have no times of their own
    pace: Cells  # where the times of its flits begin, or -1
    next_transfer: Cells  # on its first link
    flags: Cells  # 1: writes to a memory, 2: its sender waits, 4: its passages are noted, 8: it forks, or is a branch
    branch: Cells  # the first transfer that its flits are copied to, or -1
    sibling: Cells  # of a branch: the next one of the same transfer, in order of hops, or -1
    fork_hop: Cells  # of a branch: the hop of that transfer before which its flits are copied
    pace_ns: Cells
    # hops of routes: one link, or several in series
    hop_row: Cells  # of its first link
    hop_rows: Cells
    hop_buffer_link: Cells  # the last of its links
    hop_layer: Cells
    hop_output: Cells  # which of the outputs of the node before it
    # rows: one link each
    row_link: Cells
    row_ns: Cells  # how long a flit occupies it
    row_last_ns: Cells  # and the last flit of a transfer
    row_tail_ns: Cells
    # what is reported
    end_ns: Cells
    end_link: Cells
    end_transfer: Cells
    write_ns: Cells
    write_link: Cells
    write_flit: Cells
    write_transfer: Cells
    entered_ns: Cells
    entered_transfer: Cells
    passage_ns: Cells  # ready and leave, by turns
    passage: Cells  # transfer, flit and row of the route, one after another
    counts: Cells
    clock: Cells


class Rules(NamedTuple):
    """The options of `Buffers`, as the loop takes them."""

    layers: int
    channels: int
    outputs: int  # queues of a buffer: 1, or the most outputs of a node
    packets: bool
    round_robin: bool
    credit_ns: float


def push(heap_ns: Cells, heap_key: Cells, counts: Cells, time: float, key: int) -> None:
    """Queue an event, from outside the loop."""
    at = counts[HEAP]
    counts[HEAP] = at + 1
    while at:
        parent = (at - 1) >> 1
        if heap_ns[parent] < time or (heap_ns[parent] == time and heap_key[parent] <= key):
            break
        heap_ns[at], heap_key[at] = heap_ns[parent], heap_key[parent]
        at = parent
    heap_ns[at], heap_key[at] = time, key


def move(
    until: float, room: int, layers: int, channels: int, outputs: int, packets: bool, round_robin: bool,
    credit_ns: float, heap_ns: Cells, heap_key: Cells, push_ns: Cells, push_key: Cells, node_ns: Cells,
    node_transfer: Cells, node_hop: Cells, node_flit: Cells, node_next: Cells, head: Cells, tail: Cells,
    next_input: Cells, owned: Cells, started_ns: Cells, credits: Cells, is_owned: Cells, returning: Cells,
    returning_last: Cells, waiting: Cells, waiting_last: Cells, credit_turn: Cells, credit_at_ns: Cells,
    credit_next: Cells, channel_waiting: Cells, channel_waiting_last: Cells, free_ns: Cells, worst_ns: Cells,
    worst_at_ns: Cells, granted: Cells, granted_last: Cells, link_turn: Cells, is_called: Cells, first: Cells,
    hops: Cells, last: Cells, packet: Cells, next_flit: Cells, ready_ns: Cells, pace: Cells, next_transfer: Cells,
    flags: Cells, branch: Cells, sibling: Cells, fork_hop: Cells, pace_ns: Cells, hop_row: Cells, hop_rows: Cells,
    hop_buffer_link: Cells, hop_layer: Cells, hop_output: Cells, row_link: Cells, row_ns: Cells, row_last_ns: Cells,
    row_tail_ns: Cells, end_ns: Cells, end_link: Cells, end_transfer: Cells, write_ns: Cells, write_link: Cells,
    write_flit: Cells, write_transfer: Cells, entered_ns: Cells, entered_transfer: Cells, passage_ns: Cells,
    passage: Cells, counts: Cells, clock: Cells,
) -> None:  # fmt: skip
    """Let events happen up to `until`, or up to the first end or the first sender that may go on.

    Stops early with IS_FULL where fewer than `room` entries are left of some sequence.
    """
    inputs = len(credits) * outputs
    size, free_node, free_credit = counts[HEAP], counts[FREE_NODE], counts[FREE_CREDIT]
    ends = writes = entered = passages = hops_done = 0
    counts[IS_FULL] = 0
    now = clock[NOW_NS]
    while size and heap_ns[0] <= until:
        if (
            size + MOST_PUSHES >= len(heap_ns)
            or free_node < 0
            or free_credit < 0
            or ends + 1 >= len(end_ns)
            or writes + 1 >= len(write_ns)
            or entered + 1 >= len(entered_ns)
            or 3 * (passages + room) >= len(passage)
        ):
            counts[IS_FULL] = 1
            break
        # Take the first event from the heap.
        now, key = heap_ns[0], heap_key[0]
        size -= 1
        last_ns, last_key, at = heap_ns[size], heap_key[size], 0
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            if child + 1 < size and (
                heap_ns[child + 1] < heap_ns[child]
                or (heap_ns[child + 1] == heap_ns[child] and heap_key[child + 1] < heap_key[child])
            ):
                child += 1
            if last_ns < heap_ns[child] or (last_ns == heap_ns[child] and last_key <= heap_key[child]):
                break
            heap_ns[at], heap_key[at] = heap_ns[child], heap_key[child]
            at = child
        heap_ns[at], heap_key[at] = last_ns, last_key
        kind, index, pushes, buffer, came = key >> KIND_BITS, key & INDEX_MASK, 0, -1, -1

        # Whose flit is it about?
        if kind == CREDIT:
            credit, came, before = returning[index], waiting[index], -1
            if came < 0 or credit < 0 or credit_at_ns[credit] > now:
                continue
            returning[index] = credit_next[credit]
            credit_next[credit] = free_credit
            free_credit = credit
            if round_robin:  # the first behind the one that was granted last
                turn, best, ahead, other = credit_turn[index], -1, -1, came
                while other >= 0:
                    if best < 0 or (other > turn) > (best > turn) or ((other > turn) == (best > turn) and other < best):
                        best, before = other, ahead
                    ahead, other = other, next_input[other]
                came = best
                credit_turn[index] = came
            if before < 0:
                waiting[index] = next_input[came]
            else:
                next_input[before] = next_input[came]
            if waiting_last[index] == came:
                waiting_last[index] = before
            if waiting[index] >= 0 and returning[index] >= 0:
                push_ns[pushes], push_key[pushes] = credit_at_ns[returning[index]], index
                pushes += 1
            buffer = index
        elif kind == LINK:
            is_called[index] = 0
            turn, best, before, ahead, other = link_turn[index], -1, -1, -1, granted[index]
            while other >= 0:
                if best < 0 or (other > turn) > (best > turn) or ((other > turn) == (best > turn) and other < best):
                    best, before = other, ahead
                ahead, other = other, next_input[other]
            came = best
            if before < 0:
                granted[index] = next_input[came]
            else:
                next_input[before] = next_input[came]
            if granted_last[index] == came:
                granted_last[index] = before
        else:
            came = index if kind == BUFFER else inputs + index

        # Its next hop.
        node = -1
        if came < inputs:
            node = head[came]
            transfer, hop, flit, ready = node_transfer[node], node_hop[node], node_flit[node], node_ns[node]
        else:
            transfer, hop = head[came], 0
            flit = next_flit[transfer]
            ready = pace_ns[pace[transfer] + flit] if pace[transfer] >= 0 else ready_ns[transfer]
        place = first[transfer] + hop
        row, group = hop_row[place], hop_buffer_link[place] * layers + hop_layer[place]
        link, is_final, is_last = row_link[row], hop + 1 == hops[transfer], flit == last[transfer]

        # What it asks for: a virtual channel, a credit.
        starts = True
        if kind in (BUFFER, SOURCE):
            if not packets:
                buffer = group
            elif owned[came] < 0:
                buffer = group * channels
                stop = buffer + channels
                while buffer < stop and is_owned[buffer]:
                    buffer += 1
                if buffer == stop:
                    next_input[came] = -1
                    if channel_waiting[group] < 0:
                        channel_waiting[group] = came
                    else:
                        next_input[channel_waiting_last[group]] = came
                    channel_waiting_last[group] = came
                    continue
                is_owned[buffer] = 1
                owned[came] = buffer
            else:
                buffer = owned[came]
            if not is_final:
                credit = returning[buffer]
                while credit >= 0 and waiting[buffer] < 0 and credit_at_ns[credit] <= now:  # they are back
                    credits[buffer] += 1
                    returning[buffer] = credit_next[credit]
                    credit_next[credit] = free_credit
                    free_credit = credit
                    credit = returning[buffer]
                if credits[buffer] <= 0 or waiting[buffer] >= 0:
                    next_input[came] = -1
                    if waiting[buffer] < 0:
                        waiting[buffer] = came
                        if credit >= 0:
                            push_ns[pushes], push_key[pushes] = credit_at_ns[credit], buffer
                            pushes += 1
                    else:
                        next_input[waiting_last[buffer]] = came
                    waiting_last[buffer] = came
                    starts = False
                else:
                    credits[buffer] -= 1
        elif kind == LINK:
            buffer = owned[came] if packets else group
        if round_robin and starts:
            if kind != LINK and (granted[link] >= 0 or free_ns[link] > now):
                next_input[came] = -1
                if granted[link] < 0:
                    granted[link] = came
                else:
                    next_input[granted_last[link]] = came
                granted_last[link] = came
                starts = False
                if not is_called[link]:
                    is_called[link] = 1
                    push_ns[pushes], push_key[pushes] = max(now, free_ns[link]), (LINK << KIND_BITS) | link
                    pushes += 1
            else:
                link_turn[link] = came

        # It starts on the link, and passes all links in series with it.
        if starts:
            start = max(now, free_ns[link])
            leave = ready
            for row_at in range(row, row + hop_rows[place]):
                at_link = row_link[row_at]
                ready_there = leave
                begin = start if row_at == row else max(leave, free_ns[at_link])
                if begin - ready_there > worst_ns[at_link]:
                    worst_ns[at_link], worst_at_ns[at_link] = begin - ready_there, ready_there
                leave = begin + (row_last_ns[row_at] if is_last else row_ns[row_at])
                free_ns[at_link] = leave
                if flags[transfer] & 4:
                    passage_ns[2 * passages], passage_ns[2 * passages + 1] = ready_there, leave
                    passage[3 * passages], passage[3 * passages + 1] = transfer, flit
                    passage[3 * passages + 2] = row_at - hop_row[first[transfer]]
                    passages += 1
                if came >= inputs and is_last and row_at == row and flags[transfer] & 2:
                    entered_ns[entered], entered_transfer[entered] = leave, transfer
                    entered += 1
                    until = min(until, now)
                leave += row_tail_ns[row_at]
            hops_done += 1
            if round_robin and granted[link] >= 0 and not is_called[link]:
                is_called[link] = 1
                push_ns[pushes], push_key[pushes] = free_ns[link], (LINK << KIND_BITS) | link
                pushes += 1

            # The branch that it is copied to next, if it forks here.
            fork = -1
            if flags[transfer] & 8 and came < inputs:
                fork = sibling[transfer] if hop == 0 else branch[transfer]
                fork_at = fork_hop[transfer] if hop == 0 else hop
                while fork >= 0 and fork_hop[fork] < fork_at:
                    fork = sibling[fork]
                if fork >= 0 and fork_hop[fork] > fork_at:
                    fork = -1

            # Its slot is credited, and what is behind it moves up.
            started_ns[came] = start
            if fork >= 0:
                node_transfer[node], node_hop[node], node_ns[node], queue = fork, 0, start, came
                if outputs > 1:
                    queue = came // outputs * outputs + hop_output[first[fork]]
                    head[came] = node_next[node]
                    if head[came] >= 0:
                        push_ns[pushes] = max(node_ns[head[came]], start)
                        push_key[pushes] = (BUFFER << KIND_BITS) | came
                        pushes += 1
                    node_next[node] = -1
                if outputs == 1 or head[queue] < 0:
                    head[queue] = node
                    push_ns[pushes], push_key[pushes] = max(start, started_ns[queue]), (BUFFER << KIND_BITS) | queue
                    pushes += 1
                else:
                    node_next[tail[queue]] = node
                if outputs > 1:
                    tail[queue] = node
                node = -1  # the copy needs one of its own
            elif came < inputs:
                slot, credit, at_ns = came // outputs, free_credit, start + credit_ns
                free_credit = credit_next[credit]
                credit_at_ns[credit], credit_next[credit] = at_ns, -1
                ahead, other = -1, returning[slot]
                if other >= 0 and credit_at_ns[returning_last[slot]] <= at_ns:
                    ahead, other = returning_last[slot], -1
                while other >= 0 and credit_at_ns[other] <= at_ns:  # queues of one buffer may start in another order
                    ahead, other = other, credit_next[other]
                credit_next[credit] = other
                if other < 0:
                    returning_last[slot] = credit
                if ahead >= 0:
                    credit_next[ahead] = credit
                else:
                    returning[slot] = credit
                    if waiting[slot] >= 0:
                        push_ns[pushes], push_key[pushes] = at_ns, slot
                        pushes += 1
                following = node_next[node]
                head[came] = following
                if following >= 0:
                    push_ns[pushes], push_key[pushes] = max(node_ns[following], start), (BUFFER << KIND_BITS) | came
                    pushes += 1
            else:
                next_flit[transfer] = flit + 1
                following = transfer
                if is_last:
                    following = next_transfer[transfer]
                    head[came] = following
                if following >= 0:
                    ready = ready_ns[following]
                    if pace[following] >= 0:
                        ready = pace_ns[pace[following] + next_flit[following]]
                    push_ns[pushes], push_key[pushes] = max(ready, start), (SOURCE << KIND_BITS) | (came - inputs)
                    pushes += 1

            # It arrives in the next buffer, or at the end.
            if is_final:
                if flags[transfer] & 1:
                    write_ns[writes], write_link[writes] = leave, hop_buffer_link[place]
                    write_flit[writes], write_transfer[writes] = flit, transfer
                    writes += 1
                if is_last:
                    end_ns[ends], end_link[ends], end_transfer[ends] = leave, hop_buffer_link[place], transfer
                    ends += 1
                    until = min(until, leave)
                if node >= 0:
                    node_next[node] = free_node
                    free_node = node
            else:
                if node < 0:
                    node = free_node
                    free_node = node_next[node]
                node_ns[node], node_transfer[node], node_hop[node], node_flit[node] = leave, transfer, hop + 1, flit
                node_next[node] = -1
                queue = buffer * outputs
                if outputs > 1:
                    queue += hop_output[place + 1]
                if head[queue] < 0:
                    head[queue] = node
                    push_ns[pushes], push_key[pushes] = max(leave, started_ns[queue]), (BUFFER << KIND_BITS) | queue
                    pushes += 1
                else:
                    node_next[tail[queue]] = node
                tail[queue] = node

            # The last flit of a packet passes its virtual channel on.
            if packets and (is_last or (packet[transfer] and (flit + 1) % packet[transfer] == 0)):
                owned[came] = -1
                other = channel_waiting[group]
                if other >= 0:
                    channel_waiting[group] = next_input[other]
                    owned[other] = buffer
                    push_ns[pushes] = start
                    if other < inputs:
                        push_key[pushes] = (BUFFER << KIND_BITS) | other
                    else:
                        push_key[pushes] = (SOURCE << KIND_BITS) | (other - inputs)
                    pushes += 1
                else:
                    is_owned[buffer] = 0

        # What it sets off.
        for new in range(pushes):
            time, key, at = push_ns[new], push_key[new], size
            size += 1
            while at:
                parent = (at - 1) >> 1
                if heap_ns[parent] < time or (heap_ns[parent] == time and heap_key[parent] <= key):
                    break
                heap_ns[at], heap_key[at] = heap_ns[parent], heap_key[parent]
                at = parent
            heap_ns[at], heap_key[at] = time, key
    counts[HEAP], counts[FREE_NODE], counts[FREE_CREDIT] = size, free_node, free_credit
    counts[ENDS], counts[WRITES], counts[ENTERED], counts[PASSAGES] = ends, writes, entered, passages
    counts[HOPS_DONE] = hops_done
    clock[NOW_NS] = now
    clock[NEXT_NS] = heap_ns[0] if size else float("inf")
