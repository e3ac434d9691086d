"""Programs on one device, as PyTorch users write them: each receives `torch`, PyTorch's or ours, and returns results.

They make no random numbers and name their dtypes, so that both give the same. `put` places an array on the device: in
PyTorch `torch.from_numpy`, in ours the same with a placement over PEs.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def array(*shape: int, start: int = 0, dtype: Any = np.float32) -> Any:
    """Small numbers of both signs, different in every row and column, of which sums are exact in f32."""
    return ((np.arange(np.prod(shape)) * 37 + start) % 23 - 11).reshape(shape).astype(dtype) / dtype(4)


def whole(*shape: int, dtype: Any = np.int64) -> Any:
    return (np.arange(np.prod(shape)) * 29 % 17 - 5).reshape(shape).astype(dtype)


def arithmetic(torch: Any, put: Any) -> Any:
    x, y = put(array(6, 8)), put(array(6, 8, start=5))
    out = [x + y, x - y, x * y, x / (y + 30), -x, abs(x), x**2, 2 - x, 3 / (x + 20), 1.5 * x + y]
    out += [x // 2, x % 3, x.add(y, alpha=2), x.sub(y, alpha=0.5), x.square(), x.sign(), (x + 20).reciprocal()]
    return out


def functions(torch: Any, put: Any) -> Any:
    x = put(array(5, 7) / 4)
    positive = x.abs() + 0.5
    out = [
        x.exp(),
        positive.log(),
        positive.sqrt(),
        positive.rsqrt(),
        x.tanh(),
        x.sigmoid(),
        x.relu(),
        x.sin(),
        x.cos(),
    ]
    functional = torch.nn.functional
    out += [
        functional.gelu(x),
        functional.gelu(x, approximate="tanh"),
        functional.silu(x),
        torch.erf(x),
        x.clamp(-1, 1),
        x.clamp(min=0),
    ]
    out += [x.floor(), x.ceil(), torch.round(x), torch.maximum(x, -x), torch.minimum(x, positive), x.clamp(max=0.25)]
    return out


def comparisons(torch: Any, put: Any) -> Any:
    x, y = put(array(4, 6)), put(array(4, 6, start=3))
    out = [x == y, x != y, x < y, x >= 0, (x > 0) & (y > 0), (x > 0) | (y > 0), ~(x > 0), (x > 0) ^ (y > 0)]
    out += [torch.where(x > y, x, y), torch.where(x > 0, x, torch.zeros_like(x)), x.masked_fill(y < 0, -7.0)]
    out += [torch.equal(x, x.clone()), torch.equal(x, y), torch.allclose(x, x + 1e-9), torch.allclose(x, y), x.isnan()]
    out += [torch.logical_and(x > 0, y > 0), torch.logical_not(x > 0), x.eq(y).any(), x.eq(x).all(), x.isfinite()]
    return out


def broadcasting(torch: Any, put: Any) -> Any:
    x, row, column, one = put(array(6, 4)), put(array(4)), put(array(6, 1)), torch.tensor(2.0)
    a, b = put(array(3, 1, 4)), put(array(2, 1))
    return [x + row, x * column, row + column, x + one, a + b, x - 1, one * row, x.expand(2, 6, 4) + 1]


def in_place(torch: Any, put: Any) -> Any:
    x, y = put(array(6, 8)), put(array(6, 8, start=5))
    x += y
    x -= 1
    x *= 2
    x /= 4
    x.add_(y, alpha=3).mul_(0.5).clamp_(-4, 4)
    z = x.clone()
    z.relu_()
    z.fill_(3)
    z[1:3].zero_()
    z[:, 2] = y[:, 0]
    z[4] += 1
    z[0, ::2] = -1
    z.masked_fill_(y > 1, 9)
    w = torch.empty(3, 2, dtype=torch.float32)
    w.copy_(put(array(3, 2)))
    return [x, z, w, w.neg_()]


def views(torch: Any, put: Any) -> Any:
    x = put(array(4, 6))
    x[2:4].mul_(10)
    x.data[0] = 5
    x.view(-1)[3] = 100
    x.t()[5].add_(1)
    x.view(2, 12)[1, 2:4] = -3
    y = x[1:3, 2:5]
    y += 1
    pieces = torch.chunk(x, 2, dim=1)
    pieces[1].sub_(2)
    first, second = x.split([1, 3])
    second[0] = first[0]
    out = [x, y, x.t(), x.t().contiguous(), x.reshape(3, 8), x.t().reshape(-1), x.permute(1, 0)[1:3], x.unsqueeze(1)]
    out += [x.narrow(1, 2, 3), x.flatten(), x.unsqueeze(0).squeeze(0), x.view(2, 2, 6).transpose(0, 1), x[..., None, 1]]
    out += [*x.unbind(1)[:2], x.select(0, 2), x.view(4, 3, 2).flatten(1), x.diagonal(), x.movedim(0, 1), x.T, x.mT]
    return out


def shapes(torch: Any, put: Any) -> Any:
    x = put(array(4, 6))
    y = x.t()
    out = [tuple(x.size()), x.size(1), x.dim(), x.numel(), x.element_size(), x.stride(), y.stride(), y.is_contiguous()]
    out += [x.is_contiguous(), x[1].stride(), x[1:, 2].storage_offset(), x[::2].stride(0), len(x), x.ndim, x.nbytes]
    out += [x[1].data_ptr() - x.data_ptr(), x.shape[0], list(y.contiguous().stride()), x.view(2, -1).shape[1]]
    out += [[tuple(each.shape) for each in x.chunk(4, 1)], [tuple(each.shape) for each in x.split(4, 1)]]
    out += [[tuple(each.shape) for each in torch.tensor_split(x, 4, 1)], x.unflatten(1, (2, 3)).shape[2]]
    return out


def reductions(torch: Any, put: Any) -> Any:
    x = put(array(6, 8))
    out = [x.sum(), x.sum(0), x.sum(1), x.sum((0, 1)), x.sum(1, keepdim=True), x.mean(), x.mean(0), x.mean(-1)]
    out += [x.max(), x.min(), x.amax(0), x.amin(1), x.argmax(), x.argmax(1), x.argmin(0), x.norm(), x.t().sum(1)]
    values, places = x.max(1)
    out += [values, places, x.min(0).values, x.min(0, keepdim=True).indices, x[1:4].sum(0), x[:, 3].sum(), x.std(1)]
    out += [x.var(0), x.var(0, unbiased=False), x.logsumexp(1), (x > 0).sum(), (x > 0).any(0), (x > -9).all()]
    y = put(whole(5, 6))
    return [*out, y.sum(), y.sum(1), y.max(), y.argmax(0), y.to(torch.float32).mean(), y.cumsum(1), x.cumsum(0)]


def orders(torch: Any, put: Any) -> Any:
    x = put(array(5, 11) + np.arange(11, dtype=np.float32) / 64)
    values, places = x.topk(3)
    ordered = x.sort(descending=True)
    out = [values, places, ordered.values, ordered.indices, x.argsort(0), x.topk(2, dim=0, largest=False).values]
    return [*out, x.softmax(-1), x.softmax(0), torch.log_softmax(x, 1), torch.flip(x, (1,)), x.sort(0).values]


def joins(torch: Any, put: Any) -> Any:
    x, y = put(array(3, 4)), put(array(2, 4, start=2))
    out = [torch.cat([x, y]), torch.cat([x, x * 2], dim=1), torch.stack([x, x + 1]), torch.stack([x, x], dim=2)]
    return [*out, torch.cat([x.t(), y.t()], dim=-1), torch.vstack([x[0], y[1]]), torch.hstack([x, x]), torch.cat((x,))]


def products(torch: Any, put: Any) -> Any:
    x, w, v = put(array(6, 8)), put(array(8, 5)), put(array(8))
    a, b = put(array(2, 3, 4)), put(array(2, 4, 5))
    out = [x @ w, x @ v, v @ v, v @ w, a @ b, a @ put(array(4, 2)), torch.matmul(x, w), x.mm(w), torch.bmm(a, b)]
    functional = torch.nn.functional
    out += [
        x.t() @ x,
        functional.linear(x, w.t()),
        functional.linear(x, w.t().contiguous(), put(array(5))),
        x[1:3] @ w[:, ::2],
    ]
    return [*out, torch.outer(v, v), torch.addmm(put(array(6, 5)), x, w), x.mv(v), v.dot(v)]


def mixed_dtypes(torch: Any, put: Any) -> Any:
    half, single, whole_ = put(array(4, 4, dtype=np.float16)), put(array(4, 4)), put(whole(4, 4))
    out = [
        half + single,
        half * 2,
        half + torch.tensor(1.5),
        whole_ + 1,
        whole_ * 2.5,
        whole_ / 2,
        whole_ // 3,
        whole_ % 4,
    ]
    out += [
        whole_ + half,
        (whole_ > 0) + 1,
        half.to(torch.float32),
        single.half(),
        whole_.to(torch.int32),
        single.int(),
    ]
    out += [half.sum(), half.mean(1), half.softmax(1), (single > 0).float(), single.type_as(half), whole_.bool()]
    for each in (half * 2.5, whole_ / 2, whole_ + 1, half + single, half.sum(), whole_.sum(), single > 0):
        out.append(str(each.dtype).removeprefix("torch.").replace("f32", "float32").replace("f16", "float16"))
    return [each if not isinstance(each, str) else {"i64": "int64"}.get(each, each) for each in out]


def factories(torch: Any, put: Any) -> Any:
    f32 = torch.float32
    x = put(array(2, 3))
    out = [torch.ones(2, 3, dtype=f32), torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 4.5)]
    out += [
        torch.full((2,), 1.5, dtype=f32),
        torch.arange(5),
        torch.arange(2, 11, 3),
        torch.arange(0, 1, 0.25, dtype=f32),
    ]
    out += [
        torch.linspace(0, 1, 5, dtype=f32),
        torch.eye(3, dtype=f32),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor(7),
    ]
    out += [
        torch.tensor([1.0, 2.5], dtype=f32),
        torch.tensor([True, False]),
        torch.as_tensor(np.arange(3)),
        x.new_ones(2),
    ]
    out += [x.new_zeros((2, 2)), x.new_full((2,), 3), torch.empty_like(x).fill_(2), torch.eye(2, 4, dtype=f32)]
    return [
        *out,
        torch.tril(torch.ones(3, 3, dtype=f32)),
        torch.triu(torch.ones(3, 3, dtype=f32), 1),
        torch.zeros(0).sum(),
    ]


def indexing(torch: Any, put: Any) -> Any:
    x = put(array(6, 5))
    rows = torch.tensor([4, 0, 0, -1])
    out = [x[rows], x[[1, 3]], x[x > 0], x[torch.tensor([True, False, True, False, True, False])], x[:, [0, 4]]]
    out += [x[torch.arange(5), torch.tensor([0, 1, 2, 3, 4])], torch.index_select(x, 0, torch.tensor([2, 5]))]
    out += [torch.gather(x, 1, torch.tensor([[0], [1], [2], [3], [4], [0]])), x.index_select(1, torch.tensor([3, 3]))]
    y = x.clone()
    y[torch.tensor([0, 2])] = 1.5
    y[y > 2] = 0
    y.index_add_(0, torch.tensor([1, 1, 5]), x[:3])
    y.index_copy_(0, torch.tensor([3]), x[:1])
    table = put(array(7, 3))
    return [*out, y, torch.nn.functional.embedding(torch.tensor([[1, 6], [0, 1]]), table)]


def norms(torch: Any, put: Any) -> Any:
    x, gain, shift = put(array(6, 16)), put(array(16)), put(array(16, start=9))
    functional = torch.nn.functional
    out = [
        functional.layer_norm(x, (16,)),
        functional.layer_norm(x, (16,), gain, shift),
        functional.rms_norm(x, (16,), gain, 1e-6),
    ]
    mean = x.mean(-1, keepdim=True)
    by_hand = (x - mean) * torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5)
    return [*out, by_hand * gain + shift, functional.rms_norm(x.view(2, 3, 16), (16,), eps=1e-5)]


def attention(torch: Any, put: Any) -> Any:
    """Scores, a causal mask, softmax, values, two heads."""
    q, k, v = (put(array(2, 8, 4, start=at) / 4) for at in (0, 3, 8))
    scores = q @ k.transpose(-2, -1) / 4**0.5
    masked = scores.masked_fill(torch.triu(torch.ones(8, 8, dtype=torch.bool), 1), -1e4)
    by_hand = torch.softmax(masked, dim=-1) @ v
    joined = by_hand.transpose(0, 1).reshape(8, 8)
    return [by_hand, joined, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)]


def a_training_step_by_hand(torch: Any, put: Any) -> Any:
    """A linear layer, its loss, its gradients and Adam's update, without autograd."""
    x, w, target = put(array(8, 4)), put(array(4, 3)), put(array(8, 3, start=7))
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    losses = []
    with torch.no_grad():
        for step in range(1, 4):
            error = x @ w - target
            losses.append((error**2).mean())
            gradient = x.t() @ error * (2 / error.numel())
            m.mul_(0.9).add_(gradient, alpha=0.1)
            v.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            w -= 0.1 * (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-8)
    return [w, m, v, *losses, losses[0].item() > losses[-1].item()]


def moe_routing_on_one_device(torch: Any, put: Any) -> Any:
    """The two best experts of every token, their weights, and tokens sorted by expert."""
    tokens, gate = put(array(10, 6)), put(array(6, 4, start=2))
    weights, experts = (tokens @ gate).softmax(-1).topk(2, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    flat = experts.reshape(-1)
    order = torch.argsort(flat + torch.arange(20) / 64.0)
    dispatched = tokens[order // 2]
    counts = torch.bincount(flat, minlength=4)
    out = torch.zeros_like(tokens)
    out.index_add_(0, order // 2, dispatched * weights.reshape(-1)[order].unsqueeze(-1))
    return [weights, experts, order, dispatched, counts, out]


def repeats_and_triangles(torch: Any, put: Any) -> Any:
    x = put(array(4, 6))
    out = [x.repeat(2, 3), x.repeat(3, 1, 2), x.t().repeat(1, 2), x[0].repeat(4, 1), x.tile(2), torch.tile(x, (2, 2))]
    out += [x.repeat_interleave(3, 1), x.repeat_interleave(2), torch.repeat_interleave(x, 2, dim=0), x.repeat(0, 2)]
    out += [x.roll(1, 0), torch.roll(x, (1, -2), (0, 1)), x.roll(5), x.t().roll(-7, 1)]
    out += [x.tril(), x.triu(1), torch.tril(x, -1), x[0].outer(x[1]), x.swapdims(0, 1)]
    return [*out, x.multiply(2), x.divide(4), x.subtract(x, alpha=0.5), x.negative(), x.double()]


def arguments_by_numpys_names(torch: Any, put: Any) -> Any:
    x = put(array(4, 6))
    out = [x.sum(axis=1, keepdims=True), x.mean(axis=0), x.softmax(axis=-1), torch.softmax(x, axis=0), x.amax(axis=1)]
    out += [torch.cat([x, x], axis=1), torch.stack([x, x], axis=1), x.unsqueeze(axis=0)]
    out += [x.max(axis=1).values, x.topk(2, axis=0).values, x.cumsum(axis=1), x.repeat_interleave(2, axis=0)]
    return out


def augmented_assignments_of_views(torch: Any, put: Any) -> Any:
    x, n = put(array(6, 8)), put(whole(6, 8))
    top, rest = x[:2], n[2:]
    top //= 2
    top **= 2
    top %= 3
    rest &= 6
    rest |= 1
    rest ^= 5
    rest %= 4
    return [x, n, x.clamp_min(0), x.clamp_max(1), x.dtype.is_floating_point, n.dtype.is_floating_point]


def numpy_code(torch: Any, put: Any) -> Any:
    """Tensors where numpy expects arrays."""
    x = put(array(3, 4))
    out = [
        np.asarray(x).sum(),
        np.abs(np.asarray(x)).max(),
        np.stack([np.asarray(x)] * 2),
        float(x[0, 1]),
        int(x[2, 1]),
        x.tolist(),
        x[1].tolist(),
    ]
    copy = np.asarray(x).copy()
    copy += 100
    return [*out, x, x.sum().item(), f"{x[0, 0].item():.2f}", [float(each) for each in x[0]], bool(x[0, 0] < 0)]


PROGRAMS = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and name not in ("array", "whole")
}
