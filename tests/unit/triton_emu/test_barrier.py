"""A barrier over the PEs of a launch: what it costs, what it orders, and what is said when a PE never comes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kernbench.common.errors import DeadlockError, LaunchError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel, tiny_machine
from kernbench.topology import load_topology

EVERY = {"target_cubes": range(2), "target_pes": range(4)}


def path_ns(graph, *nodes):
    """How long a control message takes along these nodes, one stretch after the other."""
    engine = GraphEngine(graph)
    return sum(engine.latency_ns(engine.router.find_node_path(a, b)) for a, b in pairwise(nodes))


def times_after_barrier(graph, grid, wait=lambda pe, cube: 0):
    """When each PE goes on after a barrier, counted from the kernel's start."""
    found = {}

    def kernel(tl):
        pe, cube = tl.program_id(0), tl.program_id(1)
        start = tl._runner.now_ns
        tl.cycles(wait(pe, cube))
        tl.barrier()
        found[cube, pe] = tl._runner.now_ns - start

    run_kernel(kernel, grid=grid, topology=graph)
    return found


class TestTime:
    def test_within_a_cube_it_takes_the_slowest_way_to_the_m_cpu_and_each_its_own_way_back(self):
        graph = tiny_machine(4)
        there = [path_ns(graph, "sip0.cube0.m_cpu", f"sip0.cube0.pe{pe}.pe_cpu") for pe in range(4)]
        up = [path_ns(graph, f"sip0.cube0.pe{pe}.pe_cpu", "sip0.cube0.m_cpu") for pe in range(4)]
        assert min(up) > 0
        assert times_after_barrier(graph, (4,)) == {(0, pe): max(up) + there[pe] for pe in range(4)}

    def test_all_wait_for_the_last(self):
        graph = tiny_machine(4)
        at_once, later = (times_after_barrier(graph, (4,), wait) for wait in (lambda *_: 0, lambda pe, _: 500 * pe))
        up = [path_ns(graph, f"sip0.cube0.pe{pe}.pe_cpu", "sip0.cube0.m_cpu") for pe in range(4)]
        assert {key: ns - 1500 - up[3] for key, ns in later.items()} == {
            key: ns - max(up) for key, ns in at_once.items()
        }

    def test_over_cubes_it_goes_through_the_io_cpu(self):
        graph = tiny_machine(2, 2)
        io = "sip0.io0.io_cpu"

        def way(cube, pe):
            return path_ns(graph, f"sip0.cube{cube}.pe{pe}.pe_cpu", f"sip0.cube{cube}.m_cpu", io)

        def back(cube, pe):
            return path_ns(graph, io, f"sip0.cube{cube}.m_cpu", f"sip0.cube{cube}.pe{pe}.pe_cpu")

        pes = [(cube, pe) for cube in range(2) for pe in range(2)]
        longest = max(way(*each) for each in pes)
        assert times_after_barrier(graph, (2, 2)) == {each: longest + back(*each) for each in pes}

    def test_over_sips_all_wait_for_the_last_of_the_tray(self):
        graph = load_topology(None, {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1})
        went_on = {}

        def kernel(tl):
            tl.cycles(3000 * tl.program_id(2))
            tl.barrier()
            went_on[tl.program_id(2), tl.program_id(0)] = tl._runner.now_ns

        with RuntimeContext(GraphEngine(graph)) as torch:
            launch = torch.launch(kernel, sips="all", target_pes=range(4))
        assert len(went_on) == 8
        assert min(went_on.values()) > launch.pes[0].start_ns + 3000

    def test_the_op_log_has_the_exchange_of_every_pe(self):
        log = OpLog()

        def kernel(x, tl):
            tl.load(x)
            tl.cycles(100 * tl.program_id(0))
            tl.barrier()

        run_kernel(kernel, np.zeros(4, np.float16), grid=(2,), op_log=log)
        records = [record for record in log.records if record.op_name == "barrier"]
        assert [record.component_id for record in records] == ["sip0.cube0.pe0.pe_cpu", "sip0.cube0.pe1.pe_cpu"]
        assert len(dict.fromkeys(record.t_start for record in records)) == 1  # when the second PE came


class TestOrder:
    def test_what_a_pe_stored_before_is_what_others_load_after(self):
        def kernel(x, out, tl):
            me, n = tl.program_id(0), tl.num_programs(0)
            tl.store_async(x + 2 * me, tl.full((1,), me + 1, "f16"))
            tl.barrier()
            tl.store(out + 2 * me, tl.load(x + 2 * ((me + 1) % n), (1,)))

        arrays, _ = run_kernel(kernel, np.zeros(4, np.float16), np.zeros(4, np.float16), grid=(4,), check_races=True)
        assert arrays[1].tolist() == [2, 3, 4, 1]

    @pytest.mark.parametrize(("wait_for_loads", "is_waited_for"), [(True, True), (False, False)])
    def test_loads_go_on_meanwhile_if_asked_for(self, wait_for_loads, is_waited_for):
        """64 KiB of a slice take 256 ns; a barrier of two PEs of a cube takes less."""
        after = {}

        def kernel(x, tl):
            start = tl._runner.now_ns
            asked = tl.load_async(x, (32768,))
            tl.barrier(wait_for_loads=wait_for_loads)
            after[tl.program_id(0)] = tl._runner.now_ns - start
            tl.wait(asked)
            assert tl._runner.now_ns - start > 256

        run_kernel(kernel, np.zeros(32768, np.float16), grid=(2,))
        assert [ns > 256 for ns in after.values()] == [is_waited_for] * 2

    def test_several_barriers_are_counted(self):
        def kernel(x, tl):
            me = tl.program_id(0)
            for turn in range(3):
                if me == turn:
                    tl.store(x, tl.load(x) * 10 + (me + 1))
                tl.barrier()

        arrays, _ = run_kernel(kernel, np.zeros(1, np.float16), grid=(3,), check_races=True)
        assert arrays[0].tolist() == [123]


class TestFaults:
    def test_a_pe_that_never_comes_is_a_deadlock_that_names_it(self):
        def kernel(tl):
            if tl.program_id(0) != 2:
                tl.barrier()

        with pytest.raises(DeadlockError) as caught:
            run_kernel(kernel, grid=(4,))
        assert [(each.pe, each.source) for each in caught.value.blocked] == [(pe, "tl.barrier()") for pe in (0, 1, 3)]
        assert caught.value.blocked[0].waits_for == "barrier 1 of its launch, to which sip0.cube0.pe2 has not come"

    def test_one_barrier_less_is_a_deadlock_at_the_last(self):
        def kernel(tl):
            for _ in range(2 if tl.program_id(0) else 1):
                tl.barrier()

        with pytest.raises(DeadlockError, match=r"barrier 2 of its launch, to which sip0\.cube0\.pe0 has not come"):
            run_kernel(kernel, grid=(2,))

    def test_a_kernel_that_fails_elsewhere_ends_those_that_wait(self):
        def kernel(tl):
            if tl.program_id(0) == 1:
                tl.cycles(100)
                raise ValueError("no good")
            tl.barrier()

        with RuntimeContext(GraphEngine(tiny_machine(4))) as torch:
            with pytest.raises(LaunchError, match="ValueError: no good"):
                torch.launch(kernel, target_pes=range(4))
            torch.launch(lambda tl: tl.barrier(), target_pes=range(4))  # the PEs are free for the next

    def test_a_repeatable_kernel_with_a_barrier_takes_as_long_as_any_other(self):
        from kernbench import repeatable

        def kernel(tl):
            tl.cycles(10 * tl.program_id(0))
            tl.barrier()

        times = []
        for each in (kernel, repeatable(lambda tl: kernel(tl))):
            with RuntimeContext(GraphEngine(tiny_machine(4, 2))) as torch:
                launches = [torch.launch(each, **EVERY) for _ in range(3)]
            times.append([[pe.pe_exec_ns for pe in launch.pes] for launch in launches])
        assert times[0] == times[1]
