"""Kernels predicted by hand from a machine's rates: each step with its arithmetic, for the page *Rates and rules*.

The formulas are those of the page, for PE 0 of a cube and its own HBM slice, which are on one router, and for PE 1 on
the router beside it. A test runs the same kernels and compares.
"""

from __future__ import annotations

from math import ceil

from kernbench.common.frozen import frozen
from kernbench.common.units import on_grid
from kernbench.components.builtin.engine_cycles import MacArray
from kernbench.components.builtin.product_cost import product_cost
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec

F16_BYTES = 2
SLOT_BYTES = 4096  # of a ring, by default
SIDE = 64  # of the matrices in the examples


@frozen
class PredictionStep:
    """A step of a prediction: its name, its arithmetic in numbers, and ns."""

    what: str
    arithmetic: str
    ns: float


@frozen
class Example:
    """A kernel and its predicted time. `source` is the body of the kernel."""

    name: str
    source: str
    steps: tuple[PredictionStep, ...]
    note: str = ""

    @property
    def total_ns(self) -> float:
        return sum(step.ns for step in self.steps)


def examples_of(graph: TopologyGraph) -> tuple[Example, ...]:
    """All examples for a machine."""
    spec = graph.spec
    return (_load(spec), _dot(spec), _strided(spec), _composite(spec), _message(graph))


def figure(number: float) -> str:
    """A number as shown on the page: at most two decimals."""
    return f"{round(number, 2):g}"


def access(spec: MachineSpec) -> tuple[float, float]:
    """Access to the PE's own slice: the latency of a request, and the bandwidth in GB/s."""
    cube = spec.cube
    slice_gbs, port_gbs = cube.hbm_link_bw_gbs, cube.links.pe_dma_to_router_bw_gbs
    parts, flit_bytes = cube.pe_template.components, spec.system.flit_bytes
    request = parts.pe_dma.number_attr("overhead_ns")
    if spec.system.address_model == "va":
        request += parts.pe_mmu.number_attr("tlb_overhead_ns")
    routers = 2 * cube.components.router.number_attr("overhead_ns")
    flit = flit_bytes / max(slice_gbs, port_gbs)
    if cube.has_channel_routers:  # a flit on the channel's link, and on the one to the PE's router
        routers += 2 * cube.components.channel_router.number_attr("overhead_ns")
        flit += flit_bytes / cube.hbm_channel_bw_gbs + flit_bytes / cube.links.router_bw_gbs - flit_bytes / slice_gbs
    return request + routers + burst_ns(spec) + flit, min(slice_gbs, port_gbs)


def burst_ns(spec: MachineSpec) -> float:
    """A burst on one channel."""
    return spec.cube.hbm_burst_bytes / spec.cube.hbm_channel_bw_gbs


def issue_ns(spec: MachineSpec) -> float:
    return spec.cube.pe_template.components.pe_scheduler.number_attr("overhead_ns")


def cycles_ns(amount: int, per_ns: float, scale: float = 1.0) -> float:
    """Work of an engine, in whole cycles of its clock of 1 GHz."""
    return float(max(1, ceil(amount / (per_ns * scale))))


def _issue(spec: MachineSpec) -> PredictionStep:
    return PredictionStep("issue", f"{figure(issue_ns(spec))}", issue_ns(spec))


def _moved(spec: MachineSpec, what: str, nbytes: int) -> PredictionStep:
    latency, gbs = access(spec)
    return PredictionStep(what, f"{figure(latency)} + {nbytes} / {figure(gbs)}", latency + nbytes / gbs)


def _load(spec: MachineSpec) -> Example:
    nbytes = SIDE * SIDE * F16_BYTES
    steps = _issue(spec), _moved(spec, "read", nbytes)
    return Example("a load", f"tl.load(a, ({SIDE}, {SIDE}))", steps, f"f16: {nbytes} bytes, end to end in memory.")


def _dot(spec: MachineSpec) -> Example:
    read = _load(spec)
    steps = (
        PredictionStep("two loads, one after the other", f"2 x {figure(read.total_ns)}", 2 * read.total_ns),
        _issue(spec),
        _product(spec, SIDE, SIDE, SIDE),
    )
    source = f"x = tl.load(a, ({SIDE}, {SIDE}))\ny = tl.load(b, ({SIDE}, {SIDE}))\ntl.dot(x, y)"
    return Example("a dot", source, steps, "Simple commands take operands from TCM in the engine's own time.")


def _product(spec: MachineSpec, m: int, k: int, n: int) -> PredictionStep:
    """A product of f16, as the engine says."""
    gemm = spec.cube.pe_template.components.pe_gemm
    cost = product_cost(gemm)
    sum_of = f"{m * k * n} / {figure(cost.macs_per_ns)}, rounded up"
    text = sum_of if isinstance(cost, MacArray) else f"{m} x {k} x {n} on `{gemm.impl}`"
    return PredictionStep("product", text, cost.product_ns(m, k, n, "f16"))


def _strided(spec: MachineSpec) -> Example:
    flit, channels = spec.system.flit_bytes, spec.cube.hbm_channels_per_pe
    used, width = max(1, channels // 2), flit // F16_BYTES
    latency, gbs = access(spec)
    rounds = SIDE // used
    steps = (
        _issue(spec),
        PredictionStep("bursts of a channel", f"{SIDE} / {used} x {figure(burst_ns(spec))}", rounds * burst_ns(spec)),
        PredictionStep("the last burst of each passes the link", f"{used} x {flit} / {figure(gbs)}", used * flit / gbs),
        PredictionStep("routers and the other link", f"{figure(latency - burst_ns(spec))}", latency - burst_ns(spec)),
    )
    note = (
        f"{SIDE} rows of {flit} bytes, {2 * flit} apart: every row is one burst, and all of them lie on the channels "
        f"of even number, {used} of {channels}."
    )
    return Example("a strided load", f"tl.load(a, ({SIDE}, {width}), strides=({2 * width}, 1))", steps, note)


def _composite(spec: MachineSpec) -> Example:
    parts, ports = spec.cube.pe_template.components, spec.cube.pe_template.links
    gemm, lanes = parts.pe_gemm, parts.pe_math.number_attr("lanes_per_ns")
    m, k, n = (int(gemm.number_attr(f"tile_{side}")) for side in "mkn")
    tiles = (SIDE // m) * (SIDE // k) * (SIDE // n)
    latency, gbs = access(spec)
    operands, result = (m * k, k * n), m * n * F16_BYTES
    reads = sum(latency + size * F16_BYTES / gbs for size in operands)
    fetched = sum(operands) * F16_BYTES
    steps = (
        _issue(spec),
        PredictionStep(
            f"operands of {tiles} tiles, one request at a time", f"{tiles} x {figure(reads)}", tiles * reads
        ),
        PredictionStep(
            "fetch of the last tile", f"{fetched} / {figure(ports.tcm_read_bw_gbs)}", fetched / ports.tcm_read_bw_gbs
        ),
        _product(spec, m, k, n),
        PredictionStep(
            "relu, in f32: half of the lanes", f"{m * n} / {figure(lanes / 2)}", cycles_ns(m * n, lanes, 0.5)
        ),
        PredictionStep("store", f"{result} / {figure(ports.tcm_write_bw_gbs)}", result / ports.tcm_write_bw_gbs),
        _moved(spec, "write", result),
    )
    source = (
        f"tl.wait(tl.composite('gemm', tl.ref(a, ({SIDE}, {SIDE})), tl.ref(b, ({SIDE}, {SIDE})), out_ptr=c,\n"
        "                     epilogue=[{'op': 'relu'}]))"
    )
    note = (
        f"Native tiles of {m} x {k} x {n}. The DMA is the busiest stage, so tiles follow one another at its rate, and "
        "the last one passes the stages after it. Results are added up in f32, so the epilogue works in f32. Writes "
        "of earlier tiles share the channels with reads; here they find them free."
    )
    return Example("a composite with epilogue", source, steps, note)


def _message(graph: TopologyGraph) -> Example:
    spec = graph.spec
    cube, ipcq = spec.cube, spec.cube.pe_template.components.pe_ipcq
    flit, port, link = spec.system.flit_bytes, cube.links.pe_dma_to_router_bw_gbs, cube.links.router_bw_gbs
    tcm, nbytes = cube.pe_template.links.tcm_write_bw_gbs, SLOT_BYTES
    wire = graph.edge("sip0.cube0.noc.r0c0", "sip0.cube0.noc.r0c1").distance_mm * spec.system.ns_per_mm
    routers = 2 * cube.components.router.number_attr("overhead_ns")
    slot = nbytes / ipcq.number_attr("tcm_gbs") + ipcq.number_attr("tcm_ns")
    narrowest = min(port, link)
    others = [flit / gbs for gbs in sorted((port, link, port, tcm))[1:]]
    steps = (
        PredictionStep("bytes leave the sender", f"{nbytes} / {figure(narrowest)}", nbytes / narrowest),
        PredictionStep("two routers", f"{figure(routers)}", routers),
        PredictionStep("wire between them", f"{figure(wire)}", on_grid(wire)),
        PredictionStep("a flit on each other link", " + ".join(map(figure, others)), sum(others)),
        PredictionStep("the slot is written", f"{nbytes} / {figure(ipcq.number_attr('tcm_gbs'))}", slot),
        PredictionStep("the receiver wakes", figure(ipcq.number_attr("wake_ns")), ipcq.number_attr("wake_ns")),
        PredictionStep("the slot is read", f"{nbytes} / {figure(ipcq.number_attr('tcm_gbs'))}", slot),
    )
    note = (
        f"{nbytes} bytes, one slot, from PE 0 to PE 1 of a cube; time of the receiver. The sender is done after the "
        "first step, and neither pays for the issue."
    )
    source = "if tl.program_id(0) == 0:\n    tl.send('intra_1', x)\nelse:\n    tl.recv('intra_0', (1024,), 'i32')"
    return Example("a message", source, steps, note)
