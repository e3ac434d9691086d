"""How the flits of one transfer pass the links ahead of them if nobody interferes: all times at once, in short.

Times are a few progressions, or rounds where a memory sets the pace. Everything here is a pure function of them.
"""

from __future__ import annotations

from kernbench.sim_engine.fabric.channels import ChannelGroup, Pace
from kernbench.sim_engine.fabric.progressions import (
    EXAMINE,
    Progression,
    append_progression,
    last_time,
    pass_link,
    shifted,
)
from kernbench.sim_engine.fabric.transfers import Transfer

MAX_PROGRESSIONS = 64  # a description longer than this is no shorter than its flits

Times = list[Progression] | Pace
# When flits are ready after a link, when it is free again, the longest wait for it and when that began.
Passage = tuple[Times, float, float, float]
# At one hop: when flits are ready, when the link is free before and after them, the longest wait and when that began.
HopForecast = tuple[Times, float, float, float, float]
# Every hop, and when flits have arrived at the end.
Forecast = tuple[list[HopForecast], Times]


def forecast_transfer(
    transfer: Transfer, start: list[int], under_way: list[Times], free: list[float]
) -> Forecast | None:
    """The forecast from where a transfer's flits stand; None if it has no short description.

    `under_way[h]` is when flits `start[h]`, ... are ready for hop h that are on their way to it, or at hop 0 have yet
    to set out; `free[h]` is when its link is free.
    """
    hops: list[HopForecast] = []
    ready = under_way[0]
    for hop, (_, occupy_ns, tail_ns, _, _) in enumerate(transfer.crossings):
        before, last_ns = free[hop], transfer.last_crossings[hop].occupy_ns
        passage: Passage | None
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
    """The forecast of a transfer that sets out at 0 on idle links, as a read from an idle `group` if there is one."""
    hops, flits = transfer.hops, transfer.flits
    ready: Times = [(0.0, 0.0, flits)]
    if group is not None:
        ready = Pace([group.burst_ns] * min(flits, group.mask + 1), group.burst_ns, flits, simultaneous=True)
    return forecast_transfer(transfer, [0] * hops, [ready, *([] for _ in range(hops))], [0.0] * hops)


def moved(times: Times, by: float) -> Times:
    return times.moved(by) if isinstance(times, Pace) else shifted(times, by)


def first_ready(times: Times) -> float:
    return times.firsts[0] if isinstance(times, Pace) else times[0][0]


def last_ready(times: Times) -> float:
    return times.time(times.flits - 1) if isinstance(times, Pace) else last_time(times)


def pass_paced(pace: Pace, start: int, flit_ns: float, last_ns: float, tail_ns: float, free: float) -> Passage | None:
    """How flits that come in rounds pass a link, from flit `start` on; None if that has no short description.

    Flit i + channels comes one burst time after flit i once the first round is over. A link that is no faster than the
    channels together is then held up no more: from the third round on flits leave it back to back. One that is faster
    is done with each round before the next, if it was with the first: the rounds stay.
    """
    channels, flits = len(pace.firsts), pace.flits
    keeps_busy = channels * flit_ns >= pace.burst_ns
    if pace.simultaneous and start == 0 and (keeps_busy or flits <= channels):
        return _pass_simultaneous(pace, flit_ns, last_ns, tail_ns, free)
    steady = start + 2 * channels
    if flits > steady and not keeps_busy:
        return _pass_rounds(pace, flit_ns, last_ns, tail_ns, free) if start == 0 else None
    out: list[Progression] = []
    for i in range(start, min(flits, steady)):
        ready = pace.time(i)
        free = (free if free > ready else ready) + (last_ns if i == flits - 1 else flit_ns)
        append_progression(out, free, 0.0, 1)
    if flits > steady:
        whole = flits - steady - 1
        if whole:
            append_progression(out, free + flit_ns, flit_ns, whole)
        append_progression(out, free + whole * flit_ns + last_ns, 0.0, 1)
    return shifted(out, tail_ns), last_time(out), EXAMINE, 0.0


def _pass_simultaneous(pace: Pace, flit_ns: float, last_ns: float, tail_ns: float, free: float) -> Passage:
    """All channels deliver at once, round by round, and each round keeps the link busy until the next."""
    flits, channels, first = pace.flits, len(pace.firsts), pace.firsts[0]
    start = free if free > first else first
    if flit_ns == last_ns:
        progressions = [(start + flit_ns + tail_ns, flit_ns, flits)]
        free = start + flits * flit_ns
    else:
        free = start + (flits - 1) * flit_ns + last_ns
        progressions = [(start + flit_ns + tail_ns, flit_ns, flits - 1)] if flits > 1 else []
        progressions.append((free + tail_ns, 0.0, 1))
    # A round's last flit waits longest; that of a later round waits longer only if the link falls behind.
    if flits > channels and channels * flit_ns > pace.burst_ns:
        return progressions, free, EXAMINE, 0.0
    return progressions, free, start - first + (min(flits, channels) - 1) * flit_ns, first


def _pass_rounds(pace: Pace, flit_ns: float, last_ns: float, tail_ns: float, free: float) -> Passage | None:
    """The link is idle before the first round and done with it before the second, so every round passes like it."""
    last, second = pace.flits - 1, pace.firsts[0] + pace.burst_ns
    if free > pace.firsts[0] or pace.firsts[-1] > second:
        return None
    firsts: list[float] = []
    wait = at = 0.0
    for ready in pace.firsts:
        start = free if free > ready else ready
        if start - ready > wait:
            wait, at = start - ready, ready
        free = start + flit_ns
        firsts.append(free + tail_ns)
    if free > second:
        return None
    out = Pace(firsts, pace.burst_ns, pace.flits)
    ready, free = pace.time(last), out.time(last - 1) - tail_ns
    start = free if free > ready else ready
    if start - ready > wait:
        wait, at = start - ready, ready
    out.end = start + last_ns + tail_ns
    return out, start + last_ns, wait, at
