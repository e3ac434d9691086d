"""A decode step in one launch whose weights and caches are quantised: numpy's numbers for every type, pieces
of all sizes, no races, the same with all fast paths off, its bound, and a report that names what is run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.models.test_fused_decode import FUSED, LLAMA, MIB, plan_for
from tests.unit.models.test_layer import llm_layer, machine, names, rows, run, verified

from kernbench.common.errors import UsageError
from kernbench.models.fused_plan import LEAST_PIECES, FusedPlan, NotFused, spare_pieces
from kernbench.models.quantised import QuantisedForm, quantised
from kernbench.models.quantised_product import PieceStream, StoredTensor, WeightPart, blocks_of, group_offsets
from kernbench.testing import run_kernel

QUANTISED = [
    (w, c) for w in ("same", "int8", "fp8", "int4") for c in ("same", "int8", "fp8") if (w, c) != ("same", "same")
]
BOTH = {"weight_type": "int4", "cache_type": "int8"}
DECODE: dict[str, object] = {"model": "tiny-llama", "phase": "decode", "context": 64}


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("weights", "cache"),
    [("same", "int8"), ("same", "fp8"), ("int8", "same"), ("int8", "fp8"), ("fp8", "int8"), ("int4", "same")],
)
def test_numbers_are_right_for_every_type_of_weights_and_of_caches(weights: str, cache: str) -> None:
    params = {"model": "tiny-llama", "batch": 2, "context": 45, "weight_type": weights, "cache_type": cache}
    result = verified(1, 4, phase="decode", **params)
    assert names(result) == [FUSED, "launching", "layer"]


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("model", "pes", "batch", "context", "weights", "cache"),
    [
        ("tiny-llama", 2, 1, 300, "int8", "fp8"),  # caches in parts, which are merged
        ("tiny-llama", 2, 11, 70, "int4", "int8"),  # more rows than PEs
        ("tiny-llama", 2, 5, 33, "fp8", "int8"),  # rows over the PEs that reduce sums
        ("tiny-gpt", 4, 1, 50, "int4", "fp8"),  # a layernorm, one weight for the MLP, no angles
    ],
)
def test_numbers_are_right_for_other_sizes(
    model: str, pes: int, batch: int, context: int, weights: str, cache: str
) -> None:
    stored = {"weight_type": weights, "cache_type": cache}
    result = verified(1, pes, model=model, phase="decode", batch=batch, context=context, **stored)
    assert names(result)[0] == FUSED


@pytest.mark.parametrize("prepared", [0, 3])
@pytest.mark.parametrize("piece_bytes", [1, 100, 700, 1 << 20])
@pytest.mark.parametrize("name", ["same", "int8", "fp8", "int4"])
def test_a_product_has_the_numbers_of_its_stored_weight(name: str, piece_bytes: int, prepared: int) -> None:
    """48 rows, three groups of 16, by 20 columns: a piece is one row, a fraction of a group, groups, or all of it."""
    rng = np.random.default_rng(1)
    x, weight = (rng.standard_normal(shape).astype(np.float16) for shape in ((3, 48), (48, 20)))
    form = None if name == "same" else QuantisedForm(name, 16)
    elements, scales, true = (weight, np.zeros(1, np.float16), weight) if form is None else quantised(weight, form)

    def kernel(rows, elements, scales, out, tl):
        part = WeightPart(StoredTensor(elements, scales, form), 0, 48, 20)
        stream = PieceStream(blocks_of([part], piece_bytes), 2048, "f16", tl, most_prepared=prepared)
        stream.issue()
        own = tl.load(rows, (3, 48))
        for _ in range(prepared):
            stream.prepare()
        tl.store(out, stream.multiply(own, part, piece_bytes, group_offsets(own, form, tl)))

    found = run_kernel(kernel, x, elements, scales, np.zeros((3, 20), np.float32)).arrays[3]
    np.testing.assert_allclose(found, x.astype(np.float32) @ true.astype(np.float32), rtol=1e-4, atol=1e-3)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("stored", [BOTH, {"weight_type": "int8"}])
def test_it_has_no_races_and_takes_as_long_with_all_fast_paths_off(stored: dict[str, object]) -> None:
    params = {**DECODE, **stored, "batch": 2}
    found = run(llm_layer, machine(1, 4), device="whole", params=params, check_races=True)
    assert found.races == []
    fast, slow = (
        run(llm_layer, machine(1, 4), device="whole", params=params, fast=each).total_ns for each in (True, False)
    )
    assert fast == slow


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("stored", [BOTH, {"weight_type": "fp8"}, {"cache_type": "fp8"}])
def test_it_is_faster_than_parts_and_not_faster_than_its_bound(stored: dict[str, object]) -> None:
    one, parts = (
        rows(run(llm_layer, machine(1, 4), device="whole", params={**DECODE, **stored, "mapping": name}))["layer"]
        for name in ("auto", "decode")
    )
    assert one["bound_us"] < one["time_us"] < 0.8 * parts["time_us"]
    assert one["bound_us"] <= parts["bound_us"]


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_pinned_choice_is_taken_again_for_the_same_types_only(tmp_path: Path) -> None:
    file = tmp_path / "choice.yaml"
    params = {**DECODE, **BOTH}
    first = run(llm_layer, machine(1), device="whole", params={**params, "mapping_report": str(file)})
    again = run(llm_layer, machine(1), device="whole", params={**params, "mapping": str(file)})
    found = [(row["kind"], row["chosen"]) for row in first.returned[0] if row.get("choice of") == "layer"]
    assert found == [("fused", "yes"), ("parts", "-")]
    assert names(again)[0] == FUSED
    assert rows(again)["layer"]["time_us"] == rows(first)["layer"]["time_us"]
    other = {**params, "weight_type": "int8", "mapping": str(file)}
    with pytest.raises(UsageError, match="is for weight_type int4, this run has weight_type int8"):
        run(llm_layer, machine(1), device="whole", params=other)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_report_names_the_plans_that_quantised_parts_run(tmp_path: Path) -> None:
    """17 sequences are no single launch, and quantised weights have one plan: the report has it, a file pins it."""
    file = tmp_path / "choice.yaml"
    params = {**DECODE, "batch": 17, "weight_type": "int8"}
    first = run(llm_layer, machine(1), device="whole", params={**params, "mapping_report": str(file)})
    report = [row for row in first.returned[0] if row.get("choice of") in ("qkv", "out_proj", "mlp_up", "mlp_down")]
    assert [(row["kind"], row["chosen"]) for row in report] == 4 * [("split_k", "yes")]
    assert min(float(str(row["estimate_us"])) for row in report) > 0.2
    for mapping in (str(file), "decode"):
        again = run(llm_layer, machine(1), device="whole", params={**params, "mapping": mapping})
        assert rows(again)["layer"]["time_us"] == rows(first)["layer"]["time_us"]
    file.write_text(
        file.read_text().replace("kind: split_k", "kind: columns\n    groups: 1\n    k_parts: 2\n    block_rows: 0", 1)
    )
    with pytest.raises(UsageError, match="kind: columns with weights in int8"):
        run(llm_layer, machine(1), device="whole", params={**params, "mapping": str(file)})


@pytest.mark.parametrize(("weights", "cache"), QUANTISED)
def test_pieces_and_widened_copies_fit_and_more_tcm_keeps_the_plan(weights: str, cache: str) -> None:
    size = replace(LLAMA, batch=8, weight_type=weights, cache_type=cache)
    plans = [plan_for(size, tcm_bytes=kib * 1024) for kib in range(512, 3072, 512)]
    found = [isinstance(plan, FusedPlan) for plan in plans]
    assert found == sorted(found)
    assert found[1]  # 1 MiB
    for at, plan in enumerate(plans):
        if isinstance(plan, FusedPlan):
            assert LEAST_PIECES * plan.piece_bytes <= plan.room_bytes
            assert plan.room_bytes + spare_pieces(size) * plan.piece_bytes < (at + 1) * MIB // 2


def test_quantised_caches_of_few_queries_are_one_launch_with_more_parts_than_pes() -> None:
    """Two queries share a key head: f16 keys of several units are streamed together, which parts do faster; keys in
    int8 are loaded in blocks in either case.
    """
    size = replace(LLAMA, kv_heads=16, batch=16)  # 256 parts for 128 PEs
    found = plan_for(size)
    assert isinstance(found, NotFused)
    assert "streams of several are faster" in found.reason
    assert isinstance(plan_for(replace(size, cache_type="int8")), FusedPlan)


def test_a_part_of_k_without_whole_groups_is_no_single_launch() -> None:
    """4,160 rows over 8 PEs are 520 each, 65 groups of 8; 4,128 are 516."""
    assert isinstance(plan_for(replace(LLAMA, hidden=4160, weight_type="int8")), FusedPlan)
    found = plan_for(replace(LLAMA, hidden=4128, weight_type="int8"))
    assert isinstance(found, NotFused)
    assert "not whole groups of 8 rows" in found.reason
