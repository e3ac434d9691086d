"""When is it better to give every HBM channel a request, a router and a link of its own (one_to_one) than to put all
channels of a slice behind one link (n_to_one)?

Each point is measured in both modes: `size`, one access to the PE's own slice or to another SIP, by size; `stride`, one
load of several bursts, by the distance between them; `PEs`, several PEs and one slice; `skew`, PEs that read whole
rounds of channels while others keep one channel busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from kernbench.benches._collectives import sizes_between
from kernbench.benches._numbers import Size
from kernbench.benches.registry import evaluation_bench
from kernbench.common.messages import PeDmaMsg
from kernbench.common.units import KIB, MIB
from kernbench.evaluation.contract import Evaluation, Rows, Setting, curve, values_of, where
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report.charts import Chart, Line, LinePanel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.graph import TopologyGraph

MODE = "machine:cube.memory_map.hbm_mapping_mode"
MODES = ("n_to_one", "one_to_one")
DIRECTIONS = ("read", "write")
STRIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)  # in bursts
STRIDED_BURSTS = 16
SHARED_BYTES = 4 * KIB  # of an access to a slice that several PEs share
ACCESSES = 16  # of each PE, one after the other
OWN, OTHER_SIP = "own slice", "other SIP"
AccessStudy = Literal["size", "stride", "PEs", "skew"]
Access = tuple[int, int, int, int]  # PE of cube 0 of SIP 0; SIP of the slice of PE 0, offset there, bytes


# ------------------------------------------------------------------------------------------------------------- points


def points(
    machine: TopologyGraph,
    *,
    min_bytes: Annotated[Size, "first size of a single access"] = 64,
    max_bytes: Annotated[Size, "last size of a single access"] = MIB,
    factor: Annotated[Size, "from one size to the next"] = 4,
) -> list[Setting]:
    n_pes = machine.spec.cube.n_pes
    places = [OWN, OTHER_SIP] if machine.spec.n_sips > 1 else [OWN]
    counts = [n for n in (1, 2, 4, 8, 16) if n <= n_pes]
    found: list[Setting] = [
        {"part": "size", "place": place, "direction": direction, "size_bytes": nbytes}
        for place in places
        for direction in DIRECTIONS
        for nbytes in sizes_between(min_bytes, max_bytes, factor)
    ]
    found += [{"part": "stride", "stride_bursts": stride} for stride in STRIDES]
    for direction in DIRECTIONS:
        found += [{"part": "PEs", "direction": direction, "pes": n} for n in counts]
        found += [{"part": "skew", "direction": direction, "hot_pes": n} for n in range(n_pes)]
    return [{**setting, MODE: mode} for setting in found for mode in MODES]


def point(
    torch: RuntimeContext,
    *,
    part: AccessStudy,
    place: str = OWN,
    direction: str = "read",
    size_bytes: int = 0,
    stride_bursts: int = 1,
    pes: int = 1,
    hot_pes: int = 0,
) -> Mapping[str, float]:
    engine, cube = torch.engine, torch.spec.cube
    is_write, round_bytes = direction == "write", cube.hbm_channels_per_pe * cube.hbm_burst_bytes
    if part == "stride":
        return {"access_ns": _strided_ns(torch, stride_bursts * cube.hbm_burst_bytes)}
    if part == "size":
        ends = _run(engine, [(0, int(place == OTHER_SIP), 0, size_bytes)], is_write)
        return {"access_ns": ends[0], "gbs": size_bytes / ends[0]}
    if part == "PEs":
        accesses = [
            (pe, 0, (pe * ACCESSES + at) * SHARED_BYTES, SHARED_BYTES) for at in range(ACCESSES) for pe in range(pes)
        ]
        last = max(_run(engine, accesses, is_write).values())
        return {"access_ns": last / ACCESSES, "gbs": len(accesses) * SHARED_BYTES / last}
    spread = range(cube.n_pes - hot_pes)
    accesses = [
        (pe, 0, (pe * ACCESSES + at) * round_bytes, round_bytes if pe in spread else cube.hbm_burst_bytes)
        for at in range(ACCESSES)
        for pe in range(cube.n_pes)
    ]
    ends = _run(engine, accesses, is_write)
    last = max(ends[pe] for pe in spread)
    return {"access_ns": last / ACCESSES, "gbs": len(spread) * ACCESSES * round_bytes / last}


def _run(engine: GraphEngine, accesses: Sequence[Access], is_write: bool) -> dict[int, float]:
    """Submit all accesses at once; each PE serves its own one after the other. When each PE has finished."""
    spec, ends = engine.graph.spec, dict[int, float]()
    handles = []
    for pe, sip, offset, nbytes in accesses:
        pa = PhysAddr.pe_hbm_addr(sip, 0, 0, offset, spec.cube.hbm_slice_bytes, spec.address_layout).encode()
        request = PeDmaMsg(src_sip=0, src_cube=0, src_pe=pe, dst_pa=pa, nbytes=nbytes, is_write=is_write)
        handles.append((pe, engine.submit(request)))
    engine.wait_all()
    for pe, handle in handles:
        ends[pe] = max(ends.get(pe, 0.0), float(engine.get_completion(handle)[1]["total_ns"]))
    return ends


def strided_kernel(x: Any, burst_bytes: int, stride_bytes: int, tl: Any) -> None:
    tl.load(x, (STRIDED_BURSTS, burst_bytes), "i8", strides=(stride_bytes, 1))


def _strided_ns(torch: RuntimeContext, stride_bytes: int) -> float:
    """How long the DMA of a PE is busy with one load of bursts at a distance."""
    burst_bytes = torch.spec.cube.hbm_burst_bytes
    x = torch.zeros(STRIDED_BURSTS * stride_bytes, dtype="i8", dp=DPPolicy(num_cubes=1, num_pes=1))
    return torch.launch("strided", strided_kernel, x, burst_bytes, stride_bytes).pes[0].dma_ns


# ------------------------------------------------------------------------------------------------------------ figures


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    return [_sizes(where(rows, part="size")), _strides(rows), _sharing(where(rows, part="PEs")), _skew(rows)]


def _lines(rows: Rows, x: str, y: str) -> tuple[Line, ...]:
    """A line for each mode and direction."""
    directions = values_of(rows, "direction")
    return tuple(
        Line(f"{mode}, {direction}s", curve(where(rows, direction=direction, **{MODE: mode}), x, y))
        for direction in directions
        for mode in MODES
    )


def _sizes(rows: Rows) -> Chart:
    panels = tuple(
        LinePanel(
            "access size (bytes)",
            "time of an access (ns)",
            _lines(where(rows, place=place), "size_bytes", "access_ns"),
            str(place),
            log="xy",
            x_unit="bytes",
        )
        for place in values_of(rows, "place")
    )
    return Chart(
        "access-size",
        "A request for each channel costs one flit on a channel's link per access, and gains where endpoints store and "
        "forward",
        "One access on an idle machine, by PE 0 to its own HBM slice or to that of another SIP. Both modes have equal "
        "bandwidth; with one_to_one a flit takes a channel's link in addition. A PCIe endpoint takes a whole request "
        "before it sends it on, so several small requests overlap there.",
        panels,
        height_in=3.2,
    )


def _strides(rows: Rows) -> Chart:
    some = where(rows, part="stride")
    lines = tuple(Line(mode, curve(where(some, **{MODE: mode}), "stride_bursts", "access_ns")) for mode in MODES)
    panel = LinePanel("stride (bursts)", "time of the load (ns)", lines, log="x", from_zero=True, every_x=True)
    return Chart(
        "stride",
        "A stride that is a multiple of the number of channels makes one channel hot, in both modes alike",
        f"One load of {STRIDED_BURSTS} bursts by one PE from its own slice, by the distance from burst to burst.",
        (panel,),
        height_in=2.8,
    )


def _sharing(rows: Rows) -> Chart:
    panel = LinePanel(
        "PEs that share a slice",
        "bandwidth together (GB/s)",
        _lines(rows, "pes", "gbs"),
        log="x",
        from_zero=True,
        every_x=True,
    )
    return Chart(
        "sharing-pes",
        "Several PEs hide the longer access: a slice that they share has the same bandwidth in both modes",
        f"Each PE makes {ACCESSES} accesses of {SHARED_BYTES} bytes to the slice of PE 0, one after the other.",
        (panel,),
        height_in=2.8,
    )


def _skew(rows: Rows) -> Chart:
    panel = LinePanel(
        "PEs that use one channel only",
        "time of a spread access (ns)",
        _lines(where(rows, part="skew"), "hot_pes", "access_ns"),
        from_zero=True,
        every_x=True,
    )
    return Chart(
        "skew",
        "Separate requests gain behind a hot channel only where most PEs use it, and for reads",
        f"All PEs of a cube make {ACCESSES} accesses to the slice of PE 0: some a whole round of channels each, the "
        "others one burst of the first channel each. Shown is the mean time of the former.",
        (panel,),
        height_in=2.8,
    )


def seconds(setting: Setting) -> float:
    nbytes = setting.get("size_bytes", 0)
    return 0.3 + (nbytes if isinstance(nbytes, int) else 0) / (1 << 20)


EVALUATION = evaluation_bench(
    name="channel-mapping",
    description="Evaluation: HBM channels behind one link against a request for each, by size, stride, PEs and skew.",
    evaluation=Evaluation(points, point, figures, seconds, ("HBM timing", "bank conflicts", "cut-through", "routing")),
)
