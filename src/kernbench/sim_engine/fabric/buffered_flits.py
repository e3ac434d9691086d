"""Flits in finite buffers, beside the agenda of an engine: what `FlitQueues` is for links without buffers.

Moved by `buffer_loop.py`, compiled where numba is installed, as plain Python otherwise; times are the same bit for bit.
All flits go this way: no transfer is planned on a network with buffers. Links can be reserved once all are credited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kernbench.common.errors import FabricError
from kernbench.common.units import on_grid
from kernbench.sim_engine.fabric import buffer_loop as loop
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.buffers import Buffers
from kernbench.sim_engine.fabric.counters import Counters
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.progressions import each_time
from kernbench.sim_engine.fabric.routes import LastFlit
from kernbench.sim_engine.fabric.transfers import Transfer
from kernbench.sim_engine.gc_threshold import collect_after_compiling

WRITES, ENTERS, PASSES, FORKS = 1, 2, 4, 8  # bits of `State.flags`
ROOM = 1 << 10  # entries to begin with
_NODES = ("node_ns", "node_transfer", "node_hop", "node_flit", "node_next")
_CREDITS = ("credit_at_ns", "credit_next")
_TRANSFERS = (
    "first", "hops", "last", "packet", "next_flit", "ready_ns", "pace", "next_transfer", "flags", "branch", "sibling",
    "fork_hop",
)  # fmt: skip
_HOPS = ("hop_row", "hop_rows", "hop_buffer_link", "hop_layer", "hop_output")
_ROWS = ("row_link", "row_ns", "row_last_ns", "row_tail_ns")
_REPORTS = (
    ("end_ns", "end_link", "end_transfer"),
    ("write_ns", "write_link", "write_flit", "write_transfer"),
    ("entered_ns", "entered_transfer"),
    ("passage_ns", "passage"),
)


@cache
def compiled_move() -> Callable[..., None] | None:
    """The loop compiled by numba; None where numba is not installed."""
    try:
        from kernbench.sim_engine.fabric.compiled_loop import compiled
    except ImportError:
        return None
    return compiled(loop.move)  # type: ignore[no-any-return]  # numba has no types


@dataclass
class _Tree:
    """A multicast under way."""

    places: dict[Transfer, int]  # of its segments
    unended: int


class BufferedFlits:
    """The flits of one engine on a network with buffers."""

    def __init__(self, network: Network, links: Links, counters: Counters, *, is_compiled: bool = True) -> None:
        assert network.buffers is not None
        self._network, self._buffers, self._counters = network, network.buffers, counters
        move = compiled_move() if is_compiled else None
        self.is_compiled = move is not None
        self._move: Callable[..., None] = loop.move if move is None else move
        self._outputs = _outputs(network) if self._buffers.order == "voq" else {}
        self._rules = _rules(self._buffers, max(self._outputs.values(), default=0) + 1)
        self._state = self._begin(len(network.link_ends), links)
        self._users = links.users
        self._under_way: list[Transfer | None] = []
        self._free_places: list[int] = []
        self._trees: dict[Transfer, _Tree] = {}  # multicasts under way, by their first segment
        self._firsts: dict[LastFlit, int] = {}
        self._hops = self._rows = self._paced = self._longest = 0
        self._more(_NODES, "node_next", loop.FREE_NODE)
        self._more(_CREDITS, "credit_next", loop.FREE_CREDIT)
        self.next_ns = INFINITY
        self.moved_to_ns = 0.0  # up to where `move` went
        self._set_aside = False  # whether events of other transfers are not in the heap

    def _begin(self, links: int, shared: Links) -> loop.State:
        """The state of an idle network."""
        rules = self._rules
        buffers = links * rules.layers * rules.channels
        inputs = buffers * rules.outputs + links
        sizes = {
            "heap_ns": ROOM,
            "heap_key": ROOM,
            "push_ns": 8,
            "push_key": 8,
            "pace_ns": ROOM,
            "counts": 9,
            "clock": 2,
        }
        sizes |= dict.fromkeys(("head", "tail", "next_input", "owned", "started_ns"), inputs)
        sizes |= dict.fromkeys(
            ("credits", "is_owned", "returning", "returning_last", "waiting", "waiting_last", "credit_turn"), buffers
        )
        sizes |= dict.fromkeys(("channel_waiting", "channel_waiting_last"), links * rules.layers)
        sizes |= dict.fromkeys(("granted", "granted_last", "link_turn", "is_called"), links)
        sizes |= dict.fromkeys(_TRANSFERS + _HOPS + _ROWS, ROOM)
        sizes |= {name: ROOM for names in _REPORTS for name in names}
        cells: dict[str, Any] = {}
        for name in loop.State._fields:
            if name not in ("free_ns", "worst_ns", "worst_at_ns"):
                cells[name] = self._cells(name, sizes.get(name, 0), _START.get(name, 0))
        cells["credits"][:] = self._cells("credits", buffers, self._buffers.slots)
        for name, kept in (("free_ns", "free"), ("worst_ns", "worst"), ("worst_at_ns", "worst_at")):
            cells[name] = np.array(getattr(shared, kept)) if self.is_compiled else list(getattr(shared, kept))
            setattr(shared, kept, cells[name].data if self.is_compiled else cells[name])
        cells["counts"][loop.FREE_NODE] = cells["counts"][loop.FREE_CREDIT] = -1
        return loop.State(**cells)

    def _cells(self, name: str, size: int, value: int) -> Any:
        is_time = name.endswith("_ns") or name == "clock"
        if self.is_compiled:
            return np.full(size, value, np.float64 if is_time else np.int64)
        return [float(value) if is_time else value] * size

    # ---- transfers come

    def begin(self, transfer: Transfer, now: float, *, is_watched: bool) -> None:
        """A transfer sets out on its first link, behind those that began there before, or as a branch of another."""
        place = self._place_of(transfer)
        state = self._state
        state.packet[place] = self._buffers.packet_bytes // self._network.flit_bytes
        state.next_flit[place], state.ready_ns[place], state.pace[place] = 0, now, -1
        state.next_transfer[place] = -1
        is_traced = transfer.slow or is_watched
        state.flags[place] = (
            WRITES * (transfer.sink is not None) | ENTERS * (transfer.on_left is not None) | PASSES * is_traced
        )
        state.branch[place] = state.sibling[place] = -1
        if transfer.tree is not None:
            self._join_tree(transfer, transfer.tree, place)
            if transfer.fed_by is not None:
                return  # its flits are copied from those of the transfer that it begins at
        times = transfer.ready if transfer.pace is None else transfer.pace
        if times is not None:
            self._note_times(place, each_time(times, 0, transfer.flits), transfer.flits)
            state = self._state
        link, inputs = transfer.links[0], len(state.credits) * self._rules.outputs
        source = inputs + link
        if state.head[source] < 0:
            state.head[source] = place
            if state.counts[loop.HEAP] + loop.MOST_PUSHES >= len(state.heap_ns):
                self._lengthen("heap_ns", "heap_key")
                state = self._state
            ready = state.pace_ns[state.pace[place]] if state.pace[place] >= 0 else now
            at, key = max(ready, state.started_ns[source]), (loop.SOURCE << loop.KIND_BITS) | link
            loop.push(state.heap_ns, state.heap_key, state.counts, at, key)
            self.next_ns = float(state.heap_ns[0])
        else:
            state.next_transfer[state.tail[source]] = place
        state.tail[source] = place

    def _join_tree(self, transfer: Transfer, segments: tuple[Transfer, ...], place: int) -> None:
        """Note the place of a segment of a multicast, and among the branches of the one that it begins at."""
        tree = self._trees.setdefault(segments[0], _Tree({}, len(segments)))
        tree.places[transfer] = place
        feeder, state = transfer.fed_by, self._state
        if feeder is None:
            return
        hop, before, at = self._hops_of(feeder).index(transfer.fed_at), -1, state.branch[tree.places[feeder]]
        while at >= 0 and state.fork_hop[at] <= hop:
            before, at = at, state.sibling[at]
        state.fork_hop[place], state.sibling[place] = hop, at
        if before < 0:
            state.branch[tree.places[feeder]] = place
        else:
            state.sibling[before] = place
        for each in (place, tree.places[feeder]):
            state.flags[each] |= FORKS

    def _free(self, transfer: Transfer, place: int) -> None:
        """A transfer has ended: its place may be taken again, or those of all of a multicast with its last segment."""
        self._under_way[place] = None
        for link in transfer.links:
            self._users[link] -= 1
        if transfer.tree is None:
            self._free_places.append(place)
            return
        tree = self._trees[transfer.tree[0]]
        tree.unended -= 1
        if not tree.unended:
            del self._trees[transfer.tree[0]]
            self._free_places.extend(tree.places.values())

    def _note_times(self, place: int, times: Iterator[float], flits: int) -> None:
        """The times at which the flits of a transfer are ready to set out."""
        if len(self._under_way) - len(self._free_places) == 1:
            self._paced = 0  # there is no other transfer: all times of earlier ones are in the past
        stop = self._paced + flits
        while stop > len(self._state.pace_ns):
            self._lengthen("pace_ns")
        self._state.pace_ns[self._paced : stop] = list(times)
        self._state.pace[place] = self._paced
        self._paced = stop

    def _place_of(self, transfer: Transfer) -> int:
        first = self._first_hop(transfer)
        if self._free_places:
            place = self._free_places.pop()
            self._under_way[place] = transfer
        else:
            place = len(self._under_way)
            self._under_way.append(transfer)
            if place >= len(self._state.first):
                self._lengthen(*_TRANSFERS)
        state = self._state
        state.first[place], state.hops[place] = first, len(self._hops_of(transfer))
        state.last[place] = transfer.last
        return place

    def _hops_of(self, transfer: Transfer) -> list[int]:
        """Where the hops of a route begin: links in series are one."""
        heads = transfer.route.heads
        return [at for at in range(transfer.hops) if heads[at] == at]

    def _first_hop(self, transfer: Transfer) -> int:
        """Where the hops of transfers like this one begin; written for the first of them."""
        last_flit = transfer.last_flit
        assert last_flit is not None
        found = self._firsts.get(last_flit)
        if found is not None:
            return found
        route, starts = transfer.route, self._hops_of(transfer)
        ends = [*starts[1:], transfer.hops]
        layers = self._network.layers_of(route)
        found = self._firsts[last_flit] = self._hops
        while self._hops + len(starts) >= len(self._state.hop_row):
            self._lengthen(*_HOPS)
        while self._rows + transfer.hops >= len(self._state.row_link):
            self._lengthen(*_ROWS)
        state = self._state
        for start, end in zip(starts, ends, strict=True):
            at = self._hops
            state.hop_row[at], state.hop_rows[at] = self._rows + start, end - start
            state.hop_buffer_link[at], state.hop_layer[at] = route.links[end - 1], layers[end - 1]
            state.hop_output[at] = self._outputs.get(route.links[start], 0)
            self._hops += 1
        for whole, last in zip(transfer.crossings, transfer.last_crossings, strict=True):
            at = self._rows
            state.row_link[at], state.row_ns[at] = whole.link, whole.occupy_ns
            state.row_last_ns[at], state.row_tail_ns[at] = last.occupy_ns, whole.tail_ns
            self._rows += 1
        self._longest = max(self._longest, transfer.hops)
        return found

    # ---- flits go on

    def move(
        self, until: float, other_ns: float, other_order: float, ended: Callable[[Transfer, float, int], None]
    ) -> int:
        """Move flits up to `until`, or to what happens at `other_ns`; returns how many steps that took.

        Stops at the first end, and when the last flit of a transfer whose sender waits has been granted its first link.
        """
        state = self._state
        self._move(min(until, other_ns), self._longest + 1, *self._rules, *state)
        if self.is_compiled:
            collect_after_compiling("buffer_loop")
        counts: list[int] = state.counts.tolist() if self.is_compiled else state.counts
        self.next_ns, self.moved_to_ns = float(state.clock[loop.NEXT_NS]), float(state.clock[loop.NOW_NS])
        if counts[loop.PASSAGES]:
            self._tell_passages(counts[loop.PASSAGES])
        if counts[loop.WRITES]:
            self._hand_over(counts[loop.WRITES])
        for at in range(counts[loop.ENTERED]):
            sender = self._under_way[state.entered_transfer[at]]
            assert sender is not None
            assert sender.on_left is not None
            sender.on_left(float(state.entered_ns[at]))
        for at in range(counts[loop.ENDS]):
            place = int(state.end_transfer[at])
            transfer = self._under_way[place]
            assert transfer is not None
            self._free(transfer, place)
            ended(transfer, float(state.end_ns[at]), int(state.end_link[at]))
        if counts[loop.IS_FULL]:
            self._make_room()
        elif self.next_ns == INFINITY and len(self._free_places) < len(self._under_way) and not self._set_aside:
            raise FabricError("flits in buffers wait for one another", hint="report this: routes are checked for it")
        self.has_entered = counts[loop.ENTERED] > 0
        return counts[loop.HOPS_DONE]

    @property
    def next_order(self) -> float:
        """Flits come before ends and injections of the same instant."""
        return -1 if self.next_ns < INFINITY else INFINITY

    has_entered = False  # whether a sender was told by the latest `move`

    def _tell_passages(self, count: int) -> None:
        state, counters = self._state, self._counters
        for at in range(count):
            place, flit, hop = (int(state.passage[3 * at + i]) for i in range(3))
            transfer = self._under_way[place]
            assert transfer is not None
            ready, leave = float(state.passage_ns[2 * at]), float(state.passage_ns[2 * at + 1])
            counters.watch(transfer, flit, hop, ready, leave, transfer.crossing(hop, flit).occupy_ns)

    def _hand_over(self, writes: int) -> None:
        """Flits on their way into memories: they are committed when the last of a transfer arrives."""
        state = self._state
        for at in range(writes):
            transfer = self._under_way[state.write_transfer[at]]
            assert transfer is not None
            assert transfer.sink is not None
            written = float(state.write_ns[at]), int(state.write_link[at]), int(state.write_flit[at]), transfer
            transfer.sink.pending.append(written)
            if len(transfer.sink.pending) > transfer.sink.most_pending:
                transfer.sink.flush(self.moved_to_ns)

    # ---- for reservations

    def settled_ns(self, links: Iterable[int] | None = None) -> float:
        """When the last credit of some links' buffers, or of all, is back, as far as flits have started so far."""
        state, each = self._state, self._rules.layers * self._rules.channels
        wanted = range(len(state.credits) // each) if links is None else links
        latest = 0.0
        for link in wanted:
            for buffer in range(link * each, link * each + each):
                if state.returning[buffer] >= 0:
                    latest = max(latest, float(state.credit_at_ns[state.returning_last[buffer]]))
        return latest

    @contextmanager
    def without_events(self) -> Iterator[None]:
        """For a while, as if nothing was under way: transfers on other links than those under way are moved in the
        past. What is left of them at the end joins what was there before.
        """
        state, before = self._state, (self.next_ns, self.moved_to_ns, float(self._state.clock[loop.NOW_NS]))
        size = int(state.counts[loop.HEAP])
        events = [(float(state.heap_ns[at]), int(state.heap_key[at])) for at in range(size)]
        state.counts[loop.HEAP] = 0
        self.next_ns, self._set_aside, was_set_aside = INFINITY, True, self._set_aside
        try:
            yield
        finally:
            for at, key in events:
                if self._state.counts[loop.HEAP] + loop.MOST_PUSHES >= len(self._state.heap_ns):
                    self._lengthen("heap_ns", "heap_key")
                loop.push(self._state.heap_ns, self._state.heap_key, self._state.counts, at, key)
            _, self.moved_to_ns, self._state.clock[loop.NOW_NS] = before
            self.next_ns = float(self._state.heap_ns[0]) if self._state.counts[loop.HEAP] else INFINITY
            self._set_aside = was_set_aside

    # ---- room

    def _lengthen(self, *names: str) -> None:
        state, longer = self._state, {}
        for name in names:
            cells = getattr(state, name)
            more = self._cells(name, max(len(cells), ROOM), _START.get(name, 0))
            longer[name] = np.concatenate([cells, more]) if self.is_compiled else cells + more
        self._state = state._replace(**longer)

    def _make_room(self) -> None:
        state = self._state
        if state.counts[loop.HEAP] + loop.MOST_PUSHES >= len(state.heap_ns):
            self._lengthen("heap_ns", "heap_key")
        if state.counts[loop.FREE_NODE] < 0:
            self._more(_NODES, "node_next", loop.FREE_NODE)
        if state.counts[loop.FREE_CREDIT] < 0:
            self._more(_CREDITS, "credit_next", loop.FREE_CREDIT)
        reported = (loop.ENDS, loop.WRITES, loop.ENTERED, loop.PASSAGES)
        for names, count, each in zip(_REPORTS, reported, (1, 1, 1, 3), strict=True):
            if each * (state.counts[count] + self._longest + 2) >= len(getattr(state, names[0])):
                self._lengthen(*names)

    def _more(self, names: tuple[str, ...], next_name: str, free: int) -> None:
        """More room for flits in buffers, or for credits: free entries are a list."""
        before = len(getattr(self._state, next_name))
        self._lengthen(*names)
        following, counts = getattr(self._state, next_name), self._state.counts
        for at in range(before, len(following)):
            following[at] = at + 1
        following[len(following) - 1] = counts[free]
        counts[free] = before


_START = dict.fromkeys(
    (
        "head", "tail", "next_input", "owned", "returning", "returning_last", "waiting", "waiting_last", "credit_turn",
        "channel_waiting", "channel_waiting_last", "granted", "granted_last", "link_turn", "branch", "sibling",
    ),
    -1,
)  # fmt: skip


def _rules(buffers: Buffers, outputs: int) -> loop.Rules:
    is_packets, is_round_robin = buffers.ownership == "packet", buffers.arbitration == "round_robin"
    return loop.Rules(buffers.layers, buffers.channels, outputs, is_packets, is_round_robin, on_grid(buffers.credit_ns))


def _outputs(network: Network) -> dict[int, int]:
    """By link: which of the links that leave its node it is."""
    count: dict[int, int] = {}
    found: dict[int, int] = {}
    for link, (src, _) in enumerate(network.link_ends):
        found[link] = count.get(src, 0)
        count[src] = found[link] + 1
    return found
