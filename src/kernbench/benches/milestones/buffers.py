"""How deep must the buffers of links be, and how should they be organised?

Every PE of a SIP reads blocks of random slices of the SIP, as fast as its DMA allows: the bandwidth together, by depth
and organisation of the buffers. Beside it the latency of one read from the farthest cube on an idle machine: a buffer
that is shorter than the round trip of a credit slows even that down.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Annotated, Literal

from kernbench.benches._numbers import Size
from kernbench.benches.registry import evaluation_bench
from kernbench.common.messages import PeDmaMsg
from kernbench.common.units import KIB
from kernbench.evaluation.contract import Evaluation, Rows, Setting, curve, number, where
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.report.charts import Chart, Line, LinePanel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.graph import TopologyGraph

Scheme = Literal["no limit", "fifo", "one queue per output", "wormhole, 2 channels", "wormhole, round robin"]
UNLIMITED: Scheme = "no limit"
CREDIT_NS = 4.0  # of a wire, a router and a wire back on the default machine
BLOCK_BYTES = 4 * KIB
LONE_BYTES = 16 * KIB
ENOUGH = 0.95  # of the bandwidth without a limit
_KEY = "machine:fabric.buffers"
WORMHOLE: dict[str, str | int] = {f"{_KEY}.ownership": "packet", f"{_KEY}.channels": 2}
SCHEMES: dict[Scheme, dict[str, str | int]] = {
    "fifo": {},
    "one queue per output": {f"{_KEY}.order": "voq"},
    "wormhole, 2 channels": WORMHOLE,
    "wormhole, round robin": {**WORMHOLE, f"{_KEY}.arbitration": "round_robin"},
}


def points(
    machine: TopologyGraph,
    *,
    min_depth: Annotated[Size, "first depth, in flits per link and layer"] = 8,
    max_depth: Annotated[Size, "last depth; each is twice the one before"] = 256,
    accesses: Annotated[Size, "reads of every PE"] = 4,
) -> list[Setting]:
    found: list[Setting] = [{"scheme": UNLIMITED, "depth": 0, "accesses": accesses}]
    for scheme, options in SCHEMES.items():
        depth = min_depth
        while depth <= max_depth:
            slots = max(depth // int(options.get(f"{_KEY}.channels", 1)), 1)
            buffers = {f"{_KEY}.slots": slots, f"{_KEY}.credit_ns": CREDIT_NS, **options}
            found.append({"scheme": scheme, "depth": depth, "accesses": accesses, **buffers})
            depth *= 2
    return found


def point(torch: RuntimeContext, *, scheme: Scheme, depth: int, accesses: int) -> Mapping[str, float]:
    engine, spec = torch.engine, torch.spec
    random, slices = Random(7), spec.cube.n_pes
    lone_ns = _read(engine, [(0, 0, spec.sip.n_cubes - 1, 0, 0, LONE_BYTES)])
    before = engine.now_ns
    reads = [
        (cube, pe, random.randrange(spec.sip.n_cubes), random.randrange(slices), at * BLOCK_BYTES, BLOCK_BYTES)
        for at in range(accesses)
        for cube in range(spec.sip.n_cubes)
        for pe in range(spec.cube.n_pes)
    ]
    _read(engine, reads)
    return {"gbs": len(reads) * BLOCK_BYTES / (engine.now_ns - before), "lone_ns": lone_ns}


def _read(engine: GraphEngine, reads: list[tuple[int, int, int, int, int, int]]) -> float:
    """Submit all reads at once; each PE serves its own one after the other. The longest from its submission on."""
    spec, handles = engine.graph.spec, []
    for cube, pe, of_cube, of_pe, offset, nbytes in reads:
        pa = PhysAddr.pe_hbm_addr(0, of_cube, of_pe, offset, spec.cube.hbm_slice_bytes, spec.address_layout).encode()
        request = PeDmaMsg(src_sip=0, src_cube=cube, src_pe=pe, dst_pa=pa, nbytes=nbytes, is_write=False)
        handles.append(engine.submit(request))
    engine.wait_all()
    return max(float(engine.get_completion(handle)[1]["total_ns"]) for handle in handles)


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    (unlimited,) = where(rows, scheme=UNLIMITED)
    panels = []
    for y, label in (("gbs", "bandwidth of random reads (GB/s)"), ("lone_ns", "one read of 16 KiB, far cube (ns)")):
        lines = [Line(scheme, curve(where(rows, scheme=scheme), "depth", y)) for scheme in SCHEMES]
        xs = [x for line in lines for x, _ in line.points]
        level = number(unlimited, y)
        lines.append(Line(UNLIMITED, ((min(xs), level), (max(xs), level)), "limit"))
        panels.append(LinePanel("depth (flits per link and layer)", label, tuple(lines), log="x", from_zero=True))
    return [
        Chart(
            "depth",
            recommendation(rows),
            f"Every PE of a SIP reads blocks of {BLOCK_BYTES} bytes from random slices of it, one after the other. "
            f"Credits take {CREDIT_NS:g} ns. Wormhole: two virtual channels, each of half the depth. Right: one read "
            "on an idle machine.",
            tuple(panels),
            height_in=3.2,
        )
    ]


def recommendation(rows: Rows) -> str:
    """The least depth of each scheme that reaches nearly the bandwidth of queues without a limit."""
    (unlimited,) = where(rows, scheme=UNLIMITED)
    found = []
    for scheme in SCHEMES:
        enough = [depth for depth, gbs in curve(where(rows, scheme=scheme), "depth", "gbs")
                  if gbs >= ENOUGH * number(unlimited, "gbs")]  # fmt: skip
        found.append(f"{scheme} {min(enough):.0f} flits" if enough else f"{scheme} more than was tried")
    return f"For {100 * ENOUGH:.0f} % of the bandwidth without a limit: {'; '.join(found)}"


def seconds(setting: Setting) -> float:
    return 4.0


EVALUATION = evaluation_bench(
    name="buffers",
    description="Evaluation: bandwidth and latency by depth, order and arbitration of finite buffers of links.",
    evaluation=Evaluation(points, point, figures, seconds, ("finite buffers", "routing")),
)
