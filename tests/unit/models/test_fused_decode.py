"""A decode step in one launch: numpy's numbers, no races, the same with all fast paths off, and the choice of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.models.test_layer import llm_layer, machine, names, rows, run, verified

from kernbench.common.errors import UsageError
from kernbench.models.fused_plan import LEAST_PIECES, DecodeSize, FusedPlan, NotFused, fused_plan, share_of
from kernbench.models.layer_choice import LayerRequest, chosen_mapping
from kernbench.models.machine_model import machine_model
from kernbench.models.mapper import LayerChoice
from kernbench.models.mapping import DECODE, split_k_plan
from kernbench.models.paced_loads import PacedLoads, WeightBlock
from kernbench.models.plans import SipShape
from kernbench.models.shapes import load_model
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

FUSED = "layer in one launch"
MIB = 1 << 20
LLAMA = DecodeSize(1, 2048, 4096, 32, 8, 128, 14336, 2, 2)  # llama3-8b, one sequence


def plan_for(size: DecodeSize, tcm_bytes: int = MIB, **changed: float) -> FusedPlan | NotFused:
    """On one SIP of the shipped machine."""
    graph = load_topology(None, {"system.sips.count": 1, **changed})
    return fused_plan(machine_model(graph, SipShape(4, 4, 8, tcm_bytes)), DECODE, size)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("model", "pes", "batch", "context"),
    [
        ("tiny-llama", 2, 1, 300),  # caches in parts, which are merged
        ("tiny-llama", 4, 1, 256),  # caches in parts, which PEs of a cube merge in two stages
        ("tiny-llama", 4, 2, 300),  # and in one
        ("tiny-llama", 2, 11, 70),  # more rows than PEs
        ("tiny-llama", 4, 3, 40),  # several units for each PE
        ("tiny-llama", 2, 5, 33),  # rows over the PEs that reduce sums
        ("tiny-gpt", 4, 1, 50),  # a layernorm, one weight for the MLP, no angles
    ],
)
def test_numbers_are_right(model: str, pes: int, batch: int, context: int) -> None:
    result = verified(1, pes, model=model, phase="decode", batch=batch, context=context)
    assert names(result) == [FUSED, "launching", "layer"]


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_it_has_no_races_and_takes_as_long_with_all_fast_paths_off() -> None:
    params = {"model": "tiny-llama", "phase": "decode", "batch": 2, "context": 70}
    found = run(llm_layer, machine(1, 4), device="whole", params=params, check_races=True)
    assert found.races == []
    fast, slow = (
        run(llm_layer, machine(1, 4), device="whole", params=params, fast=each).total_ns for each in (True, False)
    )
    assert fast == slow


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_it_is_faster_than_parts_and_not_faster_than_its_bound() -> None:
    params = {"model": "tiny-llama", "phase": "decode", "context": 64}
    one, parts = (
        rows(run(llm_layer, machine(1, 4), device="whole", params={**params, "mapping": name}))["layer"]
        for name in ("auto", "decode")
    )
    assert one["bound_us"] < one["time_us"] < 0.8 * parts["time_us"]
    assert one["bound_us"] <= parts["bound_us"]


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_pinned_choice_is_taken_again(tmp_path: Path) -> None:
    file = tmp_path / "choice.yaml"
    params = {"model": "tiny-llama", "phase": "decode", "context": 64}
    first, again = (
        run(llm_layer, machine(1), device="whole", params={**params, **more})
        for more in ({"mapping_report": str(file)}, {"mapping": str(file)})
    )
    found = [(row["kind"], row["chosen"]) for row in first.returned[0] if row.get("choice of") == "layer"]
    assert found == [("fused", "yes"), ("parts", "-")]
    assert names(again)[0] == FUSED
    assert rows(again)["layer"]["time_us"] == rows(first)["layer"]["time_us"]
    file.write_text(file.read_text().replace("piece_bytes", "pieces"))
    with pytest.raises(UsageError, match="unknown key 'pieces'"):
        run(llm_layer, machine(1), device="whole", params={**params, "mapping": str(file)})


@pytest.mark.parametrize(
    ("phase", "tp", "model", "is_quantised", "why"),
    [
        ("prefill", 1, "tiny-llama", False, ""),
        ("decode", 2, "tiny-llama", False, "2 SIPs share the layer"),
        ("decode", 1, "tiny-mixtral", False, "tiny-mixtral has experts"),
        ("decode", 1, "tiny-llama", True, "weights or the cache are quantised"),
    ],
)
def test_prefill_ranks_that_share_experts_and_scales_take_parts(
    phase: str, tp: int, model: str, is_quantised: bool, why: str
) -> None:
    with RuntimeContext(GraphEngine(machine(2))) as torch:
        request = LayerRequest(load_model(model), phase, 1, 1, 2, tp, 2, True, 64, is_quantised)
        found, _ = chosen_mapping("auto", torch, request)
    assert isinstance(found, LayerChoice)
    assert found.mapping.fused is None
    assert found.not_fused.startswith(why)


@pytest.mark.parametrize(
    "more",
    [
        {"cube.memory_map.hbm_channel_bw_gbs": 64.0},
        {"cube.memory_map.hbm_channel_bw_gbs": 256.0},
        {"cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 8192.0},
        {"cube.links.sram_to_router_bw_gbs": 256.0},
    ],
)
def test_a_better_machine_keeps_it(more: dict[str, float]) -> None:
    plan = plan_for(LLAMA, **more)
    assert isinstance(plan, FusedPlan)
    assert LEAST_PIECES * plan.piece_bytes <= plan.room_bytes < MIB


def test_more_rows_and_less_tcm_take_parts() -> None:
    assert isinstance(plan_for(LLAMA), FusedPlan)
    for size, tcm_bytes, why in (
        (replace(LLAMA, batch=17), MIB, "17 sequences are more than 16"),
        (LLAMA, MIB // 16, "of TCM for pieces of weights"),
        (replace(LLAMA, hidden=64), MIB, "less than a row or a column of weights for each of 128 PEs"),
        (replace(LLAMA, batch=8, kv_heads=32), MIB, "256 parts of the cache for 128 PEs"),
    ):
        found = plan_for(size, tcm_bytes)
        assert isinstance(found, NotFused)
        assert why in found.reason


def test_more_tcm_takes_the_same_pieces_or_longer_ones_up_to_the_best() -> None:
    """2.49 MB of weights for each PE, 20 ns before each load: (2.49e6 x 20 x 256 / 0.8) ** 0.5 = 126 KB."""
    found = [plan_for(LLAMA, tcm_bytes=kib * 1024) for kib in range(256, 4096, 256)]
    sizes = [plan.piece_bytes for plan in found if isinstance(plan, FusedPlan)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == sizes[-4] == pytest.approx(126_200, rel=0.001)


@pytest.mark.parametrize(
    ("batch", "stages"), [(1, []), (2, [(1, 2), (2, 2), (4, 2)]), (4, [(1, 2), (2, 2)]), (8, [(1, 2)]), (16, [])]
)
def test_parts_of_a_cache_are_merged_by_messages_within_a_cube(batch: int, stages: list[tuple[int, int]]) -> None:
    """8 key heads and 128 PEs: 16 parts of one sequence's are in two cubes, 8 of two sequences' in one."""
    plan = plan_for(replace(LLAMA, batch=batch))
    assert isinstance(plan, FusedPlan)
    assert plan.attention.splits == max(1, 16 // batch)
    assert plan.merging_stages == stages


def test_pieces_of_a_part_are_all_of_it_once_and_fit() -> None:
    """K of 4,096 over 8 PEs is 512 each; 6,144 columns over 16 cubes are 384: 393,216 bytes."""
    plan = plan_for(LLAMA)
    assert isinstance(plan, FusedPlan)
    chunks = plan.chunks(plan.qkv, 3, 5, 2)
    assert [a for a, _ in chunks] == [0, *(b for _, b in chunks[:-1])]
    assert chunks[-1][1] == 512
    assert max(b - a for a, b in chunks) * 384 * 2 <= plan.piece_bytes < plan.room_bytes


@pytest.mark.parametrize("size", [384, 7])
def test_shares_of_reduced_sums_are_all_of_them_once(size: int) -> None:
    plan = split_k_plan(SipShape(4, 4, 8, MIB), 1, 4096, 6144, 2)
    shares = sorted(share_of(plan, pe, size) for pe in range(8))
    assert sorted(at for a, b in shares for at in range(a, b)) == list(range(size))


def test_loads_are_asked_for_as_time_passes_and_as_far_as_there_is_room() -> None:
    """Eight pieces of 256 bytes at 2.56 bytes per ns, 100 ns each, with room for four."""
    asked: list[int] = []

    def kernel(x, tl):
        pieces = [WeightBlock(x + 256 * at, (1, 128), 256) for at in range(8)]
        loads = PacedLoads(pieces, 1024, 2.56, 50.0, tl)

        def under_way() -> int:
            return len(tl._runner.under_way) + len(taken)

        taken: list[object] = []
        loads.before(0.0)  # up to 50 ns of work: one
        asked.append(len(loads._coming))
        loads.before(150.0)  # up to 200 ns: another
        asked.append(len(loads._coming))
        loads.before(1000.0)  # up to 1,200 ns, but there is room for four
        asked.append(len(loads._coming))
        taken.append(loads.take())
        asked.append(len(loads._coming))  # three are left: the first still has its place
        taken.clear()
        loads.release(256)
        loads.before(1000.0)
        asked.append(len(loads._coming))
        assert under_way() <= 4
        found = [loads.take() for _ in range(4)]
        del found
        loads.release(1024)
        for _ in range(3):  # asked for when they are taken
            loads.take()
            loads.release(256)

    run_kernel(kernel, np.zeros(1024, np.float16))
    assert asked == [1, 2, 4, 3, 4]
