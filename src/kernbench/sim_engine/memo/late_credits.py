"""Replay: credits that are under way when all kernels of a launch have ended. No kernel waits for them, but links carry
them, and slots of rings are not free before they arrive; between SIPs they are later than the answer that the host
gets. So a replayed launch is over without them, and they are sent then, as of their recorded times.

That holds where they take the times that they took without all that was under way before them: whether they do, hop by
hop, is tried out on the private machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from simpy.core import EmptySchedule

from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Communicator, Credit
from kernbench.common.messages import KernelLaunchMsg
from kernbench.components.base import Initiator, MemoryPort, OnArrival, OnLeft, Packet
from kernbench.components.builtin.dma_channel import Posted
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.components.builtin.pe_ipcq import PeIpcqComponent
from kernbench.sim_engine.fabric import Transfer
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.done_tally import DoneByKind
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.memory_ports import DirectPort, PacketPort

MANY = 1 << 12  # that are kept before those that have arrived are forgotten
RingName = tuple[PeKey, str]  # of the sender's side: PE and direction


class LateCredit(NamedTuple):
    """A credit for a sender: when it set out, counted from the launch's begin, and `by` whom, as `Credit` has it."""

    ring: RingName
    at_ns: float
    by: int


class SentCredit:
    """A credit on a private machine: how it was sent, and the legs of its way so far."""

    __slots__ = ("address", "at_ns", "legs", "port", "tag")

    def __init__(self, port: MemoryPort, address: int, at_ns: float, tag: Initiator) -> None:
        assert isinstance(tag, Posted)
        self.port, self.address, self.at_ns, self.tag = port, address, at_ns, tag
        self.legs: list[Transfer] = []

    @property
    def credit(self) -> Credit:
        assert isinstance(self.tag.payload, Credit)
        return self.tag.payload

    def sent_again(self, later_ns: float) -> SentCredit:
        """The same, so much later."""
        tag, port = self.tag, self.port
        assert isinstance(port, WatchedPort)
        return port.send_credit(tag.nbytes, self.address, self.at_ns + later_ns, tag)

    @property
    def is_there(self) -> bool:
        end = self.port.path[-1]
        return any(leg.route.path[-1] == end and leg.done_ns < INFINITY for leg in self.legs)

    @property
    def carried(self) -> list[Transfer]:
        """Its legs but those of the acknowledgement, which carries no bytes."""
        return [leg for leg in self.legs if leg.flits]

    def times(self) -> list[float]:
        """From when it was sent: of each leg at every hop, and at the end."""
        found: list[float] = []
        for leg in self.carried:
            found += [time - self.at_ns for hop in leg.times or () for time in hop]
            found.append(leg.done_ns - self.at_ns)
        return found


class SentCredits:
    """The credits that were sent on a private machine and may be under way, while `are_watched`."""

    def __init__(self) -> None:
        self.are_watched = False
        self._sent: list[SentCredit] = []

    def note(self, port: MemoryPort, address: int, at_ns: float, tag: Initiator) -> SentCredit:
        if len(self._sent) >= MANY:
            self._sent = self.under_way()
        self._sent.append(SentCredit(port, address, at_ns, tag))
        return self._sent[-1]

    def under_way(self) -> list[SentCredit]:
        return [credit for credit in self._sent if not credit.is_there]

    def watched(self, port: MemoryPort) -> MemoryPort:
        """A port that does the same, and notes credits."""
        if type(port) is DirectPort:
            return WatchedDirectPort(port, self)
        return WatchedPacketPort(port, self) if type(port) is PacketPort else port


class WatchedPort(ABC):
    """Notes credits, and does all else as the port that it is too."""

    __slots__ = ()
    _credits: SentCredits

    def write(
        self,
        nbytes: int,
        address: int,
        at_ns: float,
        done: OnArrival | None,
        tag: Initiator,
        payload: object = None,
        on_left: OnLeft | None = None,
    ) -> None:
        if isinstance(payload, Credit) and self._credits.are_watched:
            self.send_credit(nbytes, address, at_ns, tag, on_left)
        else:
            super().write(nbytes, address, at_ns, done, tag, payload, on_left)  # type: ignore[misc]  # the port's own

    @abstractmethod
    def send_credit(
        self, nbytes: int, address: int, at_ns: float, tag: Initiator, on_left: OnLeft | None = None
    ) -> SentCredit:
        """Send one, and note its way."""


class WatchedDirectPort(WatchedPort, DirectPort):
    """By the fabric alone."""

    __slots__ = ("_credits",)

    def __init__(self, port: DirectPort, credits: SentCredits) -> None:
        super().__init__(port._machine, port.path, port.burst_bytes)
        self._credits = credits

    def send_credit(
        self, nbytes: int, address: int, at_ns: float, tag: Initiator, on_left: OnLeft | None = None
    ) -> SentCredit:
        sent, seq = self._credits.note(self, address, at_ns, tag), next(self._sequence)

        def arrived(_: Transfer) -> None:
            self._machine.listeners.notify(self.path[-1], address, nbytes, sent.credit)

        leg = self._fabric.inject(self._there, nbytes, at_ns, on_done=arrived, on_left=on_left, trace=True, seq=seq)
        sent.legs.append(leg)
        return sent


class WatchedPacketPort(WatchedPort, PacketPort):
    """By packets."""

    __slots__ = ("_credits",)

    def __init__(self, port: PacketPort, credits: SentCredits) -> None:
        super().__init__(port._machine, port.path, port.burst_bytes)
        self._credits = credits

    def send_credit(
        self, nbytes: int, address: int, at_ns: float, tag: Initiator, on_left: OnLeft | None = None
    ) -> SentCredit:
        sent = self._credits.note(self, address, at_ns, tag)
        packet = Packet(
            tag.request, self.path, nbytes, address=address, payload=sent.credit, on_left=on_left, legs=sent.legs
        )
        self._send(packet, at_ns, None, tag)
        return sent


# ---- on the private machine


class LateCredits(NamedTuple):
    """Credits that were under way, in the order in which they set out, and the transfers that they were."""

    credits: list[LateCredit]
    carried: list[Transfer]

    def without(self, done: DoneByKind) -> DoneByKind:
        """What was done but for them."""
        own = Counter(leg.last_flit for leg in self.carried)
        flits = Counter[object]()
        for leg in self.carried:
            flits[leg.last_flit] += leg.last
        return {kind: (whole - flits[kind], count - own[kind]) for kind, (whole, count) in done.items()}


def late_credits(
    private: Machine, credits: Sequence[SentCredit], words: Mapping[int, RingName], begin_ns: float
) -> LateCredits | None:
    """Credits that were under way on a machine that is idle again; None where they do not take the same times without
    what was there before them. `words` says whose ring an address is of.
    """
    credits = sorted(credits, key=lambda credit: credit.at_ns)
    carried = [leg for credit in credits for leg in credit.carried]
    if any(leg.last for leg in carried):  # several flits: not all of their times are known
        return None
    took = [credit.times() for credit in credits]
    later_ns = private.env.now - credits[0].at_ns
    again = [credit.sent_again(later_ns) for credit in credits]
    with suppress(EmptySchedule):
        while True:
            private.env.step()
    if took != [credit.times() for credit in again]:
        return None
    late = [LateCredit(words[credit.tag.pa], credit.at_ns - begin_ns, credit.credit.by) for credit in credits]
    return LateCredits(late, carried)


def credit_words(private: Machine, keys: Sequence[PeKey], communicator: Communicator) -> dict[int, RingName]:
    """Whose ring an address is of that credits are sent to."""
    found: dict[int, RingName] = {}
    for key in keys:
        queue = _queue_so_far(private, key)
        if queue is not None:
            found |= {word: (key, direction) for direction, word in queue.credit_words(communicator)}
    return found


# ---- on the machine


def send_late(
    machine: Machine, communicator: Communicator, launches: Mapping[int, KernelLaunchMsg], late: Sequence[LateCredit]
) -> None:
    """Let credits be under way that set out before, at times of the machine, on links that have been idle since then.
    `launches` are those that sent them, by SIP.
    """
    if not late:
        return
    taken: dict[RingName, int] = {}
    words: dict[RingName, int] = {}
    for ring, chunks in Counter(credit.ring for credit in late).items():
        key, direction = ring
        queue = machine.component(machine.resolver.find_pe_part(*key, "pe_ipcq"))
        assert isinstance(queue, PeIpcqComponent)
        words[ring], taken[ring] = queue.sent_before(communicator, direction, chunks)
    sends: list[Callable[[], object]] = []
    for ring, at_ns, by in late:
        taken[ring] += 1
        peer = communicator.peer_of(*ring)
        assert peer is not None
        dma = machine.component(machine.resolver.find_pe_part(*peer.pe, "pe_dma"))
        assert isinstance(dma, PeDmaComponent)
        credit = Credit(taken[ring], launches[peer.pe[0]], communicator, by)
        (port, address), nbytes = dma.locate(words[ring]), communicator.config.credit_bytes
        posted = Posted(words[ring], nbytes, credit, None)
        sends.append(partial(port.write, nbytes, address, at_ns, None, posted, credit))
    machine.env.rewind(min(credit.at_ns for credit in late), lambda: [send() for send in sends])


def awaits_credits(machine: Machine, keys: Iterable[PeKey], communicator: Communicator) -> bool:
    """Whether a credit is under way to one of these PEs."""
    queues = (_queue_so_far(machine, key) for key in keys)
    return any(queue is not None and queue.awaits_credits(communicator) for queue in queues)


def _queue_so_far(machine: Machine, key: PeKey) -> PeIpcqComponent | None:
    found = machine.component_so_far(machine.resolver.find_pe_part(*key, "pe_ipcq"))
    return found if isinstance(found, PeIpcqComponent) else None
