"""Steps of training and inference over ranks, as published code writes them: ZeRO, Ulysses, ring attention, PowerSGD,
expert parallelism, FSDP with uneven shards. Each receives `torch`, PyTorch's or ours, its rank and the number of ranks.
"""

from __future__ import annotations

import math
from typing import Any

from tests.frontends.rank_programs import tensor


def zero_1_adam_step(torch: Any, rank: int, world: int) -> Any:
    """Every rank owns a part of the flat optimizer state; parameters are padded to a multiple of the ranks."""
    dist = torch.distributed
    params = [tensor(torch, 5, 3), tensor(torch, 7), tensor(torch, 2, 2)]
    flat = torch.cat([p.reshape(-1) for p in params])
    grad = torch.cat([tensor(torch, *p.shape, start=rank + 1).view(-1) for p in params])
    pad = (-flat.numel()) % world
    flat, grad = (torch.cat([x, x.new_zeros(pad)]) for x in (flat, grad))
    shard = flat.numel() // world
    own_grad = torch.empty(shard, dtype=torch.float32)
    dist.reduce_scatter_tensor(own_grad, grad, op=dist.ReduceOp.SUM)
    own_grad.div_(world)
    m, v = torch.zeros_like(own_grad), torch.zeros_like(own_grad)
    own = flat.narrow(0, rank * shard, shard)
    for step in range(1, 3):
        m.mul_(0.9).add_(own_grad, alpha=0.1)
        v.mul_(0.99).addcmul_(own_grad, own_grad, value=0.01)
        denominator = (v / (1 - 0.99**step)).sqrt_().add_(1e-8)
        own.addcdiv_(m / (1 - 0.9**step), denominator, value=-0.01)
    dist.all_gather_into_tensor(flat, own.clone())
    at = 0
    for p in params:
        p.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()
    return params


def rows_to_their_owners(torch: Any, rank: int, world: int) -> Any:
    """Sizes are exchanged first, then rows of several columns, and back: as embedding tables over ranks do."""
    dist = torch.distributed
    send = [(rank + k) % 3 for k in range(world)]
    sizes = torch.empty(world, dtype=torch.int64)
    dist.all_to_all_single(sizes, torch.tensor(send, dtype=torch.int64))
    recv = sizes.tolist()
    x = tensor(torch, sum(send), 3, start=rank)
    y = torch.empty(sum(recv), 3, dtype=torch.float32)
    dist.all_to_all_single(y, x, output_split_sizes=recv, input_split_sizes=send, async_op=True).wait()
    back = torch.empty_like(x)
    dist.all_to_all_single(back, y, send, recv)
    return [sizes, y, torch.equal(back, x)]


def ulysses_attention(torch: Any, rank: int, world: int) -> Any:
    """From parts of the sequence to parts of the heads by all-to-all, attention there, and back."""
    dist = torch.distributed
    s, h, d = 4, world, 2  # of this rank: positions; of all: heads

    def to_heads(x: Any) -> Any:
        x = x.reshape(s, world, h // world, d).transpose(0, 1).contiguous()
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x)
        return y.reshape(s * world, h // world, d)

    q, k, v = (to_heads(tensor(torch, s, h, d, start=rank + i)) for i in range(3))
    p = torch.softmax(torch.matmul(q.permute(1, 0, 2), k.permute(1, 2, 0)) / math.sqrt(d), dim=-1)
    o = torch.matmul(p, v.permute(1, 0, 2)).permute(1, 0, 2).contiguous().view(world, s, h // world, d)
    y = torch.empty_like(o)
    dist.all_to_all_single(y, o)
    return [y.transpose(0, 1).reshape(s, h, d)]


def ring_attention_with_logsumexp(torch: Any, rank: int, world: int) -> Any:
    """Keys and values circulate while scores are computed; results are merged by their logsumexp."""
    dist = torch.distributed
    s, d = 4, 4
    q, k, v = (tensor(torch, s, d, start=rank * 3 + i) for i in range(3))
    kv = torch.stack((k, v))
    out = torch.zeros(s, d, dtype=torch.float32)
    lse = torch.full((s, 1), float("-inf"), dtype=torch.float32)
    for step in range(world):
        works = []
        incoming = torch.empty_like(kv)
        if step + 1 < world:
            ops = [
                dist.P2POp(dist.isend, kv, (rank + 1) % world),
                dist.P2POp(dist.irecv, incoming, (rank - 1 + world) % world),
            ]
            works = dist.batch_isend_irecv(ops[::-1] if rank % 2 else ops)
        scores = q @ kv[0].t() / math.sqrt(d)
        block_lse = torch.logsumexp(scores, dim=-1, keepdim=True)
        merged = torch.logaddexp(lse, block_lse)
        block = torch.softmax(scores, dim=-1) @ kv[1]
        out = torch.exp(lse - merged) * out + torch.exp(block_lse - merged) * block
        lse = merged
        for work in works:
            work.wait()
        kv = incoming
    return [out, lse]


def fsdp_with_uneven_shards(torch: Any, rank: int, world: int) -> Any:
    """10 rows over ranks: padded shards are gathered, used and freed; gradients are reduced into padded shards."""
    dist = torch.distributed
    full = tensor(torch, 10, 3)
    sizes = [chunk.shape[0] for chunk in full.chunk(world)]
    sizes += [0] * (world - len(sizes))
    start, per = sum(sizes[:rank]), max(sizes)
    padded = torch.zeros(per, 3, dtype=torch.float32)
    padded[: sizes[rank]] = full[start : start + sizes[rank]]
    whole = torch.empty(world * per, 3, dtype=torch.float32)
    dist.all_gather_into_tensor(whole, padded)
    x = tensor(torch, 2, 10, start=rank)
    y = x @ whole[: full.shape[0]]
    grad = torch.zeros_like(whole)
    grad[:10] = x.t() @ torch.ones_like(y)
    own = torch.empty_like(padded)
    dist.reduce_scatter_tensor(own, grad, op=dist.ReduceOp.SUM)
    padded.sub_(own.div_(world), alpha=0.1)
    return [y, padded[: sizes[rank]], own]


def power_sgd_step(torch: Any, rank: int, world: int) -> Any:
    """Gradients as products of two narrow matrices, of which one is orthogonalised between the all-reduces."""
    dist = torch.distributed
    m, q = tensor(torch, 6, 4, start=rank), tensor(torch, 4, 2, start=9)
    p = m @ q
    dist.all_reduce(p)
    p /= world
    a = p[:, 0:1] / p[:, 0:1].norm()
    b = p[:, 1:2] - a @ (a.t() @ p[:, 1:2])
    p = torch.cat([a, b / b.norm()], dim=1)
    q = m.t() @ p
    dist.all_reduce(q)
    return [p, q / world, m - p @ q.t() / world]


def gating_with_capacity(torch: Any, rank: int, world: int) -> Any:
    """Tokens beyond an expert's capacity are dropped; the others go to their experts and back."""
    dist = torch.distributed
    tokens, d, capacity = 6, 4, 3
    x = tensor(torch, tokens, d, start=rank)
    top = torch.argmax(torch.softmax(x @ tensor(torch, d, world, start=5), dim=1), dim=1)
    mask = (top.unsqueeze(-1) == torch.arange(world)).float()
    places = torch.cumsum(mask, dim=0) - 1
    mask = mask * (places < capacity).float()
    place = (places * mask).sum(dim=1).long()
    sent = torch.zeros(world, capacity, d, dtype=torch.float32)
    for token, expert in enumerate(top.tolist()):
        if mask[token, expert].item():
            sent[expert, int(place[token].item())] += x[token]
    got, back = torch.empty_like(sent), torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    dist.all_to_all_single(back, got * (rank + 1))
    counts = mask.sum(0)
    dist.all_reduce(counts)
    return [back, counts]


def synchronised_batch_norm(torch: Any, rank: int, world: int) -> Any:
    """Sums, squares and counts in one all-reduce; ranks have different batches."""
    x = tensor(torch, 3 + rank % 2, 4, start=rank)
    stats = torch.cat([x.sum(dim=0), (x * x).sum(dim=0), torch.full((1,), float(x.shape[0]), dtype=x.dtype)])
    torch.distributed.all_reduce(stats)
    s, squares, n = stats.split([4, 4, 1])
    mean = s / n
    var = squares / n - mean**2
    return [mean, var, (x - mean) * torch.rsqrt(var + 1e-5)]


def clipped_gradients(torch: Any, rank: int, world: int) -> Any:
    """The norm over the gradients of all ranks, and a flag for those that are not finite."""
    dist = torch.distributed
    grads = [tensor(torch, 4, 4, start=rank), tensor(torch, 9, start=rank + 3)]
    total = torch.zeros(1, dtype=torch.float32)
    for g in grads:
        total += g.norm(2) ** 2
    dist.all_reduce(total)
    scale = torch.clamp(1.0 / (total.sqrt() + 1e-6), max=1.0)
    for g in grads:
        g.mul_(scale)
    if rank == 1:
        grads[0][2, 1] = float("inf")
    bad = torch.tensor([float((~torch.isfinite(grads[0])).any().item())])
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return [*grads[1:], bad, bool(bad.item())]


def one_element_of_a_view(torch: Any, rank: int, world: int) -> Any:
    """item() of several elements is a RuntimeError, as in PyTorch."""
    x = tensor(torch, 4, start=rank)
    try:
        x.item()
    except RuntimeError:
        return [x[1].item()]
    return ["no error"]


PROGRAMS = (
    zero_1_adam_step,
    rows_to_their_owners,
    ulysses_attention,
    ring_attention_with_logsumexp,
    fsdp_with_uneven_shards,
    power_sgd_step,
    gating_with_capacity,
    synchronised_batch_norm,
    clipped_gradients,
    one_element_of_a_view,
)
