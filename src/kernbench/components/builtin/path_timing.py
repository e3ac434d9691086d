"""How long an uncontended transfer takes between a PE and a memory: one latency, and bytes over one bandwidth.

The request travels there and the answer back, one of the two with the bytes: they pass the narrowest link at its pace
and every other link one flit behind, and HBM adds one burst. A transfer of whole flits takes exactly this long. Not
modelled: a shorter last flit, which is up to a flit's time faster, and blocks on the path that store and forward.
"""

from __future__ import annotations

from itertools import pairwise

from kernbench.common.composite_use import PathTiming
from kernbench.common.units import transfer_ns
from kernbench.components.base import Context
from kernbench.components.builtin.hbm_ctrl import burst_ns
from kernbench.topology.graph import FRAMED_KINDS, Edge


def path_timing(ctx: Context, path: tuple[str, ...], request_ns: float) -> PathTiming:
    """The timing of `path`; `request_ns` is what the DMA charges before a request leaves."""
    flit_bytes = ctx.graph.spec.system.flit_bytes
    both = [(ctx.graph.edge(a, b), ctx.graph.edge(b, a)) for a, b in pairwise(path)]
    payload_gbs = ctx.graph.payload_gbs
    widths = [min(payload_gbs(there) or 0.0, payload_gbs(back) or 0.0) for there, back in both]
    narrowest = min(min(_access_gbs(ctx, edge) for edge in edges) for edges in both)
    crossing_ns = sum(transfer_ns(flit_bytes, gbs) for gbs in widths) - transfer_ns(flit_bytes, narrowest)
    latency_ns = request_ns + ctx.latency_ns(path) + ctx.latency_ns(path[::-1]) + crossing_ns
    memory = ctx.graph.node(path[-1])
    if "num_pcs" in memory.attrs:
        channels, channel_gbs = int(memory.attrs["num_pcs"]), float(memory.attrs["pc_bw_gbs"])
        burst_bytes = int(memory.attrs["burst_bytes"])
        round_ns = burst_ns(channels, burst_bytes, channel_gbs)
        gbs = min(narrowest, channels * channel_gbs)
        granule_bytes, open_ns = int(memory.attrs.get("granule_bytes", 0)), float(memory.attrs.get("open_ns", 0.0))
        return PathTiming(
            latency_ns + round_ns, gbs, memory.id, channels * burst_bytes, round_ns, burst_bytes, granule_bytes, open_ns
        )
    return PathTiming(latency_ns, narrowest, memory.id)


def _access_gbs(ctx: Context, edge: Edge) -> float:
    """What one access has of a link; of one with packets, what they leave for payload."""
    gbs = ctx.graph.access_gbs(edge)
    return (ctx.graph.payload_gbs(edge) if edge.kind in FRAMED_KINDS else gbs) or 0.0
