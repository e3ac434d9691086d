"""Plans of a whole model: the arithmetic by hand, and a tray whose layers and transfers are simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.benches.llm_plan import llm_plan
from kernbench.common.errors import CapacityError
from kernbench.models.parallel_plans import (
    ParallelPlan,
    ReplicaBatch,
    StageTimes,
    memory_needed,
    plan_rows,
    plans_of,
)
from kernbench.models.plan_answer import answer_rows, figure_rows
from kernbench.models.shapes import load_model
from kernbench.report.run_figures import rows_of
from kernbench.runtime_api.bench_runner import run
from kernbench.sweep.derived import derived

FOUR_LAYERS = replace(load_model("tiny-llama"), name="four", layers=4)
DECODE = ReplicaBatch(FOUR_LAYERS, "decode", batch=8, tokens=1, context=100, itemsize=2)
PREFILL = replace(DECODE, phase="prefill", batch=1, tokens=100, context=0)
ONE, BOTH = StageTimes(1, False, 1000.0, 200.0, 1), StageTimes(2, False, 700.0, 0.0, 1)
ROOM = 10**9
SHAPE = "{layers: 4, norm: rmsnorm, activation: swiglu, positions: rope, source: made for a test, "


def number(value: object) -> float:
    assert isinstance(value, float)
    return value


def test_a_stage_is_paced_by_its_layers_and_one_transfer() -> None:
    plans = {plan.name: plan for plan in plans_of(PREFILL, [ONE, BOTH], 2, ROOM)}
    assert list(plans) == ["tp1 pp1 dp2", "tp1 pp2 dp1", "tp2 pp1 dp1"]
    two = plans["tp1 pp2 dp1"]
    assert two.latency_ns == 4 * 1000 + 200
    assert two.tokens_per_s == pytest.approx(100 / (2 * 1000 + 200) * 1e9)
    assert plans["tp1 pp1 dp2"].tokens_per_s == pytest.approx(2 * 100 / 4000 * 1e9)
    assert plans["tp2 pp1 dp1"].latency_ns == 4 * 700


def test_at_decode_a_token_waits_for_the_slowest_stage_as_often_as_there_are_stages() -> None:
    three = StageTimes(1, False, 1000.0, 200.0, 1)  # stages of 2, 1 and 1 layers, paced by the first
    (plan,) = [plan for plan in plans_of(DECODE, [three], 3, ROOM) if plan.pp == 3]
    assert plan.latency_ns == 3 * (2 * 1000 + 200)
    assert plan.tokens_per_s == pytest.approx(8 / 2200 * 1e9)


def test_stages_share_the_weights_and_each_holds_the_cache_of_all_batches_in_flight() -> None:
    m = FOUR_LAYERS
    cache_of_a_layer = 8 * 101 * 2 * m.kv_heads * m.head_dim
    assert memory_needed(DECODE, ONE, 1) == 2 * (4 * m.layer_parameters + 2 * m.vocab * m.hidden + 4 * cache_of_a_layer)
    assert memory_needed(DECODE, ONE, 2) == 2 * (2 * m.layer_parameters + m.vocab * m.hidden + 2 * 2 * cache_of_a_layer)


def test_a_plan_that_does_not_fit_or_is_too_slow_says_so_and_is_never_the_best() -> None:
    needed = memory_needed(PREFILL, ONE, 1)
    plans = plans_of(PREFILL, [ONE, BOTH], 2, needed - 1, latency_limit_ns=4100)
    rows = plan_rows(plans)
    assert (rows[0]["plan"], rows[0]["verdict"]) == ("tp2 pp1 dp1", "best")
    verdicts = {row["plan"]: str(row["verdict"]) for row in rows}
    assert verdicts["tp1 pp1 dp2"].startswith("needs ")
    assert verdicts["tp1 pp2 dp1"] == "slower than 0.0041 ms"
    assert "best" not in [row["verdict"] for row in plan_rows(plans_of(PREFILL, [ONE], 2, 1))]


def test_plans_of_one_batch_serve_different_numbers_of_users() -> None:
    plans = {plan.name: plan.users for plan in plans_of(DECODE, [ONE, BOTH], 2, ROOM)}
    assert plans == {"tp1 pp1 dp2": 2 * 8, "tp1 pp2 dp1": 2 * 8, "tp2 pp1 dp1": 8}


def test_the_answer_says_what_is_compared_and_why_there_is_none() -> None:
    def answered(plans: list[ParallelPlan], room: int, limit_ns: float | None) -> list[object]:
        return [row["answer"] for row in answer_rows(DECODE, plans, room, limit_ns)]

    compared = "compared: 3 plans with batch=8 in each stage of each replica, which serve 8 to 16 users"
    plans = plans_of(DECODE, [ONE, BOTH], 2, ROOM, 4000)
    best = "tp1 pp1 dp2 makes the most tokens per second under 0.004 ms: 4,000,000, 0.004 ms, 16 users"
    assert answered(plans, ROOM, 4000) == [best, "2 of 3 plans can be taken: see verdict", compared]
    slow = plans_of(DECODE, [ONE, BOTH], 2, ROOM, 1000)
    why = "no plan is under max_latency_ms=0.001: of those that fit, tp2 pp1 dp1 takes 0.0028 ms"
    assert answered(slow, ROOM, 1000) == [why, compared]
    assert figure_rows(DECODE, slow, ROOM, 1000)[-1] == {"figure": "infeasible", "value": why, "unit": ""}
    large = plans_of(DECODE, [ONE, BOTH], 2, 1)
    assert str(answered(large, 1, None)[0]).startswith("no plan fits: tp")
    assert {row["figure"]: row["value"] for row in figure_rows(DECODE, large, 1, None)}["fits"] is False


@pytest.mark.slow
@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_long_rings_of_sums_find_room_while_a_collective_of_others_has_a_message(tmp_path: Path) -> None:
    """Eight SIPs on two trays, two cubes of eight PEs: a message of a faster SIP's all-reduce lay where the third ring
    of a kernel's sums had to lie, with layers over two SIPs. Two heads: there are no layers over more.
    """
    model = tmp_path / "two.yaml"
    model.write_text(f"two: {SHAPE}hidden: 256, heads: 2, kv_heads: 2, head_dim: 128, ffn: 448, vocab: 1024}}\n")
    trays = {"system.switch_levels": {"tray": {"count": 2, "bw_gbs": 64.0, "distance_mm": 2000.0}}}
    machine = {"system.sips.count": 8, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, **trays}
    work = {"model": f"{model}:two", "phase": "decode", "batch": 2, "context": 32, "mapping": "decode"}
    result = run(llm_plan, None, machine, device="whole", params=work)
    assert {row["tp"] for row in rows_of(result) if "tp" in row} == {1, 2}


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_sips_that_do_not_hold_a_layer_are_left_out_and_named() -> None:
    """A layer of tiny-llama has 1.1 MiB of weights; a SIP has 0.75 MiB of SRAM."""
    machine = {"system.sips.count": 2, "sip.cube_mesh": {"w": 1, "h": 1}, "cube.pe_layout.pe_per_corner": 1}
    machine |= {"cube.memory_map": {"hbm_total_gb_per_cube": 0, "sram_mb_per_cube": 0.75}}
    work = {"model": "tiny-llama", "phase": "decode", "context": 16}
    rows = rows_of(run(llm_plan, None, machine, device="whole", params=work))
    assert {str(row["plan"]) for row in rows if "plan" in row} == {"tp2 pp1 dp1"}
    answers = [str(row["answer"]) for row in rows if "answer" in row]
    assert any(answer.startswith("not simulated: one layer of tiny-llama has") for answer in answers)
    machine["cube.memory_map"] = {"hbm_total_gb_per_cube": 0, "sram_mb_per_cube": 0.25}
    with pytest.raises(CapacityError, match="and the SRAM of 2 SIPs of"):
        run(llm_plan, None, machine, device="whole", params=work)


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_sips_that_do_not_hold_the_cache_of_a_layer_are_left_out_too() -> None:
    """6,000 tokens of 2 x 2 heads of 32 in f16 are 1.5 MiB, besides 1 MiB of weights; a SIP has 2 MiB of SRAM."""
    machine = {"system.sips.count": 2, "sip.cube_mesh": {"w": 1, "h": 1}, "cube.pe_layout.pe_per_corner": 1}
    machine |= {"cube.memory_map": {"hbm_total_gb_per_cube": 0, "sram_mb_per_cube": 2}}
    rows = rows_of(run(llm_plan, None, machine, device="whole", params={"phase": "decode", "context": 6000}))
    assert {str(row["plan"]) for row in rows if "plan" in row} == {"tp2 pp1 dp1"}
    answers = [str(row["answer"]) for row in rows if "answer" in row]
    assert any("of weights and 1.5 MiB of cache, and the SRAM of 1 SIP" in answer for answer in answers), answers


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_a_plan_of_layers_in_one_launch_has_no_sequence_parallelism() -> None:
    machine = {"system.sips.count": 2, "sip.cube_mesh": {"w": 1, "h": 1}, "cube.pe_layout.pe_per_corner": 1}
    work = {"model": "tiny-llama", "phase": "decode", "batch": 2, "context": 16, "mapping": "fused"}
    rows = rows_of(run(llm_plan, None, machine, device="whole", params=work))
    assert {str(row["plan"]) for row in rows if "plan" in row} == {"tp1 pp1 dp2", "tp2 pp1 dp1"}


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_layers_and_transfers_of_a_tray_are_simulated(tmp_path: Path) -> None:
    model = tmp_path / "small.yaml"
    model.write_text(f"small: {SHAPE}hidden: 128, heads: 2, kv_heads: 2, head_dim: 64, ffn: 256, vocab: 512}}\n")
    machine = {"system.sips.count": 2, "sip.cube_mesh": {"w": 1, "h": 1}, "cube.pe_layout.pe_per_corner": 1}
    work = {"model": f"{model}:small", "phase": "prefill", "tokens": 8}
    rows = rows_of(run(llm_plan, None, machine, device="whole", params=work))
    plans = {str(row["plan"]): row for row in rows if "plan" in row}
    assert sorted(plans) == ["tp1 pp1 dp2", "tp1 pp2 dp1", "tp2 pp1 dp1", "tp2 pp1 dp1 sp"]
    alone, piped = plans["tp1 pp1 dp2"], plans["tp1 pp2 dp1"]
    layer_us, transfer_us = number(alone["layer_us"]), number(piped["transfer_us"])
    assert transfer_us * 1000 > 8 * 128 * 2 / 128  # 2 KiB over a link of 128 GB/s
    assert number(piped["latency_ms"]) * 1000 == pytest.approx(4 * layer_us + transfer_us)
    assert number(alone["tokens_per_s"]) == pytest.approx(2 * 8 / (4 * layer_us) * 1e6)
    figures = derived(rows, {}, "prefill")
    best = next(row for row in plans.values() if row["verdict"] == "best")
    assert figures == {
        "tokens_per_s": best["tokens_per_s"],
        "ttft_ms": best["latency_ms"],
        "latency_ms": best["latency_ms"],
        "plan_users": best["users"],
        "plan": best["plan"],
    }
