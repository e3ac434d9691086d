"""The engines of a PE one by one: their timing rules, their ports, and what they say to neighbours that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.commands import DmaReadCmd, Operand
from kernbench.common.errors import ComponentError, LaunchError
from kernbench.common.messages import PeDmaMsg
from kernbench.common.units import GRID_NS, on_grid
from kernbench.components.builtin.engine_cycles import MacArray, compute_ns, compute_ns_each
from kernbench.components.builtin.pipeline import PipelineContext, ServerQueue, TileToken, lanes_ns
from kernbench.components.builtin.stages import MoveStage, RunsStage, StageType
from kernbench.components.builtin.tile_plan import TilePlan
from kernbench.components.recording import LANE, NO_REF, STAGE_BITS, Release
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

TINY = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
PE = "cube.pe_template.components"


class TestRules:
    @pytest.mark.parametrize(
        ("dtype", "ns"), [("f16", 16.0), ("bf16", 16.0), ("f32", 32.0), ("i32", 32.0), ("i8", 8.0), ("f8e5m2", 8.0)]
    )
    def test_a_product_takes_its_multiplications_over_the_rate(self, dtype, ns):
        assert MacArray(4096.0).product_ns(32, 64, 32, dtype) == ns

    @pytest.mark.parametrize(("m", "ns"), [(1, 1.0), (2, 1.0), (3, 2.0), (33, 17.0)])
    def test_a_product_takes_whole_cycles_rounded_up(self, m, ns):
        """m * 64 * 32 multiplications at 4096 per cycle of 1 ns are m / 2 cycles."""
        assert MacArray(4096.0).product_ns(m, 64, 32, "f16") == ns

    def test_a_product_of_one_takes_a_cycle(self):
        assert MacArray(1e9).product_ns(1, 1, 1, "i8") == 1.0

    @pytest.mark.parametrize("amount", [1, 1024, 1025, 10 * 1024])
    def test_the_clock_cuts_time_and_leaves_the_rate(self, amount):
        """1024 per cycle at 1.25 GHz are 1280 per ns; a cycle is 0.8 ns. Products and lanes follow one rule."""
        cycles = -(-amount // 1024)
        assert MacArray(1280.0, 1.25).product_ns(amount, 1, 1, "f16") == on_grid(0.8 * cycles)
        assert lanes_ns(amount, 1280.0, "f16", 1.25) == on_grid(0.8 * cycles)

    @given(st.integers(0, 10**7), st.floats(0.5, 1e5), st.sampled_from(["f16", "f32", "i8"]), st.floats(0.1, 10.0))
    def test_the_tile_model_rounds_as_the_engines_do(self, amount, per_ns, dtype, clock_ghz):
        each = compute_ns_each(np.array([amount]), per_ns, dtype, clock_ghz)
        assert abs(float(each[0]) - compute_ns(amount, per_ns, dtype, clock_ghz)) <= GRID_NS

    @pytest.mark.parametrize(("ghz", "gemm", "math"), [(1.0, 1.0, 1.0), (4.0, 0.5, 0.25)])
    def test_the_clocks_of_a_machine_act_on_both_engines(self, ghz, gemm, math):
        """1 x 64 x 32 products are 0.5 ns at the full rate, 64 elements 0.25 ns: 2 cycles and 1 cycle of 4 GHz."""

        def kernel(a, b, tl):
            tl.exp(tl.load(a))
            tl.dot(tl.load(a), tl.load(b))

        clocks = {f"{PE}.pe_gemm.attrs.clock_ghz": ghz, f"{PE}.pe_math.attrs.clock_ghz": ghz}
        log = OpLog()
        arrays = np.zeros((1, 64), np.float16), np.zeros((64, 32), np.float16)
        run_kernel(kernel, *arrays, topology=load_topology(None, {**TINY, **clocks}), op_log=log)
        took = {record.component_id.split(".")[-1]: record.t_end - record.t_start for record in log.records}
        assert (took["pe_gemm"], took["pe_math"]) == (gemm, math)

    @pytest.mark.parametrize(
        ("elements", "dtype", "ns"), [(1, "f16", 1), (256, "f16", 1), (257, "f16", 2), (256, "f32", 2), (513, "i8", 2)]
    )
    def test_lanes_start_a_row_every_cycle(self, elements, dtype, ns):
        assert lanes_ns(elements, 256.0, dtype) == ns

    @given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=20))
    def test_a_port_serves_in_order_and_one_at_a_time(self, asked):
        port, now, last = ServerQueue(), 0, 0.0
        for gap, ns in asked:
            now += gap
            token = TileToken(TilePlan(0, ()), PipelineContext({}, 1, lambda token: None, request=None))
            end = port.serve(token, now, ns)
            assert token.start_ns == max(now, last)
            assert end == token.start_ns + ns
            last = end
        assert port.busy_ns == sum(ns for _, ns in asked)

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.booleans()), max_size=20))
    def test_a_tcm_is_busy_while_either_port_is(self, asked):
        """Asked for at random times; 512 bytes take a ns on either port, and what is counted is whole ns."""
        engine = GraphEngine(load_topology(None, TINY))
        tcm, busy = engine.component("sip0.cube0.pe0.pe_tcm"), set()
        now = 0
        for gap, ns, is_store in asked:
            now += gap
            engine.env.run(until=engine.env.timeout(gap))
            token = TileToken(TilePlan(0, ()), PipelineContext({}, 1, lambda token: None, request=None))
            end = (tcm.store if is_store else tcm.fetch)(token, 512 * ns)
            busy |= set(range(int(token.start_ns), int(end)))
        assert engine.now_ns == now
        assert tcm.busy_ns == len(busy)


class TestFetchStore:
    def test_tiles_that_came_before_their_turn_are_fetched_in_the_order_of_feeding(self):
        """2048 bytes take 4 ns on the TCM's read port. The tile that was fed first is the last to come, after 9 ns."""
        engine, done = GraphEngine(load_topology(None, TINY)), []
        fetch_store = engine.component("sip0.cube0.pe0.pe_fetch_store")
        context = PipelineContext({}, 4, done.append, request=None)
        read = RunsStage(StageType.DMA_READ, "pe_dma", (), 0)
        plan = TilePlan(0, (read, MoveStage(StageType.FETCH, "pe_fetch_store", 2048, 0)))
        tokens = [TileToken(plan, context, number=10 + order, order=order) for order in range(4)]
        for order, at_ns in ((2, 0), (1, 5), (0, 9), (3, 30)):
            engine.env.run(until=engine.env.timeout(at_ns - engine.now_ns))
            tokens[order].index = 1
            fetch_store.take(tokens[order])
        engine.env.run()
        assert [(token.order, *token.times) for token in done] == [(0, 9, 13), (1, 13, 17), (2, 17, 21), (3, 30, 34)]
        # Both wait for the read that they overtook, then for the port.
        asked, overtaken = [0, Release.PROGRAM, 0.0, NO_REF], 10 << STAGE_BITS
        port = [10 << STAGE_BITS | 1, 11 << STAGE_BITS | 1]
        assert tokens[0].causes == tokens[3].causes == asked
        assert tokens[1].causes == [*asked, 1, LANE, 9.0, overtaken, 1, LANE, 9.0, port[0]]
        assert tokens[2].causes == [*asked, 1, LANE, 9.0, overtaken, 1, LANE, 9.0, port[1]]


class TestCompletion:
    def test_a_context_counts_every_tile_once(self):
        done = []
        context = PipelineContext({}, 2, lambda token: done.append(context.completed_tiles), request=None)
        first, second = (TileToken(TilePlan(number, ()), context) for number in range(2))
        context.complete_tile(first)
        context.complete_tile(second)
        assert done == [1, 2]
        with pytest.raises(ComponentError, match="tile 0 is reported done twice"):
            context.complete_tile(first)


class TestDmaCommands:
    @pytest.mark.parametrize(("requests", "says"), [((), "no requests"), (((),), "an empty request")])
    def test_one_that_moves_nothing_is_refused_at_the_kernels_line(self, requests, says):
        def kernel(x, tl):
            tl._call(DmaReadCmd(Operand(int(x), (1,), "f32", "hbm"), "t1", requests))

        with pytest.raises(LaunchError) as caught:
            run_kernel(kernel, np.zeros(1, np.float32))
        assert caught.value.failures[0].message == f"a DmaReadCmd with {says}"
        assert "tl._call(DmaReadCmd" in caught.value.failures[0].source_line


def dot(a, b, tl):
    tl.dot(tl.load(a), tl.load(b))


def composed(a, b, tl):
    tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b)))


@pytest.mark.parametrize(
    ("part", "kernel", "complaint"),
    [
        ("pe_gemm", dot, "pe_gemm takes no commands"),
        ("pe_math", dot, "pe_math takes no commands"),
        ("pe_dma", dot, "moves no bytes"),
        ("pe_scheduler", dot, "takes no commands"),
        ("pe_tcm", composed, "has no ports to fetch from"),
    ],
)
def test_a_neighbour_that_is_no_engine_is_named(part, kernel, complaint):
    impl = "kernbench.components.builtin.sram:SramComponent" if part == "pe_tcm" else "builtin.forwarding"
    # With logical addresses an allocation reaches the DMA engine before a kernel does.
    graph = load_topology(None, TINY | {f"{PE}.{part}.impl": impl, "system.address_model": "va"})
    array = np.ones((8, 8), np.float16)
    with pytest.raises((ComponentError, LaunchError), match=complaint):
        run_kernel(kernel, array, array, topology=graph)


class TestDma:
    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_single_requests_and_engines_per_direction(self):
        # Reads of 4096 bytes take 29 ns each; a second engine lets the second one share the latency: 16 ns later.
        for engines, last in ((1, 58.0), (2, 45.0)):
            graph = load_topology(None, TINY | {f"{PE}.pe_dma.attrs.engines_per_direction": engines})
            engine = GraphEngine(graph)
            pa = PhysAddr.pe_hbm_addr(0, 0, 0, 0, graph.spec.cube.hbm_slice_bytes).raw
            handles = [
                engine.submit(PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa + at, nbytes=4096))
                for at in (0, 4096)
            ]
            engine.wait_all()
            assert [engine.get_completion(handle)[1]["total_ns"] for handle in handles] == [29.0, last]

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_it_is_busy_while_a_request_is_under_way(self):
        engine = GraphEngine(load_topology(None, TINY))
        dma = engine.component("sip0.cube0.pe0.pe_dma")
        read = PeDmaMsg(0, 0, 0, PhysAddr.pe_hbm_addr(0, 0, 0, 0, engine.graph.spec.cube.hbm_slice_bytes).raw, 4096)
        engine.wait(engine.submit(read))  # 29 ns
        engine.env.run(until=engine.env.timeout(50.0 - engine.now_ns))
        assert dma.busy_ns == 29.0
        second = engine.submit(read)
        engine.env.run(until=engine.env.timeout(10.0))
        assert dma.busy_ns == 29.0 + 10.0
        engine.wait(second)
        assert dma.busy_ns == 29.0 + 29.0

    def test_an_operand_in_pieces_is_as_far_as_its_longest(self):
        engine = GraphEngine(load_topology(None, TINY))
        dma, slice_bytes = engine.component("sip0.cube0.pe0.pe_dma"), engine.graph.spec.cube.hbm_slice_bytes
        here, there = (PhysAddr.pe_hbm_addr(0, 0, pe, 0, slice_bytes).raw for pe in (0, 1))

        def timing(*segments):
            return dma.timing_to(Operand(0, (1, 1024), "f16", "hbm", segments=segments))

        near, far = timing((here, 2048)), timing((there, 2048))
        assert near != far
        assert timing((here, 1536), (there, 512)) == timing((there, 512), (here, 1536)) == near
        assert timing((here, 512), (there, 1536)) == timing((there, 1536), (here, 512)) == far

    def test_reads_and_writes_have_channels_of_their_own(self):
        engine = GraphEngine(load_topology(None, TINY))
        pa = PhysAddr.pe_hbm_addr(0, 0, 0, 0, engine.graph.spec.cube.hbm_slice_bytes).raw
        handles = [
            engine.submit(PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=2048, is_write=write))
            for write in (False, True)
        ]
        engine.wait_all()
        assert all(engine.get_completion(handle)[1]["total_ns"] < 2 * 21 for handle in handles)
