"""The closed model of the pipeline against the simulation, and what `tile_shape="auto"` makes of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest

from kernbench.common.commands import CompositeCmd, Operand
from kernbench.common.composite_use import PathTiming
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import KernBenchError
from kernbench.common.ids import PeId
from kernbench.components.builtin import tile_choice
from kernbench.components.builtin.engine_cycles import MacArray
from kernbench.components.builtin.tile_choice import (
    LEAST_GAIN,
    TileLimits,
    fastest_tile,
    limits_of,
    native_tile,
    rates_of,
    tile_needs,
)
from kernbench.components.builtin.tile_model import PeRates, composite_ns
from kernbench.components.builtin.vector_functions import VectorUnit
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

PE = "cube.pe_template.components."
SMALL = {
    "system.name": "small",
    "system.sips.count": 1,
    "sip.cube_mesh.w": 2,
    "sip.cube_mesh.h": 1,
    "cube.pe_layout.pe_per_corner": 1,
}
MACHINES = {
    "default": {},
    "wide registers": {f"{PE}pe_fetch_store.attrs.register_file_bytes": 262144},
    "few registers": {f"{PE}pe_fetch_store.attrs.register_file_bytes": 16384},
    "little TCM": {"cube.memory_map.tcm_scheduler_reserved_mb": 0.0625},
    "slow TCM": {"cube.pe_template.links.tcm_read_bw_gbs": 128.0, "cube.pe_template.links.tcm_write_bw_gbs": 64.0},
    "slow compute": {f"{PE}pe_gemm.attrs.macs_per_ns": 1024.0, f"{PE}pe_math.attrs.lanes_per_ns": 32.0},
    "overheads": {
        f"{PE}pe_gemm.attrs.overhead_ns": 5.0,
        f"{PE}pe_math.attrs.overhead_ns": 3.0,
        f"{PE}pe_fetch_store.attrs.overhead_ns": 4.0,
        f"{PE}pe_dma.attrs.overhead_ns": 20.0,
        f"{PE}pe_mmu.attrs.tlb_overhead_ns": 10.0,
    },
    "two outstanding": {f"{PE}pe_dma.attrs.outstanding": 2},
}
ROWS = {"default": {}, "granules": {"hbm.granule_bytes": 64}}
IN_FLIGHT = {
    "two outstanding": MACHINES["two outstanding"],
    "four outstanding": {f"{PE}pe_dma.attrs.outstanding": 4},
    "eight outstanding, granules": {f"{PE}pe_dma.attrs.outstanding": 8, "hbm.granule_bytes": 64},
}
GRAPHS = {name: load_topology(None, {**SMALL, **sets}) for name, sets in (MACHINES | ROWS | IN_FLIGHT).items()}
HERE = PeId(0, 0, 0)
SHAPES = ((128, 512, 128), (100, 200, 300), (512, 64, 512))
ROW_SHAPES = (*SHAPES[:2], (256, 64, 256))  # where each row is a request: more to simulate
ROW_TILES = (None, "auto", (64, 64, 64), (128, 16, 32), (32, 256, 32))
TILES = (None, "auto", (64, 64, 64), (64, 32, 96), (96, 64, 48), (128, 16, 32), (32, 256, 32), (33, 40, 50))


def fits(cmd, tile, limits):
    tcm, registers = tile_needs(cmd, tile)
    return 2 * tcm <= limits.tcm_bytes and registers <= limits.register_bytes


def times_of(kernel, arrays, machine="default", cube=0, layout=None):
    """(tile, simulated ns, modelled ns) of every composite of a kernel on one PE; the arrays lie in cube 0, PE 0."""
    graph, log = GRAPHS[machine], OpLog()
    with RuntimeContext(GraphEngine(graph, op_log=log)) as torch:
        tensors = [torch.from_numpy(x, layout=layout) for x in arrays]
        launch = torch.launch("k", kernel, *tensors, target_cubes=[cube], target_pes=[0])
    pe = PeId(0, cube, 0)
    uses = {use.tile: use for use in launch.pes[0].composites}
    found = []
    for record in log.records:
        if record.op_name.startswith("composite"):
            use = uses[record.params["tile_shape"]]
            model = composite_ns(use.cmd, np.array([use.tile]), rates_of(graph, pe), use.paths)
            found.append((use.tile, record.t_end - record.t_start, float(model[0])))
    return found


@cache
def gemm_times(
    shape, tiles, machine="default", *, in_tcm=0, dtype="f16", epilogue=(), cube=0, to_tcm=False, layout=None
):
    m, k, n = shape
    kind = dtype_of(dtype).numpy
    out = dtype_of("i32").numpy if dtype == "i8" else kind
    limits = limits_of(GRAPHS[machine], HERE)
    cmd = CompositeCmd(
        "gemm",
        (Operand(0, (m, k), dtype, "hbm"), Operand(1, (k, n), dtype, "hbm")),
        Operand(2, (m, n), "i32" if dtype == "i8" else dtype, "hbm"),
        acc_dtype="i32" if dtype == "i8" else "f32",
    )
    cut = [t if t in (None, "auto") else tuple(map(min, t, shape)) for t in tiles]
    chosen = [t for t in cut if t in (None, "auto") or fits(cmd, t, limits)]

    def kernel(a, b, c, tl):
        left = tl.load(a) if in_tcm >= 1 else tl.ref(a)
        right = tl.load(b) if in_tcm >= 2 else tl.ref(b)
        for tile in chosen:
            where = {} if to_tcm else {"out_ptr": c}
            tl.wait(tl.composite("gemm", left, right, tile_shape=tile, epilogue=[dict(op) for op in epilogue], **where))

    arrays = [np.zeros((m, k), kind), np.zeros((k, n), kind), np.zeros((m, n), out)]
    return times_of(kernel, arrays, machine, cube, layout)


def math_times(shape, tiles, machine="default", op="exp", other=None):
    def kernel(a, b, c, tl):
        operands = [tl.ref(a)] if other is None else [tl.ref(a), tl.ref(b)]
        for tile in tiles:
            tl.wait(tl.composite("math", *operands, out_ptr=c, math_op=op, tile_shape=tile))

    return times_of(kernel, [np.zeros(x, np.float16) for x in (shape, other or (1,), shape)], machine)


def worst_error(times):
    return max(abs(model / simulated - 1) for _, simulated, model in times)


# ---- the model

RATES = PeRates(
    product=MacArray(4096.0),
    vector=VectorUnit(256.0),
    fetch_gbs=512.0,
    store_gbs=512.0,
    dma_places=1,
    dma_gbs=256.0,
    move_overhead_ns=0.0,
    gemm_overhead_ns=0.0,
    math_overhead_ns=0.0,
    register_bytes=1 << 16,
    tcm_bytes=1 << 20,
)
LIMITS = TileLimits(1 << 20, 1 << 16, (32, 64, 32), (32, 128))
PATH = PathTiming(13.0, 256.0, "hbm", 2048, 8.0)


def product(m, k, n, *, a="hbm", out="hbm"):
    inputs = Operand(0, (m, k), "f16", a, pinned=a == "tcm"), Operand(1, (k, n), "f16", "hbm")
    return CompositeCmd("gemm", inputs, Operand(2, (m, n), "f16", out, pinned=out == "tcm"))


def model_ns(cmd, tile, rates=RATES, paths=(PATH, PATH, PATH)):
    return float(composite_ns(cmd, np.array([tile]), rates, paths)[0])


def test_a_single_tile_takes_its_stages_one_after_another():
    # Two reads of 13 + 4096 / 256, a fetch of 8192 / 512, 32 * 64 * 32 / 4096 MACs, a store of 2048 / 512, a write of
    # 13 + 2048 / 256. The write is alone; what it could lose to reads is 0.5 * 32 / 58 of its 8 ns.
    stages = 2 * 29 + 16 + 16 + 4 + 21
    assert model_ns(product(32, 64, 32), (32, 64, 32)) == pytest.approx(stages + 0.5 * 32 / 58 * 8)
    assert model_ns(product(32, 64, 32, out="tcm"), (32, 64, 32)) == stages - 21


def test_where_reads_are_slowest_every_tile_costs_its_reads():
    # 256 tiles of two reads; the last goes on as above, and 64 writes of 8 ns meet a read half of 32 / 58 of the time.
    reads, behind = 256 * 58, 16 + 16 + 4 + 21
    assert model_ns(product(256, 256, 256), (32, 64, 32)) == pytest.approx(reads + behind + 64 * 8 * 0.5 * 32 / 58)


def test_more_places_in_the_dma_share_the_latency():
    two = PeRates(**{name: getattr(RATES, name) for name in PeRates.__slots__} | {"dma_places": 2})
    once, twice = (model_ns(product(256, 256, 256, out="tcm"), (32, 64, 32), rates) for rates in (RATES, two))
    # Half of 58 per tile is less than the 32 ns that its 8192 bytes take on the channels.
    assert (once, twice) == (256 * 58 + 36, 256 * 32 + 36)


def test_an_operand_that_lies_farther_away_counts_by_its_own_distance():
    far = PathTiming(113.0, 128.0, "far", 2048, 8.0)
    near, mixed = (
        model_ns(product(256, 256, 256, out="tcm"), (32, 64, 32), paths=(PATH, p, PATH)) for p in (PATH, far)
    )
    assert mixed - near == 256 * (100 + 4096 / 128 - 4096 / 256)


def test_tiles_that_leave_no_registers_for_the_next_are_worked_on_one_by_one():
    # 64 x 128 x 64: operands of 32 KiB and sums of 16 KiB, so nothing else fits: fetch 64 ns, then product 128 ns.
    cmd = product(256, 1024, 256, a="tcm", out="tcm")
    assert model_ns(cmd, (64, 128, 64)) >= 128 * (64 + 128)
    assert model_ns(cmd, (64, 64, 64)) < 128 * (64 + 128)


def bar(share: float) -> float:
    """What the model may be off by. Where channels have links of their own, a short flit of an odd tile holds one of
    them for longer than it would hold the link of the slice, which the model does not know.
    """
    return share * (1.2 if load_topology().spec.cube.has_channel_routers else 1.0)


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("dtype", ["f16", "f32", "i8"])
@pytest.mark.parametrize("in_tcm", [0, 1, 2])
def test_the_model_is_near_the_simulation_on_the_default_machine(shape, dtype, in_tcm):
    times = gemm_times(shape, TILES, in_tcm=in_tcm, dtype=dtype)
    assert worst_error(times) < 0.15
    assert sum(abs(model / simulated - 1) for _, simulated, model in times) / len(times) < bar(0.05)


@pytest.mark.parametrize("scope", ["output_tile", "kernel"])
def test_the_model_knows_epilogues(scope):
    times = gemm_times(
        SHAPES[1],
        TILES,
        epilogue=((("op", "scale"), ("factor", 2.0), ("scope", "k_tile")), (("op", "gelu"), ("scope", scope))),
    )
    assert worst_error(times) < bar(0.10)


def test_the_model_knows_operands_in_another_cube():
    near, far = (gemm_times(SHAPES[0], TILES, cube=cube) for cube in (0, 1))
    assert worst_error(far) < 0.05
    assert far[0][1] > 1.5 * near[0][1]


MARGINS = dict.fromkeys(MACHINES, 0.15) | {"little TCM": 0.17, "slow TCM": 0.22, "two outstanding": 0.25}


@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "default"])
def test_the_model_follows_the_machine(machine):
    for in_tcm, shape in enumerate(SHAPES[:2]):
        assert worst_error(gemm_times(shape, TILES, machine, in_tcm=in_tcm)) < MARGINS[machine]


@pytest.mark.parametrize(("machine", "shapes"), [("default", ROW_SHAPES), ("granules", ROW_SHAPES[1:2])])
def test_the_model_knows_rows_that_are_runs_of_their_own(machine, shapes):
    times = [found for shape in shapes for found in gemm_times(shape, ROW_TILES, machine, layout="row_major")[::2]]
    assert worst_error(times) < bar(0.26)
    assert sum(abs(model / simulated - 1) for _, simulated, model in times) / len(times) < bar(0.07)


@pytest.mark.parametrize("machine", IN_FLIGHT)
def test_the_model_knows_on_which_channels_rows_in_flight_are(machine):
    found = [gemm_times(shape, ("auto", *TILES[2:4]), machine, layout="row_major") for shape in SHAPES[1:]]
    times = [each for of_shape in found for each in of_shape]
    assert worst_error(times) < bar(0.15)
    assert sum(abs(model / simulated - 1) for _, simulated, model in times) / len(times) < bar(0.05)
    for auto, *others in found:
        assert auto[1] <= min(simulated for _, simulated, _ in others) * 1.10


@pytest.mark.parametrize(
    ("machine", "shape"), [*(("default", shape) for shape in ROW_SHAPES), ("granules", ROW_SHAPES[1])]
)
def test_auto_takes_wider_rows_where_each_is_a_run(machine, shape):
    native, auto, *others = gemm_times(shape, ROW_TILES, machine, layout="row_major")
    assert auto[1] <= 0.5 * native[1]
    assert auto[1] <= min(simulated for _, simulated, _ in others) * 1.10


MATH_TILES = (None, "auto", (8, 128), (64, 128), (32, 64), (16, 256), (64, 64))


@pytest.mark.parametrize(("shape", "op", "other"), [((256, 256), "exp", None), ((256, 512), "add", (512,))])
def test_the_model_knows_math(shape, op, other):
    assert worst_error(math_times(shape, MATH_TILES, op=op, other=other)) < 0.12


# ---- the choice


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_auto_is_near_the_best_and_never_worse_than_native(machine, shape):
    """Against every candidate with sides that are powers of two, and the whole sides, of no more than 300 tiles; none
    has narrower rows than the native tile.
    """
    least = (16, 64, 32)
    sides = [
        [s for s in (16, 32, 64, 128, 256) if low <= s < size] + [size] for size, low in zip(shape, least, strict=True)
    ]
    every = [(m, k, n) for m in sides[0] for k in sides[1] for n in sides[2]]
    few = [tile for tile in every if prod(-(-size // side) for size, side in zip(shape, tile, strict=True)) <= 300]
    native, auto, *others = gemm_times(shape, (None, "auto", *few[::3]), machine)
    assert auto[1] <= native[1] * 1.05
    assert auto[1] <= min(simulated for _, simulated, _ in others) * 1.10


@pytest.mark.needs("n_to_one", reason="it has figures of the shipped machine")
def test_a_large_product_takes_less_than_a_third_of_the_time():
    native, cubes, auto = gemm_times((256, 1024, 768), (None, (64, 64, 64), "auto"))
    assert [round(simulated / 1000) for _, simulated, _ in (native, cubes)] == [178, 70]
    assert auto[1] < 0.9 * cubes[1]


@pytest.mark.parametrize("shape", [(256, 256), (100, 300), (4096,)])
def test_auto_serves_math_too(shape):
    native, auto = math_times(shape, [None, "auto"])
    assert auto[1] <= native[1] * 1.10


@pytest.mark.parametrize("shape", [(256, 1024, 768), (300, 700, 500), (64, 48, 20)])
def test_auto_takes_no_narrower_rows_than_the_native_tile(shape):
    cmd = product(*shape)
    native, auto = native_tile(cmd, LIMITS), fastest_tile(cmd, LIMITS, RATES, (PATH, PATH, PATH))
    assert auto[1] >= native[1]
    assert auto[2] >= native[2]


def test_softmax_keeps_whole_rows_under_auto():
    (auto,) = math_times((64, 300), ["auto"], op="softmax")
    assert auto[0][1] == 300


def test_the_choice_fits_tcm_twice_and_registers():
    tight = TileLimits(16384, 8192, (32, 64, 32), (32, 128))
    cmd = product(512, 512, 512)
    tcm, registers = tile_needs(cmd, fastest_tile(cmd, tight, RATES, (PATH, PATH, PATH)))
    assert 2 * tcm <= 16384
    assert registers <= 8192


@pytest.mark.parametrize(
    ("shape", "elements"), [((64, 128), 8 * 16), ((64, 1), 8), ((1, 128), 16), ((128,), 16), ((1, 1), 1), ((), 1)]
)
def test_a_tile_needs_of_an_operand_what_is_not_broadcast(shape, elements):
    """Tiles of 8 x 16 f16: the input's and the result's in TCM, and as much in registers."""
    x, out = Operand(0, (64, 128), "f16", "hbm"), Operand(2, (64, 128), "f16", "hbm")
    cmd = CompositeCmd("math", (x, Operand(1, shape, "f16", "hbm")), out, math_op="add")
    needs = (8 * 16 + elements + 8 * 16) * 2
    assert tile_needs(cmd, (8, 16)) == (needs, needs)


def test_the_native_tile_stays_where_no_other_is_clearly_faster():
    # One tile is all there is to cut: any other tile only adds requests.
    cmd = product(32, 64, 32)
    assert fastest_tile(cmd, LIMITS, RATES, (PATH, PATH, PATH)) == native_tile(cmd, LIMITS) == (32, 64, 32)
    # Compute is the bottleneck whatever the tile: nothing is faster by LEAST_GAIN.
    slow = PeRates(**{name: getattr(RATES, name) for name in PeRates.__slots__} | {"product": MacArray(64.0)})
    assert LEAST_GAIN == 0.05
    assert fastest_tile(product(512, 512, 512), LIMITS, slow, (PATH, PATH, PATH)) == (32, 64, 32)


def test_which_memories_operands_lie_in_does_not_matter_but_which_lie_together_does():
    cmd, (first, other) = product(256, 256, 256), (replace(PATH, memory=name) for name in ("sip0.hbm", "sip1.hbm"))
    tile_choice._fastest_tile.cache_clear()
    here = fastest_tile(cmd, LIMITS, RATES, (first, first, first))
    assert fastest_tile(cmd, LIMITS, RATES, (other, other, other)) == here
    assert tile_choice._fastest_tile.cache_info().currsize == 1  # PEs whose operands lie alike ask once
    fastest_tile(cmd, LIMITS, RATES, (first, first, other))
    assert tile_choice._fastest_tile.cache_info().currsize == 2


def test_the_same_question_has_the_same_answer():
    cmd, paths = product(300, 700, 500), (PATH, PATH, PATH)
    first = fastest_tile(cmd, LIMITS, RATES, paths)
    tile_choice._fastest_tile.cache_clear()
    assert fastest_tile(cmd, LIMITS, RATES, paths) == first


def test_a_product_over_no_k_keeps_the_native_tile():
    cmd = product(64, 0, 64)
    assert fastest_tile(cmd, LIMITS, RATES, (PATH, PATH, PATH)) == native_tile(cmd, LIMITS)


def test_a_word_that_is_not_auto_is_refused_at_the_kernels_line():
    def kernel(x, tl):
        tl.composite("math", tl.ref(x), math_op="exp", tile_shape="best")

    with pytest.raises(KernBenchError, match="tile_shape is 'best'") as caught:
        run_kernel(kernel, np.zeros((8, 8), np.float16))
    assert '"auto"' in str(caught.value.hint)
    assert "test_tile_model.py" in str(caught.value.where)
