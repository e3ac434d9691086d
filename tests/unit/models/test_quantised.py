"""Weights and caches in fewer bits: what is stored stands for the numbers, a layer has numpy's results with them, and
fewer bytes move.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.models.test_layer import llm_layer, machine, rows, run, verified

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.models.mapping import DECODE, by_blocks, split_k_plan
from kernbench.models.needs import product_needs
from kernbench.models.plans import Job, SipShape
from kernbench.models.quantised import QuantisedForm, form_of_weight, layer_bytes, quantised
from kernbench.models.quantised_product import WeightPiece, weight_pieces
from kernbench.models.shapes import load_model
from kernbench.topology import load_topology

INT8, FP8, INT4 = (QuantisedForm(name, 16) for name in ("int8", "fp8", "int4"))


@pytest.mark.parametrize("form", [INT8, FP8, INT4], ids=lambda form: form.name)
def test_stored_elements_times_their_scales_are_near_the_numbers(form: QuantisedForm) -> None:
    """Integers: within half a scale. fp8 has 3 bits of fraction: within a sixteenth of each number, or half of the
    smallest step, 2**-9 scales.
    """
    weight = np.random.default_rng(1).standard_normal((2, 64, 24)).astype(np.float16)
    elements, scales, true = quantised(weight, form)
    assert elements.nbytes == 2 * 64 * 24 // form.per_byte
    assert scales.shape == (2, 4, 24)
    each = np.repeat(scales.astype(np.float64), 16, axis=1)
    error = np.abs(true - weight)
    assert (error <= (np.abs(weight) / 16 + each * 2**-10 if form is FP8 else each / 2) * 1.001).all()
    if form is INT4:
        bytes_ = elements.reshape(2, 4, 8, 24)
        whole = np.concatenate([bytes_ & 15, bytes_ >> 4], axis=2).reshape(2, 64, 24).astype(np.float64) - 8
        np.testing.assert_allclose(whole * each, true, rtol=1e-6)


def test_a_weight_of_zeros_stays_zero_and_a_cache_has_one_scale_per_head() -> None:
    assert not quantised(np.zeros((32, 4)), INT8)[2].any()
    cache = np.random.default_rng(2).standard_normal((3, 2, 5, 8))
    elements, scales, true = quantised(cache, QuantisedForm("int8"), axes=(2, 3))
    assert scales.shape == (3, 2, 1, 1)
    np.testing.assert_allclose(np.abs(cache).max(axis=(2, 3)) / 127, scales[:, :, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(elements * scales, true, rtol=1e-6)


def test_bytes_of_a_weight_are_elements_and_scales() -> None:
    """4096 x 1024 in int4, groups of 128: 2 MiB of elements, and 32 x 1024 scales of 2 bytes."""
    assert QuantisedForm("int4", 128).weight_bytes(4096, 1024) == 4096 * 512 + 32 * 1024 * 2
    model = load_model("llama3-8b")
    products = model.layer_parameters - 2 * model.hidden
    assert layer_bytes(model, 2, "same") == 2 * model.layer_parameters
    assert layer_bytes(model, 2, "int8") == products + products // 128 * 2 + 4 * model.hidden


def test_groups_are_the_largest_that_divide_a_pes_part() -> None:
    """14,336 rows over 8 PEs are 14 groups of 128 each; over 16 PEs and 2 SIPs 7 of 64; 12 rows a PE are no group."""
    assert form_of_weight("int8", "down", 14336, 8) == QuantisedForm("int8", 128)
    assert form_of_weight("int8", "down", 7168, 16) == QuantisedForm("int8", 64)
    assert form_of_weight("same", "down", 48, 4) is None
    with pytest.raises(UsageError, match="whole groups of 8 rows"):
        form_of_weight("int4", "down", 48, 4)


def test_pieces_smaller_than_a_group_are_equal_parts_of_it() -> None:
    """Four groups of 128 rows of 256 bytes: a piece of 8 KiB has 32 rows of a group; all scales are one of 2 KiB."""
    pieces = weight_pieces(512, 256, QuantisedForm("int8", 128), 8 * 1024)
    assert pieces[0] == WeightPiece((0, 4), is_scales=True)
    assert [piece.rows for piece in pieces[1:6]] == [(0, 32), (32, 64), (64, 96), (96, 128), (128, 160)]
    assert len(pieces) == 1 + 16


def test_larger_pieces_are_whole_groups_and_scales_come_ahead_of_their_elements() -> None:
    """int4, seven groups of 16 rows, of which 8 are stored, of 64 bytes: 1,100 bytes are two groups of 512, and scales
    of eight groups of 128; with 256 bytes half a group, and scales of two.
    """
    form = QuantisedForm("int4", 16)
    scales, *pieces = weight_pieces(112, 64, form, 1100)
    assert scales == WeightPiece((0, 7), is_scales=True)
    assert [piece.rows for piece in pieces] == [(0, 16), (16, 32), (32, 48), (48, 56)]
    small = weight_pieces(112, 64, form, 256)
    assert [piece.rows for piece in small if piece.is_scales] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert [piece.rows for piece in small[:6]] == [(0, 2), (0, 4), (4, 8), (8, 12), (12, 16), (2, 4)]
    assert small[5].is_scales


@pytest.mark.parametrize("form", [None, INT8, INT4], ids=["same", "int8", "int4"])
@pytest.mark.parametrize("piece_bytes", [1, 300, 5000, 1 << 20])
def test_pieces_are_all_rows_once(form: QuantisedForm | None, piece_bytes: int) -> None:
    pieces = [piece.rows for piece in weight_pieces(96, 100, form, piece_bytes) if not piece.is_scales]
    assert [a for a, _ in pieces] == [0, *(b for _, b in pieces[:-1])]
    assert pieces[-1][1] == 96 // (1 if form is None else form.per_byte)


def test_the_bound_counts_the_passes_that_widen_and_the_scales_of_sums() -> None:
    """4 rows by 256 x 512 in groups of 128: elements of two bytes take half as long as the f32 that lanes are counted
    in, half bytes of int4 a quarter; each of 4 x 512 sums has 2 groups.
    """
    plan = split_k_plan(SipShape(1, 1, 2, 1 << 20), 4, 256, 512, 2)
    for name, passes in (("int8", 1), ("int4", 1.5)):
        need, _ = product_needs(plan, (Job(0, 0, 4),), 1, 2, QuantisedForm(name, 128))
        assert need.lanes == passes * 256 * 512 / 2 + 2 * 4 * 512


def test_a_quantised_cache_is_loaded_in_blocks() -> None:
    sip = SipShape(2, 1, 4, 512 * 1024)
    plan = DECODE.decode_attention(sip, 2, 600, 8, 8, 64, 2)
    assert plan.streamed
    found = by_blocks(plan, sip, 64, 2)
    assert not found.streamed
    assert 0 < found.block_keys <= 256
    assert found.room == found.part + 1


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
@pytest.mark.parametrize(
    ("model", "sips", "weights", "cache"),
    [("tiny-llama", 2, "int8", "fp8"), ("tiny-mixtral", 1, "int4", "same"), ("tiny-gpt", 1, "fp8", "int8")],
)
def test_numbers_are_right_with_quantised_weights_and_caches(model: str, sips: int, weights: str, cache: str) -> None:
    stored = {"weight_type": weights, "cache_type": cache}
    verified(sips, model=model, phase="decode", batch=3, context=40, mapping="decode", **stored)


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_fewer_bytes_are_read_and_fewer_are_needed() -> None:
    """mlp_down of tiny-llama, 448 x 256, K over the 2 PEs of a cube: f16 is 229,376 bytes, int4 57,344 and, for groups
    of 32 rows, 14 x 256 scales, 7,168 bytes.
    """
    found = {}
    for name in ("same", "int4"):
        params = {"model": "tiny-llama", "phase": "decode", "context": 32, "weight_type": name, "mapping": "decode"}
        result = run(llm_layer, machine(1), device="whole", params=params)
        (launch,) = (each for each in result.launches if each.name == "mlp_down")
        needed = next(row["value"] for row in result.returned[0] if row.get("figure") == "memory needed per SIP")
        found[name] = launch.bytes_hbm_requested, needed, rows(result)["mlp_down"]["bound_us"]
    assert found["same"][0] - found["int4"][0] == 229_376 - 57_344 - 7_168
    assert found["int4"][1] < found["same"][1]
    assert found["int4"][2] != found["same"][2]


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"phase": "prefill", "weight_type": "int8"}, "at prefill"),
        ({"phase": "decode", "dtype": "f32", "cache_type": "int8"}, "rows in f32"),
        ({"phase": "decode", "batch": 80, "weight_type": "int8"}, "with 80 rows: they are for products of few rows"),
    ],
)
def test_what_is_not_offered_is_refused(params: dict[str, object], message: str) -> None:
    with pytest.raises(KernBenchError, match=message):
        run(llm_layer, machine(1), device="whole", params={"model": "tiny-llama", **params})


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_many_columns_by_many_rows_find_room_to_be_summed_by_groups(tmp_path: Path) -> None:
    """24 rows of 7,168 columns on a cube of two PEs: sums, and rows in f32, overflowed the TCM in int4."""
    file = tmp_path / "wide.yaml"
    sizes = "hidden: 256, heads: 2, kv_heads: 2, head_dim: 128, ffn: 7168, vocab: 1024"
    made = "layers: 1, norm: rmsnorm, activation: swiglu, positions: rope, source: made for a test"
    file.write_text(f"wide: {{{made}, {sizes}}}\n")
    two = {"sip.cube_mesh.w": 1, "cube.pe_layout.corners": ["NW", "SE"], "cube.pe_layout.pe_per_corner": 1}
    graph = load_topology(None, {"system.sips.count": 1, "sip.cube_mesh.h": 1, **two})
    params = {"model": f"{file}:wide", "phase": "decode", "batch": 24, "context": 32, "weight_type": "int4"}
    found = rows(run(llm_layer, graph, device="whole", params=params, data=False))
    assert found["layer"]["time_us"] > found["layer"]["bound_us"]


def test_numbers_of_large_models_are_not_checked_with_quantised_weights() -> None:
    params = {"model": "llama3-8b", "phase": "decode", "weight_type": "int8"}
    with pytest.raises(UsageError, match="numbers of quantised weights of llama3-8b"):
        run(llm_layer, machine(1), device="whole", verify_data=True, params=params)
