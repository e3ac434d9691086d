"""How the flits of one transfer pass the links ahead of them if nothing interferes: all times at once, in short.

Each link does what `fifo.py` says. Everything here is a pure function of times.
"""

from __future__ import annotations

from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.fifo import LinkPassage, pass_link, pass_paced
from kernbench.sim_engine.fabric.progressions import Pace, Times
from kernbench.sim_engine.fabric.transfers import Transfer

MAX_PROGRESSIONS = 64  # a description longer than this is no shorter than its flits

# At one hop: when flits are ready, when the link is free before and after them, the longest wait and when that began.
HopForecast = tuple[Times, float, float, float, float]
# Every hop, and when flits have arrived at the end.
Forecast = tuple[list[HopForecast], Times]


def forecast_transfer(
    transfer: Transfer, start: list[int], under_way: list[Times], free: list[float]
) -> Forecast | None:
    """The forecast from where a transfer's flits stand; None if it has no short description.

    `under_way[h]` is when flits `start[h]`, ... are ready for hop h that are on their way to it, or at hop 0 have yet
    to depart; `free[h]` is when its link is free.
    """
    hops: list[HopForecast] = []
    ready = under_way[0]
    for hop, (_, occupy_ns, tail_ns, _, _) in enumerate(transfer.traversals):
        before, last_ns = free[hop], transfer.last_traversals[hop].occupy_ns
        passage: LinkPassage | None
        if isinstance(ready, Pace):
            passage = pass_paced(ready, start[hop], occupy_ns, last_ns, tail_ns, before)
            if passage is None:
                return None
        elif ready:
            passage = pass_link(ready, occupy_ns, last_ns, tail_ns, before)
        else:
            passage = [], before, 0.0, 0.0
        out, after, wait, at = passage
        hops.append((ready, before, after, wait, at))
        ahead = under_way[hop + 1]
        if ahead:
            if isinstance(out, Pace) or isinstance(ahead, Pace):
                return None
            out = ahead + out
        if not isinstance(out, Pace) and len(out) > MAX_PROGRESSIONS:
            return None
        ready = out
    return hops, ready


def on_idle_links(transfer: Transfer, group: ChannelGroup | None) -> Forecast | None:
    """The forecast of a transfer that departs at 0 on idle links, as a read from an idle `group` if there is one."""
    hops, flits = transfer.hops, transfer.flits
    ready: Times = [(0.0, 0.0, flits)]
    if group is not None:
        ready = group.pace_from_idle(0.0, flits, transfer.spare)
    return forecast_transfer(transfer, [0] * hops, [ready, *([] for _ in range(hops))], [0.0] * hops)
