"""Shapes of models: the sizes of a decoder layer, from `models.yaml` or a file of the same form.

A model is named, or given as FILE.yaml:NAME. All faults of a model are reported together, with file and key.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import yaml
from numpy.typing import NDArray

from kernbench.common.errors import UsageError
from kernbench.common.nearest import nearest

Norm = Literal["layernorm", "rmsnorm"]
MlpActivation = Literal["gelu", "swiglu"]
Positions = Literal["learned", "rope"]
SHIPPED = Path(__file__).with_name("models.yaml")
CHOICES: dict[str, tuple[str, ...]] = {
    "norm": get_args(Norm),
    "activation": get_args(MlpActivation),
    "positions": get_args(Positions),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model. Sizes are of the whole model, which has `layers` equal layers."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm: Norm
    activation: MlpActivation
    positions: Positions
    source: str
    experts: int = 1
    experts_per_token: int = 1
    rope_base: float = 10000.0
    validation: bool = False  # small enough to verify its numbers

    @property
    def is_gated(self) -> bool:
        return self.activation == "swiglu"

    @property
    def has_experts(self) -> bool:
        return self.experts > 1

    @property
    def queries(self) -> int:
        """Columns of the queries of all heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Columns of the keys of all heads; as many for values."""
        return self.kv_heads * self.head_dim

    def can_be_split(self, ranks: int) -> bool:
        """Whether its heads can be divided over ranks: whole heads per rank, or whole ranks per key head."""
        return self.heads % ranks == 0 and (self.kv_heads % ranks == 0 or ranks % self.kv_heads == 0)

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        attention = self.hidden * (self.queries + 2 * self.keys) + self.queries * self.hidden
        products = 3 if self.is_gated else 2
        router = self.hidden * self.experts if self.has_experts else 0
        norms = 2 * self.hidden * (2 if self.norm == "layernorm" else 1)
        return attention + self.experts * products * self.hidden * self.ffn + router + norms


REQUIRED = tuple(f.name for f in fields(ModelShape))[1:12]
OPTIONAL = tuple(f.name for f in fields(ModelShape))[12:]


def load_model(name: str) -> ModelShape:
    """A model of `models.yaml`, or of FILE.yaml:NAME; raises UsageError with every fault."""
    file, colon, inside = name.rpartition(":")
    if not colon and not name.endswith((".yaml", ".yml")):
        return _chosen(_models(SHIPPED), name, SHIPPED)
    place = Path(file if colon else name)
    models = _models(place)
    if not colon and len(models) == 1:
        return _chosen(models, next(iter(models)), place)
    if not colon:
        raise UsageError(f"{place} has {len(models)} models", hint=f"choose one: {place}:NAME, {', '.join(models)}")
    return _chosen(models, inside, place)


def shipped_models() -> tuple[str, ...]:
    """The names in `models.yaml`."""
    return tuple(_models(SHIPPED))


def _chosen(models: dict[str, object], name: str, file: Path) -> ModelShape:
    if name in models:
        return read_shape(name, models[name], str(file))
    close = nearest(name, models)
    suggestion = f"; did you mean '{close}'?" if close else ""
    raise UsageError(
        f"no model '{name[:60]}'{suggestion}",
        hint=f"use one of {', '.join(models)}, or a file of yours: FILE.yaml:NAME",
    )


@cache
def _models(file: Path) -> dict[str, object]:
    try:
        found: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}", hint="give FILE.yaml:NAME, or a name") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is no YAML: {error}", hint="see kernbench/models/models.yaml") from None
    if not isinstance(found, dict) or not found or not all(isinstance(key, str) for key in found):
        raise UsageError(f"{file} has no models", hint="it maps names to shapes: see kernbench/models/models.yaml")
    return found


def read_shape(name: str, given: object, where: str = "") -> ModelShape:
    """A checked shape; raises UsageError that lists every fault."""
    if not isinstance(given, dict):
        raise UsageError(f"model '{name}' is {given!r}"[:200], where=where, hint=f"give {', '.join(REQUIRED)}")
    faults = [f"'{key}' is missing" for key in REQUIRED if key not in given]
    faults += [f"there is no key '{key}'" for key in given if key not in (*REQUIRED, *OPTIONAL)]
    faults += [fault for key, value in given.items() if (fault := _fault(key, value))]
    if not faults:
        shape = ModelShape(name, **given)
        faults = _together(shape)
        if not faults:
            return shape
    raise UsageError(
        f"model '{name}': {'; '.join(faults)}", where=where, hint=f"keys: {', '.join((*REQUIRED, *OPTIONAL))}"
    )


def _fault(key: str, value: object) -> str | None:
    if key in CHOICES:
        return None if value in CHOICES[key] else f"{key} is {value!r}, not one of {', '.join(CHOICES[key])}"
    if key == "source":
        return None if isinstance(value, str) and value else "source is no text"
    if key == "validation":
        return None if isinstance(value, bool) else f"validation is {value!r}, not true or false"
    if key == "rope_base":
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 1
        return None if is_number else f"rope_base is {value!r}, not a number above 1"
    if key in (*REQUIRED, *OPTIONAL) and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        return f"{key} is {value!r}, not a whole number of 1 or more"
    return None


def _together(shape: ModelShape) -> list[str]:
    """Faults of combinations of values that are valid one by one."""
    faults = []
    if shape.heads % shape.kv_heads:
        faults.append(f"kv_heads {shape.kv_heads} does not divide heads {shape.heads}")
    if shape.experts_per_token > shape.experts:
        faults.append(f"experts_per_token {shape.experts_per_token} of {shape.experts} experts")
    if shape.positions == "rope" and shape.head_dim % 2:
        faults.append(f"rope turns pairs, and head_dim is {shape.head_dim}")
    if shape.has_experts and not shape.is_gated:
        faults.append("experts with activation gelu are not offered: use swiglu")
    return faults


def rows_of_weights(model: ModelShape, ranks: int) -> dict[str, int]:
    """The rows of K of each weight on one of `ranks` SIPs."""
    names = ("qkv", "gate", "up") if model.is_gated else ("qkv", "gate")
    split = {"out": model.queries // ranks, "down": model.ffn // ranks}
    return {**dict.fromkeys(names, model.hidden), **split}


def rope_table(model: ModelShape, positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """For each position the cosines of its pairs' angles, then the sines."""
    half = model.head_dim // 2
    angles = positions[:, None] * model.rope_base ** (-np.arange(half) / half)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
