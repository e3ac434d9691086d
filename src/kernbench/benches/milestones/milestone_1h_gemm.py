"""One matrix product on one PE: which engine is busy for how long, and how much of the MAC array is used.

`shapes` points are products of several shapes, with operands in TCM (`load`), the left one there (`load-ref`) or both
streamed (`ref`), in several element types. `epilogue` points add steps behind the product, `tile` points cut it into
other tiles. The time window is that of the composite; loads before it are excluded.

Theory is a bound of the pipeline, from the machine (`_gemm_bound.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal

from kernbench.benches.gemm import VARIANTS, Variant
from kernbench.benches.milestones._gemm_bound import (
    ProductShape,
    hbm_gbs,
    mac_ns,
    mac_rate,
    out_dtype,
    pipeline_bound_ns,
)
from kernbench.benches.registry import evaluation_bench
from kernbench.common.dtypes import dtype_of
from kernbench.evaluation.contract import Evaluation, Row, Rows, Setting, number, text, values_of, where
from kernbench.report.charts import BarPanel, Bars, Chart, Line, LinePanel, reference_marks
from kernbench.report.references import reference
from kernbench.report.roofline import FLOPS_PER_MAC
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

STAGES = {  # of the op log -> in a figure
    "DMA_READ": "DMA in",
    "FETCH": "fetch from TCM",
    "GEMM": "MAC array",
    "MATH": "vector unit",
    "STORE": "store to TCM",
    "DMA_WRITE": "DMA out",
}
DTYPES = ("f16", "f8e4m3", "f32")
SMALL: tuple[ProductShape, ...] = ((16, 16, 16), (32, 64, 32), (128, 128, 128))
SHAPES: tuple[ProductShape, ...] = (
    *SMALL,
    (32, 3072, 32),  # long K
    (1024, 64, 64),  # tall
    (64, 64, 1024),  # wide
    (100, 200, 50),  # no multiple of a tile
    (256, 256, 256),
    (512, 512, 512),
)
EPILOGUES: dict[str, tuple[str, ...]] = {
    "none": (),
    "bias": ("bias",),
    "bias, relu": ("bias", "relu"),
    "bias, gelu": ("bias", "gelu"),
    "dequantise each K tile": ("dequant",),
}
EPILOGUE_SHAPE: ProductShape = (256, 256, 256)
TILED: tuple[ProductShape, ...] = ((256, 256, 256), (32, 3072, 32))


def kernel(
    a: TensorPtr, b: TensorPtr, c: TensorPtr, row: TensorPtr, *, in_tcm: int, steps: str, tile: str, tl: TLContext
) -> None:
    """c = a @ b, with the first `in_tcm` operands loaded beforehand, and steps behind it."""
    left = tl.load(a) if in_tcm >= 1 else tl.ref(a)
    right = tl.load(b) if in_tcm >= 2 else tl.ref(b)
    per_column = tl.load(row) if "bias" in steps else None
    known: dict[str, dict[str, object]] = {
        "bias": {"op": "bias", "bias": per_column},
        "relu": {"op": "relu"},
        "gelu": {"op": "gelu"},
        "dequant": {"op": "dequant", "scale": 0.5, "scope": "k_tile"},
    }
    epilogue = [known[step] for step in steps.split(",") if step]
    shape: str | tuple[int, ...] | None = None if tile == "native" else tile
    if tile[0].isdigit():
        shape = tuple(int(side) for side in tile.split("x"))
    tl.wait(tl.composite("gemm", left, right, out_ptr=c, epilogue=epilogue, tile_shape=shape))


# ------------------------------------------------------------------------------------------------------------- points


def points(
    machine: TopologyGraph,
    *,
    scale: Annotated[Literal["full", "small"], "all shapes and types, or three small shapes in f16"] = "full",
) -> list[Setting]:
    room = machine.spec.cube.tcm_allocatable_bytes
    shapes, dtypes = (SMALL, ("f16",)) if scale == "small" else (SHAPES, DTYPES)
    found: list[Setting] = [
        {"part": "shapes", "m": m, "k": k, "n": n, "variant": variant, "dtype": dtype}
        for dtype in dtypes
        for m, k, n in shapes
        for variant in VARIANTS
        if pinned_bytes((m, k, n), variant, dtype) <= room
    ]
    m, k, n = SMALL[-1] if scale == "small" else EPILOGUE_SHAPE
    found += [{"part": "epilogue", "m": m, "k": k, "n": n, "epilogue": name} for name in EPILOGUES]
    for m, k, n in SMALL[-1:] if scale == "small" else TILED:
        found += [
            {"part": "tile", "m": m, "k": k, "n": n, "variant": "ref", "tile": tile}
            for tile in tiles_for(machine.spec, (m, k, n))
        ]
    return found


def pinned_bytes(shape: ProductShape, variant: Variant, dtype: str) -> int:
    """Bytes of the operands that are in TCM during the product."""
    m, k, n = shape
    held = 2 - VARIANTS.index(variant)
    return (m * k * (held >= 1) + k * n * (held >= 2)) * dtype_of(dtype).itemsize


def native_tile(spec: MachineSpec) -> ProductShape:
    engine = spec.cube.pe_template.components.pe_gemm
    return (
        int(engine.number_attr("tile_m")),
        int(engine.number_attr("tile_k")),
        int(engine.number_attr("tile_n")),
    )


def tiles_for(spec: MachineSpec, shape: ProductShape) -> list[str]:
    """The machine's own tile and multiples of it that the product and the register file have room for, and `auto`."""
    m, k, n = native_tile(spec)
    room = spec.cube.pe_template.components.pe_fetch_store.number_attr("register_file_bytes")
    wanted = [(m, k, n), (2 * m, k, 2 * n), (m, 2 * k, n), (2 * m, 2 * k, 2 * n), (m, 4 * k, n), (4 * m, k, 2 * n)]
    fits = [tile for tile in wanted if all(side <= size for side, size in zip(tile, shape, strict=True))]
    held = [tile for tile in fits if register_bytes(tile) <= room]
    return [*("x".join(map(str, tile)) for tile in held), "auto"]


def register_bytes(tile: ProductShape) -> int:
    """Of the operands in f16 and the sums in f32."""
    m, k, n = tile
    return (m * k + k * n) * dtype_of("f16").itemsize + m * n * dtype_of("f16").accumulate.itemsize


def point(
    torch: RuntimeContext,
    *,
    part: str,
    m: int,
    k: int,
    n: int,
    variant: Variant = "load-ref",
    dtype: str = "f16",
    epilogue: str = "none",
    tile: str = "native",
) -> Mapping[str, float]:
    a, b = torch.zeros(m, k, dtype=dtype, name="a"), torch.zeros(k, n, dtype=dtype, name="b")
    row = torch.zeros(n, dtype="f32", name="row")
    out = torch.empty(m, n, dtype=out_dtype(dtype), name="c")
    in_tcm, steps = 2 - VARIANTS.index(variant), ",".join(EPILOGUES[epilogue])
    launch = torch.launch("gemm", partial(kernel, in_tcm=in_tcm, steps=steps, tile=tile), a, b, out, row)
    log = torch.engine.log
    assert log is not None
    records = [record for _, record in log.items() if record.component_id.startswith("sip0.cube0.pe0.")]
    composite = next(record for record in records if record.op_name == "composite_gemm")
    window_ns = composite.t_end - composite.t_start
    spans: dict[str, list[tuple[float, float]]] = {stage: [] for stage in STAGES}
    for record in records:
        stage = record.op_name.removeprefix("TileToken/")
        if stage in spans:
            spans[stage].append((record.t_start, record.t_end))
    busy = {f"{stage.lower()}_ns": covered_ns(found) for stage, found in spans.items()}
    used = launch_tile(launch)
    ideal_ns = mac_ns(torch.spec, (m, k, n), dtype)
    bound_ns = pipeline_bound_ns(torch.spec, (m, k, n), used, variant, dtype)
    gemm = launch.engines["pe_gemm"]
    return {
        "window_ns": window_ns,
        "tiles": gemm.ops,
        "tile_m": used[0],
        "tile_k": used[1],
        "tile_n": used[2],
        **busy,
        "mac_ns": ideal_ns,
        "bound_ns": bound_ns,
        "utilisation": ideal_ns / window_ns,
        "utilisation_bound": ideal_ns / bound_ns,
        "gflops": launch.flops / launch.exec_ns,
    }


def launch_tile(launch: Launch) -> ProductShape:
    use = launch.ended[0].composites[0]
    m, k, n = use.tile
    return m, k, n


def covered_ns(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union of the spans."""
    covered, until = 0.0, 0.0
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


# ------------------------------------------------------------------------------------------------------------ figures


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    shapes = where(rows, part="shapes")
    return [
        _stages(where(shapes, dtype="f16", variant="load-ref")),
        _utilisation(where(shapes, dtype="f16")),
        _dtypes(shapes),
        _roofline(shapes, machine.spec),
        _epilogues(where(rows, part="epilogue")),
        _tiles(where(rows, part="tile")),
    ]


def shape_name(row: Row) -> str:
    return f"{row['m']}x{row['k']}x{row['n']}"


def _stages(rows: Rows) -> Chart:
    names = tuple(map(shape_name, rows))
    shown = [stage for stage in STAGES if any(number(row, f"{stage.lower()}_ns") for row in rows)]
    shares = tuple(
        Bars(STAGES[s], tuple(100 * number(row, f"{s.lower()}_ns") / number(row, "window_ns") for row in rows))
        for s in shown
    )
    windows = (Bars("composite window", tuple(number(row, "window_ns") for row in rows)),)
    published = reference("records-gemm-window")
    marks = Bars(published.title, tuple(published.value if name == "32x3072x32" else None for name in names))
    return Chart(
        "stage-busy-time",
        "Which stage of a PE's pipeline is busy: streaming one operand keeps the DMA busiest",
        "Products of m x k x n in f16 on one PE, the left operand in TCM and the right one streamed from HBM. Above: "
        "how long each stage was busy, as a share of the composite's window; the load of the left operand comes before "
        "the window. Below: the window.",
        (
            BarPanel("busy (% of window)", names, shares, y_unit="percent"),
            BarPanel("time (ns)", names, windows, log=True, with_values=True, marks=(marks,)),
        ),
        columns=1,
        height_in=2.7,
        references=(published,),
    )


def _utilisation(rows: Rows) -> Chart:
    panels, published = [], reference("h100-matmul")
    for variant in VARIANTS:
        some = where(rows, variant=variant)
        measured = tuple(100 * number(row, "utilisation") for row in some)
        bound = tuple(100 * number(row, "utilisation_bound") for row in some)
        panels.append(
            BarPanel(
                "MAC array used (%)",
                tuple(map(shape_name, some)),
                (Bars("measured", measured), Bars("theoretical: pipeline bound", bound)),
                f"operands: {VARIANT_TITLES[variant]}",
                y_unit="percent",
                marks=(reference_marks(published, some),),
            )
        )
    return Chart(
        "mac-utilisation",
        "How much of the MAC array a product uses: the operands' way decides, and small products drown in latency",
        "Time of the products alone over the composite's window, f16. Theoretical: the slowest engine of the pipeline "
        "without a pause, between the first tile's way to it and the last tile's way from it, from the machine's "
        "bandwidths and rates; latencies are what measured lacks.",
        tuple(panels),
        columns=1,
        height_in=2.4,
        references=(published,),
    )


VARIANT_TITLES: dict[Variant, str] = {
    "load": "both in TCM (load)",
    "load-ref": "left in TCM, right streamed (load-ref)",
    "ref": "both streamed from HBM (ref)",
}


def _dtypes(rows: Rows) -> Chart:
    some = where(rows, variant="load-ref")
    names = list(dict.fromkeys(map(shape_name, some)))
    dtypes = [str(name) for name in values_of(some, "dtype")]
    by_name = {(shape_name(row), text(row, "dtype")): row for row in some}

    def column(dtype: str, figure: str, scale: float) -> tuple[float | None, ...]:
        found = [by_name.get((name, dtype)) for name in names]
        return tuple(None if row is None else scale * number(row, figure) for row in found)

    return Chart(
        "element-types",
        "A smaller element type is faster by its bytes first, by its products only where the MAC array is the limit",
        "The same products (left operand in TCM, right one streamed) in several element types: flops over the time of "
        "the whole kernel, and the share of the MAC array's time in the composite's window.",
        (
            BarPanel("GFLOP/s", tuple(names), tuple(Bars(d, column(d, "gflops", 1)) for d in dtypes)),
            BarPanel(
                "MAC array used (%)",
                tuple(names),
                tuple(Bars(d, column(d, "utilisation", 100)) for d in dtypes),
                y_unit="percent",
            ),
        ),
        columns=1,
        height_in=2.5,
    )


def _roofline(rows: Rows, spec: MachineSpec) -> Chart:
    dtypes = [str(name) for name in values_of(rows, "dtype")]
    found = [(number(row, "flops") / number(row, "bytes_hbm"), row) for row in rows]
    low, high = min(x for x, _ in found) / 2, max(x for x, _ in found) * 2
    lines = []
    for dtype in dtypes:
        peak = FLOPS_PER_MAC * mac_rate(spec, dtype)
        ridge = peak / hbm_gbs(spec)
        roof = tuple((x, min(peak, x * hbm_gbs(spec))) for x in sorted((low, min(max(ridge, low), high), high)))
        lines.append(Line(f"roof, {dtype}", roof, "theory", like=f"measured, {dtype}"))
        own = sorted((x, number(row, "gflops")) for x, row in found if row["dtype"] == dtype)
        lines.append(Line(f"measured, {dtype}", tuple(own), "point"))
    return Chart(
        "roofline",
        "Every product under its roof: large ones come near it, small ones are held down by latency",
        "One point for each shape, element type and way of the operands: flops of the kernel over the time it ran, by "
        "flops per byte that it moved to and from HBM. The roof is the lower of the MAC array's rate and the HBM "
        "slice's bandwidth, one way, as the machine's description has them.",
        (LinePanel("flops per byte of HBM traffic", "GFLOP/s", tuple(lines), log="xy"),),
        columns=1,
        height_in=4.0,
    )


def _epilogues(rows: Rows) -> Chart:
    names = tuple(text(row, "epilogue") for row in rows)
    bars = tuple(
        Bars(label, tuple(number(row, name) for row in rows))
        for label, name in (("composite window", "window_ns"), ("MAC array", "gemm_ns"), ("vector unit", "math_ns"))
    )
    return Chart(
        "epilogues",
        "What steps behind a product cost: little, as long as the DMA is the limit",
        f"A product of {shape_name(rows[0])} in f16 (left operand in TCM, right one streamed) with steps fused behind "
        "it: the composite's window, and how long the two compute engines were busy. They take turns.",
        (BarPanel("time (ns)", names, bars, with_values=True),),
        columns=1,
    )


def _tiles(rows: Rows) -> Chart:
    panels = []
    for name in dict.fromkeys(map(shape_name, rows)):
        some = [row for row in rows if shape_name(row) == name]
        labels = tuple(
            text(row, "tile") if row["tile"] != "auto" else f"auto: {row['tile_m']}x{row['tile_k']}x{row['tile_n']}"
            for row in some
        )
        panels.append(
            BarPanel(
                "composite window (ns)",
                labels,
                (Bars("measured", tuple(number(row, "window_ns") for row in some)),),
                f"product {name}",
                marks=(Bars("pipeline bound for that tile", tuple(number(row, "bound_ns") for row in some)),),
            )
        )
    return Chart(
        "tile-shape",
        "The tile decides how often operands are read again: larger ones are faster until they no longer overlap",
        "Products in f16 with both operands streamed from HBM, cut into tiles of m x k x n; the first is the machine's "
        "own, `auto` is what the closed model of the pipeline chooses.",
        tuple(panels),
        height_in=3.2,
    )


def seconds(setting: Setting) -> float:
    return 0.4 if setting["part"] == "shapes" and setting["m"] == 512 else 0.2


EVALUATION = evaluation_bench(
    name="milestone-1h-gemm",
    description="Evaluation: products on one PE by shape, operand staging, element type, epilogue and tile.",
    evaluation=Evaluation(
        points,
        point,
        figures,
        seconds,
        ("MAC array", "register file", "queues inside a PE", "rows of a tile", "automatic tiles", "HBM timing"),
    ),
)
