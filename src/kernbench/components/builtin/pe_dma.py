"""A PE's DMA engine: moves bytes between its PE and any memory of the tray.

A read channel, a write channel, and one for communication, each with `engines_per_direction` engines of `outstanding`
requests. A place in a channel is held for the whole request: until the last byte of a read is here, until a write is
acknowledged. Requests are served in order. With virtual addresses every request pays the MMU's time; with logical ones
the front stage is the segment table (`policy.address.baaw`), which messages change and no MMU has. With one place
the operands of a tile are read one after the other; with several, each operand is a separate request, and requests
depart in the order of tiles and operands, so that none waits for a place behind one of a later tile.

A tile's rows travel as one transfer for each memory they lie in, from the tile's first address on: its bytes lie end
to end there. The rows of a tile of a row-major tensor, and the runs of a load or a store, travel as they are; a request
pays once for each burst that its runs touch. Traffic of other blocks to this PE's TCM passes through flit by flit and
needs no channel. Not modelled: whole bursts of a tile's narrow rows where its tensor is not row-major.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import simpy

from kernbench.common.access_observers import AccessObservers
from kernbench.common.commands import DmaRequest, Operand, Segment
from kernbench.common.composite_use import PathTiming
from kernbench.common.declared_state import part
from kernbench.common.engine_declaration import QUEUE_DEPTH, Attribute, EngineDeclaration
from kernbench.common.errors import FabricError
from kernbench.common.ipcq import Chunk, Credit
from kernbench.common.last_of import LastOf
from kernbench.common.messages import BaawSegmentInstallMsg, BaawSegmentRemoveMsg, PeDmaMsg, Request
from kernbench.components.base import Context, Packet, Process, Served, TransferTrace
from kernbench.components.builtin.dma_channel import DmaChannel, Fetched, Notified, Posted
from kernbench.components.builtin.interfaces import TRANSLATOR, Translator
from kernbench.components.builtin.operand_access import OperandAccess
from kernbench.components.builtin.operand_reads import OperandRead, OperandReads
from kernbench.components.builtin.path_timing import path_timing
from kernbench.components.builtin.pipeline import PeEngine, TileToken
from kernbench.components.builtin.run_bursts import RunBursts, bursts_of
from kernbench.components.builtin.stages import DmaStage, RunsStage, StageType
from kernbench.components.memory_port import Arrival, MemoryAccess, MemoryPort, Notice
from kernbench.components.recording import LANE, NO_REF, STAGE_BITS
from kernbench.policy.address.baaw import BaawTable
from kernbench.policy.routing.resolver import IN_WINDOW, WINDOW_BITS
from kernbench.topology.graph import Node


class PeDmaComponent(PeEngine):
    """Serves the DMA stages of its PE's commands, and single DMA requests."""

    declaration = EngineDeclaration(
        {
            "engines_per_direction": Attribute.whole(1, 64),
            "outstanding": Attribute.whole(1, 1024),
            "queue_depth": QUEUE_DEPTH,
        },
        role="data mover",
    )

    STATE = (part("_read"), part("_write"), part("_communication"))
    DERIVED = (
        "_busy_ns", "_busy_since", "_memories", "_mmu", "_request_ns", "_timings", "_under_way", "access_observers",
        "baaw",
    )  # fmt: skip

    __slots__ = (
        "_busy_ns", "_busy_since", "_communication", "_memories", "_mmu", "_read", "_request_ns", "_timings",
        "_under_way", "_virtual", "_write", "access_observers", "baaw",
    )  # fmt: skip

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        places = int(node.attrs.get("engines_per_direction", 1)) * int(node.attrs.get("outstanding", 1))
        self._read, self._write, self._communication = DmaChannel(places), DmaChannel(places), DmaChannel(places)
        self._memories: dict[int, tuple[MemoryPort, int]] = {}  # by window: which one, and its address there
        self._timings: dict[tuple[str, ...], PathTiming] = {}  # by path
        self._mmu: Translator | None = None
        spec = ctx.graph.spec
        self._virtual = spec.system.address_model == "va"
        self.baaw: BaawTable | None = None  # with logical addresses only
        if spec.system.address_model == "la":
            self.baaw = BaawTable(spec.cube.hbm_channels_per_pe, spec.cube.hbm_burst_bytes, ctx.graph.address_layout)
        self._under_way = 0  # requests that hold a place, of all channels
        self._busy_ns = 0.0
        self._busy_since = 0.0
        self._request_ns: float | None = None
        self.access_observers = AccessObservers()  # called before any block but the scheduler uses it

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._under_way

    def add_busy(self, ns: float) -> None:
        """Add busy time of a replay, which bypasses this block."""
        self._busy_ns += ns

    @property
    def busy_ns(self) -> float:
        """For how long at least one request was under way."""
        return self._busy_ns + (self.env.now - self._busy_since if self._under_way else 0.0)

    # ---- stages of commands

    def has_room(self) -> bool:
        return len(self._read.waiting) < self.queue_depth

    def take(self, token: TileToken) -> None:
        if token.stages[token.index].type is not StageType.DMA_READ:
            channel = self._write
        else:
            channel = self._read
            if channel.places > 1 and token.context.operands:
                self._take_operands(token)
                return
        if channel.taken < channel.places:
            self._take_place(channel)
            self._start(token)
        else:
            channel.waiting.append((token, self.env.now))

    def _take_operands(self, tile: TileToken) -> None:
        """Read the operands of a tile at the same time, as far as there are places."""
        channel, stages = self._read, tile.stages
        end = tile.index + 1
        while end < len(stages) and stages[end].type is StageType.DMA_READ:
            end += 1
        group = OperandReads(tile, end - tile.index)
        _, release, ready_ns, released_by = tile.causes[:4]
        for index in range(tile.index, end):
            read = OperandRead(group, index)
            if channel.taken < channel.places:
                self._take_place(channel)
                if index > group.first:
                    group.waits(read, release, ready_ns, released_by)
                self._start(read)
            else:
                channel.waiting.append((read, self.env.now))

    def _start(self, token: TileToken) -> None:
        stage = token.stages[token.index]
        token.start_ns = now = self.env.now
        request_ns = self._request_ns
        at_ns = now + (self.request_ns if request_ns is None else request_ns)
        operands = token.context.operands
        if not operands:
            self._start_runs(token, at_ns)
            return
        assert isinstance(stage, DmaStage)
        is_write = stage.type is StageType.DMA_WRITE
        access = operands[stage.operand]
        assert access is not None
        if stage.is_by_rows and stage.nbytes:
            rows = access.runs(stage.offset, stage.rows, stage.row_bytes, stage.stride_bytes)
            self._start_pieces(token, bursts_of(rows), at_ns, is_write=is_write)
            return
        port = access.port
        if port is not None:
            token.pending = 1
            whole = MemoryAccess(stage.nbytes, access.address + stage.offset, at_ns, self._moved, token)
            (port.write if is_write else port.read)(whole)
            return
        transfers = access.transfers(stage.offset, stage.rows, stage.row_bytes, stage.stride_bytes)
        token.pending = len(transfers)
        for port, address, nbytes in transfers:
            (port.write if is_write else port.read)(MemoryAccess(nbytes, address, at_ns, self._moved, token))

    def _start_runs(self, token: TileToken, at_ns: float) -> None:
        """Start a request of a simple command: all of its runs depart at once."""
        stage = token.stage
        assert isinstance(stage, RunsStage)
        if stage.copies:
            self._start_multicast(token, stage, at_ns)
            return
        pieces = bursts_of((*self.locate(pa), nbytes) for pa, nbytes in stage.runs)
        if stage.apply is None:
            self._start_pieces(token, pieces, at_ns, is_write=stage.type is StageType.DMA_WRITE)
            return
        token.pending = len(pieces)
        arrived = LastOf(len(pieces), stage.apply)
        for piece in pieces:
            piece.port.update(self._access(piece, at_ns, token), arrived)

    def _start_pieces(self, token: TileToken, pieces: Sequence[RunBursts], at_ns: float, *, is_write: bool) -> None:
        """Read or write the bursts of a request's runs: all depart at once."""
        if not is_write and pieces:
            token.pending = 1
            if pieces[0].port.read_together(pieces, at_ns, self._moved, token):
                return
        token.pending = len(pieces)
        for piece in pieces:
            (piece.port.write if is_write else piece.port.read)(self._access(piece, at_ns, token))

    def _access(self, piece: RunBursts, at_ns: float, token: TileToken) -> MemoryAccess:
        return MemoryAccess(piece.nbytes, piece.address, at_ns, self._moved, token, granules=piece.granules)

    def _start_multicast(self, token: TileToken, stage: RunsStage, at_ns: float) -> None:
        """The same bytes to several memories: they leave once, and the request ends with the last acknowledgement."""
        places = self.multicast_places((stage.runs, *stage.copies))
        token.pending = len(places)
        (first, *others) = places
        accesses = [self._access(place, at_ns, token) for place in places]
        first.port.multicast_to([place.port for place in others], first.nbytes)(accesses)

    def multicast_places(self, requests: Sequence[DmaRequest]) -> list[RunBursts]:
        """Where each of several requests goes; raises FabricError where one multicast cannot reach them all."""
        found = [bursts_of((*self.locate(pa), nbytes) for pa, nbytes in runs) for runs in requests]
        if any(len(pieces) != 1 for pieces in found):
            raise FabricError(
                "a multicast to a place that is not one run of bytes from the beginning of a burst on",
                hint="multicast a dense block to addresses that are multiples of a burst of HBM",
            )
        places = [pieces[0] for pieces in found]
        places[0].port.multicast_to([place.port for place in places[1:]], places[0].nbytes)
        return places

    def _moved(self, arrival: Arrival) -> None:
        token = arrival.tag
        assert isinstance(token, TileToken)
        token.pending -= 1
        if token.pending:
            return
        stage = token.stages[token.index]
        if isinstance(token, OperandRead):
            is_last = token.group.arrived(token, self.env.now)
            self._leave_place(self._read, token.ref)
            if is_last:
                self.hand_on(token.group.tile)
            return
        following = token.index + 1
        if following < len(token.stages):
            then = token.stages[following]
            if then.type is stage.type and then.component == stage.component:
                # The next operand of a tile keeps the place: it would gain nothing by queueing behind later tiles.
                token.times += (token.start_ns, self.env.now)
                token.index = following
                self._start(token)
                return
        left = token.number << STAGE_BITS | token.index
        self._leave_place(self._read if stage.type is StageType.DMA_READ else self._write, left)
        self.finish(token)

    # ---- places

    def _take_place(self, channel: DmaChannel) -> None:
        if not self._under_way:
            self._busy_since = self.env.now
        self._under_way += 1
        channel.taken += 1

    def _leave_place(self, channel: DmaChannel, left: int) -> None:
        """Stage `left` is over: pass its place to the next request in the queue."""
        if channel.waiting:
            following, since_ns = channel.waiting.popleft()
            if type(following) is TileToken:
                following.causes += (following.index, LANE, since_ns, left)
                self._start(following)
            elif isinstance(following, OperandRead):
                following.group.waits(following, LANE, since_ns, left)
                self._start(following)
            elif isinstance(following, simpy.Event):
                following.succeed()
            else:
                assert isinstance(following, Posted | Fetched)
                self._communicate(following)
            if self._waiting_feeder is not None:
                self.notify_room(left)
            return
        channel.taken -= 1
        self._under_way -= 1
        if not self._under_way:
            self._busy_ns += self.env.now - self._busy_since

    # ---- messages

    def post(self, pa: int, nbytes: int, payload: Chunk, left: Callable[[], object]) -> None:
        """Write bytes to a physical address on the communication channel; `left` is called when the last has left the
        PE, or the SIP where the memory is on another.
        """
        self._ask_to_communicate(Posted(pa, nbytes, payload, left))

    def notify(
        self, pa: int, nbytes: int, payload: Credit, request: Request, then: Callable[[], object] | None = None
    ) -> None:
        """Notify the listeners of a range of physical addresses by a control message; `then` is called after them."""
        port, address = self.locate(pa)
        port.notify(Notice(address, nbytes, self.env.now + self.overhead_ns, Notified(request), payload, then))

    def fetch(self, pa: int, nbytes: int, request: Request, arrived: Callable[[], object]) -> None:
        """Read bytes from a physical address on the communication channel; `arrived` is called when they are here."""
        self._ask_to_communicate(Fetched(pa, nbytes, request, arrived))

    def _ask_to_communicate(self, what: Posted | Fetched) -> None:
        if self.access_observers:
            self.access_observers.notify()
        channel = self._communication
        if channel.taken < channel.places:
            self._take_place(channel)
            self._communicate(what)
        else:
            channel.waiting.append((what, self.env.now))

    def _communicate(self, what: Posted | Fetched) -> None:
        """Start a request, which holds its place until a posted write has left, or a read has arrived."""
        port, address = self.locate(what.pa)
        at_ns = self.env.now + self.overhead_ns
        if isinstance(what, Fetched):
            port.read(MemoryAccess(what.nbytes, address, at_ns, self._fetched, what))
            return
        on_left = partial(self._departed, what, port.path[0], port.exit_node)
        port.write(MemoryAccess(what.nbytes, address, at_ns, None, what, what.payload, on_left))

    def _departed(self, what: Posted, engine: str, exit_node: str, node: str, left_ns: float) -> None:
        """The write departs from a node: its last byte leaves at `left_ns`, behind all earlier traffic on the link."""
        if node == engine:
            self.ctx.at(left_ns, self._posted, what if node == exit_node else None)
        elif node == exit_node:
            self.ctx.at(left_ns, Posted.continue_sender, what)

    def _posted(self, what: Posted | None) -> None:
        """A write has left this engine; its sender is notified here if it may continue from now on."""
        self._leave_place(self._communication, NO_REF)
        if what is not None:
            what.left()

    def _fetched(self, arrival: Arrival) -> None:
        what = arrival.tag
        assert isinstance(what, Fetched)
        self._leave_place(self._communication, NO_REF)
        what.arrived()

    # ---- addresses and paths

    @property
    def request_ns(self) -> float:
        """What a request costs before it leaves: the overhead, and with virtual addresses the MMU's time."""
        if self._request_ns is None:
            self._request_ns = self.overhead_ns + (self.mmu.translation_ns if self._virtual else 0.0)
        return self._request_ns

    @property
    def mmu(self) -> Translator:
        if self._mmu is None:
            self._mmu = self.sibling(self.pe.part("pe_mmu"), TRANSLATOR)
        return self._mmu

    def translate(self, address: int, nbytes: int) -> list[Segment]:
        """The physical segments of an address range of a kernel; raises AddressError for unmapped bytes."""
        if self.baaw is not None:
            return self.baaw.translate(address, nbytes)
        return self.mmu.translate(address, nbytes) if self._virtual else [(address, nbytes)]

    def accept(self, packet: Packet) -> Process | None:
        """Change the segment table as a message says, and acknowledge it."""
        request, table, place = packet.request, self.baaw, self.node.place
        if table is not None and isinstance(request, BaawSegmentInstallMsg):
            if request.is_run:
                table.install(request.segments)
            else:
                for segment in request.segments:
                    if segment.is_for(place.cube, place.pe):
                        table.install((segment,))
        elif table is not None and isinstance(request, BaawSegmentRemoveMsg):
            table.remove(request.la_base, request.la_size)
        else:
            return super().accept(packet)
        self.reply(packet)
        return None

    def access(self, operand: Operand) -> OperandAccess | None:
        """How to reach an operand; None for one that is pinned."""
        return None if operand.pinned else OperandAccess(operand.segments, self.locate)

    def timing_to(self, operand: Operand) -> PathTiming | None:
        """The timing of uncontended transfers of an operand; of a segmented operand, those of its longest segment."""
        if operand.pinned:
            return None
        pa, _ = max(operand.segments, key=lambda segment: segment[1])
        path = self.locate(pa)[0].path
        if path not in self._timings:
            self._timings[path] = path_timing(self.ctx, path, self.request_ns)
        return self._timings[path]

    def locate(self, pa: int) -> tuple[MemoryPort, int]:
        """The memory that a physical address is in, and the address there."""
        window = pa >> WINDOW_BITS
        found = self._memories.get(window)
        if found is None:
            node, address = self.ctx.resolver.locate(pa)
            path = self.ctx.router.dma_path(str(self.pe), node)
            found = self._memories[window] = (self.ctx.memory_port(path), address - (pa & IN_WINDOW))
        port, base = found
        return port, base + (pa & IN_WINDOW)

    # ---- single requests

    def serve(self, request: Request, trace: TransferTrace) -> Process:
        """Carry out one DMA request; returns the path to the memory."""
        assert isinstance(request, PeDmaMsg)
        if self.access_observers:
            self.access_observers.notify()
        port, local = self.locate(request.dst_pa)
        channel = self._write if request.is_write else self._read
        if request.channel == "communication":
            channel = self._communication
        if channel.taken < channel.places:
            self._take_place(channel)
        else:
            channel_free = self.env.event()
            channel.waiting.append((channel_free, self.env.now))
            yield channel_free
        yield from self.pause(self.entry_ns)
        move = self.write if request.is_write else self.read
        yield move(request, port.path, local, request.nbytes, trace)
        self._leave_place(channel, NO_REF)
        return Served(self.path_of(port.path, local, request.nbytes))
