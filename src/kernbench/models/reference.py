"""A decoder layer in numpy, in f64: the reference for the numbers of `DecoderLayer`."""

from __future__ import annotations

from collections.abc import Mapping
from math import erf
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array
from kernbench.common.dtypes import dtype_of
from kernbench.models.shapes import ModelShape, rope_table

Wide: TypeAlias = NDArray[np.float64]
EPS = 1e-5


def draw_weights(model: ModelShape, batch: int, context: int, dtype: str, seed: int) -> dict[str, Array]:
    """Random weights of a whole layer, and a cache for `context` earlier tokens where there are any."""
    rng = np.random.default_rng(seed)
    element = dtype_of(dtype).numpy

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return cast(Array, (rng.standard_normal(shape) * scale).astype(element))

    h, f, e = model.hidden, model.ffn, model.experts
    held = {
        "norm1": normal(h), "norm2": normal(h), "norm1_shift": normal(h), "norm2_shift": normal(h),
        "qkv": normal(h, model.queries + 2 * model.keys, scale=h**-0.5),
        "out": normal(model.queries, h, scale=model.queries**-0.5),
        "gate": normal(e, h, f, scale=h**-0.5), "up": normal(e, h, f, scale=h**-0.5),
        "down": normal(e, f, h, scale=f**-0.5), "router": normal(h, e, scale=h**-0.5),
    }  # fmt: skip
    if context:
        cache = batch, model.kv_heads, context, model.head_dim
        held |= {"keys": normal(*cache), "values": normal(*cache)}
    return held


def layer(model: ModelShape, held: Mapping[str, Array], x: Array, batch: int, context: int) -> Wide:
    """The layer's output for rows x: `batch` sequences of equal length, each after `context` cached tokens."""
    wide = {name: array.astype(np.float64) for name, array in held.items()}
    rows = x.astype(np.float64)
    heads = _attention(model, wide, _norm(model, wide, rows, "norm1"), batch, context)
    middle = rows + heads @ wide["out"]
    return middle + _mlp(model, wide, _norm(model, wide, middle, "norm2"))


def _norm(model: ModelShape, held: Mapping[str, Wide], x: Wide, name: str) -> Wide:
    if model.norm == "rmsnorm":
        return cast(Wide, x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS) * held[name])
    centred = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS)
    return cast(Wide, centred / deviation * held[name] + held[f"{name}_shift"])


def _rotated(model: ModelShape, x: Wide, positions: NDArray[np.int64]) -> Wide:
    """Heads (batch, heads, tokens, d) with their pairs rotated by position."""
    half = model.head_dim // 2
    table = rope_table(model, positions).astype(np.float64)
    cos, sin = table[:, :half], table[:, half:]
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _attention(model: ModelShape, held: Mapping[str, Wide], x: Wide, batch: int, context: int) -> Wide:
    d, seq = model.head_dim, x.shape[0] // batch
    parts = np.split(x @ held["qkv"], [model.queries, model.queries + model.keys], axis=1)
    q, k, v = (part.reshape(batch, seq, -1, d).transpose(0, 2, 1, 3) for part in parts)
    if model.positions == "rope":
        positions = np.arange(context, context + seq)
        q, k = _rotated(model, q, positions), _rotated(model, k, positions)
    if context:
        k, v = (np.concatenate([held[name], new], axis=2) for name, new in (("keys", k), ("values", v)))
    k, v = (np.repeat(part, model.heads // model.kv_heads, axis=1) for part in (k, v))
    seen = np.arange(context, context + seq)[:, None] >= np.arange(context + seq)
    scores = np.where(seen, q @ k.transpose(0, 1, 3, 2) * d**-0.5, -np.inf)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    heads = exponentials / exponentials.sum(axis=-1, keepdims=True) @ v
    return cast(Wide, heads.transpose(0, 2, 1, 3).reshape(batch * seq, -1))


def _mlp(model: ModelShape, held: Mapping[str, Wide], x: Wide) -> Wide:
    if not model.has_experts:
        return _expert(model, held, x, 0)
    products = x @ held["router"]
    chosen = np.argsort(-products, axis=1, kind="stable")[:, : model.experts_per_token]
    values = np.take_along_axis(products, chosen, axis=1)
    gates = np.exp(values - values.max(axis=1, keepdims=True))
    gates /= gates.sum(axis=1, keepdims=True)
    out = np.zeros_like(x)
    for expert in range(model.experts):
        rows, at = np.nonzero(chosen == expert)
        out[rows] += gates[rows, at][:, None] * _expert(model, held, x[rows], expert)
    return out


def _expert(model: ModelShape, held: Mapping[str, Wide], x: Wide, expert: int) -> Wide:
    first = x @ held["gate"][expert]
    if model.is_gated:
        return cast(Wide, (first / (1.0 + np.exp(-first)) * (x @ held["up"][expert])) @ held["down"][expert])
    gelu = first * 0.5 * (1.0 + np.vectorize(erf, otypes=[float])(first / np.sqrt(2.0)))
    return cast(Wide, gelu @ held["down"][expert])
