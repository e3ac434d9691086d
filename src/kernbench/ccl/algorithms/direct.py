"""All-to-all, gather and scatter: data is sent directly from the source rank to the destination rank."""

from __future__ import annotations

from itertools import accumulate, zip_longest

from kernbench.ccl.algorithms.parts import AHEAD, CollectiveChannel, Span, channel_of, kernel_args, my_part, parts_of
from kernbench.ccl.work import Spread
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

__all__ = ["kernel", "kernel_args"]

COLLECTIVES = ("all_to_all", "gather", "scatter")


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
    root: int = 0,
    spread: Spread | None = None,
    input_splits: tuple[int, ...] = (),
    output_splits: tuple[int, ...] = (),
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
    **parts: TensorPtr,
) -> None:
    """Splits are in elements, one for each rank. Only the root has `part_0`, `part_1` and so on."""
    live = (AHEAD + 1) * (n_sips + 1) + 2 * n_sips + 4 if collective != "all_to_all" else 2 * (AHEAD + 1) + 6
    channel = CollectiveChannel(
        tl, t_ptr, chunk_bytes=chunk_bytes, work_bytes=work_bytes, slot_size=slot_size, live=live
    )
    if collective == "all_to_all":
        assert out is not None
        assert spread is not None
        all_to_all(channel, t_ptr, out, sip_rank, input_splits, output_splits, spread)
        return
    part, n = my_part(t_ptr, tl, spread)
    places = [my_part(parts[f"part_{rank}"], tl, spread)[0] for rank in range(n_sips)] if parts else []
    if collective == "gather":
        gather(channel, part, n, places, sip_rank, root)
    else:
        scatter(channel, part, n, places, sip_rank, root)


def all_to_all(
    channel: CollectiveChannel,
    source: int,
    target: int,
    rank: int,
    input_splits: tuple[int, ...],
    output_splits: tuple[int, ...],
    spread: Spread,
) -> None:
    """In step d every rank sends to the one d after it, and receives from the one d before. Each PE of a channel has
    its share of every block.
    """
    index, channels = channel_of(channel.tl, spread)
    starts_in, starts_out = (0, *accumulate(input_splits)), (0, *accumulate(output_splits))
    n = len(input_splits)

    def share(count: int, start: int) -> list[Span]:
        first, mine = parts_of(count, channels, channel.itemsize)[index]
        return channel.spans(mine, start + first)

    for step in range(n):
        to, back = (rank + step) % n, (rank - step) % n
        sent, got = share(input_splits[to], starts_in[to]), share(output_splits[back], starts_out[back])
        loads = channel.loads((source, span) for span in sent)
        if step == 0:
            for span, x in zip(got, loads, strict=True):
                channel.store(target, span, x)
            continue
        arrivals = channel.receives(f"rank_{back}", [count for _, count in got])
        for leaving, arriving in zip_longest(sent, got):
            if leaving is not None:
                channel.send(f"rank_{to}", next(loads))
            if arriving is not None:
                channel.store(target, arriving, next(arrivals))


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
