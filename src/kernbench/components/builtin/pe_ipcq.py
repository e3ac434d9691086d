"""PE_IPCQ: messages between PEs, through rings of slots in the receiver's memory.

A send is cut into chunks of one slot each. A chunk leaves, on the communication channel of PE_DMA, when its slot is
free: the sender counts what it has sent, and credits tell it what was taken out. Writes are posted: nobody waits for
their acknowledgement, and the send is over when its last byte has left the PE. Bytes and metadata arrive together at
the slot's address, which says which ring it is. There the slot's memory is paid (bytes / bandwidth + latency), and for
SRAM and HBM the trip of the notice from the memory to the PE. Receiving pays the slot again, for SRAM and HBM as a read
over the fabric, and then sends a credit: a small message to a word in the sender's TCM, which takes the receiver's
communication channel. Receives of one direction are served in the order of asking.

A PE that has to wait, for a credit or for a message, either sleeps, and pays `wake_ns` when it comes, or polls every
`poll_ns` from the start of the wait. Not modelled: contention for TCM ports between slots and engines, and the time to
set up rings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from math import ceil, inf
from typing import NamedTuple

from kernbench.common.commands import IpcqCommand, RecvCmd, SendCmd
from kernbench.common.engine_declaration import RATE_PER_NS, TIME_NS, Attribute, EngineDeclaration
from kernbench.common.errors import KernelError, RingWait
from kernbench.common.ids import PeId
from kernbench.common.ipcq import BUFFER_KINDS, BufferKind, Chunk, Communicator, Credit, Message, PeKey, Unreceived
from kernbench.common.messages import KernelLaunchMsg, RequestId
from kernbench.common.units import on_grid
from kernbench.components.base import Context, Landed
from kernbench.components.builtin.interfaces import MESSAGE_MOVER, MESSAGE_QUEUE, MessageMover, MessageQueue
from kernbench.components.builtin.pipeline import PeEngine
from kernbench.components.recording import NOBODY, FieldValue, Release, op_ref
from kernbench.topology.graph import Node
from kernbench.triton_emu.kernel_runner import Done

OP_KIND = "communication"


class SlotTier(NamedTuple):
    """One kind of memory that slots lie in."""

    gbs: float
    latency_ns: float

    def access_ns(self, nbytes: int) -> float:
        """How long it takes to write or to read a slot."""
        return on_grid(nbytes / self.gbs + self.latency_ns)


def noticed_ns(backpressure: str, since_ns: float, now_ns: float, wake_ns: float, poll_ns: float) -> float:
    """When a PE that waits since `since_ns` sees what happens at `now_ns`."""
    if backpressure == "sleep":
        return now_ns + wake_ns
    return since_ns + ceil((now_ns - since_ns) / poll_ns) * poll_ns


class _Op:
    """A command under way here."""

    __slots__ = ("asked_ns", "cause", "done", "is_cancelled", "launch", "start_ns", "waited", "waits_since_ns")

    def __init__(self, launch: KernelLaunchMsg, done: Done, asked_ns: float, cause: tuple[Release, int]) -> None:
        self.launch = launch
        self.done = done
        self.asked_ns = asked_ns
        self.cause = cause
        self.start_ns: float | None = None  # its first chunk moves
        self.waits_since_ns: float | None = None
        self.waited: tuple[float, ...] = ()  # what let it start, if it waited; see `recording.Causes`
        self.is_cancelled = False


class SendOp(_Op):
    """A send: `sizes` are what is left to be posted, `in_pe` the chunks that have not left yet."""

    __slots__ = ("cmd", "in_pe", "index", "sizes")

    def __init__(
        self, cmd: SendCmd, launch: KernelLaunchMsg, done: Done, asked_ns: float, cause: tuple[Release, int]
    ) -> None:
        super().__init__(launch, done, asked_ns, cause)
        self.cmd = cmd
        self.index = 0
        self.sizes: deque[int] = deque()
        self.in_pe = 0


class RecvOp(_Op):
    """A receive, and its message once the first of that is here."""

    __slots__ = ("cmd", "message")

    def __init__(
        self, cmd: RecvCmd, launch: KernelLaunchMsg, done: Done, asked_ns: float, cause: tuple[Release, int]
    ) -> None:
        super().__init__(launch, done, asked_ns, cause)
        self.cmd = cmd
        self.message: Message | None = None


class TxRing:
    """The sender's side of a direction: what it knows of the ring at the other end."""

    __slots__ = ("communicator", "direction", "is_waking", "ops", "peer", "sent", "stalled_since_ns", "taken", "there")

    def __init__(self, communicator: Communicator, direction: str, peer: PeKey, there: int) -> None:
        self.communicator = communicator
        self.direction = direction
        self.peer = peer
        self.there = there  # address of the ring
        self.sent = 0  # chunks so far
        self.taken = 0  # of those, as credits say
        self.ops: deque[SendOp] = deque()  # with chunks to post
        self.stalled_since_ns: float | None = None  # for want of a credit
        self.is_waking = False

    @property
    def occupancy(self) -> int:
        return self.sent - self.taken


class RxRing:
    """The receiver's side of a direction: the slots themselves."""

    __slots__ = ("arrived", "base", "communicator", "credit_to", "direction", "is_reading", "op", "peer", "taken")

    def __init__(self, communicator: Communicator, direction: str, peer: PeKey, base: int) -> None:
        self.communicator = communicator
        self.direction = direction
        self.peer = peer
        self.base = base
        self.credit_to: int | None = None  # address of the sender's credit word, once it has one
        self.arrived: dict[int, tuple[Chunk, float]] = {}  # by number; and since when
        self.taken = 0  # chunks so far: the number of the next
        self.op: RecvOp | None = None  # that its chunks go to
        self.is_reading = False

    def left(self, receiver: PeKey) -> list[Unreceived]:
        """The messages of which no part was taken."""
        chunks = [self.arrived[number][0] for number in sorted(self.arrived)]
        return [Unreceived(receiver, self.direction, chunk.message) for chunk in chunks if not chunk.part]

    @property
    def head_since_ns(self) -> float:
        """Since when the next chunk is here; never, if it is not."""
        return self.arrived[self.taken][1] if self.taken in self.arrived else inf


class PeIpcqComponent(PeEngine):
    """Takes sends and receives from PE_CPU."""

    declaration = EngineDeclaration(
        {
            **{f"{kind}_gbs": RATE_PER_NS for kind in BUFFER_KINDS},
            **{f"{kind}_ns": TIME_NS for kind in BUFFER_KINDS},
            "wake_ns": TIME_NS,
            "poll_ns": Attribute(0.001, 1e6),
        },
        role="data mover",
    )

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        attrs = node.attrs
        self.key: PeKey = (self.pe.sip, self.pe.cube, self.pe.pe)
        self._tiers: dict[BufferKind, SlotTier] = {
            kind: SlotTier(float(attrs[f"{kind}_gbs"]), float(attrs[f"{kind}_ns"])) for kind in BUFFER_KINDS
        }
        self._wake_ns, self._poll_ns = on_grid(float(attrs["wake_ns"])), on_grid(float(attrs["poll_ns"]))
        self._tx: dict[tuple[Communicator, str], TxRing] = {}
        self._rx: dict[tuple[Communicator, str], RxRing] = {}
        self._posted: dict[Communicator, list[RecvOp]] = {}  # receives without a message, in the order of asking
        self._users: dict[RequestId, Communicator] = {}  # launches that have asked for something here
        self._orphans: list[_Op] = []  # of communicators that are no more, until their launches are stopped
        self._read_free_ns = 0.0  # slots in TCM are read one after the other

    @cached_property
    def _dma(self) -> MessageMover:
        return self.sibling(self.pe.part("pe_dma"), MESSAGE_MOVER)

    # ---- what PE_CPU asks for

    def submit(self, cmd: IpcqCommand, launch: KernelLaunchMsg, done: Done, after: int | None) -> None:
        """Take a command; `done` is called when it is over. Raises KernelError for a direction that leads nowhere."""
        communicator = self._communicator(launch)
        cause = (Release.LAUNCH, NOBODY) if after is None else (Release.PROGRAM, op_ref(after))
        start_ns = self.env.now + self.overhead_ns
        if isinstance(cmd, SendCmd):
            if after is not None and after in cmd.deps:
                cause = (Release.DATA, op_ref(after))
            ring = self._tx_ring(communicator, cmd.direction)
            send = SendOp(cmd, launch, done, self.env.now, cause)
            self._cut(send, communicator)
            self._users[launch.id] = communicator
            self.ctx.at(start_ns, lambda op: self._begin_send(ring, op), send)
            return
        if cmd.direction is not None:
            self._rx_ring(communicator, cmd.direction)
        self._users[launch.id] = communicator
        self.ctx.at(start_ns, lambda op: self._post(communicator, op), RecvOp(cmd, launch, done, self.env.now, cause))

    def cancel(self, launch: KernelLaunchMsg) -> None:
        """The kernel of a launch has failed or is aborted: what it asked for and did not get is over.

        Its communicator cannot be used any more if it sent or received anything, since nobody knows what its rings
        should hold.
        """
        communicator = self._users.pop(launch.id, None)
        if communicator is None:
            return
        if communicator.failure is None:
            communicator.failure = f"kernel '{launch.kernel_ref.name}' ended on {self.pe} before its end"
        left = [op for op in self._orphans if op.launch.id == launch.id]
        self._orphans = [op for op in self._orphans if op.launch.id != launch.id]
        for op in (*left, *self._ops_of(launch.id, communicator)):
            op.is_cancelled = True
            op.done(())
        for ring in self._tx.values():
            ring.ops = deque(op for op in ring.ops if not op.is_cancelled)
        self._posted[communicator] = [op for op in self._posted.get(communicator, []) if not op.is_cancelled]

    def finished(self, launch: KernelLaunchMsg) -> None:
        """The kernel of a launch has ended as it should."""
        self._users.pop(launch.id, None)

    def describe(self, cmd: IpcqCommand, launch: KernelLaunchMsg) -> tuple[RingWait, ...]:
        """What a command waits for, for the report of a deadlock."""
        communicator = self._communicator(launch)
        n_slots = communicator.config.n_slots
        if isinstance(cmd, SendCmd):
            ring = self._tx_ring(communicator, cmd.direction)
            return (RingWait("send", ring.direction, ring.peer, ring.occupancy, n_slots),)
        if cmd.direction is not None:
            rings = [self._rx_ring(communicator, cmd.direction)]
        else:
            rings = [self._rx_ring(communicator, name) for name in communicator.directions_of(self.key)]
        return tuple(RingWait("recv", ring.direction, ring.peer, len(ring.arrived), n_slots) for ring in rings)

    def _ops_of(self, launch_id: RequestId, communicator: Communicator) -> Iterator[_Op]:
        for tx in self._tx.values():
            yield from (op for op in tx.ops if op.launch.id == launch_id)
        for rx in self._rx.values():
            if rx.op is not None and rx.op.launch.id == launch_id and not rx.op.is_cancelled:
                yield rx.op
        yield from (op for op in self._posted.get(communicator, []) if op.launch.id == launch_id)

    def _is_over(self, op: _Op) -> bool:
        """Whether the launch of a command that is about to begin was stopped in the meantime."""
        if op.launch.id in self._users:
            return False
        op.is_cancelled = True
        op.done(())
        return True

    # ---- rings

    def _communicator(self, launch: KernelLaunchMsg) -> Communicator:
        found = self.ctx.communicators.get(launch.communicator)
        if found is None:
            raise KernelError(
                f"no communicator '{launch.communicator}' on this machine, so there is nobody to send to",
                hint="call torch.distributed.init_process_group('ahbm') or torch.install_ipcq() before the launch",
            )
        if found.failure is not None:
            raise KernelError(
                f"communicator '{found.name}' cannot be used any more: {found.failure}",
                hint="install it again with torch.install_ipcq(), or initialise the process group again",
            )
        return found

    def _peer(self, communicator: Communicator, direction: str) -> tuple[PeKey, str]:
        peer = communicator.peer_of(self.key, direction)
        if peer is None:
            here = ", ".join(communicator.directions_of(self.key)) or "none"
            raise KernelError(f"no neighbour '{direction}' of {self.pe}", hint=f"its directions are: {here}")
        return peer

    def _tx_ring(self, communicator: Communicator, direction: str) -> TxRing:
        ring = self._tx.get((communicator, direction))
        if ring is None:
            peer, back = self._peer(communicator, direction)
            receiver: MessageQueue = self.sibling(PeId(*peer).part("pe_ipcq"), MESSAGE_QUEUE)
            credit_bytes = communicator.config.credit_bytes
            word = communicator.allocate(self.key, credit_bytes, "tcm")
            ring = TxRing(communicator, direction, peer, receiver.connect(communicator, back, word))
            self._tx[communicator, direction] = ring
            heard = ring

            def credited(landed: Landed) -> None:
                if isinstance(landed.payload, Credit):
                    self._credit(heard, landed.payload)

            port, address = self._dma.locate(word)
            communicator.on_close.append(self.ctx.listen(port.path[-1], address, credit_bytes, credited))
            communicator.on_close.append(lambda: self._forget(communicator))
        return ring

    def connect(self, communicator: Communicator, direction: str, credit_to: int) -> int:
        """The sender's side of a ring here is made; returns where the ring lies."""
        ring = self._rx_ring(communicator, direction)
        ring.credit_to = credit_to
        return ring.base

    def _rx_ring(self, communicator: Communicator, direction: str) -> RxRing:
        ring = self._rx.get((communicator, direction))
        if ring is None:
            peer, _ = self._peer(communicator, direction)
            config = communicator.config
            base = communicator.allocate(self.key, config.ring_bytes, config.buffer_kind)
            ring = self._rx[communicator, direction] = RxRing(communicator, direction, peer, base)
            heard = ring

            def landed(write: Landed) -> None:
                if isinstance(write.payload, Chunk):
                    self._landed(heard, write.payload)

            port, address = self._dma.locate(base)
            communicator.on_close.append(self.ctx.listen(port.path[-1], address, config.ring_bytes, landed))
            communicator.on_close.append(lambda: self._forget(communicator))
            communicator.unreceived.append(lambda: heard.left(self.key))
        return ring

    def _forget(self, communicator: Communicator) -> None:
        """Its rings are no more; what launches that are being stopped have asked for stays until they are."""
        for launch_id in [each for each, used in self._users.items() if used is communicator]:
            self._orphans += list(self._ops_of(launch_id, communicator))
        for rings in (self._tx, self._rx):
            for key in [key for key in rings if key[0] is communicator]:
                rings.pop(key)
        self._posted.pop(communicator, None)

    # ---- sending

    def _cut(self, op: SendOp, communicator: Communicator) -> None:
        """A message as chunks that fit a slot; an empty one is as long as a credit."""
        config, message = communicator.config, op.cmd.message
        message.wire_bytes = message.nbytes or config.credit_bytes
        whole, rest = divmod(message.wire_bytes, config.slot_size)
        op.sizes.extend([config.slot_size] * whole + ([rest] if rest else []))
        message.chunks = op.in_pe = len(op.sizes)

    def _begin_send(self, ring: TxRing, op: SendOp) -> None:
        if self._is_over(op):
            return
        ring.ops.append(op)
        if len(ring.ops) == 1:
            self._pump(ring)

    def _pump(self, ring: TxRing) -> None:
        """Post chunks as long as there are free slots."""
        config, now = ring.communicator.config, self.env.now
        while ring.ops:
            op = ring.ops[0]
            if ring.occupancy >= config.n_slots:
                ring.stalled_since_ns = now
                return
            if op.start_ns is None:
                op.start_ns = now
                if ring.stalled_since_ns is not None:
                    op.waited = (0, Release.CREDIT, max(ring.stalled_since_ns, op.asked_ns), NOBODY)
            ring.stalled_since_ns = None
            nbytes = op.sizes.popleft()
            chunk = Chunk(op.cmd.message, op.index, nbytes, ring.sent, op.launch)
            slot = ring.there + ring.sent % config.n_slots * config.slot_size
            op.index += 1
            ring.sent += 1
            if not op.sizes:
                ring.ops.popleft()
            self._dma.post(slot, nbytes, chunk, lambda op=op: self._left(ring, op))  # type: ignore[misc]

    def _left(self, ring: TxRing, op: SendOp) -> None:
        """The last byte of a chunk has left the PE."""
        op.in_pe -= 1
        if op.in_pe or op.is_cancelled:
            return
        log, message = self.ctx.log, op.cmd.message
        if log is None:
            op.done(())
            return
        assert op.start_ns is not None
        params: dict[str, FieldValue] = {
            "direction": ring.direction,
            "peer": str(PeId(*ring.peer)),
            "nbytes": message.nbytes,
            "shape": message.shape,
            "dtype": message.dtype,
            "chunks": message.chunks,
            "src_addr": op.cmd.source.address,
            "communicator": ring.communicator.name,
            "handle_id": op.cmd.handle_id,
        }
        causes = (0, op.cause[0], op.asked_ns, op.cause[1], *op.waited)
        record = log.record(
            op.start_ns,
            self.env.now,
            self.node.id,
            OP_KIND,
            "ipcq_send",
            params,
            op.cmd.deps,
            causes=causes,
            stream=op.launch.stream,
        )
        message.record = record
        op.done((record,))

    def _credit(self, ring: TxRing, credit: Credit) -> None:
        """A credit is in: the sender, if it waits for one, goes on when it has noticed."""
        ring.taken = max(ring.taken, credit.taken)
        if ring.stalled_since_ns is None or ring.is_waking:
            return
        ring.is_waking = True
        self.ctx.at(self._noticed_ns(ring.communicator, ring.stalled_since_ns), self._woken, ring)

    def _woken(self, ring: TxRing) -> None:
        ring.is_waking = False
        self._pump(ring)

    # ---- receiving

    def _landed(self, ring: RxRing, chunk: Chunk) -> None:
        """A chunk is at the memory of its slot: there it is written, and then this PE has notice."""
        config = ring.communicator.config
        seen_ns = self.env.now + self._tiers[config.buffer_kind].access_ns(chunk.nbytes)
        if config.buffer_kind != "tcm":
            port, _ = self._dma.locate(ring.base)
            seen_ns += self.ctx.latency_ns(port.path[::-1])
        self.ctx.at(seen_ns, lambda chunk: self._arrived(ring, chunk), chunk)

    def _arrived(self, ring: RxRing, chunk: Chunk) -> None:
        ring.arrived[chunk.number] = (chunk, self.env.now)
        if chunk.number == ring.taken:
            self._advance(ring)

    def _post(self, communicator: Communicator, op: RecvOp) -> None:
        """A receive is asked for: its message may be here already."""
        if self._is_over(op):
            return
        op.waits_since_ns = self.env.now
        self._posted.setdefault(communicator, []).append(op)
        if op.cmd.direction is not None:
            self._advance(self._rx_ring(communicator, op.cmd.direction))
            return
        here = [ring for ring in self._rx.values() if ring.communicator is communicator and ring.op is None]
        for ring in sorted(here, key=lambda ring: ring.head_since_ns):
            if op.message is None:
                self._advance(ring)

    def _advance(self, ring: RxRing) -> None:
        """Go on with the next chunk of a ring, if it is here and somebody wants it."""
        if ring.is_reading or ring.taken not in ring.arrived:
            return
        chunk, _ = ring.arrived[ring.taken]
        op = ring.op
        if op is None:
            op = self._receiver_of(ring)
            if op is None:
                return
            ring.op, op.message = op, chunk.message
        assert op.waits_since_ns is not None
        at_ns = self.env.now
        if op.waits_since_ns < at_ns:
            if op.start_ns is None:
                op.waited = (0, Release.MESSAGE, op.waits_since_ns, self._sent_by(chunk.message))
            at_ns = self._noticed_ns(ring.communicator, op.waits_since_ns)
        ring.is_reading = True
        self.ctx.at(at_ns, lambda chunk: self._read(ring, chunk), chunk)

    def _receiver_of(self, ring: RxRing) -> RecvOp | None:
        """The first receive that takes what this ring has."""
        posted = self._posted.get(ring.communicator, [])
        for at, op in enumerate(posted):
            if op.cmd.direction in (None, ring.direction):
                return posted.pop(at)
        return None

    def _read(self, ring: RxRing, chunk: Chunk) -> None:
        """Take a chunk out of its slot."""
        op, config = ring.op, ring.communicator.config
        assert op is not None
        if op.start_ns is None:
            op.start_ns = self.env.now
        if not op.cmd.reads_slots:
            self._taken(ring, chunk)
            return
        access_ns = self._tiers[config.buffer_kind].access_ns(chunk.nbytes)
        if config.buffer_kind == "tcm":
            self._read_free_ns = max(self.env.now, self._read_free_ns) + access_ns
            self.ctx.at(self._read_free_ns, lambda chunk: self._taken(ring, chunk), chunk)
            return
        slot = ring.base + chunk.number % config.n_slots * config.slot_size

        def fetched() -> None:
            self.ctx.at(self.env.now + access_ns, lambda chunk: self._taken(ring, chunk), chunk)

        self._dma.fetch(slot, chunk.nbytes, op.launch, fetched)

    def _taken(self, ring: RxRing, chunk: Chunk) -> None:
        """A slot is free again: say so to the sender."""
        op, config = ring.op, ring.communicator.config
        assert op is not None
        assert ring.credit_to is not None
        ring.is_reading = False
        del ring.arrived[ring.taken]
        ring.taken += 1
        self._dma.post(ring.credit_to, config.credit_bytes, Credit(ring.taken, op.launch), None)
        op.waits_since_ns = self.env.now
        if chunk.is_last:
            ring.op = None
            self._received(ring, op)
        self._advance(ring)

    def _received(self, ring: RxRing, op: RecvOp) -> None:
        """All of a message is here."""
        message, log = op.message, self.ctx.log
        assert message is not None
        if op.is_cancelled:
            return
        op.cmd.received.append(message)
        if log is None:
            op.done(())
            return
        assert op.start_ns is not None
        params: dict[str, FieldValue] = {
            "direction": ring.direction,
            "peer": str(PeId(*ring.peer)),
            "nbytes": message.nbytes,
            "shape": message.shape,
            "dtype": message.dtype,
            "chunks": message.chunks,
            "communicator": ring.communicator.name,
            "handle_id": op.cmd.handle_id,
        }
        sent = () if message.record is None else (message.record,)
        causes = (0, op.cause[0], op.asked_ns, op.cause[1], *op.waited)
        record = log.record(
            op.start_ns,
            self.env.now,
            self.node.id,
            OP_KIND,
            "ipcq_recv",
            params,
            sent,
            causes=causes,
            stream=op.launch.stream,
        )
        op.done((record,))

    @staticmethod
    def _sent_by(message: Message) -> int:
        return NOBODY if message.record is None else op_ref(message.record)

    def _noticed_ns(self, communicator: Communicator, since_ns: float) -> float:
        mode = communicator.config.backpressure
        return noticed_ns(mode, since_ns, self.env.now, self._wake_ns, self._poll_ns)
