"""Whether ranks call the same things: the n-th collective of a group is one call that all its ranks make.

The first rank that comes says what it is; a rank that comes with another one is refused, and told both. No rank waits
here for another: waiting happens on the devices. Messages between two ranks with one tag are paired in the order in
which they were sent and asked for; one that is asked for with another size or type than it is sent with is refused. A
message sets out when both of its ends are there, so one that is never asked for holds up no other.

A call that not all its ranks have made is open. When nothing can move any more, open calls say who never came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernbench.common.errors import CollectiveMismatchError


@dataclass(frozen=True, slots=True)
class Said:
    """What a rank calls. `facts` must be the same for all; `gives` and `takes` are rows for each rank, where they may
    differ.
    """

    text: str
    facts: Mapping[str, object]
    gives: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    line: str = ""  # of the program that calls, `file:line`

    @property
    def at(self) -> str:
        """The call and its line."""
        return f"{self.text} at {self.line}" if self.line else self.text


@dataclass(eq=False)
class _Open:
    """A call that some ranks of a group have made."""

    number: int
    said: dict[int, Said] = field(default_factory=dict)  # by rank in the group


class CallOrder:
    """The calls of one group. `ranks` are the numbers in the world of its ranks, for messages."""

    def __init__(self, title: str, ranks: Sequence[int]) -> None:
        self._title = title
        self._ranks = tuple(ranks)
        self._made = [0] * len(ranks)  # calls by each rank so far
        self._open: dict[int, _Open] = {}  # by number, oldest first

    def enter(self, rank: int, said: Said) -> int:
        """A rank makes its next call; returns its number. Raises CollectiveMismatchError where others made another
        one.
        """
        number = self._made[rank]
        entry = self._open.setdefault(number, _Open(number))
        for other, theirs in entry.said.items():
            self._compare(number, rank, said, other, theirs)
        self._made[rank] += 1
        entry.said[rank] = said
        if len(entry.said) == len(self._ranks):
            del self._open[number]
        return number

    def _compare(self, number: int, rank: int, said: Said, other: int, theirs: Said) -> None:
        names = _differing(said, theirs)
        if names:
            asked = [name for name in names if name in _ASKED]  # what else differs follows from these
            differ = _both(said, theirs, ["collective"] if "collective" in names else asked or names)
        elif said.gives and (said.gives[other], said.takes[other]) != (theirs.takes[rank], theirs.gives[rank]):
            here, there = self._ranks[rank], self._ranks[other]
            differ = (
                f"rank {here} gives {said.gives[other]} rows to rank {there}, which takes {theirs.takes[rank]}, "
                f"and takes {said.takes[other]}, where it gives {theirs.gives[rank]}"
            )
        else:
            return
        raise CollectiveMismatchError(
            f"ranks call different things: rank {self._ranks[rank]} calls {said.text}, rank {self._ranks[other]} "
            f"called {theirs.text}\n  call {number + 1} of {self._title}: {differ}",
            where=_lines((self._ranks[rank], said), (self._ranks[other], theirs)),
            hint="let every rank of a group call the same collectives in the same order, with equal sizes, dtypes and "
            "placements",
        )

    def open_calls(self, ended: Sequence[int]) -> Iterator[str]:
        """What some have called and others never did. `ended` are ranks of the world whose program has returned."""
        for entry in self._open.values():
            by_text: dict[str, list[int]] = {}
            for rank, said in entry.said.items():
                by_text.setdefault(said.at, []).append(self._ranks[rank])
            came = ", ".join(f"{ranks_named(sorted(ranks))} called {text}" for text, ranks in by_text.items())
            missing = [self._missing(rank, entry.number, ended) for rank in self._absent(entry)]
            yield f"call {entry.number + 1} of {self._title}: {came}; never called by {', '.join(missing)}"

    def _absent(self, entry: _Open) -> list[int]:
        return [rank for rank in range(len(self._ranks)) if rank not in entry.said]

    def _missing(self, rank: int, number: int, ended: Sequence[int]) -> str:
        world_rank = self._ranks[rank]
        if world_rank in ended:
            return f"rank {world_rank}, whose program has ended"
        behind = self._made[rank] < number
        return f"rank {world_rank}" + (f", which has made {self._made[rank]} calls" if behind else "")


@dataclass(eq=False)
class MessageEnd:
    """One end of a message. `number` is the message's, once the other end is there, which `matched` tells."""

    rank: int
    said: Said
    is_send: bool
    matched: Callable[[], object]
    number: int | None = None
    order: int = 0  # among the ends that were posted


class MessageOrder:
    """The messages between ranks of one group, by sender, receiver and tag."""

    def __init__(self, title: str, ranks: Sequence[int]) -> None:
        self._title = title
        self._ranks = tuple(ranks)
        self._count = 0  # of messages with both ends
        self._ends = 0  # posted so far
        self._posted: dict[tuple[int, int, int], deque[MessageEnd]] = {}  # those without their other end
        self._listeners: dict[int, list[Callable[[], object]]] = {}  # by receiver: called when it is sent something

    def enter(self, sender: int, receiver: int, tag: int, end: MessageEnd) -> None:
        """One end of a message is posted. If the other one is there, both have a number from now on. Raises
        CollectiveMismatchError where that is of another size or type.
        """
        end.order, self._ends = self._ends, self._ends + 1
        if end.is_send:
            for listener in self._listeners.pop(receiver, ()):
                listener()
        queue = self._posted.setdefault((sender, receiver, tag), deque())
        if not queue or queue[0].is_send == end.is_send:
            queue.append(end)
            return
        other = queue[0]
        names = _differing(end.said, other.said)
        if names:
            raise CollectiveMismatchError(
                f"a message is received as another than it was sent: rank {self._ranks[end.rank]} calls "
                f"{end.said.text}, rank {self._ranks[other.rank]} called {other.said.text}\n"
                f"  {self._title}: {_both(end.said, other.said, names)}",
                where=_lines((self._ranks[end.rank], end.said), (self._ranks[other.rank], other.said)),
                hint="messages from one rank to another with one tag arrive in the order in which they are sent: "
                "receive them in that order, with the same size and dtype",
            )
        queue.popleft()
        end.number = other.number = self._count
        self._count += 1
        other.matched()

    def first_sender_to(self, receiver: int, tag: int) -> int | None:
        """Who has sent a message with that tag to a rank that has not asked for it, the earliest first."""
        queues = (self._posted.get((sender, receiver, tag)) for sender in range(len(self._ranks)))
        sent = [queue[0] for queue in queues if queue and queue[0].is_send]
        return min(sent, key=lambda end: end.order).rank if sent else None

    def listen(self, receiver: int, listener: Callable[[], object]) -> None:
        """Call that when a message is sent to a rank next."""
        self._listeners.setdefault(receiver, []).append(listener)

    def open_calls(self) -> Iterator[str]:
        """Messages that only one end has posted."""
        for (sender, receiver, _), queue in self._posted.items():
            for posted in queue:
                missing = f"rank {self._ranks[receiver]} never received it"
                if not posted.is_send:
                    missing = f"rank {self._ranks[sender]} never sent it"
                yield f"message of {self._title}: rank {self._ranks[posted.rank]} called {posted.said.at}; {missing}"


def ranks_named(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2, 3`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _lines(*calls: tuple[int, Said]) -> str | None:
    """Where ranks call, each with its own line."""
    return "; ".join(f"rank {rank} at {said.line}" for rank, said in calls if said.line) or None


_ASKED = ("dtype", "elements", "elements per row", "op", "root", "per")  # what a program gives itself


def _differing(one: Said, other: Said) -> list[str]:
    """The facts that are not the same, by name."""
    names = dict.fromkeys((*one.facts, *other.facts))
    return [name for name in names if one.facts.get(name) != other.facts.get(name)]


def _both(one: Said, other: Said, names: Sequence[str]) -> str:
    return "; ".join(f"{name}: {one.facts.get(name, 'none')} and {other.facts.get(name, 'none')}" for name in names)
