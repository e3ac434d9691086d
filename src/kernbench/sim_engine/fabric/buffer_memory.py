"""What `buffer_loop.py` works on: the records of a network with finite buffers, as arrays of numba or as lists.

Rows of a route are written for the first transfer that takes it with the same last flit; all others use them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kernbench.common.units import on_grid
from kernbench.sim_engine.fabric import buffer_records as records
from kernbench.sim_engine.fabric.buffer_grants import return_credit
from kernbench.sim_engine.fabric.buffer_records import WORDS
from kernbench.sim_engine.fabric.buffers import Buffers
from kernbench.sim_engine.fabric.event_heap import push
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.routes import LastFlit
from kernbench.sim_engine.fabric.transfers import Transfer

ROOM = 1 << 10  # records to begin with


class BufferMemory:
    """The state of one network's buffers, which is handed over to the loop, and room for more of it."""

    def __init__(self, network: Network, links: Links, *, is_compiled: bool) -> None:
        assert network.buffers is not None
        self.is_compiled = is_compiled
        self._network, self._buffers = network, network.buffers
        self._outputs = _outputs(network) if self._buffers.order == "voq" else {}
        self.rules = _rules(self._buffers, max(self._outputs.values(), default=0) + 1)
        self.first_source = len(network.link_ends) * self._buffers.layers * self.rules.channels * self.rules.outputs
        self.first_source *= WORDS
        self.state = self._idle(len(network.link_ends), links)
        self._firsts: dict[LastFlit, int] = {}
        self._rows = self._places = self._times = self._longest = 0
        self._free_places: list[int] = []
        self._more_cells()

    def _idle(self, links: int, shared: Links) -> records.BufferLoopState:
        """The state of an idle network."""
        rules = self.rules
        buffers = links * self._buffers.layers * rules.channels
        queues = buffers * rules.outputs
        sizes = {"inputs": queues + links, "buffer": buffers, "link": links, "cell": 0}
        cells = {name: self._filled(sizes.get(name, ROOM) * WORDS, -1) for name in (*sizes, "transfer", "row", "log")}
        cells |= {name: self._filled(ROOM, 0.0) for name in ("heap_ns", "pace_ns")}
        cells |= {"heap_key": self._filled(ROOM, 0), "group": self._filled(2 * buffers, -1)}
        cells |= {"counts": self._filled(6, 0), "clock": self._filled(3, 0.0)}
        cells["counts"][records.FREE] = -1
        cells |= {f"{name}_ns": self._as_times(cells[name]) for name in ("inputs", "cell", "transfer", "row", "log")}
        for name, word, count, value in (
            ("buffer", records.CREDITS, buffers, self._buffers.slots),
            ("buffer", records.IS_OWNED, buffers, 0),
            ("link", records.IS_CALLED, links, 0),
            ("inputs_ns", records.STARTED_NS, queues + links, 0.0),
        ):
            cells[name][word::WORDS] = self._filled(count, value)
        slots = [queue // rules.outputs * WORDS for queue in range(queues)]
        cells["inputs"][records.SLOT : queues * WORDS : WORDS] = slots
        for name, kept in (("free_ns", "free"), ("worst_ns", "worst"), ("worst_at_ns", "worst_at")):
            cells[name] = np.array(getattr(shared, kept)) if self.is_compiled else list(getattr(shared, kept))
            setattr(shared, kept, cells[name].data if self.is_compiled else cells[name])
        return records.BufferLoopState(**cells)

    def _filled(self, size: int, value: float) -> Any:
        if self.is_compiled:
            return np.full(size, value, np.float64 if isinstance(value, float) else np.int64)
        return [value] * size

    def _as_times(self, cells: Any) -> Any:
        """The same words, to be read as times."""
        return cells.view(np.float64) if self.is_compiled else cells

    @property
    def slots(self) -> int:
        """Of each virtual channel."""
        return self._buffers.slots

    # ---- transfers

    def new_place(self, transfer: Transfer, *, flags: int, now: float) -> int:
        """A record for a transfer that begins."""
        first = self._first_row(transfer)
        if self._free_places:
            place = self._free_places.pop()
        else:
            place = self._places
            self._places += records.TRANSFER_WORDS
            if self._places > len(self.state.transfer):
                self._lengthen("transfer")
        words = self.state.transfer
        words[place + records.FIRST], words[place + records.LAST] = first, transfer.last
        words[place + records.PACKET] = self._buffers.packet_bytes // self._network.flit_bytes
        words[place + records.NEXT_FLIT], words[place + records.PACE], words[place + records.NEXT_TRANSFER] = 0, -1, -1
        words[place + records.FLAGS], words[place + records.BRANCH], words[place + records.SIBLING] = flags, -1, -1
        words[place + records.LEFT] = transfer.flits
        self.state.transfer_ns[place + records.READY_NS] = now
        return place

    def free_places(self, *places: int) -> None:
        """Records of transfers that have ended may be used again."""
        self._free_places.extend(places)

    def note_times(self, place: int, times: list[float], *, is_alone: bool) -> None:
        """The times at which the flits of a transfer are ready to depart."""
        if is_alone:
            self._times = 0  # there is no other transfer: all times of earlier ones are in the past
        stop = self._times + len(times)
        while stop > len(self.state.pace_ns):
            self._lengthen("pace_ns")
        self.state.pace_ns[self._times : stop] = times
        self.state.transfer[place + records.PACE] = self._times
        self._times = stop

    def row_of(self, transfer: Transfer, hop: int) -> int:
        """The row of the link at which a route has its `hop`."""
        return self._first_row(transfer) + hop * WORDS

    def _first_row(self, transfer: Transfer) -> int:
        """Where the rows of transfers like this one begin; written for the first of them."""
        last_flit = transfer.last_flit
        assert last_flit is not None
        found = self._firsts.get(last_flit)
        if found is not None:
            return found
        route, hops = transfer.route, transfer.hops
        starts = [at for at in range(hops) if route.heads[at] == at]
        layers = self._network.layers_of(route)
        found = self._firsts[last_flit] = self._rows
        self._rows += hops * WORDS
        while self._rows > len(self.state.row):
            self._lengthen("row")
        words, times = [0] * (hops * WORDS), dict[int, list[float]]()
        words[records.AT_LINK :: WORDS] = route.links
        for start, end in zip(starts, [*starts[1:], hops], strict=True):
            at, group = start * WORDS, route.links[end - 1] * self._buffers.layers + layers[end - 1]
            words[at + records.LENGTH], words[at + records.GROUP] = (
                (end - start) * WORDS,
                group * self.rules.channels * WORDS,
            )
            words[at + records.OUTPUT] = self._outputs.get(route.links[start], 0)
        words[starts[-1] * WORDS + records.IS_FINAL] = 1
        times[records.FLIT_NS] = [traversal.occupy_ns for traversal in transfer.traversals]
        times[records.LAST_NS] = [traversal.occupy_ns for traversal in transfer.last_traversals]
        times[records.TAIL_NS] = [traversal.tail_ns for traversal in transfer.traversals]
        self.state.row[found : self._rows] = words
        for word, values in times.items():
            self.state.row_ns[found + word : self._rows : WORDS] = values
        self._longest = max(self._longest, hops)
        return found

    def credited_ns(self, links: Iterable[int] | None = None) -> float:
        """When the last credit of some links' buffers, or of all, is back, as far as flits have started so far."""
        state, each = self.state, self.words_per_link
        latest = 0.0
        for link in range(len(self._network.link_ends)) if links is None else links:
            for at in range(link * each, (link + 1) * each, WORDS):
                if state.buffer[at + records.RETURNING] >= 0:
                    last = state.buffer[at + records.RETURNING_LAST]
                    latest = max(latest, float(state.cell_ns[last + records.AT_NS]))
        return latest

    @property
    def words_per_link(self) -> int:
        """Of the records of a link's buffers."""
        return self._buffers.layers * self.rules.channels * WORDS

    def return_credits(self, buffer: int, times: Iterable[float]) -> None:
        """Slots of a buffer are credited at some times, in order."""
        for time in times:
            if self.state.counts[records.FREE] < 0:
                self._more_cells()
            self.state.buffer[buffer + records.CREDITS] -= 1
            return_credit(self.state, buffer, time)

    # ---- events and room

    @property
    def room(self) -> int:
        """Words of the log that one event may take."""
        return (self._longest + 3) * WORDS

    def push(self, time: float, key: int) -> None:
        """Queue an event."""
        if self.state.counts[records.HEAP] + records.MOST_PUSHES >= len(self.state.heap_ns):
            self._lengthen("heap_ns", "heap_key")
        push(self.state.heap_ns, self.state.heap_key, self.state.counts, time, key)

    def take_events(self) -> list[tuple[float, int]]:
        """All events, which are no longer queued."""
        state, size = self.state, int(self.state.counts[records.HEAP])
        state.counts[records.HEAP] = 0
        return [(float(state.heap_ns[at]), int(state.heap_key[at])) for at in range(size)]

    def make_room(self) -> None:
        """The loop has stopped because some sequence was full."""
        counts = self.state.counts
        if counts[records.HEAP] + records.MOST_PUSHES >= len(self.state.heap_ns):
            self._lengthen("heap_ns", "heap_key")
        if counts[records.FREE] < 0:
            self._more_cells()
        while self.room >= len(self.state.log):
            self._lengthen("log")

    def _lengthen(self, *names: str) -> None:
        longer = {}
        for name in names:
            cells = getattr(self.state, name)
            more = self._filled(max(len(cells), ROOM * WORDS), 0.0 if name.endswith("_ns") else -1)
            longer[name] = np.concatenate([cells, more]) if self.is_compiled else cells + more
            if name + "_ns" in records.BufferLoopState._fields:
                longer[name + "_ns"] = self._as_times(longer[name])
        self.state = self.state._replace(**longer)

    def _more_cells(self) -> None:
        """More room for flits in buffers and credits: free cells are a list."""
        before = len(self.state.cell)
        self._lengthen("cell")
        cell, counts = self.state.cell, self.state.counts
        following = range(before + WORDS, len(cell), WORDS)
        cell[before + records.NEXT :: WORDS] = [*following, int(counts[records.FREE])]
        counts[records.FREE] = before


def _rules(buffers: Buffers, outputs: int) -> records.Rules:
    is_packets, is_round_robin = buffers.ownership == "packet", buffers.arbitration == "round_robin"
    return records.Rules(buffers.channels, outputs, is_packets, is_round_robin, on_grid(buffers.credit_ns))


def _outputs(network: Network) -> dict[int, int]:
    """By link: which of the links that leave its node it is."""
    count: dict[int, int] = {}
    found: dict[int, int] = {}
    for link, (src, _) in enumerate(network.link_ends):
        found[link] = count.get(src, 0)
        count[src] = found[link] + 1
    return found
