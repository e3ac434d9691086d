"""Broadcast and reduce in two rounds, for medium and large messages: all ranks but the root relay some of the chunks.

In a broadcast the root sends each chunk to one rank, its relay, which sends it to all others: the root scatters, and
the others all-gather (van de Geijn's algorithm). In a reduce all ranks send a chunk to its relay, which reduces it by
rank and sends it to the root, whose addend is the last. So a link carries the bytes about once, and a chunk makes two
hops, however many ranks there are.

Chunks are relayed by rank after rank, beginning at another one on every PE. The first round runs `lag_of` chunks ahead
of the second: further in a reduce of many ranks, whose relays wait for an addend of each, unless it is so long that the
wait does not matter. Chunks are so short that all PEs together have `IN_FLIGHT_BYTES` in flight: enough for the link,
and not more, since what the first round sends too early delays the second. There is no deadlock: consider the rank that
has made least progress. What it waits for was sent by ranks that are further ahead; and a send waits for the one a
window of chunks before it, which the slowest rank has received already, since the window exceeds the lag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from kernbench.ccl.algorithms.parts import AHEAD, BURST_BYTES, CollectiveChannel, channel_of, kernel_args, my_part
from kernbench.ccl.work import Spread
from kernbench.common.array_types import Span
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorHandle, TensorPtr, TLContext

__all__ = ["kernel", "kernel_args"]

COLLECTIVES = ("broadcast", "reduce")
LAG, LONG_LAG = 2, 4
MANY_RANKS, LONG_BYTES = 9, 16 * 1024  # ranks that make the lag longer; bytes of a PE for which it gains nothing
IN_FLIGHT_BYTES = 48 * 1024  # what a SIP's link carries in about the time of two rounds
ALL_PES = (True, True)


class Relayed(NamedTuple):
    """A chunk, and the rank that relays it."""

    span: Span
    relay: int


def relayed(spans: Sequence[Span], relays: Sequence[int], first: int) -> list[Relayed]:
    """Chunks with their relays, in order; `first` is the place of the first relay."""
    return [Relayed(span, relays[(first + at) % len(relays)]) for at, span in enumerate(spans)]


def lag_of(collective: str, n: int, nbytes: int) -> int:
    """How many chunks the first round is ahead of the second with n ranks and so many bytes on a PE."""
    return LONG_LAG if collective == "reduce" and n >= MANY_RANKS and nbytes <= LONG_BYTES else LAG


def live(n: int, lag: int) -> int:
    """Chunks in TCM at a time with n ranks: received ahead, being sent, being stored, loaded ahead, and sums."""
    return n * (AHEAD + 1 + lag + 1) + (AHEAD + 1) + lag + 3


def chunk_of(chunk_bytes: int, n_pes: int, window: int) -> int:
    """The length of chunks with `n_pes` PEs: whole bursts, at most `chunk_bytes`."""
    fair = IN_FLIGHT_BYTES // (window * n_pes)
    return min(chunk_bytes, max(fair - fair % BURST_BYTES, BURST_BYTES))


@repeatable
def kernel(
    t_ptr: TensorPtr,
    n_elem: int,
    cube_w: int,
    cube_h: int,
    n_sips: int,
    sip_rank: int,
    sip_topo_kind: int,
    sip_topo_w: int,
    sip_topo_h: int,
    *,
    collective: str = "broadcast",
    op: str = "sum",
    root: int = 0,
    cubes: tuple[int, ...] = (0,),
    pes: tuple[int, ...] = (0,),
    spread: Spread | None = None,
    chunk_bytes: int = 2048,
    work_bytes: int = 262144,
    slot_size: int = 2048,
    tl: TLContext,
) -> None:
    part, n = my_part(t_ptr, tl, spread)
    relays = [rank for rank in range(n_sips) if rank != root]
    if not relays:
        return
    lag = lag_of(collective, n_sips, n * t_ptr.itemsize)
    channel = CollectiveChannel(
        tl,
        t_ptr,
        op=op,
        chunk_bytes=chunk_of(chunk_bytes, len(cubes) * len(pes), lag + 1),
        work_bytes=work_bytes,
        slot_size=slot_size,
        live=live(n_sips, lag),
        window=lag + 1,
    )
    chunks = relayed(channel.spans(n), relays, channel_of(tl, ALL_PES)[0])
    if collective == "broadcast":
        (scatter if sip_rank == root else relay)(channel, part, chunks, relays, sip_rank, root)
    elif sip_rank == root:
        gather(channel, part, chunks, relays)
    else:
        reduce_scatter(channel, part, chunks, relays, sip_rank, root, lag)


def scatter(
    channel: CollectiveChannel, ptr: int, chunks: Sequence[Relayed], relays: Sequence[int], rank: int, root: int
) -> None:
    """The root of a broadcast: every chunk to its relay."""
    for each, x in zip(chunks, channel.loads((ptr, each.span) for each in chunks), strict=True):
        channel.send(f"rank_{each.relay}", x)


def relay(
    channel: CollectiveChannel, ptr: int, chunks: Sequence[Relayed], relays: Sequence[int], rank: int, root: int
) -> None:
    """The other ranks of a broadcast: own chunks come from the root and are sent on, others come from their relays."""
    messages = {k: channel.receives(f"rank_{root if k == rank else k}", _counts(chunks, k)) for k in relays}
    others = _after(rank, relays)
    for step in range(len(chunks) + LAG):
        if step < len(chunks) and chunks[step].relay == rank:
            x = next(messages[rank])
            for k in others:
                channel.send(f"rank_{k}", x)
            channel.store(ptr, chunks[step].span, x)
        if step >= LAG and chunks[step - LAG].relay != rank:
            span, k = chunks[step - LAG]
            channel.store(ptr, span, next(messages[k]))


def reduce_scatter(
    channel: CollectiveChannel,
    ptr: int,
    chunks: Sequence[Relayed],
    relays: Sequence[int],
    rank: int,
    root: int,
    lag: int,
) -> None:
    """The ranks of a reduce but the root: addends go to their relays, and the sums of own chunks to the root."""
    loads = channel.addends(((ptr, each.span) for each in chunks), len(relays) + 1)
    mine = _counts(chunks, rank)
    messages = {k: channel.receives(f"rank_{k}", mine) for k in relays if k != rank}
    own: deque[TensorHandle] = deque()
    for step in range(len(chunks) + lag):
        if step < len(chunks):
            if chunks[step].relay == rank:
                own.append(next(loads))
            else:
                channel.send(f"rank_{chunks[step].relay}", next(loads))
        if step >= lag and chunks[step - lag].relay == rank:
            addends = (own.popleft() if k == rank else next(messages[k]) for k in relays)
            channel.send(f"rank_{root}", reduce(channel.combine, addends))


def gather(channel: CollectiveChannel, ptr: int, chunks: Sequence[Relayed], relays: Sequence[int]) -> None:
    """The root of a reduce: the sum of every chunk comes from its relay, and the own addend is the last."""
    count = len(relays) + 1
    loads = channel.addends(((ptr, each.span) for each in chunks), count)
    messages = {k: channel.receives(f"rank_{k}", _counts(chunks, k)) for k in relays}
    for each in chunks:
        x = channel.combine(next(messages[each.relay]), next(loads))
        channel.store(ptr, each.span, channel.finish(x, count))


def _counts(chunks: Sequence[Relayed], rank: int) -> list[int]:
    """The lengths of the chunks that a rank relays."""
    return [each.span[1] for each in chunks if each.relay == rank]


def _after(rank: int, relays: Sequence[int]) -> list[int]:
    """The other relays, beginning after this one, so that relays do not all send to the same rank first."""
    at = relays.index(rank)
    return [*relays[at + 1 :], *relays[:at]]
