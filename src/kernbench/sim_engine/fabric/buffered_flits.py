"""Flits in finite buffers, beside the agenda of an engine: what `FlitQueues` is for links without buffers.

Moved by `buffer_loop.py`, compiled where numba is installed, as plain Python otherwise; times are the same bit for bit.
All flits are moved by this loop but those of planned transfers (`buffered_trains.py`). Links can be reserved once all
slots are credited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from kernbench.common.compiled_code import compiled_with_calls
from kernbench.common.declared_state import StateField, View, aside, idle, set_aside
from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric import buffer_grants, event_heap
from kernbench.sim_engine.fabric import buffer_loop as loop
from kernbench.sim_engine.fabric import buffer_records as records
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.buffer_memory import BufferMemory
from kernbench.sim_engine.fabric.buffer_records import WORDS
from kernbench.sim_engine.fabric.buffer_state import late_credits, relative_state_of
from kernbench.sim_engine.fabric.counters import Counters
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.progressions import each_time
from kernbench.sim_engine.fabric.transfers import Transfer
from kernbench.sim_engine.gc_threshold import collect_after_compiling

_SOURCES = records, event_heap, buffer_grants, loop
# Called, not put in line: they are seldom needed, and take a fifth of the time of compiling.
_CALLED = "report", "next_branch", "move_to_branch", "keep_packet", "take_next", "take_link_or_wait", "call_link"


@cache
def compiled_move() -> Callable[..., None] | None:
    """The loop compiled by numba, with what it calls in line; None where numba is not installed."""
    # Nothing is allocated. With reference counts, all arrays of `State` are counted wherever one is used.
    return compiled_with_calls(loop.move, _SOURCES, _options_of, _nrt=False)  # type: ignore[no-any-return]  # numba has no types


def _options_of(name: str) -> dict[str, object]:
    return {"_nrt": False} if name in _CALLED else {"inline": "always"}


class TransferView(View, Protocol):
    """An instant at which transfers under way are numbered."""

    def number_of(self, transfer: Transfer, /) -> int: ...


BufferLateCredits = tuple[int, int, list[float]]  # link, which of its buffers, and when slots of that are credited


@dataclass
class _Tree:
    """A multicast under way."""

    places: dict[Transfer, int]  # of its segments
    unended: int


class BufferedFlits:
    """The flits of one engine on a network with buffers."""

    STATE = (
        StateField("_memory", lambda flits, view: flits.relative_state(view)),
        idle("_trees"),
    )
    DERIVED = (
        "_counters", "_move", "_users", "has_entered", "is_compiled", "under_way",
    )  # fmt: skip
    SET_ASIDE = (
        aside("_is_set_aside", lambda flits: True),
        aside("moved_to_ns"),
        aside("next_ns", lambda flits: INFINITY),
    )

    def __init__(self, network: Network, links: Links, counters: Counters, *, is_compiled: bool = True) -> None:
        self._counters = counters
        move = compiled_move() if is_compiled else None
        self.is_compiled = move is not None
        self._move: Callable[..., None] = loop.move if move is None else move
        self._memory = BufferMemory(network, links, is_compiled=self.is_compiled)
        self._users = links.users
        self.under_way: dict[int, Transfer] = {}  # by the place of its record
        self._trees: dict[Transfer, _Tree] = {}  # multicasts under way, by their first segment
        self.next_ns = INFINITY
        self.moved_to_ns = 0.0  # up to where `move` went
        self._is_set_aside = False  # whether events of other transfers are not in the heap

    # ---- adding transfers

    def begin(self, transfer: Transfer, now: float, *, is_watched: bool) -> None:
        """A transfer departs on its first link, behind those that began there before, or as a branch of another."""
        memory = self._memory
        flags = records.WRITES * (transfer.sink is not None) | records.ENTERS * (transfer.on_left is not None)
        place = memory.new_place(transfer, flags=flags | records.PASSES * (transfer.slow or is_watched), now=now)
        self.under_way[place] = transfer
        if transfer.tree is not None:
            self._join_tree(transfer, transfer.tree, place)
            if transfer.fed_by is not None:
                return  # its flits are copied from those of the transfer that it begins at
        times = transfer.ready if transfer.pace is None else transfer.pace
        if times is not None:
            ready = list(each_time(times, 0, transfer.flits))
            memory.note_times(place, ready, is_alone=len(self.under_way) == 1)
            now = ready[0]
        inputs, source = memory.state.inputs, memory.first_source + transfer.links[0] * WORDS
        if inputs[source + records.HEAD] < 0:
            inputs[source + records.HEAD] = place
            at = max(now, float(memory.state.inputs_ns[source + records.STARTED_NS]))
            memory.push(at, (records.SOURCE << records.KIND_BITS) | source)
            self.next_ns = min(self.next_ns, at)
        else:
            memory.state.transfer[inputs[source + records.TAIL] + records.NEXT_TRANSFER] = place
        inputs[source + records.TAIL] = place

    def _join_tree(self, transfer: Transfer, segments: tuple[Transfer, ...], place: int) -> None:
        """Note the place of a segment of a multicast, and among the branches of the one that it begins at."""
        tree = self._trees.setdefault(segments[0], _Tree({}, len(segments)))
        tree.places[transfer] = place
        if transfer.fed_by is None:
            return
        words, feeder = self._memory.state.transfer, tree.places[transfer.fed_by]
        row = self._memory.row_of(transfer.fed_by, transfer.fed_at)
        before, at = -1, words[feeder + records.BRANCH]
        while at >= 0 and words[at + records.FORK_ROW] <= row:
            before, at = at, words[at + records.SIBLING]
        words[place + records.FORK_ROW], words[place + records.SIBLING] = row, at
        if before < 0:
            words[feeder + records.BRANCH] = place
        else:
            words[before + records.SIBLING] = place
        for each in (place, feeder):
            words[each + records.FLAGS] |= records.FORKS

    def _free(self, transfer: Transfer, place: int) -> None:
        """A transfer has ended: its place may be taken again, or those of all of a multicast with its last segment."""
        del self.under_way[place]
        for link in transfer.links:
            self._users[link] -= 1
        if transfer.tree is None:
            self._memory.free_places(place)
            return
        tree = self._trees[transfer.tree[0]]
        tree.unended -= 1
        if not tree.unended:
            del self._trees[transfer.tree[0]]
            self._memory.free_places(*tree.places.values())

    # ---- moving flits

    def move(
        self, until: float, other_ns: float, other_order: float, ended: Callable[[Transfer, float, int], None]
    ) -> int:
        """Move flits up to `until`, or to what happens at `other_ns`; returns how many steps that took.

        Stops at the first end, and when the last flit of a transfer whose sender waits has been granted its first link.
        """
        memory = self._memory
        state = memory.state
        self._move(min(until, other_ns), memory.room, *memory.rules, *state)
        if self.is_compiled:
            collect_after_compiling("buffer_loop")
        counts: list[int] = state.counts.tolist() if self.is_compiled else state.counts
        self.next_ns, self.moved_to_ns = float(state.clock[records.NEXT_EVENT_NS]), float(state.clock[records.NOW_NS])
        self.has_entered = False
        if counts[records.LOG]:
            self._read_log(counts[records.LOG], ended)
        if counts[records.IS_FULL]:
            memory.make_room()
        elif self.next_ns == INFINITY and self.under_way and not self._is_set_aside:
            raise FabricError("flits in buffers wait for one another", hint="report this: routes are checked for it")
        return counts[records.HOPS_DONE]

    @property
    def next_order(self) -> float:
        """Flits come before ends and injections of the same instant."""
        return -1 if self.next_ns < INFINITY else INFINITY

    has_entered = False  # whether a sender was notified by the latest `move`

    def _read_log(self, words: int, ended: Callable[[Transfer, float, int], None]) -> None:
        """Report what has happened: passages first, then writes, senders that may go on, and ends."""
        log, log_ns = self._memory.state.log[:words], self._memory.state.log_ns[:words]
        if self.is_compiled:
            log, log_ns = log.tolist(), log_ns.tolist()
        for at in sorted(range(0, words, WORDS), key=log.__getitem__):
            kind, place, link, flit = (
                log[at + word] for word in (records.KIND, records.LOG_TRANSFER, records.LOG_LINK, records.LOG_FLIT)
            )
            transfer, time = self.under_way[place], log_ns[at + records.LOG_NS]
            if kind == records.ENDED:
                self._free(transfer, place)
                ended(transfer, time, link)
            elif kind == records.WRITTEN:
                self._hand_over(transfer, time, link, flit)
            elif kind == records.ENTERED:
                assert transfer.on_left is not None
                self.has_entered = True
                transfer.on_left(time)
            else:
                hop, ready = log[at + records.LOG_ROW] // WORDS, log_ns[at + records.LOG_READY_NS]
                self._counters.watch(transfer, flit, hop, ready, time, transfer.traversal(hop, flit).occupy_ns)

    def _hand_over(self, transfer: Transfer, time: float, link: int, flit: int) -> None:
        """A flit on its way into a memory: it is committed when the last of its transfer arrives."""
        assert transfer.sink is not None
        transfer.sink.pending.append((time, link, flit, transfer))
        if len(transfer.sink.pending) > transfer.sink.most_pending:
            transfer.sink.flush(self.moved_to_ns)

    # ---- for reservations

    def credited_ns(self, links: Iterable[int] | None = None) -> float:
        """When the last credit of some links' buffers, or of all, is back, as far as flits have started so far."""
        return self._memory.credited_ns(links)

    @property
    def credit_ns(self) -> float:
        return self._memory.rules.credit_ns

    def return_credits(self, transfer: Transfer, hop: int, times: list[float]) -> None:
        """Slots that a transfer has used behind a hop, of the first virtual channel, are credited at some times."""
        row = self._memory.row_of(transfer, hop)
        self._memory.return_credits(int(self._memory.state.row[row + records.GROUP]), times)

    def late_credits(self, now: float) -> list[BufferLateCredits]:
        """All slots that are credited after `now`, where no flit is under way."""
        each = self._memory.words_per_link
        return [(*divmod(at, each), times) for at, times in late_credits(self._memory, now)]

    def expect_credits(self, link: int, place: int, times: Iterable[float]) -> None:
        """Slots of a link's buffer are credited at some times, in order; `place` as in `LateCredits`."""
        self._memory.return_credits(link * self._memory.words_per_link + place, times)

    def relative_state(self, view: TransferView) -> tuple[object, ...]:
        """Where all flits stand."""
        numbers = {place: view.number_of(transfer) for place, transfer in self.under_way.items()}
        return relative_state_of(self._memory, numbers, view.now)

    @contextmanager
    def without_events(self) -> Iterator[None]:
        memory, now = self._memory, float(self._memory.state.clock[records.NOW_NS])
        events = memory.take_events()
        try:
            with set_aside(self):
                yield
        finally:
            for at, key in events:
                memory.push(at, key)
            memory.state.clock[records.NOW_NS] = now
            self.next_ns = float(memory.state.heap_ns[0]) if memory.state.counts[records.HEAP] else INFINITY
