"""One round in which every rank sends directly to the ranks that need its data: for small and medium messages, and for
all sizes where each rank has other data for every rank.

Blocks are divided over PEs as `blocks.py` says. In a broadcast the root sends to all others, in a reduce all others
send to the root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kernbench.ccl.algorithms import blocks, trees
from kernbench.ccl.algorithms.blocks import ElementBlock, Incoming, Outgoing, Reduced
from kernbench.ccl.algorithms.parts import (
    AHEAD,
    CollectiveChannel,
    channel_of,
    kernel_args,
    my_part,
)
from kernbench.ccl.algorithms.shares import Moves, PeInSip, by_distance, by_groups, by_shards
from kernbench.ccl.work import Shards, Spread
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

__all__ = ["kernel", "kernel_args"]

ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")


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
    collective: str = "all_to_all",
    out: TensorPtr | None = None,
    op: str = "sum",
    root: int = 0,
    spread: Spread | None = None,
    shards: Shards | None = None,
    input_splits: tuple[int, ...] = (),
    output_splits: tuple[int, ...] = (),
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    link_bytes_per_cycle: float = 0.0,
    tl: TLContext,
    **parts: TensorPtr,
) -> None:
    """Splits are in elements, one for each rank, or none where all blocks have one size. `part_0`, `part_1` and so on
    are the tensors of a list.
    """
    make_channel = partial(
        CollectiveChannel,
        tl,
        t_ptr,
        op=op,
        chunk_bytes=chunk_bytes,
        work_bytes=work_bytes,
        slot_size=slot_size,
        window=blocks.WINDOW,
    )
    listed = [ElementBlock(*my_part(parts[f"part_{rank}"], tl, spread)) for rank in range(n_sips)] if parts else []
    if collective in ROOTED:
        part = ElementBlock(*my_part(t_ptr, tl, spread))
        _with_root(collective, make_channel, part, [each.address for each in listed], sip_rank, n_sips, root)
        return
    moves = Moves()
    if listed or (n_sips == 1 and shards is None):  # a list, or a copy by the only rank
        part = ElementBlock(*my_part(t_ptr, tl, spread))
        own = ElementBlock(*my_part(out if out is not None else t_ptr, tl, spread))
        one, mine = ([part], own) if collective == "reduce_scatter" else ([own], part)
        sends, gets, reduced = _of_lists(listed or one, mine, sip_rank, n_sips, collective)
    else:
        assert out is not None
        here = (tl.physical_id(1), tl.physical_id(0))
        if shards is not None:
            moves = by_shards(collective, shards, n_elem, sip_rank, n_sips).get(here, moves)
        else:
            assert spread is not None
            index, channels = channel_of(tl, spread)
            if collective == "all_to_all":
                moves = by_distance(input_splits, output_splits, sip_rank, t_ptr.itemsize, index, channels)
            else:
                moves = by_groups(collective, n_elem, sip_rank, n_sips, t_ptr.itemsize, index, channels)
        sends, gets, reduced = _of_moves(moves, t_ptr, out, here, sip_rank, n_sips, collective)
    if collective == "reduce_scatter":
        channel = make_channel(live=blocks.live_reduced(n_sips))
        blocks.reduce_scatter(channel, n_sips, sends, reduced, together=not listed)
        return
    channel = make_channel(live=blocks.live_exchange(n_sips) + n_sips - 2, stores=n_sips)
    pause = 0
    if collective == "all_to_all" and shards is not None and link_bytes_per_cycle:
        ahead = sent_before(moves, n_elem, sip_rank, n_sips, channel.chunk)
        pause = int(ahead * channel.itemsize / link_bytes_per_cycle)
    blocks.exchange(channel, sends, gets, together=not listed, pause=pause)


def _with_root(
    collective: str,
    make_channel: Callable[..., CollectiveChannel],
    part: ElementBlock,
    places: list[int],
    rank: int,
    n: int,
    root: int,
) -> None:
    """A PE's work in a collective with a root; `places` are the addresses of a list of tensors."""
    if collective in ("gather", "scatter"):
        channel = make_channel(live=(AHEAD + 1) * (n + 1) + 2 * n + 4)
        (gather if collective == "gather" else scatter)(channel, *part, places, rank, root)
        return
    tree = trees.star(rank, n, root, lambda other: f"rank_{other}")
    channel = make_channel(live=trees.live(n - 1))
    if collective == "reduce":
        trees.reduce(channel, *part, tree, n)
    else:
        trees.broadcast(channel, *part, tree)


def sent_before(moves: Moves, block: int, rank: int, n: int, chunk: int) -> float:
    """The elements that the link of this SIP should carry before a PE of an all_to_all begins to send: the first chunks
    for the ranks that are nearer than its own.

    The PEs near the IO chiplet would fill the link first, on all SIPs alike, with blocks for the same ranks: the links
    of those ranks would be overloaded first, and the others later. So every SIP begins with the rank after itself.
    """
    if not moves.sends:
        return 0.0
    nearer = (moves.sends[0].to[0][0] - rank) % n - 1
    size = sum(each.size for each in moves.sends)
    in_flight = min(1.0, blocks.WINDOW * chunk / size)  # the share of its elements that a PE sends at once
    return nearer * block * in_flight


_Work = tuple[list[Outgoing], list[Incoming], list[Reduced]]


def _of_lists(listed: Sequence[ElementBlock], own: ElementBlock, rank: int, n: int, collective: str) -> _Work:
    """A PE's work with lists of tensors that are all placed alike: it sends and receives what it holds of each."""
    others = tuple((rank + distance) % n for distance in range(1, n))
    if collective == "reduce_scatter":
        sends = [Outgoing(listed[k], (f"rank_{k}",)) for k in others]
        directions = tuple(None if k == rank else f"rank_{k}" for k in range(len(listed)))
        return sends, [], [Reduced(listed[rank], directions, own.address)]
    copied = Outgoing(own, tuple(f"rank_{k}" for k in others), listed[rank].address)
    return [copied], [Incoming(f"rank_{k}", listed[k]) for k in reversed(others)], []


def _of_moves(
    moves: Moves, source: TensorPtr, target: TensorPtr, here: PeInSip, rank: int, n: int, collective: str
) -> _Work:
    """The addresses and directions of a PE's moves."""
    item, start, into = source.itemsize, source.storage, target.storage

    def direction(k: int, pe: PeInSip | None) -> str:
        return f"rank_{k}" if pe in (None, here) else f"rank_{k}_cube_{pe[0]}_pe_{pe[1]}"

    sends = [
        Outgoing(ElementBlock(start + each.first * item, each.size), tuple(direction(*to) for to in each.to))
        for each in moves.sends
    ]
    gets = [
        Incoming(direction(each.rank, each.pe), ElementBlock(into + each.first * item, each.size))
        for each in moves.receives
    ]
    own = [
        (ElementBlock(start + each.source * item, each.size), into + each.first * item, each.pe) for each in moves.own
    ]
    if collective != "reduce_scatter":
        copies = [Outgoing(block, (), to) for block, to, _ in own if int(block.address) != int(to)]  # equal: in place
        return [*sends, *copies], gets, []
    return (
        sends,
        gets,
        [
            Reduced(block, tuple(None if k == rank else direction(k, pe) for k in range(n)), address)
            for block, address, pe in own
        ],
    )


def gather(channel: CollectiveChannel, part: int, n: int, places: list[int], rank: int, root: int) -> None:
    """The root receives one chunk of every rank, round-robin."""
    spans = channel.spans(n)
    loads = channel.loads((part, span) for span in spans)
    if rank != root:
        for x in loads:
            channel.send(f"rank_{root}", x)
        return
    counts = [count for _, count in spans]
    sources = [loads if k == root else channel.receives(f"rank_{k}", counts) for k in range(len(places))]
    for span in spans:
        for place, chunks in zip(places, sources, strict=True):
            channel.store(place, span, next(chunks))


def scatter(channel: CollectiveChannel, part: int, n: int, places: list[int], rank: int, root: int) -> None:
    """The root sends one chunk to every rank, round-robin."""
    spans = channel.spans(n)
    if rank != root:
        for span, x in zip(spans, channel.receives(f"rank_{root}", [count for _, count in spans]), strict=True):
            channel.store(part, span, x)
        return
    loads = channel.loads((place, span) for span in spans for place in places)
    for span in spans:
        for k in range(len(places)):
            if k == root:
                channel.store(part, span, next(loads))
            else:
                channel.send(f"rank_{k}", next(loads))
