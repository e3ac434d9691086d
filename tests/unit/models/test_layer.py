"""A decoder layer of every kind has numpy's numbers, whatever the mapping, and its parts add up to its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernbench.benches.llm_layer import llm_layer
from kernbench.common.errors import CapacityError, KernBenchError, SpawnException, UsageError
from kernbench.models import mapping
from kernbench.report.run_figures import figures_of, fits_of, run_as_json, warnings_of
from kernbench.report.silicon import static_w
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import run
from kernbench.sim_engine.engine import EXACT
from kernbench.topology import TopologyGraph, load_topology
from kernbench.triton_emu.tl_context import TLContext

TWO_PES = {"cube.pe_layout.corners": ["NW", "SE"], "cube.pe_layout.pe_per_corner": 1}  # of each cube
FOUR_PES = {"cube.pe_layout.corners": ["NW", "NE", "SW", "SE"], "cube.pe_layout.pe_per_corner": 1}
PUBLIC = """
mine:
  layers: 1
  hidden: 64
  heads: 4
  kv_heads: 2
  head_dim: 16
  ffn: 128
  vocab: 100
  norm: rmsnorm
  activation: swiglu
  positions: rope
  source: "a test"
"""


@cache
def machine(sips: int = 2, pes: int = 2) -> TopologyGraph:
    """Two cubes for each SIP."""
    changed = {"system.sips.count": sips, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1}
    return load_topology(None, {**changed, **(TWO_PES if pes == 2 else FOUR_PES)})


def verified(sips: int = 2, pes: int = 2, **params: object) -> BenchResult:
    result = run(llm_layer, machine(sips, pes), device="whole", verify_data=True, params=params)
    assert result.data
    assert [check for check in result.data if not check.ok] == []
    return result


def rows(result: BenchResult) -> dict[str, dict[str, float]]:
    """By part; of a part that comes twice, the last."""
    (returned,) = result.returned
    assert isinstance(returned, list)
    return {row["part"]: row for row in returned if "part" in row}


def names(result: BenchResult) -> list[str]:
    (returned,) = result.returned
    assert isinstance(returned, list)
    return [row["part"] for row in returned if "part" in row]


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("model", "phase", "tp"),
    [
        ("tiny-gpt", "prefill", 1),
        ("tiny-gpt", "decode", 2),
        ("tiny-llama", "prefill", 2),
        ("tiny-llama", "decode", 1),
        ("tiny-mixtral", "prefill", 1),
        ("tiny-mixtral", "prefill", 2),
        ("tiny-mixtral", "decode", 2),
    ],
)
def test_numbers_are_right_by_the_chosen_mapping(model: str, phase: str, tp: int) -> None:
    sizes = {"batch": 3} if phase == "decode" else {"tokens": 8}
    result = verified(tp, model=model, phase=phase, tp=tp, **sizes)
    assert ("all_reduce" in names(result)) == (tp == 2)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("model", "way"),
    [("tiny-gpt", "tokens"), ("tiny-llama", "columns"), ("tiny-mixtral", "columns"), ("tiny-mixtral", "tokens")],
)
def test_numbers_are_right_by_the_other_mappings(model: str, way: str) -> None:
    verified(2 if model == "tiny-llama" else 1, model=model, mapping=way, batch=3, tokens=7)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_products_of_equal_sizes_have_plans_of_their_own(tmp_path: Path) -> None:
    """The MLP is as wide as queries, keys and values together, of several experts. The plan of `qkv`, by blocks, was
    taken for `mlp_up`: its numbers were wrong.
    """
    file = tmp_path / "alike.yaml"
    alike = PUBLIC.replace("hidden: 64", "hidden: 256").replace("head_dim: 16", "head_dim: 64")
    file.write_text(alike.replace("ffn: 128", "ffn: 512\n  experts: 4\n  experts_per_token: 1"))
    params = {"model": f"{file}:mine", "tokens": 128, "mapping_report": "-"}
    result = run(llm_layer, machine(1, 4), device="whole", verify_data=True, params=params)
    assert [check for check in result.data if not check.ok] == []
    kinds = {row["choice of"]: row["kind"] for row in result.returned[0] if row.get("chosen") == "yes"}
    assert (kinds["qkv"], kinds["mlp_up"]) == ("blocks", "columns")


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("way", ["columns", "decode"])
def test_numbers_are_right_with_sequence_parallelism(way: str) -> None:
    found = names(verified(model="tiny-llama", mapping=way, tokens=8, sequence_parallel=True))
    assert "all_reduce" not in found
    assert found.count("all_gather") == found.count("reduce_scatter") == 2


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gpt"])  # blocks of the cache, and streams
def test_a_long_context_is_split_over_pes(model: str) -> None:
    result = verified(model=model, phase="decode", context=300, tp=2, mapping="decode")
    assert sum(launch.name == "attention" for launch in result.launches) == 4  # parts, and merged: of two ranks


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_cache_is_streamed_in_blocks_where_scores_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = mapping.StudiedMapping.decode_attention

    def in_blocks(*args: Any) -> mapping.DecodeAttention:
        plan = usual(*args)
        assert plan.streamed
        return replace(plan, block_keys=16, units_at_once=2)

    monkeypatch.setattr(mapping.StudiedMapping, "decode_attention", in_blocks)
    verified(model="tiny-gpt", phase="decode", context=50, batch=3)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("model", ["tiny-gpt", "tiny-mixtral"])
def test_decode_in_blocks_with_rows_that_are_passed_on(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = mapping.split_k_plan

    def in_blocks(*args: int) -> mapping.SplitKPlan:
        plan = usual(*args)
        return replace(plan, is_relayed=True, relayed_columns=plan.k // 3, block_columns=-(-plan.block_columns // 2))

    monkeypatch.setattr(mapping, "split_k_plan", in_blocks)
    monkeypatch.setattr(mapping.SplitKPlan, "for_weights", lambda plan, *_: plan)
    result = verified(model=model, phase="decode", batch=5, mapping="decode")
    assert "spread mlp_down" in names(result)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(("pes", "tokens"), [(TWO_PES, 8), (TWO_PES, 24), (FOUR_PES, 30)])
def test_sums_that_one_of_two_pes_takes_fit_its_tcm(pes: dict[str, object], tokens: int, tmp_path: Path) -> None:
    """Of two PEs the leading one has its sums, those of the other, and their total: 3 x 8 rows x 2 x 3,584 columns of
    f32 are 672 KiB, and kernels have 512 KiB. So there are rounds.
    """
    file = tmp_path / "wide.yaml"
    file.write_text(PUBLIC.replace("ffn: 128", "ffn: 3584"))
    changed = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, **pes}
    params = {"model": f"{file}:mine", "tokens": tokens, "mapping": "decode"}
    result = run(llm_layer, load_topology(None, changed), device="whole", params=params)
    assert rows(result)["mlp_up"]["time_us"] > 0


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_norms_and_rope_overlap_memory_and_work(tmp_path: Path) -> None:
    """On PEs whose memory answers late, rows are read once, and the next ones while some are computed.

    512 rows of 1,024 in f16 are 1 MiB. norm1 reads and writes that and reads a gain, 2,048 bytes, on each of
    two PEs; norm2 has two more of it, read and written. Before, norms waited for every load and every store, and
    norm2 read the sum again: they reached 34 % and 44 % of their bounds here, and rope 42 %.
    """
    file = tmp_path / "wide.yaml"
    file.write_text(PUBLIC.replace("hidden: 64", "hidden: 1024").replace("head_dim: 16", "head_dim: 128"))
    late = {
        "cube.components.hbm_ctrl.attrs.overhead_ns": 300,
        "cube.pe_template.components.pe_dma.attrs.outstanding": 8,
    }
    changed = {"system.sips.count": 1, "sip.cube_mesh": {"w": 1, "h": 1}, **TWO_PES, **late}
    lanes = {"cube.pe_template.components.pe_math.attrs.lanes_per_ns": 4096}
    params = {"model": f"{file}:mine", "tokens": 512}
    result = run(llm_layer, load_topology(None, changed | lanes), device="whole", params=params)
    once = 512 * 1024 * 2
    moved = {launch.name: launch.bytes_hbm for launch in result.launches if launch.name.startswith("norm")}
    assert moved == {"norm1": 2 * once + 2 * 2048, "norm2": 4 * once + 2 * 2048}
    found = rows(result)
    shares = {part: found[part]["mapping_bound_us"] / found[part]["time_us"] for part in ("norm1", "rope", "norm2")}
    assert all(0.7 < share < 1 for share in shares.values()), shares


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(("way", "tokens"), [("columns", 77), ("tokens", 109)])
def test_prefill_of_odd_sizes_keeps_to_its_tcm(
    way: str, tokens: int, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of queries, of rows and of sums are all cut by TCM here, and none of their sizes divides another."""
    for where in ("kernbench.models.tensor_maker", "kernbench.tp.launches"):
        monkeypatch.setattr(f"{where}.tcm_budget", lambda _: 16 * 1024)
    file = f"{tmp_path}/odd.yaml"
    with open(file, "w") as out:
        out.write(PUBLIC.replace("heads: 4", "heads: 6").replace("hidden: 64", "hidden: 72"))
    result = verified(1, model=f"{file}:mine", mapping=way, tokens=tokens)
    peaks = [launch.tcm_peak.tcm_peak_bytes for launch in result.launches if launch.tcm_peak is not None]
    assert 12 * 1024 < max(peaks) <= 16 * 1024


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_powers_are_added_up_in_stretches_where_ones_for_all_keys_take_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long sequence's ones would fill TCM; here they may have that of 32 keys, and blocks see up to 75."""
    monkeypatch.setattr("kernbench.models.prefill_attention.ONES_SHARE", 512 * 1024 // 64)
    monkeypatch.setenv(EXACT, "tiles")  # kernels are run with the very `tl` that is watched here
    usual, sizes = TLContext.full, set[int]()

    def seen(tl: TLContext, shape: tuple[int, ...], *args: Any) -> object:
        sizes.add(shape[0])
        return usual(tl, shape, *args)

    monkeypatch.setattr(TLContext, "full", seen)
    verified(1, model="tiny-gpt", mapping="columns", tokens=75)
    assert 16 < max(sizes) <= 32


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("model", "kib", "batch", "context", "together"),
    [
        ("tiny-gpt", 64, 6, 220, 6),
        ("tiny-gpt", 64, 6, 1000, 1),  # of three, scores and caps alone are 63 KiB
        ("tiny-mixtral", 32, 9, 600, 3),  # in four parts, of two sizes: more kinds of caps than there is room for
    ],
)
def test_streamed_decode_keeps_to_its_tcm(
    model: str, kib: int, batch: int, context: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of as many units as are one softmax, caps of scores, queries and results."""
    for where in ("kernbench.models.tensor_maker", "kernbench.tp.launches"):
        monkeypatch.setattr(f"{where}.tcm_budget", lambda _: kib * 1024)
    usual, plans = mapping.StudiedMapping.decode_attention, list[mapping.DecodeAttention]()

    def seen(*args: Any) -> mapping.DecodeAttention:
        plans.append(usual(*args))
        return plans[-1]

    monkeypatch.setattr(mapping.StudiedMapping, "decode_attention", seen)
    result = verified(1, 4, model=model, phase="decode", batch=batch, context=context, mapping="decode")
    assert plans[0].units_together == together
    peaks = [launch.tcm_peak.tcm_peak_bytes for launch in result.launches if launch.tcm_peak is not None]
    assert max(peaks) <= kib * 1024


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_parts_and_launching_add_up_to_the_layer_and_none_beats_its_bound() -> None:
    result = verified(model="tiny-gpt", mapping="columns", tokens=16)
    (returned,) = result.returned
    assert isinstance(returned, list)
    parts = [row for row in returned if "part" in row]
    assert sum(row["time_us"] for row in parts[:-1]) == pytest.approx(parts[-1]["time_us"])
    assert all(row["of_bound_pct"] <= 100 for row in parts if row["of_bound_pct"] is not None)
    assert [row["part"] for row in parts] == [
        "norm1", "spread qkv", "qkv", "attention", "spread out_proj", "out_proj", "all_reduce",
        "norm2", "spread mlp_up", "mlp_up", "spread mlp_down", "mlp_down", "all_reduce", "add", "launching", "layer",
    ]  # fmt: skip
    figures = {row["figure"]: row["value"] for row in returned if "figure" in row}
    assert figures["tokens per second per user"] == pytest.approx(16 / (parts[-1]["time_us"] * 1e-6))
    # 0.5 M weights of the layer and 2 x 1024 x 256 of the vocabulary, 16 cached tokens of 2 x 256; f16, on two SIPs.
    layer = 256 * 768 + 256 * 256 + 2 * 256 * 512 + 2 * 2 * 256
    assert figures["memory needed per SIP"] == pytest.approx((layer + 2 * 1024 * 256 + 16 * 512) * 2 / 2 / 1e9)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_numbers_do_not_change_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layer without numbers reads was zero from the beginning; its parts take what they take with numbers."""
    params = {"model": "tiny-llama", "mapping": "columns", "tokens": 8}
    with_numbers = rows(verified(**params))
    monkeypatch.setattr("kernbench.benches.llm_layer.layer_weights", lambda *_: None)
    without = rows(run(llm_layer, machine(), device="whole", params=params))
    assert without == with_numbers


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_more_sips_than_tp_work_on_batches_of_their_own() -> None:
    result = verified(model="tiny-gpt", tp=1, tokens=4)
    (returned,) = result.returned
    assert isinstance(returned, list)
    figures = {row["figure"]: row["value"] for row in returned if "figure" in row}
    assert figures["tokens per second in total"] == pytest.approx(2 * figures["tokens per second per user"])


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_mapping_of_ones_own_is_taken(tmp_path: object) -> None:
    file = f"{tmp_path}/mine.py"
    with open(file, "w") as out:
        out.write("from kernbench.models.mapping import StudiedMapping\nmapping = StudiedMapping('mine', groups=2)\n")
    verified(model="tiny-gpt", mapping=f"{file}:mapping", tokens=4)
    with pytest.raises(UsageError, match="has no mapping 'other'"):
        verified(model="tiny-gpt", mapping=f"{file}:other")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"model": "tiny-lama"}, "did you mean 'tiny-llama'"),
        ({"mapping": "rows"}, "no mapping 'rows'"),
        ({"context": 5}, "context at prefill"),
        ({"phase": "decode", "tokens": 5}, "tokens=5 at decode"),
    ],
)
def test_what_makes_no_sense_is_refused(params: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(llm_layer, machine(), device="whole", params=params)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("mb", "message"),
    [
        (1.5, "a TCM of 1.5 MiB leaves kernels nothing: the scheduler has 1 MiB of it, and 512 KiB are kept"),
        (1.5 + 1 / 1024, "32 rows of 128 do not fit the 1 KiB of TCM that kernels have"),
    ],
)
def test_too_little_tcm_is_said_with_who_has_it(mb: float, message: str) -> None:
    small = machine_with({"cube.memory_map.tcm_mb_per_pe": mb})
    with pytest.raises(KernBenchError, match=message):
        run(llm_layer, small, device="whole", params={"model": "tiny-llama", "mapping": "decode"})


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_tcm_too_small_for_one_launch_is_a_lack_of_the_machine() -> None:
    small = machine_with({"cube.memory_map.tcm_mb_per_pe": 1.53})
    with pytest.raises(CapacityError, match=r"mapping=fused, a decode step in one launch: .* TCM"):
        run(llm_layer, small, device="whole", params={"phase": "decode", "mapping": "fused"})


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_what_counts_is_the_tcm_that_kernels_have_not_how_much_there_is() -> None:
    """2 MB of which the scheduler has 1, and 1.5 MB of which it has half a MB: kernels have the same."""
    less = {"cube.memory_map.tcm_mb_per_pe": 1.5, "cube.memory_map.tcm_scheduler_reserved_mb": 0.5}
    params = {"model": "llama3-8b", "tokens": 2}
    shipped, smaller = (
        run(llm_layer, machine_with({**FOUR_PES, **each}), device="whole", params=params) for each in ({}, less)
    )
    assert rows(shipped) == rows(smaller)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_tokens_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(SpawnException, match="tokens is 9, which 2 ranks cannot share evenly"):
        run(llm_layer, machine(), device="whole", params={"tokens": 9, "sequence_parallel": True})


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_heads_that_sips_cannot_share_are_refused_before_a_mapping_is_chosen(phase: str) -> None:
    with pytest.raises(UsageError, match="8 heads and 2 key heads, which 3 SIPs cannot share") as refused:
        run(llm_layer, machine(3), device="whole", params={"phase": phase})
    assert refused.value.hint == "set tp to one of 1, or use another model"


def test_the_shipped_mappings_are_mappings() -> None:
    assert all(isinstance(each, mapping.Mapping) for each in mapping.MAPPINGS.values())


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_public_model_has_numbers_where_they_are_verified_and_the_same_times(tmp_path: object) -> None:
    """Numbers of a model that is not marked for validation are there from the beginning: they are not written."""
    file = f"{tmp_path}/mine.yaml"
    with open(file, "w") as out:
        out.write(PUBLIC)
    params = {"model": f"{file}:mine", "tokens": 8}
    plain = run(llm_layer, machine(), device="whole", params=params)
    checked = verified(**params)
    assert rows(checked) == rows(plain)
    assert checked.total_ns == plain.total_ns
    assert all(check.max_abs_err > 0 for check in checked.data)  # f16 against f64: numbers, and not zeros
    verified(model=f"{file}:mine", phase="decode", context=20)


def figures(result: BenchResult) -> dict[str, Any]:
    (returned,) = result.returned
    assert isinstance(returned, list)
    return {row["figure"]: row["value"] for row in returned if "figure" in row}


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_static_power_is_charged_once_over_the_layer_however_many_sips_share_it() -> None:
    """By the run's own rule: every block of the tray, over the time; not the tray's for the launch of every SIP.
    Without `energy.static_w` it is the idle power of the dies.
    """
    drawn = {"energy.static_w.pe_gemm": 0.5}
    plain, static = (
        run(llm_layer, machine_with(settings), device="whole", params={"model": "tiny-gpt", "tokens": 4})
        for settings in ({}, drawn)
    )
    layer_s = rows(static)["layer"]["time_us"] * 1e-6
    added_mj = [
        figures(each)["energy per token"] - figures(each)["energy of work per token"] for each in (static, plain)
    ]
    assert added_mj[0] == pytest.approx(0.5 * 2 * 2 * 2 * layer_s / 4 * 1000)  # 8 blocks on two SIPs, for 4 tokens
    assert added_mj[1] == pytest.approx(static_w(machine_with({})).value * layer_s / 4 * 1000)
    assert figures(static)["energy of work per token"] == figures(plain)["energy of work per token"]


def machine_with(settings: Mapping[str, object]) -> TopologyGraph:
    small = {"system.sips.count": 2, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1}
    return load_topology(None, {**small, **TWO_PES, **settings})


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_model_that_needs_more_memory_than_there_is_says_so() -> None:
    """8 billion parameters of two bytes on two cubes of 1 GiB."""
    params = {"model": "llama3-8b", "phase": "decode", "context": 64, "tp": 1}
    small = run(llm_layer, machine_with({"cube.memory_map.hbm_total_gb_per_cube": 1}), device="whole", params=params)
    assert fits_of(small) is False
    assert figures(small)["fits"] is False
    assert run_as_json(figures_of(small))["fits"] is False
    (warning,) = warnings_of(small)
    assert "memory needed per SIP 16.07 GB, memory there per SIP 2.147 GB" in warning
    large = run(llm_layer, machine(), device="whole", params={"model": "tiny-gpt", "tokens": 1})
    assert fits_of(large) is True
    assert warnings_of(large) == []
