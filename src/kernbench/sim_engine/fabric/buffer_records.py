"""The records that `buffer_loop.py` works on.

State lies in records of `WORDS` words (transfers: two of them), so that what an event touches is in few cache lines,
and Python hands over few arrays. A reference to a record is the offset of its first word, or -1. A sequence and the one
whose name ends in `_ns` are the same memory, once as integers and once as times; in plain Python, the same list.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CREDIT, BUFFER, SOURCE, LINK = range(4)
KIND_BITS = 40  # an event's key is its kind, shifted by these, plus an offset: of a buffer, an input or a link
INDEX_MASK = (1 << KIND_BITS) - 1
MOST_PUSHES = 6  # events that one event can schedule

WORDS = 8  # of a record
# Cells: flits in buffers, and credits on their way back. Of a flit: when it is ready in its buffer, and for which row.
NEXT, AT_NS, TRANSFER, ROW, FLIT = range(5)
# Inputs: the queues of buffers, then one source for each link. HEAD and TAIL are cells, or transfers of a source.
# NEXT_INPUT: in the list in which it waits; OWNED: the buffer whose virtual channel the current packet owns;
# STARTED_NS: when its latest flit has started; SLOT: the buffer whose queue it is; KEPT: flits of the packet that is
# copied to a branch, and then to the next.
HEAD, TAIL, NEXT_INPUT, OWNED, STARTED_NS, SLOT, KEPT, KEPT_LAST = range(8)
# Buffers, by link, layer and virtual channel. RETURNING: the first credit on its way back, in order of time; WAITING:
# the first input that waits for a credit; an event is queued for the first credit, and only where an input waits.
# CREDIT_LAST: by round robin, the input that was granted last; -1 when none waits.
CREDITS, IS_OWNED, RETURNING, RETURNING_LAST, WAITING, WAITING_LAST, CREDIT_LAST = range(7)
# Groups of virtual channels, by link and layer: inputs that wait for one. Two words for each buffer, of which the first
# buffer's are used.
CHANNEL_WAITING, CHANNEL_WAITING_LAST = range(2)
# Links: with round robin, inputs that wait for the link. LINK_LAST: the input of the flit that took it last; IS_CALLED:
# whether a LINK event is queued.
GRANTED, GRANTED_LAST, LINK_LAST, IS_CALLED = range(4)
# Transfers. LAST: its last flit; PACKET: flits per packet, 0 where it is one packet; NEXT_FLIT: that departs;
# READY_NS: of all its flits, where they have no times of their own; PACE: where those begin, or -1;
# NEXT_TRANSFER: on its first link; BRANCH: the first transfer that its flits are copied to, or -1;
# SIBLING: of a branch, the next one of the same transfer in order of rows, or -1; FORK_ROW: before which it branches.
# LEFT: flits that have yet to arrive; the last is not always the last to arrive, since packets may take other channels.
FIRST, LAST, PACKET, NEXT_FLIT, READY_NS, PACE, NEXT_TRANSFER, FLAGS, BRANCH, SIBLING, FORK_ROW, LEFT = range(12)
TRANSFER_WORDS = 2 * WORDS
WRITES, ENTERS, PASSES, FORKS = 1, 2, 4, 8  # of FLAGS: it writes to a memory, its sender waits, its passages are noted
# Rows of routes: one link each. LENGTH: how many words further the next hop begins, since links in series are one hop;
# GROUP: the first buffer of the hop's last link and layer; OUTPUT: which of the outputs of the node before it;
# FLIT_NS, LAST_NS: how long a flit occupies the link, and the last of a transfer.
AT_LINK, LENGTH, GROUP, OUTPUT, IS_FINAL, FLIT_NS, LAST_NS, TAIL_NS = range(8)
# The log of what is reported, by kind, in the order in which Python reads it.
KIND, LOG_NS, LOG_LINK, LOG_FLIT, LOG_TRANSFER, LOG_READY_NS, LOG_ROW = range(7)
PASSED, WRITTEN, ENTERED, ENDED = range(4)
HEAP, PUSHES, FREE, LOG, HOPS_DONE, IS_FULL = range(6)  # of `counts`
NEXT_EVENT_NS, NOW_NS, UNTIL_NS = range(3)  # of `clock`

Cells = Any  # a list, or an array of numba


class BufferLoopState(NamedTuple):
    """All that the loop knows."""

    heap_ns: Cells
    heap_key: Cells
    cell: Cells
    cell_ns: Cells
    inputs: Cells
    inputs_ns: Cells
    buffer: Cells
    group: Cells
    link: Cells
    free_ns: Cells  # by link
    worst_ns: Cells
    worst_at_ns: Cells
    transfer: Cells
    transfer_ns: Cells
    pace_ns: Cells
    row: Cells
    row_ns: Cells
    log: Cells
    log_ns: Cells
    counts: Cells
    clock: Cells


class Rules(NamedTuple):
    """The options of `Buffers`, as the loop takes them."""

    channels: int
    outputs: int  # queues of a buffer: 1, or the most outputs of a node
    packets: bool
    round_robin: bool
    credit_ns: float
