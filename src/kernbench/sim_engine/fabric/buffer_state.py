"""Where flits in finite buffers stand, seen from an instant: equal for two instants that are followed by the same.

Records that are as in an idle network are left out. A slot that is credited by now is one whether it was counted or
not; links, queues and buffers are known by their places, transfers by their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kernbench.sim_engine.fabric import buffer_records as records
from kernbench.sim_engine.fabric.buffer_memory import BufferMemory
from kernbench.sim_engine.fabric.buffer_records import WORDS, BufferLoopState

StateRow = tuple[object, ...]


def relative_state_of(memory: BufferMemory, numbers: Mapping[int, int], now: float) -> StateRow:
    """The state at `now`, once all up to then has happened; `numbers` has those of transfers, by their places."""
    s = memory.state
    events = [(float(s.heap_ns[at]) - now, int(s.heap_key[at])) for at in range(int(s.counts[records.HEAP]))]
    return (
        tuple(sorted(events)),
        tuple(sorted(_transfer(s, place, number, now) for place, number in numbers.items())),
        tuple(_inputs(s, memory.first_source, numbers, now)),
        tuple(_buffers(s, memory.slots, now)),
        tuple(_lists(s, now)),
    )


def late_credits(memory: BufferMemory, now: float) -> Iterator[tuple[int, list[float]]]:
    """Of every buffer some of whose slots are on their way back: its offset, and when they are credited."""
    state = memory.state
    for at in range(0, len(state.buffer), WORDS):
        if state.buffer[at + records.RETURNING] >= 0:
            late = [time for time in _returning(state, at) if time > now]
            if late:
                yield at, late


def _listed(cells: Any) -> list[Any]:
    """Words of an array as Python's own numbers."""
    return cells if isinstance(cells, list) else cells.tolist()


def _transfer(s: BufferLoopState, place: int, number: int, now: float) -> StateRow:
    """Flits that have yet to depart, and how many have yet to arrive."""
    next_flit, last = int(s.transfer[place + records.NEXT_FLIT]), int(s.transfer[place + records.LAST])
    pace, ready = int(s.transfer[place + records.PACE]), list[float]()
    if next_flit <= last:
        ready = [float(s.transfer_ns[place + records.READY_NS])]
        if pace >= 0:
            ready = _listed(s.pace_ns[pace + next_flit : pace + last + 1])
    counts = number, next_flit, int(s.transfer[place + records.LEFT]), int(s.transfer[place + records.FLAGS])
    return *counts, tuple(time - now for time in ready)


def _inputs(s: BufferLoopState, first_source: int, numbers: Mapping[int, int], now: float) -> Iterator[StateRow]:
    """Queues that have flits, own a virtual channel, or have a flit that starts after `now`."""
    words, times = _listed(s.inputs), _listed(s.inputs_ns)
    for at in range(0, len(words), WORDS):
        head, owned, started = words[at + records.HEAD], words[at + records.OWNED], times[at + records.STARTED_NS]
        if head >= 0 or owned >= 0 or started > now:
            flits = _flits(s, head, numbers, now) if at < first_source else _sources(s, head, numbers)
            yield at, owned, max(started - now, 0.0), *flits


def _flits(s: BufferLoopState, node: int, numbers: Mapping[int, int], now: float) -> Iterator[StateRow]:
    """Those of a queue, from the first on."""
    while node >= 0:
        transfer = int(s.cell[node + records.TRANSFER])
        row = int(s.cell[node + records.ROW]) - int(s.transfer[transfer + records.FIRST])
        yield float(s.cell_ns[node + records.AT_NS]) - now, numbers[transfer], row, int(s.cell[node + records.FLIT])
        node = int(s.cell[node + records.NEXT])


def _sources(s: BufferLoopState, place: int, numbers: Mapping[int, int]) -> Iterator[int]:
    """Transfers that begin on a link, in order."""
    while place >= 0:
        yield numbers[place]
        place = int(s.transfer[place + records.NEXT_TRANSFER])


def _returning(s: BufferLoopState, at: int) -> Iterator[float]:
    """When the slots of a buffer are credited that are on their way back."""
    credit = int(s.buffer[at + records.RETURNING])
    while credit >= 0:
        yield float(s.cell_ns[credit + records.AT_NS])
        credit = int(s.cell[credit + records.NEXT])


def _buffers(s: BufferLoopState, slots: int, now: float) -> Iterator[StateRow]:
    """Buffers that have flits, or for which some wait, or which were granted last by round robin."""
    words = _listed(s.buffer)
    for at in range(0, len(words), WORDS):
        credits, owned, waiting = (words[at + word] for word in (records.CREDITS, records.IS_OWNED, records.WAITING))
        late: list[float] = []
        if words[at + records.RETURNING] >= 0:
            times = list(_returning(s, at))
            late = [time - now for time in times if time > now]
            credits += len(times) - len(late)
        turn = words[at + records.CREDIT_LAST]
        if credits < slots or owned or waiting >= 0 or turn >= 0:
            yield at, credits, owned, turn, tuple(late), tuple(_waiting(s, waiting))


def _lists(s: BufferLoopState, now: float) -> Iterator[StateRow]:
    """Inputs that wait for a virtual channel; those that wait for a link, and its turn, which counts as long as it is
    busy.
    """
    groups, links = _listed(s.group), _listed(s.link)
    for at in range(0, len(groups), 2):
        if groups[at + records.CHANNEL_WAITING] >= 0:
            yield at, *_waiting(s, groups[at + records.CHANNEL_WAITING])
    for at in range(0, len(links), WORDS):
        waiting, turn = links[at + records.GRANTED], links[at + records.LINK_LAST]
        if waiting >= 0 or (turn >= 0 and s.free_ns[at // WORDS] > now):
            yield at, links[at + records.IS_CALLED], turn, *_waiting(s, waiting)


def _waiting(s: BufferLoopState, came: int) -> Iterator[int]:
    """The inputs of a list, from the first on."""
    while came >= 0:
        yield came
        came = int(s.inputs[came + records.NEXT_INPUT])
