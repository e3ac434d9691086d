"""Shapes of models: the figures are those of the papers, and all faults of a wrong file are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.common.errors import UsageError
from kernbench.models.shapes import load_model, read_shape, shipped_models

GIVEN = {
    "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 128, "vocab": 100,
    "norm": "rmsnorm", "activation": "swiglu", "positions": "rope", "source": "a test",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt3-175b", 175), ("llama2-70b", 69), ("llama3-8b", 8), ("llama3-405b", 405), ("mixtral-8x7b", 46.7)],
)
def test_layers_and_embeddings_add_up_to_the_size_in_the_name(name: str, billions: float) -> None:
    model = load_model(name)
    embeddings = (1 if name.startswith("gpt3") else 2) * model.vocab * model.hidden  # GPT-3 ties them
    total = model.layers * model.layer_parameters + embeddings
    assert total / 1e9 == pytest.approx(billions, rel=0.01)


def test_there_is_a_small_model_of_each_kind_to_validate() -> None:
    small = [load_model(name) for name in shipped_models() if load_model(name).validation]
    assert {(m.activation, m.norm, m.has_experts) for m in small} == {
        ("gelu", "layernorm", False),
        ("swiglu", "rmsnorm", False),
        ("swiglu", "rmsnorm", True),
    }


def test_a_name_that_is_nearly_right_is_suggested() -> None:
    with pytest.raises(UsageError, match="did you mean 'llama3-8b'"):
        load_model("llama3-8B")


def test_all_faults_of_a_model_are_reported_together() -> None:
    wrong = {**GIVEN, "hidden": 0, "norm": "batch", "colour": 3}
    del wrong["ffn"]
    with pytest.raises(UsageError) as caught:
        read_shape("mine", wrong, "mine.yaml")
    for part in (
        "'ffn' is missing",
        "no key 'colour'",
        "hidden is 0",
        "norm is 'batch', not one of layernorm, rmsnorm",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_heads": 3}, "kv_heads 3 does not divide heads 4"),
        ({"experts_per_token": 2}, "experts_per_token 2 of 1 experts"),
        ({"head_dim": 15}, "rope turns pairs"),
        ({"experts": 4, "activation": "gelu"}, "experts with activation gelu"),
        ({"rope_base": True}, "rope_base is True"),
        ({"validation": 1}, "validation is 1"),
        ({"layers": True}, "layers is True"),
        ({"source": ""}, "source is no text"),
    ],
)
def test_values_must_go_together(changed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_shape("mine", {**GIVEN, **changed})


def test_a_model_may_come_from_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mine: {" + ", ".join(f"{key}: {value}" for key, value in GIVEN.items()) + "}\n")
    assert load_model(f"{file}:mine") == load_model(str(file)) == read_shape("mine", GIVEN)
    with pytest.raises(UsageError, match="no model 'other'"):
        load_model(f"{file}:other")


@pytest.mark.parametrize(
    ("text", "message"), [("- 1\n", "has no models"), ("a: [\n", "is no YAML"), ("a: 3\n", "is 3")]
)
def test_a_file_that_is_no_table_of_models_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_model(f"{file}:a")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load_model(f"{tmp_path}/none.yaml:a")
