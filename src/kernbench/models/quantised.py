"""Weights and caches in fewer bits, with scales: formats, their bytes, and the numbers that a layer holds.

    int8   one byte, -127 to 127        fp8   one byte, f8e4m3        int4   two elements a byte, -7 to 7

A weight has a scale, f16, for each `group` of consecutive rows of a column; a cache one, f32, for all keys of a
sequence and key head, and one for its values. An element stands for itself times its scale.

The rule of what it costs: bytes move as they are stored. A PE widens every element to the type of the rows on its
vector engine, one pass (int4: before it another one, of one-byte types and so at twice the rate, takes a half byte
out), and multiplies sums of a group by their scales, not single elements. There is no engine that multiplies types of
different widths.

int4: byte i of a group has element i in its low half and element i + group / 2 in its high half, each plus 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.models.shapes import ModelShape

WeightName = Literal["same", "int8", "fp8", "int4"]
CacheName = Literal["same", "int8", "fp8"]
GROUPS = (128, 64, 32, 16, 8)  # rows that share a scale: the most that divide a PE's part of K
SCALE_BYTES, CACHE_SCALE_BYTES = 2, 4
OFFSET = 8  # of an int4 element in its half byte
STORED = {"int8": "i8", "fp8": "f8e4m3", "int4": "u8"}
LARGEST = {"int8": 127.0, "fp8": 448.0, "int4": 7.0}
CACHES = ("keys", "values")


@dataclass(frozen=True)
class QuantisedForm:
    """How the elements of a tensor are stored; `group` of a weight."""

    name: Literal["int8", "fp8", "int4"]
    group: int = 1

    @property
    def dtype(self) -> str:
        return STORED[self.name]

    @property
    def per_byte(self) -> int:
        return 2 if self.name == "int4" else 1

    @property
    def passes(self) -> float:
        """Of the vector engine over every element, to widen it, at the rate of types of two bytes."""
        return 1.5 if self.name == "int4" else 1.0

    @property
    def largest(self) -> float:
        return LARGEST[self.name]

    def weight_bytes(self, k: int, n: int) -> int:
        """Of a weight with its scales."""
        return k * n // self.per_byte + k // self.group * n * SCALE_BYTES


def form_of_weight(name: WeightName, what: str, k: int, pes: int) -> QuantisedForm | None:
    """The form of a weight whose K is split over `pes` PEs; raises UsageError if their parts have no whole groups."""
    if name == "same":
        return None
    group = next((size for size in GROUPS if k % (pes * size) == 0), None)
    if group is None:
        raise UsageError(
            f"{what}: {k} rows over {pes} PEs are not whole groups of {GROUPS[-1]} rows with one scale",
            hint=f"a PE's part of K has to be a multiple of {GROUPS[-1]}; use weight_type=same, or another model",
        )
    return QuantisedForm(name, group)


def quantised(array: NDArray[Any], form: QuantisedForm, axes: tuple[int, ...] = ()) -> tuple[NDArray[Any], ...]:
    """The stored elements of an array, their scales, and what they stand for, in f32. A weight (..., K, N) has groups;
    otherwise `axes` share a scale.
    """
    wide = array.astype(np.float32)
    if axes:
        scales = (np.abs(wide).max(axis=axes, keepdims=True) / form.largest).astype(np.float32)
        grouped, each = wide, scales
    else:
        *front, k, n = wide.shape
        grouped = wide.reshape(*front, k // form.group, form.group, n)
        scales = (np.abs(grouped).max(axis=-2, keepdims=True) / form.largest).astype(np.float16)
        each = scales.astype(np.float32)
    over = np.divide(grouped, each, out=np.zeros_like(grouped), where=each > 0)
    over = np.clip(over, -form.largest, form.largest)
    stored = over.astype(dtype_of("f8e4m3").numpy) if form.name == "fp8" else np.rint(over)
    true = (stored.astype(np.float32) * each).reshape(array.shape)
    if form.name == "int4":
        low, high = np.split(stored + OFFSET, 2, axis=-2)
        stored = low + 16 * high
    elements = stored.astype(dtype_of(form.dtype).numpy)
    if axes:
        return elements, scales, true
    *front, _, n = wide.shape
    return elements.reshape(*front, -1, n), scales.reshape(*front, -1, n), true


def quantised_weights(
    held: Mapping[str, NDArray[Any]], weights: Mapping[str, QuantisedForm], cache: QuantisedForm | None
) -> dict[str, NDArray[Any]]:
    """The arrays of a layer: under a weight's name what it stands for, and beside it `NAME:bits` and `NAME:scales`."""
    found = dict(held)
    for name, form in weights.items():
        if name in held:
            found[f"{name}:bits"], found[f"{name}:scales"], found[name] = quantised(held[name], form)
    for name in CACHES if cache is not None else ():
        if name in held:
            assert cache is not None
            bits, scales, found[name] = quantised(held[name], cache, axes=(2, 3))
            found[f"{name}:bits"], found[f"{name}:scales"] = bits, scales[:, :, 0, 0]
    return found


def layer_bytes(model: ModelShape, itemsize: int, name: WeightName) -> int:
    """Of the weights of a layer; quantised ones with a scale for every 128 rows."""
    if name == "same":
        return model.layer_parameters * itemsize
    form, gates = QuantisedForm(name, GROUPS[0]), 2 if model.is_gated else 1
    shapes = [(model.hidden, model.queries + 2 * model.keys), (model.queries, model.hidden)]
    shapes += model.experts * [*gates * [(model.hidden, model.ffn)], (model.ffn, model.hidden)]
    others = model.layer_parameters - sum(k * n for k, n in shapes)
    return sum(form.weight_bytes(k, n) for k, n in shapes) + others * itemsize


def weight_forms(name: WeightName, k_of: Mapping[str, int], pes: int) -> dict[str, QuantisedForm]:
    """The form of each weight, by the rows of K that a SIP has of it; none for `same`."""
    forms = {each: form_of_weight(name, each, k, pes) for each, k in k_of.items()}
    return {each: form for each, form in forms.items() if form is not None}
