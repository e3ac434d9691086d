"""How long a PE's DMA is busy, with two engines per direction: the times of its ops as one set, to the last bit,
whether composites and launches are replayed or not.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench import repeatable
from kernbench.common.units import GRID_NS
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

Step = tuple[str, int]
DP = DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)


@cache
def machine(gbs: float) -> TopologyGraph:
    dma = "cube.pe_template.components.pe_dma.attrs"
    one = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    return load_topology(None, {**one, f"{dma}.engines_per_direction": 2, "cube.links.pe_dma_to_router_bw_gbs": gbs})


@repeatable
def moves(x: Any, y: Any, steps: tuple[Step, ...], tl: Any) -> None:
    for what, size in steps:
        if what == "loads":
            first, second = tl.load_async(x.local, (size, 64)), tl.load_async(x.local + 128, (size, 64))
            tl.wait(second)
            tl.wait(first)
        elif what == "store":
            tl.store(y.local, tl.zeros((size, 64)))
        elif what == "cycles":
            tl.cycles(size)
        else:
            operands = tl.ref(x.local, (size, 64)), tl.ref(x.local, (64, 64))
            tl.wait(tl.composite("gemm", *operands, out_ptr=y.local, tile_shape=(16, 32, 32)))


def busy_times(steps: tuple[Step, ...], graph: TopologyGraph, *, fast: bool) -> list[tuple[float, float]]:
    """Of each PE of each launch: what the result has, and what its DMA ops cover."""
    log = OpLog()
    with RuntimeContext(GraphEngine(graph, op_log=log, data=False, fast=fast)) as torch:
        x, y = (torch.empty(256, 64, dp=DP) for _ in range(2))
        made = [torch.launch("moves", moves, x, y, steps, target_cubes=0, target_pes=(0, 1)) for _ in range(2)]
    ops = [(op.component_id, op.t_start, op.t_end) for op in log]
    found = []
    for result in (result for launch in made for result in launch.pes):
        dma, reached, covered = f"sip0.cube0.pe{result.pe}.pe_dma", result.start_ns, 0.0
        for name, start, end in sorted(ops, key=lambda op: op[1]):
            if name == dma and result.start_ns <= start < result.end_ns:
                covered += max(end - max(start, reached), 0.0)
                reached = max(reached, end)
        found.append((result.dma_ns, covered))
    return found


STEPS = st.tuples(st.sampled_from(["loads", "store", "cycles", "composite"]), st.sampled_from([1, 7, 16, 33, 64]))


@settings(max_examples=3, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=4).map(tuple), st.sampled_from([256.0, 100.0, 37.3]))
def test_the_busy_time_of_two_engines_per_direction_is_that_of_their_ops(steps: tuple[Step, ...], gbs: float) -> None:
    usual, exact = (busy_times(steps, machine(gbs), fast=fast) for fast in (True, False))
    assert usual == exact
    for busy_ns, covered_ns in usual:
        assert busy_ns == covered_ns
        assert busy_ns / GRID_NS == int(busy_ns / GRID_NS)  # a sum of grid times is one: no bit is lost
