"""A PE's DMA engine: moves bytes between its PE and any memory of the tray.

A read channel and a write channel, each with `engines_per_direction` engines of `outstanding` requests. A place in a
channel is held for the whole transfer: until the last byte of a read is here, until a write is acknowledged. Requests
wait in order. With virtual addresses the MMU's time is paid for every request. The rows of a tile travel as one
transfer for each memory they lie in, from the tile's first address on. What other blocks send to this PE's TCM passes
through flit by flit and needs no channel. Not modelled: short bursts of narrow rows, which makes narrow tiles look
better than they are.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import simpy

from kernbench.common.messages import PeDmaMsg, Request
from kernbench.components.base import Arrival, Context, Legs, Process, Served, Way
from kernbench.components.builtin.pe_mmu import PeMmuComponent
from kernbench.components.builtin.pipeline import DmaStage, PeEngine, Reach, StageType, TileToken
from kernbench.policy.address.page_table import PhysRange
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.graph import Node

_WINDOW_BITS = 20  # addresses that differ below this bit lie in one memory
_IN_WINDOW = (1 << _WINDOW_BITS) - 1


class Target(NamedTuple):
    """The memory behind a window of physical addresses."""

    path: tuple[str, ...]
    base: int  # address of the window as the memory counts
    way: Way | None  # for a plain memory, reached without packets


class _Arrived(NamedTuple):
    """What packets have brought."""

    tag: object


class Channel:
    """One direction: places, and who waits for one."""

    __slots__ = ("places", "taken", "waiting")

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.waiting: deque[TileToken | simpy.Event] = deque()


class PeDmaComponent(PeEngine):
    """Serves the DMA stages of its PE's commands, and single DMA requests."""

    __slots__ = ("_busy_ns", "_busy_since", "_mmu", "_read", "_request_ns", "_targets", "_virtual", "_write")

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        places = int(node.attrs.get("engines_per_direction", 1)) * int(node.attrs.get("outstanding", 1))
        self._read, self._write = Channel(places), Channel(places)
        self._targets: dict[int, Target] = {}
        self._mmu: PeMmuComponent | None = None
        self._virtual = ctx.graph.spec.system.address_model == "va"
        self._busy_ns = 0.0
        self._busy_since = 0.0
        self._request_ns: float | None = None

    @property
    def busy_ns(self) -> float:
        """For how long at least one transfer was under way."""
        under_way = self._read.taken + self._write.taken
        return self._busy_ns + (self.env.now - self._busy_since if under_way else 0.0)

    # ---- stages of commands

    def has_room(self) -> bool:
        return len(self._read.waiting) < self.queue_depth

    def take(self, token: TileToken) -> None:
        channel = self._read if token.stages[token.index].type is StageType.DMA_READ else self._write
        if channel.taken < channel.places:
            self._take_place(channel)
            self._start(token)
        else:
            channel.waiting.append(token)

    def _start(self, token: TileToken) -> None:
        stage = token.stages[token.index]
        assert isinstance(stage, DmaStage)
        context = token.context
        token.start_ns = now = self.env.now
        request_ns = self._request_ns
        at_ns = now + (self.request_ns if request_ns is None else request_ns)
        is_write = stage.type is StageType.DMA_WRITE
        way = context.ways[stage.operand]
        if way is not None:
            token.pending = 1
            read, write, base = way
            (write if is_write else read)(stage.nbytes, base + stage.offset, at_ns, self._moved, token)
            return
        pieces = self._pieces(context.addresses[stage.operand] + stage.offset, stage)
        token.pending = len(pieces)
        for pa, nbytes in pieces:
            target = self._target(pa)
            local = target.base + (pa & _IN_WINDOW)
            if target.way is not None:
                move = target.way.write if is_write else target.way.read
                move(nbytes, local, at_ns, self._moved, token)
            else:
                self.env.process(self._by_packets(token, target, local, nbytes, is_write, at_ns - now))

    def _by_packets(
        self, token: TileToken, target: Target, local: int, nbytes: int, is_write: bool, delay_ns: float
    ) -> Process:
        yield from self.pause(delay_ns)
        move = self.write if is_write else self.read
        yield move(token.context.request, target.path, local, nbytes, None)
        self._moved(_Arrived(token))

    def _moved(self, arrival: Arrival) -> None:
        token = arrival.tag
        assert isinstance(token, TileToken)
        token.pending -= 1
        if token.pending:
            return
        stage = token.stages[token.index]
        following = token.index + 1
        if following < len(token.stages):
            then = token.stages[following]
            if then.type is stage.type and then.component == stage.component:
                # The next operand of a tile follows at once: it would gain nothing by waiting behind later tiles.
                token.times += (token.start_ns, self.env.now)
                token.index = following
                self._start(token)
                return
        self._leave_place(self._read if stage.type is StageType.DMA_READ else self._write)
        self.finish(token)

    # ---- places

    def _take_place(self, channel: Channel) -> None:
        if not self._read.taken + self._write.taken:
            self._busy_since = self.env.now
        channel.taken += 1

    def _leave_place(self, channel: Channel) -> None:
        if channel.waiting:
            following = channel.waiting.popleft()
            if isinstance(following, TileToken):
                self._start(following)
            else:
                following.succeed()
            if self.on_room is not None:
                self.tell_room()
            return
        channel.taken -= 1
        if not self._read.taken + self._write.taken:
            self._busy_ns += self.env.now - self._busy_since

    # ---- where bytes lie

    @property
    def request_ns(self) -> float:
        """What a request costs before it leaves: the overhead, and with virtual addresses the MMU's time."""
        if self._request_ns is None:
            self._request_ns = self.overhead_ns + (self.mmu.translation_ns if self._virtual else 0.0)
        return self._request_ns

    @property
    def mmu(self) -> PeMmuComponent:
        if self._mmu is None:
            self._mmu = self.beside(self.pe.part("pe_mmu"), PeMmuComponent, "translates no addresses")
        return self._mmu

    def translate(self, address: int, nbytes: int) -> list[PhysRange]:
        """The physical pieces of a range that a kernel names; raises AddressError for what is not mapped."""
        return self.mmu.translate(address, nbytes) if self._virtual else [(address, nbytes)]

    def way_to(self, address: int, nbytes: int) -> Reach | None:
        """How to reach an operand; None for one that lies in pieces, or not in a plain memory."""
        pieces = self.translate(address, nbytes)
        first, last = self._target(pieces[0][0]), self._target(pieces[0][0] + pieces[0][1] - 1)
        if len(pieces) > 1 or first.way is None or first.path != last.path:
            return None
        return Reach(*first.way, first.base + (pieces[0][0] & _IN_WINDOW))

    def _pieces(self, address: int, stage: DmaStage) -> list[PhysRange]:
        """What to move, one piece a memory where the rows of a tile are strided."""
        if stage.rows == 1:
            return self.translate(address, stage.nbytes)
        span = (stage.rows - 1) * stage.stride_bytes + stage.row_bytes
        pieces = self.translate(address, span)
        if len(pieces) == 1:
            return [(pieces[0][0], stage.nbytes)]
        gathered: dict[tuple[str, ...], tuple[int, int]] = {}
        for row in range(stage.rows):
            for pa, part in self.translate(address + row * stage.stride_bytes, stage.row_bytes):
                path = self._target(pa).path
                at, so_far = gathered.get(path, (pa, 0))
                gathered[path] = (at, so_far + part)
        return list(gathered.values())

    def _target(self, pa: int) -> Target:
        window = pa >> _WINDOW_BITS
        found = self._targets.get(window)
        if found is None:
            resolver = self.ctx.resolver
            address = PhysAddr.decode(pa)
            path = tuple(self.ctx.router.find_path(str(self.pe), resolver.resolve(address)))
            base = resolver.local_address(address) - (pa & _IN_WINDOW)
            found = self._targets[window] = Target(path, base, self.ctx.way(path))
        return found

    # ---- single requests

    def serve(self, request: Request, legs: Legs) -> Process:
        """Carry out one DMA request; returns the path to the memory."""
        assert isinstance(request, PeDmaMsg)
        target = self._target(request.dst_pa)
        local = target.base + (request.dst_pa & _IN_WINDOW)
        channel = self._write if request.is_write else self._read
        if channel.taken < channel.places:
            self._take_place(channel)
        else:
            turn = self.env.event()
            channel.waiting.append(turn)
            yield turn
        yield from self.pause(self.entry_ns)
        move = self.write if request.is_write else self.read
        yield move(request, target.path, local, request.nbytes, legs)
        self._leave_place(channel)
        return Served(target.path)
