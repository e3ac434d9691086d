"""A kernel on one PE: every time derived by hand.

On the tiny machine a PE reaches its own HBM slice over one router (2 ns), links of 256 GB/s and 8 channels of 32
GB/s. With bursts and flits of 256 bytes a read of f flits takes 2 (request) + 8 (burst) + f (first link) + 2 (router)
+ 1 (last flit on the second link) = f + 13 ns, and a write f + 1 + 2 + 8 (burst) + 2 (answer) = f + 13 as well. A
command costs 1 ns in PE_SCHEDULER. A 32 x 64 x 32 tile of f16 is 4096 + 4096 bytes: 29 + 29 ns of DMA, 8192 / 512 =
16 ns of fetch, 32 * 64 * 32 / 4096 = 16 ns of GEMM, 2048 / 512 = 4 ns of store and 8 + 13 = 21 ns of write.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest

from kernbench.common.errors import ComponentError
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.components.builtin.pe_fetch_store import PeFetchStoreComponent
from kernbench.components.builtin.pipeline import TileToken
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.memory_ports import PacketPort
from kernbench.sim_engine.op_log import OpLog, OpRecord
from kernbench.sim_engine.wiring import wiring_of
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

READ, FETCH, GEMM, STORE, WRITE = 29.0, 16.0, 16.0, 4.0, 21.0
TINY = {
    "system.sips.count": 1,
    "sip.cube_mesh.w": 1,
    "sip.cube_mesh.h": 1,
    "cube.pe_layout.pe_per_corner": 1,
}
PE = "cube.pe_template.components"


def machine(**parts: dict[str, object]):
    """The tiny machine with other attrs: machine(pe_dma={"queue_depth": 1})."""
    changed = {f"{PE}.{part}.attrs.{name}": value for part, attrs in parts.items() for name, value in attrs.items()}
    return load_topology(None, TINY | changed)


def f16(*shape: int):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float16)


def timed(kernel, *arrays, graph=None) -> tuple[float, list[OpRecord]]:
    log = OpLog()
    run = run_kernel(kernel, *arrays, topology=graph or machine(), op_log=log)
    return run.time_ns, [record for record in log.records if record.op_kind != "host"]


def stages(records: list[OpRecord], name: str) -> list[OpRecord]:
    return [record for record in records if record.op_name == f"TileToken/{name}"]


def streamed(a, b, c, tl):
    """Both operands come from memory, tile by tile."""
    tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c))


def pinned(a, b, c, tl):
    """Both operands are brought in first."""
    x, y = tl.load(a), tl.load(b)
    tl.wait(tl.composite("gemm", x, y, out_ptr=c))


def product(m: int, k: int, n: int):
    return f16(m, k), f16(k, n), np.zeros((m, n), np.float16)


class TestSimpleCommands:
    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_a_load_a_product_and_a_store_follow_one_another(self):
        def kernel(a, b, c, tl):
            tl.store(c, tl.dot(tl.load(a), tl.load(b)))

        time_ns, records = timed(kernel, *product(32, 64, 32))
        assert time_ns == (1 + READ) + (1 + READ) + (1 + GEMM) + (1 + WRITE)
        assert [record.op_name for record in records] == ["dma_read", "dma_read", "gemm_f16", "dma_write"]
        a, b, product_, _ = (record.dependency_ids for record in records)
        assert len(a) == len(b) == 1  # each follows the host's write of its matrix
        first = product_[0]
        assert product_ == (first, first + 1)
        assert records[3].dependency_ids == (first + 2,)

    @pytest.mark.parametrize(
        ("dtype", "ns"), [("f16", 16), ("bf16", 16), ("f32", 32), ("i8", 8), ("fp8", 8), ("i32", 32)]
    )
    def test_products_take_time_by_dtype(self, dtype, ns):
        def kernel(tl):
            tl.dot(tl.zeros((32, 64), dtype), tl.zeros((64, 32), dtype))

        assert timed(kernel)[0] == 1 + ns

    @pytest.mark.parametrize(("dtype", "ns"), [("f16", 4), ("f32", 8), ("i8", 2), ("bool", 2)])
    def test_math_takes_whole_ns_by_dtype(self, dtype, ns):
        # 1000 elements on 256 lanes, half of them for four bytes, double for one.
        def kernel(tl):
            tl.logical_not(tl.zeros((1000,), dtype))

        assert timed(kernel)[0] == 1 + ns

    @pytest.mark.parametrize(
        ("op", "ns"),
        [
            (lambda tl, i8, f16, flag: tl.exp(i8), 16),
            (lambda tl, i8, f16, flag: i8 + 0.5, 16),
            (lambda tl, i8, f16, flag: tl.where(flag, 1.0, 0.0), 16),
            (lambda tl, i8, f16, flag: tl.cast(f16, "f32"), 16),
            (lambda tl, i8, f16, flag: tl.sum(i8), 16),
            (lambda tl, i8, f16, flag: tl.where(flag, f16, 0.0), 8),
            (lambda tl, i8, f16, flag: f16 > i8, 8),
            (lambda tl, i8, f16, flag: tl.cast(f16, "i8"), 8),
            (lambda tl, i8, f16, flag: i8 > i8, 4),
            (lambda tl, i8, f16, flag: i8 + i8, 4),
        ],
    )
    def test_the_slowest_of_inputs_and_result_decides(self, op, ns):
        # 2048 elements: 16 ns on 128 lanes where f32 or i32 is among them, 8 ns on 256, 4 ns on 512 for bytes alone.
        def kernel(tl):
            op(tl, tl.zeros((2048,), "i8"), tl.zeros((2048,)), tl.zeros((2048,), "bool"))

        assert timed(kernel)[0] == 1 + ns

    def test_a_batch_of_products_is_charged_whole(self):
        def kernel(tl):
            tl.dot(tl.zeros((3, 32, 64)), tl.zeros((3, 64, 32)))

        assert timed(kernel)[0] == 1 + 3 * GEMM

    def test_cycles_take_the_time_of_the_clock(self):
        def kernel(tl):
            tl.cycles(10)

        assert timed(kernel)[0] == 10
        assert timed(kernel, graph=machine(pe_cpu={"clock_ghz": 2.0}))[0] == 5

    def test_views_constants_and_scalars_cost_nothing(self):
        def kernel(tl):
            x = tl.full((4, 8), 2.0)
            _ = x.T, tl.reshape(x, 32), x[1:3, ...], tl.arange(0, 8), tl.cdiv(7, 2), tl.program_id(0), float(x[0, 0])

        assert timed(kernel)[0] == 0


class TestTiles:
    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_one_tile_passes_every_stage(self):
        time_ns, _ = timed(streamed, *product(32, 64, 32))
        assert time_ns == 1 + 2 * READ + FETCH + GEMM + STORE + WRITE

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_the_second_tile_hides_behind_its_reads(self):
        # Reads follow one another; while tile 1 is read (58 ns), tile 0 is fetched, computed, stored and written (57).
        time_ns, _ = timed(streamed, *product(64, 64, 32))
        assert time_ns == 1 + 4 * READ + FETCH + GEMM + STORE + WRITE

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_many_streamed_tiles_are_bound_by_dma(self):
        time_ns, records = timed(streamed, *product(128, 128, 64))
        assert len(stages(records, "GEMM")) == 4 * 2 * 2
        assert time_ns == 1 + 16 * 2 * READ + FETCH + GEMM + STORE + WRITE

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_one_pinned_operand_halves_the_reads(self):
        def kernel(a, b, c, tl):
            x = tl.load(a)
            tl.wait(tl.composite("gemm", x, tl.ref(b), out_ptr=c))

        time_ns, _ = timed(kernel, *product(128, 64, 32))
        # The load is 64 flits. B's tile is read again for each of the four row tiles; 57 ns of the last tile remain.
        assert time_ns == (1 + 64 + 13) + 1 + 4 * READ + FETCH + GEMM + STORE + WRITE

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_pinned_tiles_are_bound_by_compute(self):
        def kernel(a, b, c, tl):
            x, y = tl.load(a), tl.load(b)
            tl.wait(tl.composite("gemm", x, y, out_ptr=c, tile_shape=(64, 64, 64)))

        time_ns, records = timed(kernel, *product(256, 64, 64))
        # Tiles of 64 x 64 x 64: 32 ns of fetch, 64 of GEMM, 16 of store, 32 + 13 of write. Only the first fetch and the
        # last store and write are not hidden behind four products.
        assert time_ns == (1 + 128 + 13) + (1 + 32 + 13) + 1 + 32 + 4 * 64 + 16 + 45
        ends = [record.t_end for record in stages(records, "GEMM")]
        assert [b - a for a, b in pairwise(ends)] == [64, 64, 64]

    def test_dma_and_compute_overlap_in_the_log(self):
        _, records = timed(streamed, *product(64, 64, 32))
        product_0 = stages(records, "GEMM")[0]
        write_0 = stages(records, "DMA_WRITE")[0]
        reads_1 = [record for record in stages(records, "DMA_READ") if record.params["tile_id"] == 1]
        assert any(read.t_start < product_0.t_end and product_0.t_start < read.t_end for read in reads_1)
        assert any(read.t_start < write_0.t_end and write_0.t_start < read.t_end for read in reads_1)

    def test_every_stage_of_a_tile_follows_the_one_before(self):
        log = OpLog()
        run_kernel(streamed, *product(64, 128, 32), topology=machine(), op_log=log)
        records, by_id = log.records, dict(log.items())
        followed = 0
        for record in records:
            if record.op_name.startswith("TileToken"):
                for number in record.dependency_ids:
                    if by_id[number].op_kind == "host":
                        continue
                    followed += 1
                    assert by_id[number].params["tile_id"] == record.params["tile_id"]
                    assert by_id[number].t_end <= record.t_start
        assert followed == 4 * 3 + 2 * 2  # three of the four stages of a tile follow one, and STORE and DMA_WRITE
        assert len(stages(records, "STORE")) == len(stages(records, "DMA_WRITE")) == 2

    def test_a_channel_serves_one_transfer_at_a_time(self):
        _, records = timed(streamed, *product(64, 128, 64))
        for name in ("DMA_READ", "DMA_WRITE", "GEMM", "FETCH", "STORE"):
            ops = stages(records, name)
            assert all(a.t_end <= b.t_start for a, b in pairwise(ops)), name

    def test_edge_tiles_take_the_cycles_of_what_they_hold(self):
        _, records = timed(streamed, *product(40, 70, 33))
        took = [(r.params["m"], r.params["k"], r.params["n"], r.t_end - r.t_start) for r in stages(records, "GEMM")]
        assert took[0] == (32, 64, 32, 16.0)
        assert took[1] == (32, 6, 32, 2.0)  # 6144 multiplications, of which a cycle does 4096
        assert took[-1] == (8, 6, 1, 1.0)
        assert sum(m * k * n for m, k, n, _ in took) == 40 * 70 * 33

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_epilogues_share_the_compute_slot(self):
        def kernel(a, b, c, tl):
            tl.wait(
                tl.composite(
                    "gemm", tl.ref(a), tl.ref(b), out_ptr=c, epilogue=[{"op": "relu"}, {"op": "scale", "factor": 2}]
                )
            )

        time_ns, _ = timed(kernel, *product(32, 64, 32))
        # 1024 sums in f32 on 128 lanes: 8 ns an op.
        assert time_ns == 1 + 2 * READ + FETCH + GEMM + 2 * 8 + STORE + WRITE

    @pytest.mark.parametrize(
        ("dtype", "out", "steps", "each_ns"),
        [
            (np.int8, np.int8, [], [2]),  # 1024 bytes on 512 lanes
            (np.float16, np.float16, [], [4]),
            (np.int8, np.float32, [], [8]),
            (np.float16, np.float32, [], [8]),
            (np.float16, np.float16, [{"op": "relu"}], [8, 8]),  # the accumulating type is f32
        ],
    )
    def test_math_tiles_work_in_the_slowest_type_they_have_to_do_with(self, dtype, out, steps, each_ns):
        def kernel(a, c, tl):
            tl.composite("math", tl.ref(a), out_ptr=c, math_op="abs", epilogue=steps)

        _, records = timed(kernel, np.ones((32, 32), dtype), np.zeros((32, 32), out))
        assert [record.t_end - record.t_start for record in stages(records, "MATH")] == each_ns

    @pytest.mark.parametrize(
        ("bias", "out", "each_ns"),
        [(np.float16, np.float16, 4), (np.float32, np.float16, 8), (np.float16, np.float32, 8)],
    )
    def test_an_epilogue_works_in_the_slowest_of_sums_operand_and_output(self, bias, out, each_ns):
        def kernel(a, b, c, d, tl):
            step = {"op": "bias", "bias": tl.ref(d)}
            tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c, epilogue=[step], acc_dtype="f16")

        _, records = timed(kernel, f16(32, 64), f16(64, 32), np.zeros((32, 32), out), np.zeros(32, bias))
        assert [record.t_end - record.t_start for record in stages(records, "MATH")] == [each_ns]

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_an_op_of_scope_kernel_makes_a_second_pass(self):
        def kernel(a, b, c, tl):
            tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c, epilogue=[{"op": "relu", "scope": "kernel"}]))

        time_ns, _ = timed(kernel, *product(32, 64, 32))
        first = 1 + 2 * READ + FETCH + GEMM + STORE + WRITE
        assert time_ns == first + (8 + 13) + 4 + 8 + 4 + WRITE  # read, fetch, f32 math, store and write of 2048 bytes

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_a_result_that_stays_is_not_written(self):
        def kernel(a, b, c, tl):
            out = tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b)))
            tl.store(c, out)

        time_ns, records = timed(kernel, *product(32, 64, 32))
        assert time_ns == 1 + 2 * READ + FETCH + GEMM + STORE + 1 + WRITE
        assert not stages(records, "DMA_WRITE")

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_a_tiled_math_op_streams(self):
        def kernel(a, b, tl):
            tl.wait(tl.composite("math", tl.ref(a), out_ptr=b, math_op="exp"))

        time_ns, _ = timed(kernel, f16(64, 128), np.zeros((64, 128), np.float16))
        # Two tiles of 32 x 128: 8192 bytes, 32 + 13 to read or write, 16 to fetch or store, 4096 / 256 = 16 of math.
        assert time_ns == 1 + 2 * 45 + 16 + 16 + 16 + 45

    def test_the_log_says_what_a_tiled_math_op_was_done_to(self):
        def kernel(a, b, c, tl):
            tl.wait(tl.composite("math", tl.ref(a), tl.ref(b), out_ptr=c, math_op="add"))

        _, records = timed(kernel, f16(64, 128), f16(1, 128), np.zeros((64, 128), np.float16))
        (composite,) = (record for record in records if record.op_name == "composite_math")
        params = composite.params
        assert (composite.op_kind, params["op"], params["math_op"]) == ("math", "math", "add")
        assert params["input_shapes"] == ((64, 128), (1, 128))
        assert params["tile_shape"] == (32, 128)
        assert params["epilogues"] == ()
        assert params["out_nbytes"] == 64 * 128 * 2
        reads = [record.params["address"] for record in stages(records, "DMA_READ")]
        assert tuple(reads[:2]) == params["input_addrs"]  # the first tile begins where its operands do
        assert stages(records, "DMA_WRITE")[0].params["address"] == params["out_addr"]


class TestResources:
    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_a_load_waits_behind_the_queue_only_not_behind_the_feeder(self):
        def kernel(a, b, c, d, tl):
            tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c)
            tl.load(d)  # 16 flits

        arrays = (*product(320, 64, 32), f16(32, 64))
        for depth in (1, 4):
            _, records = timed(kernel, *arrays, graph=machine(pe_dma={"queue_depth": depth}))
            (load,) = [record for record in records if record.op_name == "dma_read"]
            begin = stages(records, "DMA_READ")[0].t_start
            # One tile is being read, `depth` tiles wait in the queue, and the feeder holds back the others.
            assert load.t_start - begin == (1 + depth) * 2 * READ

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_composites_are_fed_one_after_the_other(self):
        def kernel(a, b, c, d, tl):
            tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c)
            tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=d)

        m, k, n = 128, 64, 32
        time_ns, records = timed(kernel, *product(m, k, n), np.zeros((m, n), np.float16))
        assert [r.params["tile_id"] for r in stages(records, "GEMM")] == [0, 1, 2, 3, 0, 1, 2, 3]
        assert time_ns == 1 + 8 * 2 * READ + FETCH + GEMM + STORE + WRITE  # and the kernel ends with the last of them

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_two_requests_under_way_share_the_latency(self):
        graph = machine(pe_dma={"outstanding": 2})
        time_ns, records = timed(streamed, *product(64, 64, 32), graph=graph)
        # A0 and B0 depart together, A1 when A0 is there, B1 when B0 is: the latency is hidden, and each read is there
        # 16 ns after the one before it, which is what its 4096 bytes take on the link.
        reads = stages(records, "DMA_READ")
        ends = [record.t_end - reads[0].t_start for record in reads]
        assert ends == [READ, READ + 16, READ + 32, READ + 48]
        assert [record.params["tile_id"] for record in reads] == [0, 0, 1, 1]
        assert time_ns < 1 + 4 * READ + FETCH + GEMM + STORE + WRITE

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_a_full_register_file_stalls_the_fetch(self):
        def kernel(a, b, c, tl):
            x, y = tl.load(a), tl.load(b)
            tl.wait(tl.composite("gemm", x, y, out_ptr=c, tile_shape=(64, 64, 64)))

        loads = (1 + 96 + 13) + (1 + 32 + 13)
        arrays = product(192, 64, 64)
        # A tile needs 16384 bytes of operands and 16384 of sums. With room for one, fetch, product and store (32 + 64 +
        # 16) follow one another; with room for two, only products do.
        one = machine(pe_fetch_store={"register_file_bytes": 32768})
        assert timed(kernel, *arrays, graph=one)[0] == loads + 1 + 3 * (32 + 64 + 16) + 45
        two = machine(pe_fetch_store={"register_file_bytes": 65536})
        assert timed(kernel, *arrays, graph=two)[0] == loads + 1 + 32 + 3 * 64 + 16 + 45

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_tile_buffers_hold_up_the_feeder(self):
        def kernel(a, b, c, tl):
            tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c, tile_shape=(32, 64, 32)))

        # 10 KiB hold one tile (4096 + 4096 + 2048): the next may be read only once it has been written.
        graph = load_topology(None, TINY | {"cube.memory_map.tcm_scheduler_reserved_mb": 10 / 1024})
        time_ns, _ = timed(kernel, *product(96, 64, 32), graph=graph)
        assert time_ns == 1 + 3 * (2 * READ + FETCH + GEMM + STORE + WRITE)

    @pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
    def test_buffers_are_free_for_the_next_tile_when_they_are_fetched(self):
        def kernel(a, b, tl):
            tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), tile_shape=(32, 64, 32)))

        # 8 KiB hold the operands of one tile, and the result stays in TCM: the next is read after the fetch.
        graph = load_topology(None, TINY | {"cube.memory_map.tcm_scheduler_reserved_mb": 8 / 1024})
        a, b, _ = product(64, 64, 32)
        assert timed(kernel, a, b, graph=graph)[0] == 1 + 2 * (2 * READ + FETCH) + GEMM + STORE

    @pytest.mark.needs("va", reason="other address models have no MMU")
    def test_the_mmu_is_paid_on_every_path(self):
        def simple(a, b, c, tl):
            tl.store(c, tl.dot(tl.load(a), tl.load(b)))

        arrays = product(32, 64, 32)
        slow = machine(pe_mmu={"tlb_overhead_ns": 3.0})
        for kernel in (simple, streamed):  # two reads and a write each
            assert timed(kernel, *arrays, graph=slow)[0] == timed(kernel, *arrays)[0] + 3 * 3

    def test_an_engines_overhead_comes_before_its_work(self):
        def math(tl):
            tl.exp(tl.zeros((1024,)))

        assert timed(math, graph=machine(pe_math={"overhead_ns": 3.0}))[0] == 1 + 3 + 4  # 1024 / 256 lanes
        slow = machine(pe_gemm={"overhead_ns": 5.0})
        assert timed(streamed, *product(32, 64, 32), graph=slow)[0] == timed(streamed, *product(32, 64, 32))[0] + 5
        slow = machine(pe_fetch_store={"overhead_ns": 7.0})  # a fetch and a store
        assert timed(streamed, *product(32, 64, 32), graph=slow)[0] == timed(streamed, *product(32, 64, 32))[0] + 14

    def test_simple_and_tiled_products_take_turns(self):
        def kernel(a, b, c, tl):
            x, y = tl.load(a), tl.load(b)
            tl.composite("gemm", x, y, out_ptr=c, tile_shape=(64, 64, 64))
            tl.dot(x[:64], y)

        _, records = timed(kernel, *product(256, 64, 64))
        ops = [record for record in records if record.component_id.endswith("pe_gemm")]
        assert all(a.t_end <= b.t_start for a, b in pairwise(ops))
        # The product was asked for while the first tile was fetched, so it goes first.
        assert [record.op_name for record in ops] == ["gemm_f16"] + ["TileToken/GEMM"] * 4


class TwiceDone(PeFetchStoreComponent):
    """Hands every token on twice."""

    def finish(self, token: TileToken) -> None:
        token.context.complete_tile(token)
        token.context.complete_tile(token)


class PacketDma(PeDmaComponent):
    """Sends packets even where it need not."""

    sent = 0

    def locate(self, pa: int):
        port, address = super().locate(pa)
        PacketDma.sent += 1
        return PacketPort(self.ctx, wiring_of(self.ctx.graph), port.path), address


@pytest.fixture(autouse=True)
def _blocks(monkeypatch):
    module = ModuleType("pe_pipeline_blocks")
    module.TwiceDone, module.PacketDma = TwiceDone, PacketDma
    monkeypatch.setitem(sys.modules, "pe_pipeline_blocks", module)


def test_a_tile_reported_done_twice_is_a_fault():
    graph = load_topology(None, TINY | {f"{PE}.pe_fetch_store.impl": "pe_pipeline_blocks:TwiceDone"})
    with pytest.raises(ComponentError, match="reported done twice"):
        timed(streamed, *product(32, 64, 32), graph=graph)


@pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
def test_the_short_way_to_a_plain_memory_takes_the_time_of_packets():
    graph = load_topology(None, TINY | {f"{PE}.pe_dma.impl": "pe_pipeline_blocks:PacketDma"})
    arrays = product(70, 130, 40)
    short, sent = timed(streamed, *arrays), PacketDma.sent
    packets = timed(streamed, *arrays, graph=graph)
    assert PacketDma.sent > sent
    assert short == packets


@pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
@pytest.mark.needs("addresses", reason="PE 0 reads rows of PE 1")
def test_a_tile_whose_rows_lie_in_two_memories_is_read_from_both():
    def kernel(a, b, c, tl):
        if tl.program_id(0) == 0:
            tl.wait(tl.composite("gemm", tl.ref(a.storage, (32, 128)), tl.ref(b.storage, (128, 32)), out_ptr=c.storage))

    a, b, c = product(32, 128, 32)
    log = OpLog()
    rows = DPPolicy(pe="row_wise", num_pes=2)
    graph = machine()
    run = run_kernel(kernel, a, b, c, grid=(2,), dp=rows, topology=graph, op_log=log)
    np.testing.assert_allclose(
        run.arrays[2].astype(np.float32), a.astype(np.float32) @ b.astype(np.float32), rtol=2e-3, atol=2e-3
    )
    # Half of the rows of A's tiles are in PE 1's slice: farther away than the 29 ns of a tile that is all at home. B's
    # first 64 rows are at home, the others are not.
    first_a, first_b, second_a, second_b = (record.t_end - record.t_start for record in stages(log.records, "DMA_READ"))
    assert first_a > READ
    assert first_b == READ
    assert second_a == first_a
    assert second_b > READ


@pytest.mark.needs("addresses", reason="PE 0 reads rows of PE 1")
@pytest.mark.parametrize(("n_pes", "parts"), [(1, [2]), (2, [1, 1])])
def test_tiles_are_read_where_they_lie_and_written_where_they_go_byte_for_byte(n_pes, parts):
    def kernel(a, c, tl):
        if tl.program_id(0) == 0:
            tl.wait(tl.composite("math", tl.ref(a.storage, (32, 256)), out_ptr=c, math_op="abs"))

    with RuntimeContext(GraphEngine(machine())) as torch:
        a = torch.from_numpy(f16(32, 256), dp=DPPolicy(pe="row_wise", num_pes=n_pes))
        c = torch.zeros((32, 256), dtype="f16")
        launch = torch.launch("k", kernel, a, c)
    # Two tiles of 32 rows of 256 bytes each; with two PEs 16 rows of each tile lie in either slice.
    half = 2 * 16 * 256
    expected = {f"sip0.cube0.hbm_ctrl.pe{pe}": (part * half, 0) for pe, part in enumerate(parts)}
    expected["sip0.cube0.hbm_ctrl.pe0"] = (parts[0] * half, 2 * half)
    assert {node: (use.read_bytes, use.written_bytes) for node, use in launch.pes[0].hbm} == expected


@pytest.mark.parametrize("size", [(32, 64, 32), (100, 300, 50), (256, 64, 96)])
@pytest.mark.parametrize("kernel", [streamed, pinned])
def test_no_product_beats_the_roofline(kernel, size):
    m, k, n = size
    time_ns, _ = timed(kernel, *product(m, k, n))
    least_bytes = 2 * (m * k + k * n + m * n)
    assert time_ns >= max(least_bytes / 256, m * k * n / 4096)
