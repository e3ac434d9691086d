"""Composites on a machine with finite buffers are one event, too: recorded with the same buffers, and skipped from
states that are equal down to every flit, slot and credit. Logs, times and counters are those of the tile-by-tile run.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.integration.test_replayed_composites import Step, both, layouts_of_both, machine, machines, run, steps

import kernbench
from kernbench.benches.registry import resolve
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.memo import composite_memo
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology

pytestmark = pytest.mark.needs("n_to_one", reason="composites over channel routers are simulated tile by tile")

OUTSTANDING = "cube.pe_template.components.pe_dma.attrs.outstanding"
BUFFERS: dict[str, dict[str, object]] = {
    "deep": {"slots": 64, "credit_ns": 4.0},
    "tiny": {"slots": 1, "credit_ns": 8.0},
    "queues": {"slots": 2, "credit_ns": 8.0, "order": "voq"},
    "wormhole": {"slots": 2, "credit_ns": 4.0, "channels": 2, "ownership": "packet"},
    "packets": {
        "slots": 4, "credit_ns": 4.0, "channels": 2, "ownership": "packet", "packet_bytes": 512, "order": "voq",
    },
    "turns": {"slots": 2, "credit_ns": 4.0, "arbitration": "round_robin"},
    "packets in turn": {
        "slots": 4, "credit_ns": 1.5, "channels": 2, "ownership": "packet", "arbitration": "round_robin",
    },
}  # fmt: skip
LATE = {"slots": 64, "credit_ns": 5000.0}


@pytest.fixture(autouse=True)
def _nothing_is_known() -> None:
    composite_memo.composite_recordings.cache_clear()


@pytest.mark.parametrize(("name", "outstanding"), list(zip(BUFFERS, cycle([4, 1]), strict=False)))
def test_products_are_one_event_each_and_are_the_same(name: str, outstanding: int) -> None:
    graph = machine({"fabric.buffers": BUFFERS[name], OUTSTANDING: outstanding})
    shapes = [Step("gemm", 128, 256, 128), Step("gemm", 70, 600, 90, offset=1280), Step("gemm", 64, 1024, 96)]
    seen = both(graph, [[*shapes, Step("store"), Step("gemm", 128, 256, 128, bias=True, relu="kernel")]], launches=2)
    assert (seen.replayed, seen.restored) == (8, 0)


@pytest.mark.parametrize("name", BUFFERS)
def test_most_tiles_of_a_large_product_are_not_run(name: str) -> None:
    graph = machine({"fabric.buffers": BUFFERS[name]})
    run(graph, [[Step("gemm", 768, 256, 768)]], fast=True)
    (recording,) = composite_memo.composite_recordings(graph).recordings.values()
    assert recording.kept_rows < recording.plan.total_tiles / 8


def test_slots_that_are_on_their_way_back_at_the_end_delay_what_follows() -> None:
    graph = machine({"fabric.buffers": LATE})
    seen = both(graph, [[Step("gemm", 32, 64, 512), Step("load", 64, 1, 512), Step("gemm", 32, 64, 512)]])
    assert seen.replayed == 1  # links of the second product are not credited when it begins
    (recording,) = composite_memo.composite_recordings(graph).recordings.values()
    assert any(time > recording.end_ns for _, _, times in recording.credits for time in times)


@pytest.mark.parametrize("name", BUFFERS)
def test_an_interfering_access_at_every_stage_of_a_period(name: str) -> None:
    """Another PE reads from the slice, a little later each time."""
    graph, restored = machine({"fabric.buffers": BUFFERS[name]}), 0
    for cycles in range(3000, 3130, 57):
        other = [Step("cycles", cycles=cycles), Step("load", 32, 1, 64, source=-1)]
        restored += both(graph, [[Step("gemm", 128, 256, 128)], other]).restored
    assert restored == len(range(3000, 3130, 57))


def far_product(x: Any, y: Any, tl: Any) -> None:
    """Operands on the other cube, a result on the PE's own."""
    here = tl.program_id(1) * (1 << 20)
    there = (1 - tl.program_id(1)) * (1 << 20)
    tl.wait(tl.composite("gemm", tl.ref(x + there, (128, 256)), tl.ref(x + here, (256, 128)), y + here))
    tl.wait(tl.composite("gemm", tl.ref(x + there, (64, 128)), tl.ref(x + there, (128, 512)), y + here))


@pytest.mark.parametrize("name", BUFFERS)
def test_ways_to_another_cube_have_series_of_links_and_layers_of_their_own(name: str) -> None:
    small = {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    graph = load_topology(None, {**small, "fabric.buffers": BUFFERS[name]})
    outcomes = []
    for fast in (True, False):
        engine = GraphEngine(graph, op_log=(log := OpLog()), data=False, fast=fast)
        with RuntimeContext(engine) as torch:
            dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=2, num_pes=1)
            x, y = (torch.empty(2, 1 << 19, dp=dp) for _ in range(2))
            done = [torch.launch("k", far_product, x, y, target_cubes=cube, target_pes=0) for cube in (0, 1, 0)]
        outcomes.append((engine.now_ns, [launch.pes for launch in done], list(log.items()), engine.link_counters()))
        assert engine.stats.composites.one_event == (6 if fast else 0)
    assert outcomes[0] == outcomes[1]


some_buffers = st.fixed_dictionaries(
    {
        "slots": st.sampled_from([1, 2, 3, 8, 32]),
        "credit_ns": st.sampled_from([0.0, 1.5, 8.0, 300.0]),
        "order": st.sampled_from(["fifo", "voq"]),
        "arbitration": st.sampled_from(["asking", "round_robin"]),
    }
)
ownership = st.sampled_from([{}, {"ownership": "packet"}, {"ownership": "packet", "channels": 2, "packet_bytes": 1024}])


@pytest.mark.needs("addresses", reason="its kernels read and write the parts of other PEs")
@settings(max_examples=5, deadline=None)  # `make fuzz-exact` has more
@given(
    machines,
    some_buffers,
    ownership,
    st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(1, 2),
    layouts_of_both,
)
def test_random_kernels_on_random_machines(changes, buffers, owned, programs, launches, layouts) -> None:
    both(machine({**changes, "fabric.buffers": {**buffers, **owned}}), programs, launches, layouts)


def test_a_bench_with_finite_buffers_passes_the_check_of_fast_paths() -> None:
    one = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    bench, overrides = resolve("matmul-composite").run, {**one, "fabric.buffers": BUFFERS["wormhole"]}
    result = kernbench.run(bench, overrides=overrides, check_fast=True, verify_data=True)
    assert result.ok
