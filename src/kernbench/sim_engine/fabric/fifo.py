"""The rule of a link, a serial FIFO: a flit starts when it is ready and the flit before it has left, and occupies the
link for its bytes / bandwidth.

`leave_ns` is the rule. Everything else here is the same rule for many flits in closed form, and a property test holds
each form against `leave_ns` flit by flit (tests/unit/sim_engine/fabric/test_fifo.py). Other files write it out where a
call costs too much or is not possible: `FlitEngine._move`, where it would cost as much as the rest of an event, and
compiled code, which cannot call Python: `compiled_loop._cross`, `loop_queues.begin` (`leave_together`) and
`buffer_loop.pass_links`. The oracle moves the same traffic through each of them.

A progression of flits leaves a link as at most two: while there is a backlog the flits leave back to back; once it is
gone they leave at the pace at which they come. A passage says when the flits are ready after the link and the node
behind it, when the link is free again, the longest wait and when that began.
"""

from __future__ import annotations

from math import ceil

from kernbench.common.units import transfer_ns
from kernbench.sim_engine.fabric.progressions import (
    Pace,
    Progression,
    Times,
    append_progression,
    last_time,
    shifted,
)

EXAMINE = -1.0  # a longest wait that has to be looked for

LinkPassage = tuple[Times, float, float, float]


def occupy_ns(nbytes: float, bw_gbs: float | None) -> float:
    """How long a flit occupies a link; a link without bandwidth carries control messages only, which do not."""
    return transfer_ns(nbytes, bw_gbs) if bw_gbs is not None else 0.0


def leave_ns(ready: float, free: float, occupy: float) -> float:
    """When a flit leaves a link: the rule. The link is then free for the next one."""
    return (free if free > ready else ready) + occupy


def wait_ns(ready: float, leave: float, occupy: float) -> float:
    """How long a flit that was ready and has left had to wait."""
    return leave - occupy - ready


# ---- flits that are all ready at one instant


def leave_together(ready: float, free: float, occupy: float, last_occupy: float, last: int) -> tuple[float, float]:
    """When the first of flits 0 to `last`, all ready at once, leaves, and when the very last, a smaller one, does."""
    start = free if free > ready else ready
    return start + occupy, start + last * occupy + last_occupy


# ---- progressions


def serve(progressions: list[Progression], occupy: float, free: float) -> tuple[list[Progression], float]:
    """When flits that are ready at `progressions` leave a link that takes `occupy` for each and is free at `free`."""
    out: list[Progression] = []
    for t, dt, n in progressions:
        if free <= t:
            if dt <= occupy:
                append_progression(out, t + occupy, occupy, n)
                free = t + n * occupy
            else:
                append_progression(out, t + occupy, dt, n)
                free = t + (n - 1) * dt + occupy
        elif dt <= occupy:
            append_progression(out, free + occupy, occupy, n)
            free += n * occupy
        else:
            caught_up = _caught_up(t, dt, free, occupy)
            if caught_up >= n:
                append_progression(out, free + occupy, occupy, n)
                free += n * occupy
            else:
                append_progression(out, free + occupy, occupy, caught_up)
                append_progression(out, t + caught_up * dt + occupy, dt, n - caught_up)
                free = t + (n - 1) * dt + occupy
    return out, free


def _caught_up(t: float, dt: float, free: float, occupy: float) -> int:
    """The first flit that finds the link idle: least i with t + i*dt >= free + i*occupy."""
    i = max(1, ceil((free - t) / (dt - occupy)))
    while t + i * dt < free + i * occupy:
        i += 1
    while i > 1 and t + (i - 1) * dt >= free + (i - 1) * occupy:
        i -= 1
    return i


def serve_with_last(
    progressions: list[Progression], occupy: float, last_occupy: float, free: float
) -> tuple[list[Progression], float]:
    """`serve`, where the very last flit is a smaller one."""
    if occupy == last_occupy:
        return serve(progressions, occupy, free)
    t, dt, n = progressions[-1]
    head = [*progressions[:-1], (t, dt, n - 1)] if n > 1 else progressions[:-1]
    out, free = serve(head, occupy, free)
    free = leave_ns(t + (n - 1) * dt, free, last_occupy)
    append_progression(out, free, 0.0, 1)
    return out, free


def pass_link(
    progressions: list[Progression], occupy: float, last_occupy: float, tail: float, free: float
) -> tuple[list[Progression], float, float, float]:
    """How flits that are ready at `progressions`, the very last a smaller one, pass a link and a node of delay `tail`.

    The usual cases by formula: one progression, with or without a single last flit behind it, that leaves as it came.
    Waits change evenly along a progression, so the longest is the first or the last one's.
    """
    t, dt, n = progressions[0]
    last = t
    single = len(progressions) == 2 and progressions[1][2] == 1
    if single:
        last = progressions[1][0]
    elif len(progressions) == 1 and occupy != last_occupy and n > 1:
        single, n = True, n - 1
        last = t + n * dt
    elif len(progressions) > 1 or occupy != last_occupy:
        return _pass_any(progressions, occupy, last_occupy, tail, free)
    start = free if free > t else t
    spacing = occupy if dt < occupy else dt
    if dt > occupy and free > t:
        return _pass_any(progressions, occupy, last_occupy, tail, free)
    out = [(start + occupy + tail, spacing, n)]
    wait, at, n = start - t, t, n - 1
    if n and spacing > dt:
        wait, at = wait + n * (spacing - dt), t + n * dt
    free = start + n * spacing + occupy
    if single:
        start = free if free > last else last
        if start - last > wait:
            wait, at = start - last, last
        free = start + last_occupy
        out.append((free + tail, 0.0, 1))
    return out, free, wait, at


def _pass_any(
    progressions: list[Progression], occupy: float, last_occupy: float, tail: float, free: float
) -> tuple[list[Progression], float, float, float]:
    out, free = serve_with_last(progressions, occupy, last_occupy, free)
    return shifted(out, tail), free, EXAMINE, 0.0


# ---- rounds, as a memory delivers them


def pass_paced(
    pace: Pace, start: int, flit_ns: float, last_ns: float, tail_ns: float, free: float
) -> LinkPassage | None:
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
        free = leave_ns(pace.time(i), free, last_ns if i == flits - 1 else flit_ns)
        append_progression(out, free, 0.0, 1)
    if flits > steady:
        whole = flits - steady - 1
        if whole:
            append_progression(out, free + flit_ns, flit_ns, whole)
        append_progression(out, leave_ns(pace.time(flits - 1), free + whole * flit_ns, last_ns), 0.0, 1)
    return shifted(out, tail_ns), last_time(out), EXAMINE, 0.0


def _pass_simultaneous(pace: Pace, flit_ns: float, last_ns: float, tail_ns: float, free: float) -> LinkPassage:
    """All channels deliver at once, round by round, and each round keeps the link busy until the next."""
    flits, channels, first = pace.flits, len(pace.firsts), pace.firsts[0]
    leave, free = leave_together(first, free, flit_ns, last_ns, flits - 1)
    if pace.end is not None:  # the last flit may come later than its round, if packet headers made it long
        free = leave_ns(pace.end, free - last_ns, last_ns)
    if flit_ns == last_ns and pace.end is None:
        progressions = [(leave + tail_ns, flit_ns, flits)]
    else:
        progressions = [(leave + tail_ns, flit_ns, flits - 1)] if flits > 1 else []
        progressions.append((free + tail_ns, 0.0, 1))
    # A round's last flit waits longest; that of a later round waits longer only if the link falls behind, or if it is
    # a short burst.
    if (flits > channels and channels * flit_ns > pace.burst_ns) or pace.end is not None:
        return progressions, free, EXAMINE, 0.0
    return progressions, free, wait_ns(first, leave, flit_ns) + (min(flits, channels) - 1) * flit_ns, first


def _pass_rounds(pace: Pace, flit_ns: float, last_ns: float, tail_ns: float, free: float) -> LinkPassage | None:
    """The link is idle before the first round and done with it before the second, so every round passes like it."""
    last, second = pace.flits - 1, pace.firsts[0] + pace.burst_ns
    if free > pace.firsts[0] or pace.firsts[-1] > second:
        return None
    firsts: list[float] = []
    wait = at = 0.0
    for ready in pace.firsts:
        free = leave_ns(ready, free, flit_ns)
        if wait_ns(ready, free, flit_ns) > wait:
            wait, at = wait_ns(ready, free, flit_ns), ready
        firsts.append(free + tail_ns)
    if free > second:
        return None
    out = Pace(firsts, pace.burst_ns, pace.flits)
    ready, free = pace.time(last), out.time(last - 1) - tail_ns
    free = leave_ns(ready, free, last_ns)
    if wait_ns(ready, free, last_ns) > wait:
        wait, at = wait_ns(ready, free, last_ns), ready
    out.end = free + tail_ns
    return out, free, wait, at
