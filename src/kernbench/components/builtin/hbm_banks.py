"""HBM controller with banks, for studies of access patterns: `hbm: {model: banks}`.

Accesses arrive as packets, and their lines enter the channels' queues in the order of arrival: one that finds no room
holds up those behind it. A read is answered when its last line has been read, a write when its last line is in the
write buffer. What a channel does with them is `bank_scheduler.py`. Lines lie in rows, which rotate over the banks of a
channel; channels rotate by bursts, as in other models. Nothing is forecast or replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from simpy.events import Event

from kernbench.common.units import on_grid
from kernbench.components.base import Context, MemoryComponent, Packet, Process
from kernbench.components.builtin.bank_scheduler import BankScheduler, MemoryLine
from kernbench.components.builtin.hbm_ctrl import HbmCtrlComponent
from kernbench.topology.graph import Node

COUNTED_NS = 2.0**-20  # of a burst of the fabric's channels, which only count here: one step of the time grid


@dataclass(slots=True, eq=False)
class BankAccess:
    """A packet, and how many of its lines are neither read nor in the write buffer."""

    packet: Packet
    missing: int


class BankedChannel(NamedTuple):
    """A channel: lines that wait to be taken, its scheduler, and what wakes its process."""

    waiting: deque[MemoryLine]
    scheduler: BankScheduler
    wake: list[Event]


class HbmBanksComponent(HbmCtrlComponent):
    """All channels of a PE's slice."""

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self.channels = replace(self.channels, burst_ns=COUNTED_NS, switch_penalty_ns=0.0)
        timing = ctx.graph.spec.hbm.banks
        assert timing is not None
        on_time: dict[str, Any] = {
            name: on_grid(value) for name, value in timing._asdict().items() if isinstance(value, float)
        }
        self._timing = timing = timing._replace(**on_time)
        self._burst_bytes = int(node.attrs["burst_bytes"])
        self._line_ns = on_grid(timing.line_bytes / float(node.attrs["pc_bw_gbs"]))
        self._banked: list[BankedChannel] = []  # made at the first access

    def accept(self, packet: Packet) -> Process | None:
        if packet.address is None:
            return MemoryComponent.accept(self, packet)
        if not self._banked:
            for _ in range(self.channels.channels):
                scheduler = BankScheduler(self._timing, self._line_ns, may_compile=self.ctx.may_compile)
                self._banked.append(BankedChannel(deque(), scheduler, []))
                self.env.process(self._serve(self._banked[-1]))
        lines = [(number, MemoryLine(bank, row, is_write)) for nbytes, is_write in
                 ((packet.nbytes, True), (packet.wanted_bytes, False)) for number, bank, row in
                 self._places(packet.address, nbytes)]  # fmt: skip
        access = BankAccess(packet, len(lines))
        for number, line in lines:
            channel = self._banked[number]
            channel.waiting.append(line._replace(tag=access))
            if channel.wake:
                channel.wake.pop().succeed()
        if not lines:
            self.reply(packet)
        return None

    def _places(self, address: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
        """Channel, bank and row of every line that an access touches."""
        timing, channels = self._timing, self.channels.channels
        if not nbytes:
            return
        for line in range(address // timing.line_bytes, (address + nbytes - 1) // timing.line_bytes + 1):
            burst, within = divmod(line * timing.line_bytes, self._burst_bytes)
            place, channel = divmod(burst, channels)
            row, bank = divmod((place * self._burst_bytes + within) // timing.row_bytes, timing.banks)
            yield channel, bank, row

    # ---- one channel

    def _serve(self, channel: BankedChannel) -> Process:
        """Take lines in order, and issue one command after another."""
        env, scheduler = self.env, channel.scheduler
        while True:
            if scheduler.is_idle:
                scheduler.resume(env.now)
            self._take(channel)
            due_ns = scheduler.next_ns(env.now)
            if due_ns is None or due_ns > env.now:
                if not channel.wake:
                    channel.wake.append(env.event())
                wake = channel.wake[0]
                yield wake if due_ns is None else env.any_of([wake, env.timeout(due_ns - env.now)])
                continue
            issued = scheduler.issue(env.now)
            if issued is not None and not issued.line.is_write:
                self.ctx.at(issued.done_ns, self._one_done, issued.line.tag)

    def _take(self, channel: BankedChannel) -> None:
        while channel.waiting and channel.scheduler.has_room(channel.waiting[0].is_write):
            line = channel.waiting.popleft()
            channel.scheduler.add(line)
            if line.is_write:
                self._one_done(line.tag)

    def _one_done(self, access: object) -> None:
        """A line was read, or is in the write buffer."""
        assert isinstance(access, BankAccess)
        access.missing -= 1
        if not access.missing:
            self.reply(access.packet, nbytes=access.packet.wanted_bytes)
