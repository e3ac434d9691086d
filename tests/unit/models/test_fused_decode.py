"""A decode step in one launch: numpy's numbers, no races, the same with all fast paths off, and the choice of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.models.test_layer import llm_layer, machine, names, rows, run, verified

from kernbench.common.errors import UsageError
from kernbench.models.exchanges import Rectangle
from kernbench.models.fused_plan import (
    LEAST_PIECES,
    DecodeSize,
    FusedPlan,
    NotFused,
    exchanges_of,
    fused_plan,
    in_blocks,
    share_of,
)
from kernbench.models.layer_choice import LayerRequest, chosen_mapping
from kernbench.models.loads_ahead import LoadsAhead, StreamedBlock
from kernbench.models.machine_model import machine_model
from kernbench.models.mapper import LayerChoice
from kernbench.models.mapping import DECODE, split_k_plan
from kernbench.models.plans import SipShape
from kernbench.models.quantised_product import weight_pieces
from kernbench.models.shapes import load_model
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

FUSED = "layer in one launch"
MIB = 1 << 20
LLAMA = DecodeSize(1, 2048, 4096, 32, 8, 128, 14336, 2, 2)  # llama3-8b, one sequence


def plan_for(
    size: DecodeSize, tcm_bytes: int = MIB, ring_bytes: int = MIB // 4, **changed: float
) -> FusedPlan | NotFused:
    """On one SIP of the shipped machine."""
    graph = load_topology(None, {"system.sips.count": 1, **changed})
    return fused_plan(machine_model(graph, SipShape(4, 4, 8, tcm_bytes), ring_bytes), DECODE, size)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("model", "pes", "batch", "context"),
    [
        ("tiny-llama", 2, 1, 300),  # caches in parts, which are merged
        ("tiny-llama", 4, 1, 256),
        ("tiny-llama", 4, 2, 300),
        ("tiny-llama", 16, 1, 512),  # in two stages
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
    ("phase", "model", "why"),
    [
        ("prefill", "tiny-llama", ""),
        ("decode", "tiny-mixtral", "tiny-mixtral has experts, whose rows follow from a routing"),
    ],
)
def test_prefill_and_experts_take_parts(phase: str, model: str, why: str) -> None:
    with RuntimeContext(GraphEngine(machine(2))) as torch:
        request = LayerRequest(load_model(model), phase, 1, 1, 2, 1, 2, True, 64)
        found, _ = chosen_mapping("auto", torch, request)
    assert isinstance(found, LayerChoice)
    assert found.mapping.fused is None
    assert found.not_fused == why


@pytest.mark.parametrize(
    "more",
    [
        {"cube.memory_map.hbm_channel_bw_gbs": 64.0},
        {"cube.memory_map.hbm_channel_bw_gbs": 256.0},
        {"cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 8192.0},
    ],
)
def test_a_better_machine_keeps_it(more: dict[str, float]) -> None:
    plan = plan_for(LLAMA, **more)
    assert isinstance(plan, FusedPlan)
    assert LEAST_PIECES * plan.piece_bytes <= plan.room_bytes < MIB


def test_more_rows_and_less_tcm_take_parts() -> None:
    assert isinstance(plan_for(LLAMA), FusedPlan)
    for size, tcm_bytes, why in (
        (replace(LLAMA, batch=33), MIB, "33 sequences are more than 32"),
        (replace(LLAMA, batch=17, weight_type="int8"), MIB, "17 sequences are more than 16"),
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


@pytest.mark.parametrize(("batch", "splits"), [(1, 16), (2, 8), (3, 16), (8, 2), (16, 1), (32, 1)])
def test_every_activation_reaches_those_that_need_it_once_and_in_the_order_of_its_sender(
    batch: int, splits: int
) -> None:
    """8 key heads and 128 PEs: 16 parts of one sequence's caches."""
    plan = plan_for(replace(LLAMA, batch=batch))
    assert isinstance(plan, FusedPlan)
    assert plan.attention.splits == splits
    for exchange in exchanges_of(plan.products, plan.attention, 32, 128):
        for consumer, needs in enumerate(exchange.needed):
            for number, need in enumerate(needs):
                pieces = [piece.box for piece in exchange.by_consumer[consumer] if piece.needed == number]
                assert (
                    sum(rows * columns for rows, columns in (box.shape for box in pieces))
                    == need.shape[0] * need.shape[1]
                )
                assert all(box.intersection(need) == box for box in pieces)
                assert not any(one.intersection(other) for at, one in enumerate(pieces) for other in pieces[:at])
        for producer, boxes in enumerate(exchange.by_producer):
            sent = [piece for pieces in boxes for piece in pieces]
            for consumer in {piece.consumer: 0 for piece in sent}:
                received = [piece for piece in exchange.by_consumer[consumer] if piece.producer == producer]
                assert [piece for piece in sent if piece.consumer == consumer] == received


def test_rectangles_intersect_where_both_have_rows_and_columns() -> None:
    assert Rectangle((0, 4), (8, 16)).intersection(Rectangle((2, 6), (0, 9))) == Rectangle((2, 4), (8, 9))
    assert Rectangle((0, 4), (8, 16)).intersection(Rectangle((2, 6), (0, 8))) is None


def test_sums_are_reduced_in_blocks_of_32_kib() -> None:
    """16 rows by 896 columns in f32 are 56 KiB: two blocks; 8 rows are one."""
    found = [in_blocks(split_k_plan(SipShape(4, 4, 8, MIB), rows, 4096, 14336, 2)) for rows in (8, 16)]
    assert [plan.columns_of(1) for plan in found] == [[(896, 1792)], [(896, 1344), (1344, 1792)]]


def test_pieces_of_a_part_are_all_of_it_once_and_fit() -> None:
    """K of 4,096 over 8 PEs is 512 each; 6,144 columns over 16 cubes are 384: 393,216 bytes."""
    plan = plan_for(LLAMA)
    assert isinstance(plan, FusedPlan)
    chunks = [piece.rows for piece in weight_pieces(512, 384 * 2, None, plan.piece_bytes)]
    assert [a for a, _ in chunks] == [0, *(b for _, b in chunks[:-1])]
    assert chunks[-1][1] == 512
    assert max(b - a for a, b in chunks) * 384 * 2 <= plan.piece_bytes < plan.room_bytes


@pytest.mark.parametrize("size", [384, 7])
def test_shares_of_reduced_sums_are_all_of_them_once(size: int) -> None:
    plan = split_k_plan(SipShape(4, 4, 8, MIB), 1, 4096, 6144, 2)
    shares = sorted(share_of(plan, pe, size) for pe in range(8))
    assert sorted(at for a, b in shares for at in range(a, b)) == list(range(size))


def test_loads_are_issued_as_far_as_there_is_room() -> None:
    """Eight pieces of 256 bytes, with room for four."""
    under_way: list[int] = []

    def kernel(x, tl):
        pieces = [StreamedBlock(x + 256 * at, (1, 128), 256) for at in range(8)]
        loads = LoadsAhead(pieces, 1024, tl)
        under_way.append(len(loads._issued))
        loads.issue()
        under_way.append(len(loads._issued))
        taken = [loads.take()]
        under_way.append(len(loads._issued))  # three are left: the first still has its place
        taken.clear()
        loads.release(256)
        under_way.append(len(loads._issued))
        for _ in range(7):
            loads.take()
            loads.release(256)
        under_way.append(len(loads._issued))

    run_kernel(kernel, np.zeros(1024, np.float16))
    assert under_way == [0, 4, 3, 4, 0]
