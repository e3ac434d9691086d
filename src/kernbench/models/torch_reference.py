"""A decoder layer in PyTorch, in f64, on the device of the torch backend: the reference for a layer at full size.

It is written from the formulas, like `reference.py`; of the simulated layer only the input numbers are used. Heads are
processed one key head at a time, to limit the memory of scores.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kernbench.models.reference import EPS
from kernbench.models.shapes import ModelShape, rope_table

WIDE = torch.float64


def layer(model: ModelShape, held: Mapping[str, Tensor], x: Tensor, batch: int, context: int) -> Tensor:
    """The layer's output for rows x: `batch` sequences of equal length, each after `context` cached tokens."""
    with torch.no_grad():
        rows = x.to(WIDE)
        heads = _attention(model, held, _norm(model, held, rows, "norm1"), batch, context)
        middle = rows + heads @ held["out"].to(WIDE)
        return middle + _mlp(model, held, _norm(model, held, middle, "norm2"))


def _norm(model: ModelShape, held: Mapping[str, Tensor], x: Tensor, name: str) -> Tensor:
    gain = held[name].to(WIDE)
    if model.norm == "rmsnorm":
        return x / torch.sqrt((x**2).mean(1, keepdim=True) + EPS) * gain
    centred = x - x.mean(1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(1, keepdim=True) + EPS) * gain + held[f"{name}_shift"].to(WIDE)


def _rotated(model: ModelShape, x: Tensor, positions: Tensor) -> Tensor:
    half = model.head_dim // 2
    table = torch.from_numpy(rope_table(model, positions.cpu().numpy())).to(x.device, WIDE)
    cos, sin = table[:, :half], table[:, half:]
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def _attention(model: ModelShape, held: Mapping[str, Tensor], x: Tensor, batch: int, context: int) -> Tensor:
    d, seq, shared = model.head_dim, x.shape[0] // batch, model.heads // model.kv_heads
    parts = (x @ held["qkv"].to(WIDE)).split([model.queries, model.keys, model.keys], dim=1)
    q, k, v = (part.reshape(batch, seq, -1, d).transpose(1, 2) for part in parts)
    positions = torch.arange(context, context + seq, device=x.device)
    if model.positions == "rope":
        q, k = _rotated(model, q, positions), _rotated(model, k, positions)
    if context:
        k, v = (torch.cat([held[name].to(WIDE), new], 2) for name, new in (("keys", k), ("values", v)))
    seen = positions[:, None] >= torch.arange(context + seq, device=x.device)
    out = torch.empty_like(q)
    for head in range(model.kv_heads):
        mine = slice(head * shared, (head + 1) * shared)
        scores = q[:, mine] @ k[:, head, None].transpose(-1, -2) * d**-0.5
        out[:, mine] = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ v[:, head, None]
    return out.transpose(1, 2).reshape(batch * seq, -1)


def _mlp(model: ModelShape, held: Mapping[str, Tensor], x: Tensor) -> Tensor:
    if not model.has_experts:
        return _expert(model, held, x, 0)
    products = x @ held["router"].to(WIDE)
    order = torch.sort(products, dim=1, descending=True, stable=True)
    chosen = order.indices[:, : model.experts_per_token]
    gates = torch.softmax(order.values[:, : model.experts_per_token], 1)
    out = torch.zeros_like(x)
    for expert in range(model.experts):
        rows, at = torch.nonzero(chosen == expert, as_tuple=True)
        out[rows] += gates[rows, at][:, None] * _expert(model, held, x[rows], expert)
    return out


def _expert(model: ModelShape, held: Mapping[str, Tensor], x: Tensor, expert: int) -> Tensor:
    first = x @ held["gate"][expert].to(WIDE)
    if model.is_gated:
        first = torch.nn.functional.silu(first) * (x @ held["up"][expert].to(WIDE))
    else:
        first = torch.nn.functional.gelu(first)
    return first @ held["down"][expert].to(WIDE)
