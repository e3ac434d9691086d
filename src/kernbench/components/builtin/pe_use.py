"""How much the engines of a PE were used so far: the difference of two readings is what a kernel cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from kernbench.common.channel_traffic import NO_TRAFFIC, ChannelTraffic
from kernbench.common.ids import PeKey
from kernbench.common.message_traffic import ByMemory
from kernbench.common.messages import LaunchStream
from kernbench.components.base import Context


class Use(NamedTuple):
    """Busy times and traffic of a PE's DMA engine, compute slots and TCM ports since time 0; the slots for one stream,
    the others for both.
    """

    dma_ns: float
    slots_ns: tuple[float, ...]  # each compute slot, the shared one first
    tcm_ns: float
    memories: Mapping[str, ChannelTraffic]  # by node


NO_USE = Use(0.0, (), 0.0, {})


def longest_ns(now_ns: Sequence[float], before_ns: Sequence[float]) -> float:
    """How long the busiest compute slot was busy; a slot that was not there before had done nothing."""
    return max((now - before for now, before in zip_longest(now_ns, before_ns, fillvalue=0.0)), default=0.0)


def use_so_far(
    ctx: Context, pe: PeKey, stream: LaunchStream, landed_late: ByMemory, dma_id: str, scheduler_id: str
) -> Use:
    """The use of a PE's engines since time 0; one that has not been created yet counts as unused. Traffic of messages
    that landed after their kernel had ended is left out.
    """
    dma, scheduler = ctx.component_so_far(dma_id), ctx.component_so_far(scheduler_id)
    if dma is None and scheduler is None:
        return NO_USE
    if (interrupt := getattr(scheduler, "interrupt_replay", None)) is not None:
        interrupt()
    tcm = ctx.component_so_far(ctx.resolver.find_pe_part(*pe, "pe_tcm"))
    moved = ctx.memory_traffic_by(dma_id)
    return Use(
        getattr(dma, "busy_ns", 0.0),
        tuple(slot.busy_ns_for(stream) for slot in getattr(scheduler, "compute_slots", ())),
        getattr(tcm, "busy_ns", 0.0),
        {node: use.minus(landed_late.get(node, NO_TRAFFIC)) for node, use in moved.items()} if landed_late else moved,
    )
