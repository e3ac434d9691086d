"""Rings of one PE, as PE_IPCQ uses them: created when a direction is first used, released where TCM has no more room.

A ring has two sides on two PEs: the receiver's side has the slots, the sender's side a word for credits. Setting a ring
up takes no simulated time. Sending and receiving through rings is modelled in pe_ipcq.py.
"""

from __future__ import annotations

from functools import partial

from kernbench.common.blocked import RingPointers
from kernbench.common.declared_state import idle
from kernbench.common.errors import AllocationError, KernelError, StoppedMessagesError
from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Communicator, Peer
from kernbench.common.messages import KernelLaunchMsg
from kernbench.components.builtin.ipcq_rings import RingUser, RxRing, TxRing

RingKey = tuple[Communicator, str]  # and the direction


class RingTable:
    """Both sides of a PE's rings, by communicator and direction."""

    STATE = (idle("tx"), idle("rx"), idle("_idle_tx"))
    DERIVED = ("_user", "_watched")

    __slots__ = ("_idle_tx", "_user", "_watched", "rx", "tx")

    def __init__(self, user: RingUser) -> None:
        self._user = user
        self.tx: dict[RingKey, TxRing] = {}
        self.rx: dict[RingKey, RxRing] = {}
        self._idle_tx: dict[RingKey, TxRing] = {}  # whose ring at the other end is released
        self._watched: dict[Communicator, None] = {}  # whose close this table is subscribed to

    # ---- peers

    def communicator(self, launch: KernelLaunchMsg) -> Communicator:
        """The communicator of a launch; raises KernelError for one that does not exist or has failed."""
        found = self._user.ctx.communicators.get(launch.communicator)
        if found is None:
            raise KernelError(
                f"no communicator '{launch.communicator}' on this machine, so the kernel has no neighbours",
                hint="call torch.distributed.init_process_group('ahbm') or torch.install_ipcq() before the launch",
            )
        if found.failure is not None:
            raise StoppedMessagesError(
                f"communicator '{found.name}' cannot be used any more: {found.failure}",
                hint="install it again with torch.install_ipcq(), or initialise the process group again",
            )
        return found

    def peer(self, communicator: Communicator, direction: str) -> Peer:
        """The neighbour in a direction; raises KernelError where there is none."""
        peer = communicator.peer_of(self._user.key, direction)
        if peer is None:
            here = ", ".join(communicator.directions_of(self._user.key)) or "none"
            raise KernelError(f"no neighbour '{direction}' of {self._user.pe}", hint=f"its directions are: {here}")
        return peer

    def senders(self, communicator: Communicator) -> list[TxRing]:
        """The sender's sides of a communicator, including those without a ring at the other end."""
        return [ring for rings in (self.tx, self._idle_tx) for key, ring in rings.items() if key[0] is communicator]

    def pointers(self, communicator: Communicator) -> tuple[RingPointers, ...]:
        """The state of all rings of a communicator at this PE."""
        n_slots = communicator.config.n_slots
        found = [
            RingPointers(ring.direction, "tx", ring.sent, ring.taken, n_slots - ring.occupancy)
            for ring in self.senders(communicator)
        ]
        return (
            *found,
            *(
                RingPointers(ring.direction, "rx", ring.taken + len(ring.arrived), ring.taken, len(ring.arrived))
                for (whose, _), ring in self.rx.items()
                if whose is communicator
            ),
        )

    # ---- creation

    def tx_ring(self, communicator: Communicator, direction: str) -> TxRing:
        """The sender's side of a direction, with a ring at the other end."""
        ring = self.tx.get((communicator, direction))
        if ring is None:
            peer, back = self.peer(communicator, direction)
            ring = self._idle_tx.pop((communicator, direction), None) or self._new_tx_ring(
                communicator, direction, peer
            )
            ring.there = self._user.queue_of(peer).connect(communicator, back, ring.word, ring.sent)
            ring.path = self._user.dma.locate(ring.there)[0].path
            self.tx[communicator, direction] = ring
        return ring

    def _new_tx_ring(self, communicator: Communicator, direction: str, peer: PeKey) -> TxRing:
        """The sender's side of a direction, with its credit word."""
        word = communicator.allocate(self._user.key, communicator.config.credit_bytes, "tcm", True)
        self._watch(communicator)
        return TxRing(self._user, communicator, direction, peer, word)

    def connect(self, communicator: Communicator, direction: str, credit_to: int, sent: int) -> int:
        """Connect a sender that has sent `sent` chunks to this PE's ring; returns the address of the ring."""
        ring = self.rx_ring(communicator, direction)
        ring.credit_to, ring.taken = credit_to, sent
        return ring.base

    def rx_ring(self, communicator: Communicator, direction: str) -> RxRing:
        """The receiver's side of a direction."""
        ring = self.rx.get((communicator, direction))
        if ring is None:
            peer = self.peer(communicator, direction)
            base = self._allocate_ring(communicator)
            ring = self.rx[communicator, direction] = RxRing(self._user, communicator, direction, peer.pe, base)
            self._watch(communicator)
        return ring

    def _watch(self, communicator: Communicator) -> None:
        if communicator not in self._watched:
            self._watched[communicator] = None
            communicator.on_close.append(partial(self._forget, communicator))

    def _allocate_ring(self, communicator: Communicator) -> int:
        """Memory for a ring. Where TCM is full, idle rings are released; they are created again at their next use. Only
        when none is left, a short ring takes the room of long ones.
        """
        config, key = communicator.config, self._user.key
        while True:
            try:
                return communicator.allocate(key, config.ring_bytes, config.buffer_kind, False)
            except AllocationError:
                if config.buffer_kind != "tcm" or not any(map(self._release, list(self.rx.values()))):
                    return communicator.allocate(key, config.ring_bytes, config.buffer_kind, True)

    # ---- release

    def _release(self, ring: RxRing) -> bool:
        """Release a ring, if it is empty, no chunk is in flight to it and no receive waits on it; returns whether it
        was released.

        The sender keeps its side and its credit word for when the ring is created again: a credit may still be in
        flight to that word.
        """
        communicator, direction = ring.communicator, ring.direction
        if communicator.config.buffer_kind != "tcm" or ring.op is not None or ring.arrived:
            return False
        if self._user.has_receive(communicator, direction):
            return False
        back = self.peer(communicator, direction).direction
        if not self._user.queue_of(ring.peer).disconnect(communicator, back, ring.taken):
            return False
        del self.rx[communicator, direction]
        ring.stop_listening()
        communicator.free(ring.base)
        return True

    def disconnect(self, communicator: Communicator, direction: str, taken: int) -> bool:
        """Release the ring that this PE sends to, if all chunks sent are taken; returns whether it was released."""
        ring = self.tx.get((communicator, direction))
        if ring is None:
            return True
        if ring.sent != taken or self._user.is_sending(ring):
            return False
        self._idle_tx[communicator, direction] = self.tx.pop((communicator, direction))
        return True

    def _forget(self, communicator: Communicator) -> None:
        for rings in (self.tx, self._idle_tx, self.rx):
            for key in [key for key in rings if key[0] is communicator]:
                rings.pop(key).stop_listening()
        self._watched.pop(communicator, None)
        self._user.closed(communicator)
