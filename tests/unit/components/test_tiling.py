"""Tile plans: pure, in order, complete; what they move, fetch and give back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.commands import CompositeCmd, Operand, OpSpec, Scope
from kernbench.common.errors import KernelError
from kernbench.components.builtin.stages import DmaStage, GemmStage, MathStage, MoveStage, StageType
from kernbench.components.builtin.tile_choice import TileLimits, choose_gemm_tile, choose_math_tile, tile_needs
from kernbench.components.builtin.tile_choice import plan_of as planned
from kernbench.components.builtin.tile_plan import PipelinePlan
from kernbench.components.builtin.tiling import generate_gemm_plan, spans, without_addresses

DMA = "pe_dma"
LIMITS = TileLimits(1 << 20, 1 << 16, (32, 64, 32), (32, 128))
A, B, C, EXTRA = range(4)  # operands by number, in the order in which a command names them


def gemm(m, k, n, *, a="hbm", b="hbm", out="hbm", dtype="f16", epilogues=(), tile=None, transposed_b=False):
    return CompositeCmd(
        "gemm",
        (
            Operand(A, (m, k), dtype, a, pinned=a == "tcm"),
            Operand(B, (k, n), dtype, b, transposed_b, pinned=b == "tcm"),
        ),
        Operand(C, (m, n), dtype, out, pinned=out == "tcm"),
        tile,
        epilogues=epilogues,
    )


def plan_of(cmd: CompositeCmd) -> PipelinePlan:
    return planned(cmd, LIMITS)


def names(tile):
    return [stage.type.name for stage in tile.stages]


def test_one_tile_goes_through_every_stage_in_order():
    (tile,) = plan_of(gemm(32, 64, 32)).tiles()
    assert names(tile) == ["DMA_READ", "DMA_READ", "FETCH", "GEMM", "STORE", "DMA_WRITE"]
    read_a, read_b, fetch, product, store, write = tile.stages
    assert read_a == DmaStage(StageType.DMA_READ, DMA, A, 0, 4096, 1, 4096, 4096)
    assert read_b.nbytes == 64 * 32 * 2
    # Operands and an f32 accumulator go into registers; operands leave after the product, the accumulator when stored.
    assert fetch == MoveStage(StageType.FETCH, "pe_fetch_store", 8192, 8192 + 32 * 32 * 4)
    assert product == GemmStage(StageType.GEMM, "pe_gemm", 32, 64, 32, "f16", 8192)
    assert store == MoveStage(StageType.STORE, "pe_fetch_store", 2048, 4096)
    assert (write.operand, write.offset, write.nbytes) == (C, 0, 2048)
    assert (tile.in_bytes, tile.out_bytes) == (8192, 2048)


def test_tiles_run_over_k_within_n_within_m():
    tiles = list(plan_of(gemm(64, 128, 64)).tiles())
    firsts = [tile.stages[0].offset for tile in tiles]
    row = 128 * 2
    # Eight tiles: m 0, n 0, k 0 1; n 1, k 0 1; then the second 32 rows.
    assert firsts == [0, 128, 0, 128, 32 * row, 32 * row + 128, 32 * row, 32 * row + 128]
    assert [tile.tile_id for tile in tiles] == list(range(8))


def test_the_accumulator_stays_in_registers_until_the_last_k_tile():
    first, second = plan_of(gemm(32, 128, 32)).tiles()
    assert names(first) == ["DMA_READ", "DMA_READ", "FETCH", "GEMM"]
    assert names(second) == ["DMA_READ", "DMA_READ", "FETCH", "GEMM", "STORE", "DMA_WRITE"]
    assert first.stages[2].registers == 8192 + 4096
    assert second.stages[2].registers == 8192


def test_pinned_operands_are_not_read_and_need_no_buffer():
    (tile,) = plan_of(gemm(32, 64, 32, a="tcm", b="tcm")).tiles()
    assert names(tile) == ["FETCH", "GEMM", "STORE", "DMA_WRITE"]
    assert tile.in_bytes == 0
    (kept,) = plan_of(gemm(32, 64, 32, out="tcm")).tiles()
    assert names(kept) == ["DMA_READ", "DMA_READ", "FETCH", "GEMM", "STORE"]
    assert kept.out_bytes == 0


def test_edge_tiles_are_as_large_as_what_is_left():
    tiles = list(plan_of(gemm(33, 65, 40)).tiles())
    sizes = [(s.m, s.k, s.n) for t in tiles for s in t.stages if isinstance(s, GemmStage)]
    assert sizes == [(32, 64, 32), (32, 1, 32), (32, 64, 8), (32, 1, 8), (1, 64, 32), (1, 1, 32), (1, 64, 8), (1, 1, 8)]


def test_epilogues_fire_by_scope():
    bias = Operand(EXTRA, (32,), "f16", "hbm")
    steps = (
        OpSpec("scale", Scope.K_TILE),
        OpSpec("bias_add", Scope.OUTPUT_TILE, bias),
        OpSpec("relu", Scope.KERNEL),
    )
    plan = plan_of(gemm(32, 128, 32, epilogues=steps))
    first, second, after = plan.tiles()
    assert names(first) == ["DMA_READ", "DMA_READ", "FETCH", "GEMM", "MATH"]
    assert names(second) == ["DMA_READ"] * 3 + ["FETCH", "GEMM", "MATH", "MATH", "STORE", "DMA_WRITE"]
    assert [s.op for s in second.stages if isinstance(s, MathStage)] == ["scale", "bias_add"]
    assert second.stages[2] == DmaStage(StageType.DMA_READ, DMA, EXTRA, 0, 64, 1, 64, 64)
    # The output is read back, worked on, and written once more, after everything before it.
    assert names(after) == ["DMA_READ", "FETCH", "MATH", "STORE", "DMA_WRITE"]
    assert (plan.total_tiles, plan.barrier) == (3, 2)


def test_a_transposed_operand_is_read_as_memory_holds_it():
    # Memory holds B as (n, k) = (64, 128): its tile k 64..128, n 32..64 is rows 32..64, columns 64..128.
    tile = list(plan_of(gemm(32, 128, 64, transposed_b=True)).tiles())[3]
    assert tile.stages[1] == DmaStage(StageType.DMA_READ, DMA, B, 32 * 256 + 128, 4096, 32, 128, 256)


def test_a_math_plan_reads_fetches_computes_and_writes():
    x = Operand(A, (4, 8, 200), "f16", "hbm")
    row = Operand(B, (200,), "f16", "hbm")
    cmd = CompositeCmd("math", (x, row), Operand(C, x.shape, "f16", "hbm"), math_op="add")
    tiles = list(plan_of(cmd).tiles())
    assert [names(tile) for tile in tiles] == [["DMA_READ", "DMA_READ", "FETCH", "MATH", "STORE", "DMA_WRITE"]] * 2
    assert [stage.elements for t in tiles for stage in t.stages if isinstance(stage, MathStage)] == [32 * 128, 32 * 72]
    assert tiles[1].stages[1] == DmaStage(StageType.DMA_READ, DMA, B, 256, 144, 1, 144, 400)


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(*[st.integers(1, 60)] * 3),
    st.tuples(*[st.integers(6, 70)] * 3),
    st.sampled_from(["f16", "f32", "i8"]),
    st.booleans(),
)
def test_a_plan_covers_every_product_once_and_gives_back_all_registers(size, tile, dtype, pinned):
    m, k, n = size
    steps = (OpSpec("relu", Scope.OUTPUT_TILE, Operand(EXTRA, (m, 1), dtype, "hbm")),)
    cmd = gemm(m, k, n, a="tcm" if pinned else "hbm", dtype=dtype, epilogues=steps)
    plan = generate_gemm_plan(cmd, tile)
    tiles = list(plan.tiles())
    assert tiles == list(plan.tiles())
    assert plan.total_tiles == len(tiles) == len(spans(m, tile[0])) * len(spans(k, tile[1])) * len(spans(n, tile[2]))
    stages = [stage for t in tiles for stage in t.stages]
    assert sum(s.m * s.k * s.n for s in stages if isinstance(s, GemmStage)) == m * k * n
    size_of = {"f16": 2, "f32": 4, "i8": 1}[dtype]
    assert sum(s.nbytes for s in stages if s.type is StageType.DMA_WRITE) == m * n * size_of
    taken = sum(s.registers for s in stages if s.type is StageType.FETCH)
    given_back = sum(s.registers for s in stages if isinstance(s, MoveStage | GemmStage | MathStage)) - taken
    assert taken == given_back


class TestTileChoice:
    def test_the_machines_tile_is_cut_to_the_matrices(self):
        assert choose_gemm_tile(gemm(512, 512, 512), LIMITS) == (32, 64, 32)
        assert choose_gemm_tile(gemm(7, 512, 3), LIMITS) == (7, 64, 3)

    def test_needs_are_buffers_and_registers(self):
        # A and B tiles of 4096 bytes each, an output tile of 2048; in registers both operands and 1024 f32 sums.
        assert tile_needs(gemm(512, 512, 512), (32, 64, 32)) == (4096 + 4096 + 2048, 8192 + 4096)
        assert tile_needs(gemm(512, 512, 512, a="tcm", out="tcm"), (32, 64, 32)) == (4096, 8192 + 4096)

    def test_a_tile_shrinks_along_its_longest_side_until_two_fit(self):
        small = TileLimits(12288, 1 << 16, (32, 64, 32), (32, 128))
        # 2 x 10240 bytes do not fit 12288; with k = 32 a tile needs 2048 + 2048 + 2048, and two of them fit exactly.
        assert choose_gemm_tile(gemm(512, 512, 512), small) == (32, 32, 32)

    def test_registers_limit_a_tile_too(self):
        few = TileLimits(1 << 20, 8192, (32, 64, 32), (32, 128))
        # 32 x 32 x 32: 4096 operands + 4096 sums.
        assert choose_gemm_tile(gemm(512, 512, 512), few) == (32, 32, 32)

    def test_no_room_at_all_is_an_error_that_names_both_limits(self):
        with pytest.raises(KernelError, match=r"the PE has 0 and 65536"):
            choose_gemm_tile(gemm(8, 8, 8), TileLimits(0, 1 << 16, (32, 64, 32), (32, 128)))

    def test_a_tile_asked_for_is_taken_as_it_is_or_refused(self):
        assert choose_gemm_tile(gemm(512, 512, 512, tile=(16, 128, 64)), LIMITS) == (16, 128, 64)
        with pytest.raises(KernelError, match=r"65536 bytes of registers|bytes of registers"):
            choose_gemm_tile(gemm(512, 512, 512, tile=(256, 256, 256)), LIMITS)
        with pytest.raises(KernelError, match=r"tile_shape is \(16, 16\)"):
            choose_gemm_tile(gemm(512, 512, 512, tile=(16, 16)), LIMITS)

    def test_a_vector_is_cut_into_as_many_elements_as_a_matrix(self):
        def tile_of(*shape):
            x = Operand(A, shape, "f16", "hbm")
            return choose_math_tile(CompositeCmd("math", (x,), Operand(C, shape, "f16", "hbm"), math_op="exp"), LIMITS)

        assert tile_of(64, 8192) == (32, 128)
        assert tile_of(8192) == tile_of(1, 8192) == (1, 32 * 128)
        assert tile_of(8192, 1) == (32 * 128, 1)
        assert tile_of(100) == (1, 100)
        assert tile_of(1, 1) == (1, 1)

    def test_softmax_keeps_its_rows_whole(self):
        x = Operand(A, (64, 1000), "f16", "hbm")
        cmd = CompositeCmd("math", (x,), Operand(C, x.shape, "f16", "hbm"), math_op="softmax")
        # Rows of 1000: 32 of them need 64000 + 64000 bytes of registers, 16 need 32000 + 32000.
        assert choose_math_tile(cmd, LIMITS) == (16, 1000)


class TestSharing:
    def test_a_plan_knows_no_addresses_so_every_pe_has_the_same(self):
        here = gemm(64, 64, 64)
        there = CompositeCmd(
            "gemm",
            (Operand(0x5000, (64, 64), "f16", "hbm"), Operand(0x9000, (64, 64), "f16", "hbm")),
            Operand(0x1000, (64, 64), "f16", "hbm"),
            deps=(7,),
        )
        numbered, addresses = without_addresses(there)
        assert addresses == (0x5000, 0x9000, 0x1000)
        assert numbered == here
        assert planned(numbered, LIMITS) is planned(here, LIMITS)

    def test_a_second_reader_sees_the_same_tiles_and_one_that_runs_ahead_affects_none(self):
        plan = plan_of(gemm(96, 96, 96))
        one, two = plan.tiles(), plan.tiles()
        first = [next(one) for _ in range(5)]
        assert [next(two) for _ in range(9)][:5] == first
        assert len(list(one)) == plan.total_tiles - 5
        assert len(list(two)) == plan.total_tiles - 9
