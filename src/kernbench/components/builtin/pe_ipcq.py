"""PE_IPCQ: messages between PEs, through rings of slots in the receiver's memory.

A send is cut into chunks of one slot each. A chunk leaves, on the communication channel of PE_DMA, when its slot is
free: the sender counts the chunks it has sent, and credits return the count of chunks taken out. Writes are posted:
their acknowledgement is not waited for, and a send ends when its last byte has left the PE, or, to another SIP, the
sender's SIP. Bytes and metadata arrive together at the slot's address, which identifies the ring. The write of the slot
is charged (bytes / bandwidth + latency), and for SRAM and HBM the latency of the notification from the memory to the
PE. A receive is charged for the slot again, for SRAM and HBM as a read over the fabric, and then sends a credit: a
control message to a word in the sender's TCM. With `credit: posted` the receive ends as its credit departs, with
`credit: blocking` when the credit has arrived. Receives of one direction are served in the order of issue.

A PE that waits for a credit or a message either sleeps, and pays `wake_ns` when it arrives, or polls every `poll_ns`
from the start of the wait. Not modelled: contention for TCM ports, among slots that are written and between slots and
engines; the time to set up and release rings, which happens while nothing of the ring is under way; and the delay of a
send's last byte by other requests on the DMA engine's link to the network: the message then arrives later, but the send
ends as if uncontended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TypeVar

from kernbench.common.blocked import RingWait
from kernbench.common.channel_traffic import ChannelTraffic
from kernbench.common.commands import IpcqCommand, SendCmd
from kernbench.common.declared_state import idle, instant, part
from kernbench.common.engine_declaration import RATE_PER_NS, TIME_NS, Attribute, EngineDeclaration
from kernbench.common.ids import PeId, PeKey
from kernbench.common.ipcq import BUFFER_KINDS, BufferKind, Chunk, Communicator, Credit, Peer
from kernbench.common.message_traffic import NO_MESSAGES, ByMemory, MessageCounter, MessageTraffic
from kernbench.common.messages import KernelFailure, KernelLaunchMsg, RequestId
from kernbench.common.units import on_grid
from kernbench.components.base import Context
from kernbench.components.builtin.interfaces import MESSAGE_MOVER, MESSAGE_QUEUE, MessageMover, MessageQueue
from kernbench.components.builtin.ipcq_log import record_receive, record_send
from kernbench.components.builtin.ipcq_rings import RecvOp, RxRing, SendOp, SlotTier, TxRing, User, noticed_ns
from kernbench.components.builtin.ipcq_setup import RingTable
from kernbench.components.builtin.ipcq_trace import print_slot, traces_messages
from kernbench.components.builtin.ipcq_waits import waits_of
from kernbench.components.builtin.pipeline import PeEngine
from kernbench.components.memory_port import Landed
from kernbench.components.recording import NO_REF, Release, op_ref
from kernbench.topology.graph import Node
from kernbench.triton_emu.kernel_runner import RecordsCallback

AnyOp = TypeVar("AnyOp", SendOp, RecvOp)


class PeIpcqComponent(PeEngine):
    """Takes sends and receives from PE_CPU."""

    declaration = EngineDeclaration(
        {
            **{f"{kind}_gbs": RATE_PER_NS for kind in BUFFER_KINDS},
            **{f"{kind}_ns": TIME_NS for kind in BUFFER_KINDS},
            "wake_ns": TIME_NS,
            "poll_ns": Attribute(0.001, 1e6),
            "credit": Attribute.choice("posted", "blocking"),
        },
        role="data mover",
    )

    STATE = (part("_rings"), idle("_posted"), idle("_users"), instant("_read_free_ns"))
    DERIVED = ("_tiers", "dma", "landed_late", "credit_observers")

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        attrs = node.attrs
        self.key: PeKey = (self.pe.sip, self.pe.cube, self.pe.pe)
        self._tiers: dict[BufferKind, SlotTier] = {
            kind: SlotTier(float(attrs[f"{kind}_gbs"]), float(attrs[f"{kind}_ns"])) for kind in BUFFER_KINDS
        }
        self._wake_ns, self._poll_ns = on_grid(float(attrs["wake_ns"])), on_grid(float(attrs["poll_ns"]))
        self._waits_for_credit = attrs.get("credit") == "blocking"
        self._traces = traces_messages()
        self._rings = RingTable(self)
        self._posted: dict[Communicator, list[RecvOp]] = {}  # receives without a message, in the order of issue
        self._users: dict[RequestId, User] = {}
        self._read_free_ns = 0.0  # slots in TCM are read one after the other
        self.landed_late: ByMemory = {}  # traffic to memories that landed after the sending kernel had ended
        self.credit_observers: list[Callable[[str, Credit], None]] = []  # of each that lands, with its direction

    # ---- called by PE_CPU

    def submit(
        self, cmd: IpcqCommand, launch: KernelLaunchMsg, done: RecordsCallback, after: int | None, started_ns: float
    ) -> None:
        """Take a command of a kernel that started at `started_ns`; `done` is called when it is over. Raises KernelError
        for a direction without a neighbour.
        """
        communicator = self._rings.communicator(launch)
        cause = (Release.LAUNCH, NO_REF) if after is None else (Release.PROGRAM, op_ref(after))
        if isinstance(cmd, SendCmd):
            if after is not None and after in cmd.deps:
                cause = (Release.DATA, op_ref(after))
            ring = self._rings.tx_ring(communicator, cmd.direction)
            send = SendOp(cmd, ring, self._user(launch, communicator, started_ns), done, self.env.now, cause)
            self._cut(send)
            send.user.ops[send] = None
            self._after_overhead(self._begin_send, send)
            return
        if cmd.direction is not None:
            self._rings.rx_ring(communicator, cmd.direction)
        receive = RecvOp(cmd, self._user(launch, communicator, started_ns), done, self.env.now, cause)
        receive.user.ops[receive] = None
        self._after_overhead(self._post, receive)

    def cancel(self, launch: KernelLaunchMsg, why: KernelFailure | None = None) -> None:
        """The kernel of a launch has failed or is aborted: cancel its unfinished commands.

        Its communicator cannot be used any more if it sent or received anything, since the contents of its rings are
        then undefined.
        """
        user = self._users.get(launch.id)
        if user is None:
            return
        self.finished(launch)
        communicator = user.communicator
        if communicator.failure is None:
            cause = "" if why is None else f": {why.kind}: {why.message}"
            communicator.failure = f"kernel '{launch.kernel_ref.name}' ended on {self.pe} before its end{cause}"
        for op in list(user.ops):
            if isinstance(op, RecvOp) or not op.is_posted:  # a send that is posted ends by itself
                op.is_cancelled = True
                del user.ops[op]
                op.done(())
        for ring in self._rings.tx.values():
            ring.ops = deque(op for op in ring.ops if not op.is_cancelled)
        self._posted[communicator] = [op for op in self._posted.get(communicator, []) if not op.is_cancelled]

    def finished(self, launch: KernelLaunchMsg) -> None:
        """The kernel of a launch has ended normally."""
        user = self._users.pop(launch.id, None)
        if user is not None:
            user.moved.is_over = True
            user.communicator.users -= 1

    def traffic_of(self, launch: KernelLaunchMsg) -> MessageTraffic:
        """The message traffic of a running kernel so far."""
        user = self._users.get(launch.id)
        return NO_MESSAGES if user is None else user.moved.traffic()

    def under_way_of(self, launch: KernelLaunchMsg) -> ByMemory:
        """What a running kernel has sent to HBM that has not landed yet."""
        user = self._users.get(launch.id)
        return {} if user is None else user.moved.under_way

    def describe(self, cmd: IpcqCommand, launch: KernelLaunchMsg) -> tuple[RingWait, ...]:
        """What a command waits for, for the report of a deadlock."""
        communicator = self.ctx.communicators.get(launch.communicator)
        if communicator is None:
            return ()
        return waits_of(self._rings, self.key, communicator, cmd, launch)

    def _user(self, launch: KernelLaunchMsg, communicator: Communicator, started_ns: float) -> User:
        user = self._users.get(launch.id)
        if user is None:
            user = self._users[launch.id] = User(launch, communicator, MessageCounter(started_ns, self.landed_late))
            communicator.users += 1
        return user

    def _after_overhead(self, action: Callable[[AnyOp], None], op: AnyOp) -> None:
        if self.overhead_ns:
            self.ctx.at(self.env.now + self.overhead_ns, action, op)
        else:
            action(op)

    # ---- rings

    @cached_property
    def dma(self) -> MessageMover:
        """The PE's DMA engine."""
        return self.sibling(self.pe.part("pe_dma"), MESSAGE_MOVER)

    def queue_of(self, pe: PeKey) -> MessageQueue:
        """The PE_IPCQ of another PE."""
        return self.sibling(PeId(*pe).part("pe_ipcq"), MESSAGE_QUEUE)

    def connect(self, communicator: Communicator, direction: str, credit_to: int, sent: int) -> int:
        """Connect a sender that has sent `sent` chunks to this PE's ring; returns the address of the ring."""
        return self._rings.connect(communicator, direction, credit_to, sent)

    def disconnect(self, communicator: Communicator, direction: str, taken: int) -> bool:
        """Release the ring that this PE sends to, if all chunks sent are taken; returns whether it was released."""
        return self._rings.disconnect(communicator, direction, taken)

    def has_receive(self, communicator: Communicator, direction: str) -> bool:
        """Whether a pending receive accepts messages of a direction."""
        return any(op.cmd.direction in (None, direction) for op in self._posted.get(communicator, ()))

    def is_sending(self, ring: TxRing) -> bool:
        """Whether a send to a ring is under way."""
        return any(isinstance(op, SendOp) and op.ring is ring for user in self._users.values() for op in user.ops)

    def used(self, communicator: Communicator) -> list[tuple[str, Peer]]:
        """The directions that messages have been sent to or received from, and the neighbours there."""
        rings = [*self._rings.tx, *self._rings.rx]
        used = dict.fromkeys(direction for whose, direction in rings if whose is communicator)
        return [(direction, self._rings.peer(communicator, direction)) for direction in used]

    def sent_to(self, communicator: Communicator) -> list[str]:
        """The directions that messages have been sent to."""
        return [ring.direction for ring in self._rings.senders(communicator)]

    def awaits_credits(self, communicator: Communicator) -> bool:
        """Whether chunks sent from here are not yet acknowledged by credits."""
        return any(ring.occupancy for ring in self._rings.senders(communicator))

    def make_ring(self, communicator: Communicator, direction: str) -> None:
        """Create the ring of a direction, as a send does; raises AllocationError where there is no room."""
        self._rings.tx_ring(communicator, direction)

    def expect_credits(self, communicator: Communicator, direction: str, late: Sequence[tuple[float, int]]) -> None:
        """Count chunks that replayed kernels sent in a direction and that were taken there; for each there is a credit
        under way: when it arrives, and by which receive.
        """
        ring = self._rings.tx_ring(communicator, direction)
        ring.sent += len(late)
        peer, back = self._rings.peer(communicator, direction)
        self.queue_of(peer).connect(communicator, back, ring.word, ring.sent)
        for taken, (at_ns, by) in enumerate(late, ring.taken + 1):
            self.ctx.at(at_ns, partial(self._credit, ring), Credit(taken, communicator, by))

    def closed(self, communicator: Communicator) -> None:
        """A communicator has been closed, and its rings with it."""
        self._posted.pop(communicator, None)

    # ---- sending

    def _cut(self, op: SendOp) -> None:
        """Cut a message into chunks that fit a slot; an empty one is as long as a credit."""
        config, message = op.ring.communicator.config, op.cmd.message
        message.wire_bytes = message.nbytes or config.credit_bytes
        message.chunks = op.unsent = -(-message.wire_bytes // config.slot_size)

    def _begin_send(self, op: SendOp) -> None:
        if op.is_cancelled:
            return
        ring = op.ring
        ring.communicator.unreceived[op.cmd.message] = None
        ring.ops.append(op)
        if len(ring.ops) == 1:
            self._pump(ring)

    def _pump(self, ring: TxRing) -> None:
        """Post chunks while there are free slots."""
        communicator, now = ring.communicator, self.env.now
        n_slots, slot_size = communicator.config.n_slots, communicator.config.slot_size
        while ring.ops:
            op = ring.ops[0]
            if ring.sent - ring.taken >= n_slots:
                ring.stalled_since_ns = now
                return
            if op.start_ns is None:
                op.start_ns = now
                if ring.stalled_since_ns is not None:
                    by = NO_REF if ring.credit is None else ring.credit.by
                    op.waited = (0, Release.CREDIT, max(ring.stalled_since_ns, op.issued_ns), by)
            ring.stalled_since_ns = None
            message = op.cmd.message
            nbytes = min(slot_size, message.wire_bytes - op.index * slot_size)
            user = op.user
            chunk = Chunk(message, op.index, nbytes, ring.sent, user.launch, communicator, ring.path, now, user.moved)
            user.moved.send(ring.path[-1], nbytes, self._to_channels(communicator, nbytes))
            slot = ring.there + ring.sent % n_slots * slot_size
            op.index += 1
            ring.sent += 1
            if op.is_posted:
                ring.ops.popleft()
            if self._traces:
                print_slot(now, "send", self.pe, ring, chunk.number, nbytes)
            self.dma.post(slot, nbytes, chunk, partial(self._left, op))

    def _to_channels(self, communicator: Communicator, nbytes: int) -> ChannelTraffic | None:
        """What a chunk writes to HBM, in whole bursts, or to SRAM or TCM; None where TCM is not counted."""
        spec, kind = self.ctx.graph.spec, communicator.config.buffer_kind
        if kind == "tcm" and spec.cube.home.space != "tcm":
            return None
        if kind != "hbm":
            return ChannelTraffic(nbytes, written_bytes=nbytes)
        flit_bytes = spec.system.flit_bytes
        return ChannelTraffic(-(-nbytes // flit_bytes) * flit_bytes, written_bytes=nbytes)

    def _left(self, op: SendOp) -> None:
        """The last byte of a chunk has left the PE, or the SIP."""
        op.unsent -= 1
        if op.unsent or op.is_cancelled:
            return
        del op.user.ops[op]
        log = self.ctx.log
        if log is None:
            op.done(())
            return
        op.cmd.message.record = record = record_send(log, self.node.id, self.env.now, op)
        op.done((record,))

    def credited(self, ring: TxRing, landed: Landed) -> None:
        """A credit has landed: a sender that waits for one resumes when it has noticed it."""
        credit = landed.payload
        if not isinstance(credit, Credit) or credit.communicator is not ring.communicator:
            return
        for observe in self.credit_observers:
            observe(ring.direction, credit)
        self._credit(ring, credit)

    def _credit(self, ring: TxRing, credit: Credit) -> None:
        """So many chunks of a ring are taken."""
        ring.taken, ring.credit = max(ring.taken, credit.taken), credit
        if self._traces:
            print_slot(self.env.now, "credit", self.pe, ring, credit.taken - 1)
        if ring.stalled_since_ns is None or ring.is_waking:
            return
        ring.is_waking = True
        self.ctx.at(self._noticed_ns(ring.communicator, ring.stalled_since_ns), self._woken, ring)

    def _woken(self, ring: TxRing) -> None:
        ring.is_waking = False
        self._pump(ring)

    # ---- receiving

    def landed(self, ring: RxRing, landed: Landed) -> None:
        """A chunk has reached the memory of its slot: write it there, then notify this PE."""
        chunk = landed.payload
        if isinstance(chunk, Chunk) and chunk.communicator is ring.communicator:
            chunk.sender.land(chunk.path, chunk.nbytes, self._to_channels(ring.communicator, chunk.nbytes))
            written_ns = self._tiers[ring.communicator.config.buffer_kind].access_ns(chunk.nbytes)
            self.ctx.at(self.env.now + written_ns + ring.notice_ns, ring.on_arrived, chunk)

    def arrived(self, ring: RxRing, chunk: Chunk) -> None:
        """A chunk is written to its slot."""
        ring.arrived[chunk.number] = (chunk, self.env.now)
        if chunk.number == ring.taken:
            self._advance(ring)

    def _post(self, op: RecvOp) -> None:
        """Queue a receive; its message may be here already."""
        if op.is_cancelled:
            return
        communicator = op.user.communicator
        op.posted_ns = self.env.now
        self._posted.setdefault(communicator, []).append(op)
        if op.cmd.direction is not None:
            self._advance(self._rings.rx_ring(communicator, op.cmd.direction))
            return
        here = [ring for ring in self._rings.rx.values() if ring.communicator is communicator and ring.op is None]
        for ring in sorted(here, key=lambda ring: ring.head_since_ns):
            if op.message is None:
                self._advance(ring)

    def _advance(self, ring: RxRing) -> None:
        """Start reading the next chunk of a ring, if it is here and a receive is pending for it."""
        head = ring.arrived.get(ring.taken)
        if ring.is_reading or head is None:
            return
        chunk, here_since_ns = head
        op = ring.op
        if op is None:
            op = self._receiver_of(ring)
            if op is None:
                return
            ring.op, op.message = op, chunk.message
            ring.communicator.unreceived.pop(chunk.message, None)
        at_ns = self.env.now
        since_ns = max(op.posted_ns, ring.idle_since_ns)  # from then on it waits for this chunk
        if here_since_ns > since_ns:
            if op.start_ns is None:
                op.waited = (since_ns,)
            at_ns = self._noticed_ns(ring.communicator, since_ns)
        ring.is_reading = True
        if at_ns == self.env.now and op.cmd.reads_slots:
            self._read(ring)
        else:
            self.ctx.at(at_ns, self._read, ring)

    def _receiver_of(self, ring: RxRing) -> RecvOp | None:
        """The first pending receive that accepts messages of this ring."""
        posted = self._posted.get(ring.communicator, [])
        for at, op in enumerate(posted):
            if op.cmd.direction in (None, ring.direction):
                return posted.pop(at)
        return None

    def _read(self, ring: RxRing) -> None:
        """Take a chunk out of its slot."""
        op, config, (chunk, _) = ring.op, ring.communicator.config, ring.arrived[ring.taken]
        assert op is not None
        if op.start_ns is None:
            op.start_ns = self.env.now
        if not op.cmd.reads_slots:
            self._taken(ring)
        elif config.buffer_kind == "tcm":
            self._read_free_ns = max(self.env.now, self._read_free_ns) + self._tiers["tcm"].access_ns(chunk.nbytes)
            self.ctx.at(self._read_free_ns, self._taken, ring)
        else:
            slot = ring.base + chunk.number % config.n_slots * config.slot_size
            self.dma.fetch(slot, chunk.nbytes, op.user.launch, ring.on_fetched)

    def fetched(self, ring: RxRing) -> None:
        """The bytes of a slot in SRAM or HBM have been read over the fabric; the access time of its tier is added."""
        chunk, _ = ring.arrived[ring.taken]
        access_ns = self._tiers[ring.communicator.config.buffer_kind].access_ns(chunk.nbytes)
        self.ctx.at(self.env.now + access_ns, self._taken, ring)

    def _taken(self, ring: RxRing) -> None:
        """A slot is free again: send a credit."""
        op, communicator = ring.op, ring.communicator
        assert op is not None
        assert ring.credit_to is not None
        ring.is_reading, ring.idle_since_ns = False, self.env.now
        chunk, _ = ring.arrived.pop(ring.taken)
        ring.taken += 1
        if self._traces:
            print_slot(self.env.now, "receive", self.pe, ring, chunk.number, chunk.nbytes)
        if chunk.sent_ns >= op.user.moved.since_ns:
            op.user.moved.carry(chunk.path, chunk.nbytes)
        credit, nbytes = Credit(ring.taken, communicator), communicator.config.credit_bytes
        is_awaited = chunk.is_last and self._waits_for_credit
        then = partial(self._received, ring, op, credit) if is_awaited else None
        self.dma.notify(ring.credit_to, nbytes, credit, op.user.launch, then)
        if chunk.is_last:
            ring.op = None
            if not is_awaited:
                self._received(ring, op, credit)
        self._advance(ring)

    def _received(self, ring: RxRing, op: RecvOp, credit: Credit) -> None:
        """The receive of a whole message is over."""
        message, log = op.message, self.ctx.log
        assert message is not None
        if op.is_cancelled:
            return
        del op.user.ops[op]
        op.cmd.received.append(message)
        if log is None:
            op.done(())
            return
        ring.last_record = record = record_receive(log, self.node.id, self.env.now, ring, op)
        credit.by = op_ref(record)
        op.done((record,))

    def _noticed_ns(self, communicator: Communicator, since_ns: float) -> float:
        mode = communicator.config.backpressure
        return noticed_ns(mode, since_ns, self.env.now, self._wake_ns, self._poll_ns)
