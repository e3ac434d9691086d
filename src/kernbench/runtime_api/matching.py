"""Checks that ranks call the same things: the n-th collective of a group is one call, made by all its ranks.

The first rank to make a call sets its signature; a rank whose call has another signature gets an error that shows both.
No rank waits here for another: waiting happens on the devices. Messages between two ranks with one tag are paired in
the order in which their sends and receives were posted; a pair whose sizes or types differ is an error. A message is
transferred once both of its ends are posted, so a message that is never received delays no other.

A call is open until all its ranks have made it. In a deadlock, open calls show which ranks are missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernbench.common.errors import CollectiveMismatchError


@dataclass(frozen=True, slots=True)
class CallSignature:
    """One rank's call as the other ranks are compared with it. `facts` must be equal on all ranks. `input_splits` and
    `output_splits` are rows, or elements, for and from each rank; they may differ, but must match pairwise.
    """

    text: str
    facts: Mapping[str, object]
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()
    line: str = ""  # of the program that calls, `file:line`
    unit: str = "rows"  # of the splits

    @property
    def at(self) -> str:
        """The call and its line."""
        return f"{self.text} at {self.line}" if self.line else self.text


@dataclass(eq=False)
class _OpenCall:
    """A call that some ranks of a group have made."""

    number: int
    signatures: dict[int, CallSignature] = field(default_factory=dict)  # by rank in the group


class CallOrder:
    """The calls of one group. `ranks` are the global ranks of its members, for messages."""

    def __init__(self, title: str, ranks: Sequence[int]) -> None:
        self._title = title
        self._ranks = tuple(ranks)
        self._made = [0] * len(ranks)  # calls by each rank so far
        self._open: dict[int, _OpenCall] = {}  # by number, oldest first

    def enter(self, rank: int, signature: CallSignature) -> int:
        """Record a rank's next call and return its number. Raises CollectiveMismatchError if another rank's call with
        this number has another signature.
        """
        number = self._made[rank]
        call = self._open.setdefault(number, _OpenCall(number))
        for other, theirs in call.signatures.items():
            self._compare(number, rank, signature, other, theirs)
        self._made[rank] += 1
        call.signatures[rank] = signature
        if len(call.signatures) == len(self._ranks):
            del self._open[number]
        return number

    def _compare(self, number: int, rank: int, ours: CallSignature, other: int, theirs: CallSignature) -> None:
        names = _differing(ours, theirs)
        if names:
            given = [name for name in names if name in _GIVEN]  # the other differences follow from these
            differ = _both(ours, theirs, ["collective"] if "collective" in names else given or names)
        elif ours.input_splits and (
            (ours.input_splits[other], ours.output_splits[other])
            != (theirs.output_splits[rank], theirs.input_splits[rank])
        ):
            here, there = self._ranks[rank], self._ranks[other]
            differ = (
                f"rank {here} sends {ours.input_splits[other]} {ours.unit} to rank {there}, which expects "
                f"{theirs.output_splits[rank]}, and expects {ours.output_splits[other]} from it, which sends "
                f"{theirs.input_splits[rank]}"
            )
        else:
            return
        raise CollectiveMismatchError(
            f"ranks call different things: rank {self._ranks[rank]} calls {ours.text}, rank {self._ranks[other]} "
            f"called {theirs.text}\n  call {number + 1} of {self._title}: {differ}",
            where=_lines((self._ranks[rank], ours), (self._ranks[other], theirs)),
            hint="let every rank of a group call the same collectives in the same order, with equal sizes, dtypes and "
            "placements",
        )

    def open_calls(self, ended: Sequence[int]) -> Iterator[str]:
        """Calls that only some ranks have made, in words. `ended` are the global ranks whose program has returned."""
        for call in self._open.values():
            by_text: dict[str, list[int]] = {}
            for rank, signature in call.signatures.items():
                by_text.setdefault(signature.at, []).append(self._ranks[rank])
            made = ", ".join(f"{ranks_named(sorted(ranks))} called {text}" for text, ranks in by_text.items())
            absent = [rank for rank in range(len(self._ranks)) if rank not in call.signatures]
            missing = [self._missing(rank, call.number, ended) for rank in absent]
            yield f"call {call.number + 1} of {self._title}: {made}; never called by {', '.join(missing)}"

    def _missing(self, rank: int, number: int, ended: Sequence[int]) -> str:
        global_rank = self._ranks[rank]
        if global_rank in ended:
            return f"rank {global_rank}, whose program has ended"
        is_behind = self._made[rank] < number
        return f"rank {global_rank}" + (f", which has made {self._made[rank]} calls" if is_behind else "")


@dataclass(eq=False)
class MessageEnd:
    """One end of a message. When the other end is posted, both get the message's `number`, and `matched` of the end
    that was first is called.
    """

    rank: int
    signature: CallSignature
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
        """Post one end of a message. If the other end is posted, both get a number. Raises CollectiveMismatchError if
        their sizes or types differ.
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
        names = _differing(end.signature, other.signature)
        if names:
            raise CollectiveMismatchError(
                f"a message is received as another than it was sent: rank {self._ranks[end.rank]} calls "
                f"{end.signature.text}, rank {self._ranks[other.rank]} called {other.signature.text}\n"
                f"  {self._title}: {_both(end.signature, other.signature, names)}",
                where=_lines((self._ranks[end.rank], end.signature), (self._ranks[other.rank], other.signature)),
                hint="messages from one rank to another with one tag arrive in the order in which they are sent: "
                "receive them in that order, with the same size and dtype",
            )
        queue.popleft()
        end.number = other.number = self._count
        self._count += 1
        other.matched()

    def first_sender_to(self, receiver: int, tag: int) -> int | None:
        """The rank whose message with this tag to `receiver` was sent first, of those without a receive; None if there
        is no such message.
        """
        queues = (self._posted.get((sender, receiver, tag)) for sender in range(len(self._ranks)))
        sent = [queue[0] for queue in queues if queue and queue[0].is_send]
        return min(sent, key=lambda end: end.order).rank if sent else None

    def listen(self, receiver: int, listener: Callable[[], object]) -> None:
        """Call `listener` once, when the next message to `receiver` is sent."""
        self._listeners.setdefault(receiver, []).append(listener)

    def open_calls(self) -> Iterator[str]:
        """Messages of which only one end is posted, in words."""
        for (sender, receiver, _), queue in self._posted.items():
            for posted in queue:
                missing = f"rank {self._ranks[receiver]} never received it"
                if not posted.is_send:
                    missing = f"rank {self._ranks[sender]} never sent it"
                caller = f"rank {self._ranks[posted.rank]}"
                yield f"message of {self._title}: {caller} called {posted.signature.at}; {missing}"


def ranks_named(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2, 3`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _lines(*calls: tuple[int, CallSignature]) -> str | None:
    """The line of each rank's call."""
    return "; ".join(f"rank {rank} at {signature.line}" for rank, signature in calls if signature.line) or None


_GIVEN = ("dtype", "elements", "elements per row", "op", "root", "per")  # arguments that the program passes itself


def _differing(one: CallSignature, other: CallSignature) -> list[str]:
    """The names of the facts that differ."""
    names = dict.fromkeys((*one.facts, *other.facts))
    return [name for name in names if one.facts.get(name) != other.facts.get(name)]


def _both(one: CallSignature, other: CallSignature, names: Sequence[str]) -> str:
    return "; ".join(f"{name}: {one.facts.get(name, 'none')} and {other.facts.get(name, 'none')}" for name in names)
