"""Blocked kernels: their entries in a deadlock report, and its cause.

PEs that wait at the same line for the same kind of thing, each for a message of its own neighbour or for a transfer of
its own addresses, are one entry of the report; where a line has many kinds, the rest of them are one entry. The cause
is at its end: a cycle of PEs, or the PE that never sends, or never receives, what another one waits for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId

DUMPED = 16  # lines about rings that a report has
KINDS_SHOWN = 4  # kinds of waits at one line that have an entry each
UNMATCHED_SHOWN = 16  # calls without a counterpart that a report lists
CYCLE_SHOWN = 8  # PEs of a cycle that are named; of a longer one the first and the last
_OF_ONE_PE = re.compile(r" at 0x[0-9a-f]+| \(number \d+\)")  # in the words for a wait


@frozen
class RingPointers:
    """One side of a ring. `head` counts the chunks that were written to it, `tail` those that were taken out, as this
    side knows; `free` is the sender's credits, or at the receiver the messages that have arrived and are unread.
    """

    direction: str
    side: str  # tx or rx
    head: int
    tail: int
    free: int

    def __str__(self) -> str:
        left = f"{self.free} credits" if self.side == "tx" else f"{self.free} unread"
        return f"{self.side} {self.direction}: head {self.head}, tail {self.tail}, {left}"


@frozen
class RingWait:
    """A direction that a kernel waits in: for a message of `peer` (recv), or for `peer` to take one (send).

    `occupancy` is how many of the ring's slots are taken, as this PE knows.
    """

    op: str  # send or recv
    direction: str
    peer: tuple[int, int, int]
    occupancy: int
    n_slots: int
    failure: str = ""  # of a kernel that used the same communicator
    is_choice: bool = False  # whether a message from another direction would do as well
    outside: bool = False  # whether `peer` is known to be no PE of the launch
    unread: tuple[str, ...] = ()  # messages of the same peer that lie in other directions, in words
    alike: tuple[str, ...] = ()  # messages such as it waits for that came in from the other side, in words
    pointers: tuple[RingPointers, ...] = ()  # of all rings of its communicator at this PE

    def __str__(self) -> str:
        to = "to" if self.op == "send" else "from"
        more = "".join(f"; {text}" for text in (self.failure, *self.unread, *self.alike) if text)
        return f"{self.op} {to} {self.direction}{self.at_peer}, {self.occupancy} of {self.n_slots} slots taken{more}"

    @property
    def at_peer(self) -> str:
        return f" ({PeId(*self.peer)})"


@frozen
class BlockedKernel:
    """A kernel that waits for an event that cannot happen: its PE, the kernel's line, and what it waits for."""

    sip: int
    cube: int
    pe: int
    kernel: str
    file: str
    line: int
    source: str
    waits_for: str
    rings: tuple[RingWait, ...] = ()  # where it waits for messages or credits

    @property
    def key(self) -> tuple[int, int, int]:
        return self.sip, self.cube, self.pe

    @property
    def where(self) -> str:
        """`file:line  source`."""
        return f"{self.file}:{self.line}" + (f"  {self.source}" if self.source else "")

    @property
    def waits_alike(self) -> str:
        """What it waits for, without the neighbour's name, addresses and numbers: equal for PEs that do the same."""
        text = self.waits_for
        for ring in self.rings:
            text = text.replace(ring.at_peer, "")
        counts: dict[str, int] = {}
        for part in _OF_ONE_PE.sub("", text).split("; "):
            counts[part] = counts.get(part, 0) + 1
        return "; ".join(part if n == 1 else f"{n} x {part}" for part, n in counts.items())

    def __str__(self) -> str:
        place = f"rank {self.sip} (sip {self.sip}, cube {self.cube}, pe {self.pe})"
        return f"kernel '{self.kernel}' on {place} waits for {self.waits_for}\n    at {self.where}"


def report(blocked: Sequence[BlockedKernel]) -> Iterator[str]:
    """The entries of a report: kernels blocked at the same line on the same kind of wait are grouped."""
    lines: dict[tuple[str, str], dict[str, list[BlockedKernel]]] = {}
    for kernel in blocked:
        lines.setdefault((kernel.kernel, kernel.where), {}).setdefault(kernel.waits_alike, []).append(kernel)
    for kinds in lines.values():
        groups = list(kinds.values())
        shown = groups if len(groups) <= KINDS_SHOWN else groups[: KINDS_SHOWN - 1]
        for group in shown:
            yield _entry(group)
        rest = [kernel for group in groups[len(shown) :] for kernel in group]
        if rest:
            yield _entry(rest, f"{len(groups) - len(shown)} other things, such as {rest[0].waits_for}")


def _entry(kernels: Sequence[BlockedKernel], waits: str | None = None) -> str:
    """Kernels blocked at the same line, as one entry; `waits` is what they wait for, if that differs."""
    first = kernels[0]
    if len(kernels) == 1:
        return str(first)
    if waits is None:
        same = {kernel.waits_for for kernel in kernels}
        waits = first.waits_for if len(same) == 1 else first.waits_alike
    where = places([kernel.key for kernel in kernels])
    return f"kernel '{first.kernel}' on {where} waits for {waits}\n    at {first.where}"


def unmatched_calls(calls: Sequence[str]) -> list[str]:
    """The lines of a report about calls without a counterpart."""
    more = len(calls) - UNMATCHED_SHOWN
    return [*calls] if more <= 0 else [*calls[:UNMATCHED_SHOWN], f"{more} more calls"]


def ring_dump(blocked: Sequence[BlockedKernel]) -> list[str]:
    """The pointers of the rings at each PE that waits for a message or a credit, equal ones as one line."""
    alike: dict[str, list[tuple[int, int, int]]] = {}
    for kernel in blocked:
        if kernel.rings:
            text = "; ".join(map(str, kernel.rings[0].pointers)) or "none used"
            alike.setdefault(text, []).append(kernel.key)
    lines = [f"{_named(keys)}: {text}" for text, keys in alike.items()]
    return [*lines[:DUMPED], f"{len(lines) - DUMPED} more groups of PEs"] if len(lines) > DUMPED else lines


def _named(keys: Sequence[tuple[int, int, int]]) -> str:
    return str(PeId(*keys[0])) if len(set(keys)) == 1 else places(keys)


def standing(kernels: Sequence[BlockedKernel]) -> list[str]:
    """The lines of a report with the position of every running kernel."""
    return [f"  running: {entry}" for entry in report(kernels)] or [
        "  no PE runs a kernel then: the host allocates, launches or copies"
    ]


def places(pes: Sequence[tuple[int, int, int]]) -> str:
    """`sip0.cube0.pe0..pe7 (8 PEs)`."""
    of_cube: dict[tuple[int, int], list[int]] = {}
    for sip, cube, pe in sorted(set(pes)):
        of_cube.setdefault((sip, cube), []).append(pe)
    of_sip: dict[int, list[str]] = {}
    for (sip, numbers), cubes in groupby(of_cube.items(), key=lambda item: (item[0][0], tuple(item[1]))):
        of_sip.setdefault(sip, []).append(f"{_runs('cube', [c for (_, c), _ in cubes])}.{_runs('pe', numbers)}")
    texts: list[str] = []
    for inside, sips in groupby(of_sip.items(), key=lambda item: tuple(item[1])):
        numbered = _runs("sip", [sip for sip, _ in sips])
        texts += [f"{numbered}.{text}" for text in inside]
    return f"{', '.join(texts)} ({len(set(pes))} PEs)"


def _runs(name: str, numbers: Sequence[int]) -> str:
    """`pe0..pe7`, or `pe0,pe2`: consecutive numbers as a range."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{name}{run[0]}" + (f"..{name}{run[-1]}" if len(run) > 1 else "") for run in runs)


def causes(blocked: Sequence[BlockedKernel]) -> tuple[str, ...]:
    """Why they are blocked: the cycle among them, or else the PEs that never do what some of them wait for."""
    cycle = waiting_cycle(blocked)
    if cycle:
        names = [str(PeId(*pe)) for pe in (*cycle, cycle[0])]
        if len(cycle) > CYCLE_SHOWN:
            half = CYCLE_SHOWN // 2
            names = [*names[:half], f"... {len(cycle) - CYCLE_SHOWN} more ...", *names[-half - 1 :]]
        return (f"cycle: {' -> '.join(names)}",)
    waiting = [kernel.key for kernel in blocked]
    found: dict[str, list[tuple[int, int, int]]] = {}
    for kernel in blocked:
        for ring in kernel.rings:
            if ring.peer not in waiting and not ring.is_choice:
                found.setdefault(_absent(ring), []).append(kernel.key)
    return tuple(f"cause: {text.format(_named(keys))}" for text, keys in found.items())


def _absent(ring: RingWait) -> str:
    """The text for a peer that never does what a PE (to be filled in) waits for."""
    does = "sends what {} waits for in" if ring.op == "recv" else "receives what {} sends to"
    why = "it is not part of the launch" if ring.outside else "no kernel runs there any more, or none ever did"
    return f"{PeId(*ring.peer)} never {does} {ring.direction}: {why}"


def hint_for(blocked: Sequence[BlockedKernel], unmatched: Sequence[str]) -> str | None:
    """The hint for a deadlock of kernels that wait for messages, or of ranks; None for any other."""
    if unmatched:
        return "let every rank of a group make the same calls in the same order, and receive what is sent"
    rings = [ring for kernel in blocked for ring in kernel.rings]
    if not rings:
        return None
    if any(ring.unread for ring in rings) or (waiting_cycle(blocked) and all(ring.alike for ring in rings)):
        return "receive from the direction in which the message lies: what goes out to E comes in from W"
    if any(ring.outside for ring in rings):
        return "launch on the PEs that the kernel talks to as well (target_cubes, target_pes), or send to others"
    if any(ring.op == "send" for ring in rings):
        return "let the other side call tl.recv before this one sends more than a ring holds, or give rings more slots"
    if waiting_cycle(blocked):
        return "let one PE of the cycle call tl.send before its tl.recv"
    return "every tl.recv needs a tl.send on the other side: compare the lines of both"


def waiting_cycle(blocked: Sequence[BlockedKernel]) -> tuple[tuple[int, int, int], ...]:
    """PEs of which each waits for the next, and the last for the first; the first such cycle, or nothing."""
    waits: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for kernel in blocked:  # a PE may run one of each stream
        waits.setdefault(kernel.key, []).extend(ring.peer for ring in kernel.rings)
    finished: dict[tuple[int, int, int], bool] = {}
    for start in waits:
        path: list[tuple[int, int, int]] = []
        stack = [(start, iter(waits[start]))] if start not in finished else []
        while stack:
            pe, peers = stack[-1]
            if not path or path[-1] != pe:
                path.append(pe)
            following = next((peer for peer in peers if peer in waits and not finished.get(peer)), None)
            if following is None:
                finished[path.pop()] = True
                stack.pop()
            elif following in path:
                return tuple(path[path.index(following) :])
            else:
                stack.append((following, iter(waits[following])))
    return ()
