"""All-reduce over the SIPs of a tray: latency by size and grid of SIPs, algorithms, rings, roots, chunks, scaling.

Every cube has an addend of `size_bytes` (`algorithm` points: every SIP has one tensor, spread over its PEs). Time is
the device's, from the first PE that starts to the last that ends, of all ranks.

Its lower bound is in `_all_reduce_theory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import cos, pi, sin
from typing import Annotated, Literal

import numpy as np

from kernbench.benches._collectives import WantedCollective, duration_ns, measure, span_of
from kernbench.benches.milestones._all_reduce_theory import alpha_beta
from kernbench.benches.registry import evaluation_bench
from kernbench.ccl.topologies import group_of, peer_of
from kernbench.common.units import KIB, MIB, format_bytes
from kernbench.evaluation.contract import Evaluation, Rows, Setting, curve, number, text, values_of, where
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report.charts import (
    Arrow,
    BarPanel,
    Bars,
    Chart,
    DiagramBox,
    DiagramPanel,
    Line,
    LinePanel,
    reference_level,
    reference_line,
)
from kernbench.report.references import Reference, reference
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec

SipTopology = Literal["ring_1d", "torus_2d", "mesh_2d_no_wrap"]
SIPS, GRID_W, GRID_H = 6, 2, 3
GRIDS: dict[str, str] = {
    "ring_1d": f"ring of {SIPS}",
    "torus_2d": f"torus {GRID_W} x {GRID_H}",
    "mesh_2d_no_wrap": f"mesh {GRID_W} x {GRID_H}",
}
ITEM_BYTES = 2
SIZES = tuple(ITEM_BYTES * n for n in (8, 32, 64, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 49152))
FEW_SIZES = (64, 4 * KIB, 32 * KIB)
PUBLISHED_BYTES = 64 * KIB  # at which times with each memory of the rings are published
LRAB = "lrab_hierarchical_allreduce"
HIERARCHICAL = (LRAB, "hierarchical_all_pes")  # of one addend per cube
ALGORITHMS = ("ring_allreduce", "recursive_doubling", "tree", "hierarchical_all_pes")
ALGORITHM_SIZES = tuple(512 << n for n in range(12))  # to 1 MiB
CHUNKS = (KIB, 4 * KIB, 16 * KIB, 64 * KIB)
CHECKED_BYTES = 4 * KIB  # addends up to this size are compared with numpy


# ------------------------------------------------------------------------------------------------------------- points


def points(
    machine: TopologyGraph,
    *,
    scale: Annotated[Literal["full", "small"], "all sizes and parts, or three sizes and no algorithms"] = "full",
) -> list[Setting]:
    small = scale == "small"
    grids = {grid: on_grid(grid) for grid in GRIDS}
    sizes = FEW_SIZES if small else SIZES
    found: list[Setting] = [
        {"part": "latency", "grid": grid, "size_bytes": n, **keys} for grid, keys in grids.items() for n in sizes
    ]
    ring, torus = grids["ring_1d"], grids["torus_2d"]
    some = FEW_SIZES[:1] if small else FEW_SIZES
    found += [
        {"part": "buffer", "size_bytes": n, "buffer_kind": kind, **torus}
        for kind in ("tcm", "sram", "hbm")
        for n in (*some, PUBLISHED_BYTES)
    ]
    found += [{"part": "root", "size_bytes": n, "root": root, **torus} for root in ("center", "corner") for n in some]
    found += [{"part": "chunk", "size_bytes": FEW_SIZES[-1], "chunk_bytes": n, **torus} for n in CHUNKS]
    for count in (2, 4) if small else (2, 4, 8, 16):
        keys: Setting = {"machine:system.sips.count": count, "machine:system.sips.topology": "ring_1d"}
        for part, size in (("strong", FEW_SIZES[1]), ("weak", FEW_SIZES[1] * count // 2)):
            found += [
                {"part": part, "size_bytes": size, "sips": count, "algorithm": name, **keys} for name in HIERARCHICAL
            ]
    if not small:
        found += [
            {"part": "algorithm", "size_bytes": n, "algorithm": name, **ring}
            for name in ALGORITHMS
            for n in ALGORITHM_SIZES
        ]
    return found


def on_grid(grid: str) -> Setting:
    """What makes a machine one of `SIPS` SIPs on a grid."""
    keys: Setting = {"machine:system.sips.count": SIPS, "machine:system.sips.topology": grid}
    if grid != "ring_1d":
        keys |= {"machine:system.sips.w": GRID_W, "machine:system.sips.h": GRID_H}
    return keys


def point(
    torch: RuntimeContext,
    *,
    part: str,
    size_bytes: int,
    grid: str = "",
    buffer_kind: str = "tcm",
    root: str = "center",
    chunk_bytes: int = 16 * KIB,
    algorithm: str = LRAB,
    sips: int = 0,
) -> Mapping[str, float]:
    settings = {"algorithm": algorithm, "buffer_kind": buffer_kind, "root": root, "chunk_bytes": chunk_bytes}
    torch.distributed.init_process_group("ahbm", ccl={"defaults": settings})
    if part == "algorithm":
        found = measure(torch, WantedCollective("all_reduce", size_bytes, "f16"), check=False)
        return {"time_ns": found.time_ns, "algbw_gbs": found.algbw_gbs, "busbw_gbs": found.busbw_gbs}
    time_ns, wrong = per_cube(torch, size_bytes)
    theory = alpha_beta(torch.engine.graph, size_bytes)
    checked = {} if wrong is None else {"wrong_elements": wrong}
    return {"time_ns": time_ns, "algbw_gbs": size_bytes / time_ns, **theory, **checked}


def per_cube(torch: RuntimeContext, nbytes: int) -> tuple[float, int | None]:
    """How long an all-reduce of one addend per cube takes; and how many elements are wrong, where that is looked at."""
    ranks, cubes, count = torch.distributed.get_world_size(), torch.spec.sip.n_cubes, nbytes // ITEM_BYTES
    placed = DPPolicy(cube="row_wise", pe="replicate", num_pes=1)
    spans: list[tuple[float, float]] = []
    wrong: list[int] = []
    right = cubes * sum(rank % 2 + 1 for rank in range(ranks))

    def worker(rank: int) -> None:
        x = torch.full((cubes, count), rank % 2 + 1, dtype="f16", dp=placed, name="x")
        torch.distributed.barrier()
        spans.append(span_of(torch.distributed.all_reduce(x, per="cube", async_op=True)))
        if nbytes <= CHECKED_BYTES:
            wrong.append(int(np.count_nonzero(x.numpy() != right)))

    torch.multiprocessing.spawn(worker, nprocs=ranks)
    return duration_ns(spans), sum(wrong) if wrong else None


# ------------------------------------------------------------------------------------------------------------ figures


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    charts = [
        _diagrams(machine),
        _latency(where(rows, part="latency")),
        _of_bound(where(rows, part="latency")),
        _settings(rows),
        _scaling(rows),
    ]
    algorithms = where(rows, part="algorithm")
    return [*charts, _algorithms(algorithms, machine)] if algorithms else charts


def _diagrams(machine: TopologyGraph) -> Chart:
    tree = machine.spec.model_dump(mode="json")
    panels = []
    for grid, title in GRIDS.items():
        keys = {key.removeprefix("machine:"): value for key, value in on_grid(grid).items()}
        panels.append(_diagram(load_topology(tree, keys).spec, title))
    return Chart(
        "sip-grids",
        "Who sends to whom: the exchange between the roots of the SIPs on each grid",
        "Arrows are the neighbours that the machine's grid gives a SIP, in the order in which the hierarchical "
        "all-reduce uses them: around a ring, around the rings of rows and then of columns, or along lines towards the "
        "first SIP and back. The grid is logical: the bytes of all of them go through the tray's switch.",
        tuple(panels),
        columns=3,
        height_in=2.6,
    )


def _diagram(spec: MachineSpec, title: str) -> DiagramPanel:
    group = group_of(spec)
    count = len(group.sips)
    if group.kind == "ring_1d":
        places = [(1.1 * sin(2 * pi * at / count), -1.1 * cos(2 * pi * at / count)) for at in range(count)]
        steps = [("global_E", "to the next")]
    else:
        places = [(1.2 * (at % group.w), float(at // group.w)) for at in range(count)]
        steps = [("global_E", "first along rows"), ("global_S", "then along columns")]
    arrows = []
    for sip in range(count):
        for direction, label in steps:
            ways = [direction]
            if group.kind == "mesh_2d_no_wrap":
                ways.append({"global_E": "global_W", "global_S": "global_N"}[direction])
            for way in ways:
                peer = peer_of(group, (sip, 0, 0), way)
                if peer is not None:
                    (x, y), (to_x, to_y) = places[sip], places[peer.pe[0]]
                    wraps = abs(to_x - x) + abs(to_y - y) > 1.5 and group.kind != "ring_1d"
                    arrows.append(Arrow(sip, peer.pe[0], label, 0.35 if wraps else 0.12))
    boxes = tuple(DiagramBox(f"SIP {at}", x, y, strong=at == 0) for at, (x, y) in enumerate(places))
    return DiagramPanel(title, boxes, tuple(arrows))


def _latency(rows: Rows) -> Chart:
    panels = []
    for grid, title in GRIDS.items():
        some = where(rows, grid=grid)
        lines = (
            Line("measured", curve(some, "size_bytes", "time_ns", 1e-3)),
            Line("alpha-beta bound", curve(some, "size_bytes", "bound_ns", 1e-3), "theory"),
            Line("alpha: latency of the way", curve(some, "size_bytes", "alpha_ns", 1e-3), "limit"),
        )
        panels.append(LinePanel("addend per cube (bytes)", "time (us)", lines, title, log="xy", x_unit="bytes"))
    together = tuple(
        Line(f"measured, {title}", curve(where(rows, grid=grid), "size_bytes", "time_ns", 1e-3))
        for grid, title in GRIDS.items()
    )
    outside = reference("external-simulator-allreduce")
    shown = (*together, reference_level(outside, together))
    panels.append(LinePanel("addend per cube (bytes)", "time (us)", shown, "all three", log="xy", x_unit="bytes"))
    return Chart(
        "allreduce-latency",
        "All-reduce by size: small ones pay the latency of the way, large ones bandwidth and credits; fewer rounds win",
        f"One addend per cube over all cubes of {SIPS} SIPs ({LRAB}, rings in TCM). The bound is "
        "alpha-beta from the machine: latencies of every hop of the longest way, and the busiest link's bytes over its "
        "bandwidth.",
        tuple(panels),
        height_in=2.7,
        references=(outside,),
    )


def _of_bound(rows: Rows) -> Chart:
    shares = [{**row, "share": 100 * number(row, "bound_ns") / number(row, "time_ns")} for row in rows]
    lines = tuple(Line(title, curve(where(shares, grid=grid), "size_bytes", "share")) for grid, title in GRIDS.items())
    bandwidth = tuple(
        Line(title, curve(where(rows, grid=grid), "size_bytes", "algbw_gbs")) for grid, title in GRIDS.items()
    )
    return Chart(
        "allreduce-efficiency",
        "How near the bound an all-reduce comes, and what bandwidth that is",
        "Left: the alpha-beta bound as a share of the measured time. Right: algorithm bandwidth, bytes of one addend "
        "over the time.",
        (
            LinePanel("addend per cube (bytes)", "of the alpha-beta bound (%)", lines, log="x", x_unit="bytes",
                      y_unit="percent", from_zero=True),
            LinePanel("addend per cube (bytes)", "algorithm bandwidth (GB/s)", bandwidth, log="x", x_unit="bytes",
                      from_zero=True),
        ),
    )  # fmt: skip


def _grouped(rows: Rows, column: str, title: str) -> BarPanel:
    """A bar for each value of a column, in groups by size, relative to the first of them."""
    sizes = sorted({int(number(row, "size_bytes")) for row in rows})
    names = [str(value) for value in values_of(rows, column)]
    time = {(text(row, column), int(number(row, "size_bytes"))): number(row, "time_ns") for row in rows}
    bars = tuple(Bars(name, tuple(time[name, n] / time[names[0], n] for n in sizes)) for name in names)
    categories = tuple(format_bytes(n) for n in sizes)
    return BarPanel(f"time relative to {names[0]}", categories, bars, title, x_label="addend per cube")


def _settings(rows: Rows) -> Chart:
    chunks = where(rows, part="chunk")
    published = tuple(reference(f"records-allreduce-{kind}") for kind in ("tcm", "hbm", "sram"))
    size = format_bytes(int(number(chunks[0], "size_bytes")))
    return Chart(
        "allreduce-settings",
        "What settings change: memory of the rings, place of the root, length of chunks",
        f"On the {GRIDS['torus_2d']} of {SIPS} SIPs. Rings lie in TCM, SRAM or HBM of the receiving PE; cubes reduce "
        f"to the centre or to a corner of their mesh; an addend of {size} is cut into chunks of growing length.",
        (
            *_ring_memories(where(rows, part="buffer", size_bytes=PUBLISHED_BYTES), published),
            _grouped([row for row in where(rows, part="buffer") if row["size_bytes"] != PUBLISHED_BYTES], "buffer_kind",
                     "memory of the rings"),
            _grouped(where(rows, part="root"), "root", "place of the root cube"),
            LinePanel("chunk (bytes)", "time (us)",
                      (Line(f"{size} per cube", curve(chunks, "chunk_bytes", "time_ns", 1e-3)),),
                      "length of a chunk", log="x", x_unit="bytes", from_zero=True, every_x=True),
        ),
        columns=3,
        references=published,
    )  # fmt: skip


def _ring_memories(rows: Rows, published: tuple[Reference, ...]) -> tuple[BarPanel, ...]:
    """Measured times at the published size beside the published ones; nothing where the rows have no such points."""
    if not rows:
        return ()
    kinds = ("tcm", "hbm", "sram")
    measured = tuple(number(where(rows, buffer_kind=kind)[0], "time_ns") / 1000 for kind in kinds)
    marks = Bars("reference: published", tuple(each.value for each in published))
    title = f"{format_bytes(PUBLISHED_BYTES)} per cube"
    return (BarPanel("time (us)", kinds, (Bars("measured", measured),), title, marks=(marks,), with_values=True),)


def _scaling(rows: Rows) -> Chart:
    panels = []
    for part, title in (("strong", "strong: same addends"), ("weak", "weak: addends grow with the SIPs")):
        some = {name: where(rows, part=part, algorithm=name) for name in HIERARCHICAL}
        lines = (
            *(Line(name, curve(found, "sips", "time_ns", 1e-3)) for name, found in some.items()),
            Line(f"alpha-beta bound of {LRAB}", curve(some[LRAB], "sips", "bound_ns", 1e-3), "theory"),
        )
        panels.append(LinePanel("SIPs", "time (us)", lines, title, log="xy", every_x=True))
    strong = where(rows, part="strong")
    return Chart(
        "allreduce-scaling",
        "Scaling over SIPs: rounds of a ring against an exchange of all with all",
        f"Strong: {format_bytes(int(number(strong[0], 'size_bytes')))} per cube whatever the number of SIPs; weak: the "
        f"addend grows in proportion to it. {LRAB}: a root keeps what goes round until it is added in order, which "
        "takes TCM for a number of chunks that grows with the square of the SIPs: chunks are cut smaller, and each "
        f"pays the latency of all rounds. {HIERARCHICAL[1]}: every PE has a share, and the roots of a share exchange "
        "pieces all with all, or in rows and columns where that would take more rings than there are.",
        tuple(panels),
    )


def _algorithms(rows: Rows, machine: TopologyGraph) -> Chart:
    link_gbs = machine.spec.system.links.io_ep_to_switch.bw_gbs
    shares = [{**row, "share": 100 * number(row, "busbw_gbs") / link_gbs} for row in rows]
    names = [str(value) for value in values_of(rows, "algorithm")]
    times = tuple(Line(name, curve(where(rows, algorithm=name), "size_bytes", "time_ns", 1e-3)) for name in names)
    rates = tuple(Line(name, curve(where(shares, algorithm=name), "size_bytes", "share")) for name in names)
    nccl = reference("h100-collectives")
    return Chart(
        "allreduce-algorithms",
        "Algorithms for one tensor per SIP: few rounds for small ones, all links for large ones",
        f"All-reduce of one tensor per SIP, spread over all its PEs, on {SIPS} SIPs. Bus bandwidth is nccl-tests': "
        f"what must cross each SIP's link, over the time; here as a share of that link ({link_gbs:g} GB/s). Bytes of "
        "every grid go through the tray's switch, and these algorithms go by rank: they take as long on each grid.",
        (
            LinePanel("tensor per SIP (bytes)", "time (us)", times, log="xy", x_unit="bytes"),
            LinePanel(
                "tensor per SIP (bytes)",
                "bus bandwidth (% of a SIP's link)",
                (*rates, reference_line(nccl, rates)),
                log="x",
                x_unit="bytes",
                y_unit="percent",
                from_zero=True,
            ),
        ),
        references=(nccl,),
    )


def seconds(setting: Setting) -> float:
    size, count = int(setting["size_bytes"]), int(setting["machine:system.sips.count"])
    if setting["part"] == "algorithm":
        return 9.0 + 12.0 * size / MIB
    return (0.25 + size / 100_000 * 0.7) * count


EVALUATION = evaluation_bench(
    name="milestone-1h-ccl",
    description="Evaluation: all-reduce over SIPs by size, grid, algorithm, rings, root and chunk; scaling to 16 SIPs.",
    evaluation=Evaluation(
        points, point, figures, seconds, ("messages between PEs", "two kernels on a PE", "store and forward", "routing")
    ),
)
