"""Programs of several ranks, as PyTorch users write them: each receives `torch`, PyTorch's or ours, its rank and the
number of ranks, and returns results.

They make no random numbers and name their dtypes, so that both give the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.frontends.tensor_programs import array


def tensor(torch: Any, *shape: int, start: int = 0) -> Any:
    return torch.from_numpy(array(*shape, start=start).copy())


# ---- the tutorial


def point_to_point(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    x = torch.zeros(1, dtype=torch.float32)
    if rank == 0:
        x += 1
        dist.send(tensor=x, dst=1)
    elif rank == 1:
        dist.recv(tensor=x, src=0)
    y = torch.zeros(3, dtype=torch.float32)
    if rank == 0:
        work = dist.isend(torch.full((3,), 5.0, dtype=torch.float32), dst=world - 1)
        work.wait()
    elif rank == world - 1:
        work = dist.irecv(y, src=0)
        work.wait()
    return [x, y]


def collectives_of_the_tutorial(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    group = dist.new_group([0, 1])
    x = torch.ones(1, dtype=torch.float32)
    if rank < 2:
        dist.all_reduce(x, op=dist.ReduceOp.SUM, group=group)
    y = torch.arange(2, dtype=torch.float32) + 1 + 2 * rank
    dist.broadcast(y, src=world - 1)
    z = torch.full((2,), float(rank + 1), dtype=torch.float32)
    dist.reduce(z, dst=0, op=dist.ReduceOp.PRODUCT)
    parts = [torch.zeros(2, dtype=torch.float32) for _ in range(world)]
    dist.all_gather(parts, torch.full((2,), float(rank), dtype=torch.float32))
    return [x, y, z if rank == 0 else None, *parts]


def ring_of_the_tutorial(torch: Any, rank: int, world: int) -> Any:
    """The ring all-reduce of "Writing distributed applications"."""
    dist = torch.distributed
    send = tensor(torch, 6, start=rank)
    recv = torch.zeros_like(send)
    send_buff, recv_buff, accum = send.clone(), send.clone(), send.clone()
    left, right = ((rank - 1) + world) % world, (rank + 1) % world
    for i in range(world - 1):
        if i % 2 == 0:
            send_req = dist.isend(send_buff, right)
            dist.recv(recv_buff, left)
            accum[:] += recv_buff[:]
        else:
            send_req = dist.isend(recv_buff, right)
            dist.recv(send_buff, left)
            accum[:] += send_buff[:]
        send_req.wait()
    recv[:] = accum[:]
    return [recv]


def average_gradients(torch: Any, rank: int, world: int) -> Any:
    """Data-parallel training of a linear model: each rank has its own batch."""
    dist = torch.distributed
    w = tensor(torch, 4, 3) / 4
    losses = []
    for step in range(2):
        x, y = tensor(torch, 6, 4, start=rank + 7 * step), tensor(torch, 6, 3, start=rank)
        error = x @ w - y
        loss = error.square().mean()
        gradient = x.t() @ error * (2 / error.numel())
        dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
        gradient /= world
        w -= 0.1 * gradient
        dist.all_reduce(loss)
        losses.append(loss / world)
    return [w, *losses]


def scatter_and_gather(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    out = torch.zeros(2, dtype=torch.float32)
    given = [tensor(torch, 2, start=at) for at in range(world)] if rank == 0 else None
    dist.scatter(out, given, src=0)
    into = [torch.zeros(2, dtype=torch.float32) for _ in range(world)] if rank == 0 else None
    dist.gather(out * 2, into, dst=0)
    return [out, into]


# ---- Megatron's mappings


def _reduce(torch: Any, x: Any) -> Any:
    torch.distributed.all_reduce(x)
    return x


def _split_along_last_dim(x: Any, rank: int, world: int) -> Any:
    return x.chunk(world, dim=-1)[rank].contiguous()


def _gather_along_last_dim(torch: Any, x: Any, rank: int, world: int) -> Any:
    parts = [torch.empty_like(x) for _ in range(world)]
    parts[rank] = x
    torch.distributed.all_gather(parts, x)
    return torch.cat(parts, dim=x.dim() - 1).contiguous()


def _gather_along_first_dim(torch: Any, x: Any, world: int) -> Any:
    size = list(x.size())
    size[0] *= world
    out = torch.empty(size, dtype=x.dtype)
    torch.distributed.all_gather_into_tensor(out, x.contiguous())
    return out


def _reduce_scatter_along_first_dim(torch: Any, x: Any, world: int) -> Any:
    size = list(x.size())
    size[0] //= world
    out = torch.empty(size, dtype=x.dtype)
    torch.distributed.reduce_scatter_tensor(out, x.contiguous())
    return out


def megatron_mappings(torch: Any, rank: int, world: int) -> Any:
    x = tensor(torch, 8, 8, start=rank)
    shared = tensor(torch, 8, 8)
    out = [_reduce(torch, x.clone()), _split_along_last_dim(shared, rank, world)]
    out.append(_gather_along_last_dim(torch, out[1], rank, world))
    out.append(shared.chunk(world, dim=0)[rank].contiguous())
    out.append(_gather_along_first_dim(torch, x, world))
    out.append(_reduce_scatter_along_first_dim(torch, x, world))
    return out


def megatron_mlp(torch: Any, rank: int, world: int) -> Any:
    """Column-parallel, GELU, row-parallel."""
    x, a, b = tensor(torch, 4, 8), tensor(torch, 8, 16) / 4, tensor(torch, 16, 8, start=3) / 4
    own_a = a.chunk(world, dim=1)[rank].contiguous()
    own_b = b.chunk(world, dim=0)[rank].contiguous()
    hidden = torch.nn.functional.gelu(x @ own_a)
    return [_reduce(torch, hidden @ own_b)]


def megatron_sequence_parallel(torch: Any, rank: int, world: int) -> Any:
    """Activations split by tokens between layers: norm, gather, column-parallel, row-parallel, reduce-scatter."""
    tokens = tensor(torch, 8, 16)
    own = tokens.chunk(world, dim=0)[rank]
    a, b = tensor(torch, 16, 32) / 8, tensor(torch, 32, 16, start=3) / 8
    normed = torch.nn.functional.layer_norm(own, (16,))
    full = _gather_along_first_dim(torch, normed, world)
    hidden = torch.relu(full @ a.chunk(world, dim=1)[rank])
    out = _reduce_scatter_along_first_dim(torch, hidden @ b.chunk(world, dim=0)[rank], world)
    return [own + out]


def vocabulary_parallel_embedding(torch: Any, rank: int, world: int) -> Any:
    table, ids = tensor(torch, 16, 4), torch.tensor([3, 15, 0, 8, 8, 11])
    count = 16 // world
    first = rank * count
    outside = (ids < first) | (ids >= first + count)
    local = (ids - first).masked_fill(outside, 0)
    rows = torch.nn.functional.embedding(local, table[first : first + count].contiguous())
    return [_reduce(torch, rows.masked_fill(outside.unsqueeze(1), 0.0))]


def vocabulary_parallel_cross_entropy(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    logits, targets = tensor(torch, 6, 16), torch.tensor([3, 15, 0, 8, 8, 11])
    count = 16 // world
    own = logits[:, rank * count : (rank + 1) * count].clone()
    most = own.amax(-1)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    own -= most.unsqueeze(-1)
    outside = (targets < rank * count) | (targets >= (rank + 1) * count)
    picked = own.gather(1, (targets - rank * count).masked_fill(outside, 0).unsqueeze(1)).squeeze(1)
    picked = picked.masked_fill(outside, 0.0)
    dist.all_reduce(picked)
    total = own.exp().sum(-1)
    dist.all_reduce(total)
    return [total.log() - picked]


# ---- FSDP, pipelines, experts, rings


def fsdp_step(torch: Any, rank: int, world: int) -> Any:
    """A sharded parameter: gathered for the forward pass, its gradient reduce-scattered, its shard updated."""
    dist = torch.distributed
    flat = tensor(torch, 6, 4).reshape(-1)
    padded = torch.zeros(-(-flat.numel() // world) * world, dtype=torch.float32)
    padded[: flat.numel()] = flat
    shard = padded.chunk(world)[rank].clone()
    for step in range(2):
        full = torch.empty(padded.numel(), dtype=torch.float32)
        dist.all_gather_into_tensor(full, shard)
        w = full[: flat.numel()].view(6, 4)
        x = tensor(torch, 5, 6, start=rank + step)
        y = x @ w
        gradient = torch.zeros_like(full)
        gradient[: flat.numel()] = (x.t() @ y).reshape(-1)
        own = torch.empty_like(shard)
        dist.reduce_scatter_tensor(own, gradient, op=dist.ReduceOp.SUM)
        shard -= 0.01 * own / world
    return [shard]


def one_forward_one_backward(torch: Any, rank: int, world: int) -> Any:
    """A pipeline of stages y = x * (rank + 2), 1F1B with four micro batches: activations forwards, gradients back."""
    dist = torch.distributed
    batches, factor = 4, float(rank + 2)
    kept: list[Any] = []
    sent: list[Any] = []
    gradient = torch.zeros(3, dtype=torch.float32)
    losses = []

    def forward(number: int) -> None:
        x = tensor(torch, 3, start=number)
        if rank > 0:
            dist.recv(x, rank - 1)
        kept.append(x)
        y = x * factor
        if rank < world - 1:
            sent.append((dist.isend(y, rank + 1), y))
        else:
            losses.append(y.sum())

    def backward() -> None:
        x = kept.pop(0)
        upstream = torch.ones(3, dtype=torch.float32)
        if rank < world - 1:
            dist.recv(upstream, rank + 1)
        gradient.add_(upstream * x)
        if rank > 0:
            back = upstream * factor
            sent.append((dist.isend(back, rank - 1), back))

    warmup = min(world - rank - 1, batches)
    for number in range(warmup):
        forward(number)
    for number in range(warmup, batches):
        forward(number)
        backward()
    for _ in range(warmup):
        backward()
    for work, _ in sent:
        work.wait()
    return [gradient, *losses]


def pipeline_with_batched_messages(torch: Any, rank: int, world: int) -> Any:
    """Every stage sends to the next and receives from the one before in one batch."""
    dist = torch.distributed
    x = tensor(torch, 4, start=rank)
    for _ in range(world):
        y = torch.empty_like(x)
        ops = [
            dist.P2POp(dist.isend, x, (rank + 1) % world),
            dist.P2POp(dist.irecv, y, (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        x = y + 1
    return [x]


def expert_parallel_dispatch(torch: Any, rank: int, world: int) -> Any:
    """Tokens go to the rank of their expert and come back: all_to_all_single with uneven splits."""
    dist = torch.distributed
    tokens = tensor(torch, 2 * world + rank, 4, start=rank)
    experts = torch.arange(2 * world + rank) * 3 % world
    order = torch.argsort(experts + torch.arange(2 * world + rank) / 1024.0)
    counts = torch.bincount(experts, minlength=world)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    sends, receives = counts.tolist(), theirs.tolist()
    received = torch.empty(sum(receives), 4, dtype=torch.float32)
    dist.all_to_all_single(received, tokens[order], receives, sends)
    done = received * (rank + 2)
    back = torch.empty(sum(sends), 4, dtype=torch.float32)
    dist.all_to_all_single(back, done, sends, receives)
    out = torch.zeros_like(tokens)
    out.index_add_(0, order, back)
    return [received, out]


def ring_attention(torch: Any, rank: int, world: int) -> Any:
    """Keys and values travel around the ring; softmax is corrected block by block."""
    dist = torch.distributed
    q = tensor(torch, 4, 8, start=rank) / 4
    k, v = tensor(torch, 4, 8, start=5 + rank) / 4, tensor(torch, 4, 8, start=9 + rank) / 4
    most = torch.full((4, 1), -1e30, dtype=torch.float32)
    total, out = torch.zeros(4, 1, dtype=torch.float32), torch.zeros(4, 8, dtype=torch.float32)
    block = torch.stack([k, v])
    for step in range(world):
        incoming = torch.empty_like(block)
        if step < world - 1:
            ops = [
                dist.P2POp(dist.isend, block, (rank + 1) % world),
                dist.P2POp(dist.irecv, incoming, (rank - 1) % world),
            ]
            works = dist.batch_isend_irecv(ops)
        scores = q @ block[0].t() / 8**0.5
        new = torch.maximum(most, scores.amax(-1, keepdim=True))
        weights, scale = (scores - new).exp(), (most - new).exp()
        total = total * scale + weights.sum(-1, keepdim=True)
        out = out * scale + weights @ block[1]
        most = new
        if step < world - 1:
            for work in works:
                work.wait()
            block = incoming
    return [out / total]


def ddp_buckets(torch: Any, rank: int, world: int) -> Any:
    """Gradients of several parameters as views of one bucket, reduced asynchronously."""
    dist = torch.distributed
    sizes = [(3, 4), (4,), (2, 2, 2)]
    counts = [int(np.prod(size)) for size in sizes]
    bucket = torch.zeros(sum(counts), dtype=torch.float32)
    views = [part.view(size) for part, size in zip(bucket.split(counts), sizes, strict=True)]
    for at, view in enumerate(views):
        view.copy_(tensor(torch, *sizes[at], start=rank + at))
    work = dist.all_reduce(bucket, async_op=True)
    other = torch.full((2,), float(rank), dtype=torch.float32)
    dist.all_reduce(other, op=dist.ReduceOp.MAX)
    work.wait()
    bucket.div_(world)
    return [*views, other]


def gradient_compression(torch: Any, rank: int, world: int) -> Any:
    """A communication hook: halves travel, sums are kept in single precision."""
    dist = torch.distributed
    gradient = tensor(torch, 16, start=rank)
    half = gradient.to(torch.float16).div_(world)
    work = dist.all_reduce(half, async_op=True)
    future = work.get_future().then(lambda done: done.value()[0].to(torch.float32))
    return [future.wait()]


# ---- objects, lists, groups


def objects(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, {"rank": rank, "name": "r" * (rank + 1)})
    shared = [{"lr": 0.5}, [1, 2, 3]] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, src=0)
    gathered: list[Any] | None = [None] * world if rank == 1 else None
    dist.gather_object((rank, "x"), gathered, dst=1)
    own: list[Any] = [None]
    dist.scatter_object_list(own, [f"part {at}" for at in range(world)] if rank == 0 else None, src=0)
    return [everyone, shared, gathered, own]


def all_to_all_of_lists(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    given = [tensor(torch, 3, 2, start=10 * rank + at) for at in range(world)]
    into = [torch.empty(3, 2, dtype=torch.float32) for _ in range(world)]
    dist.all_to_all(into, given)
    return into


def views_in_collectives(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    x = tensor(torch, 6, 4, start=rank)
    dist.all_reduce(x[2:4])
    dist.broadcast(x.data[0], src=world - 1)
    whole = torch.zeros(world, 3, dtype=torch.float32)
    dist.all_gather(list(whole), tensor(torch, 3, start=rank))
    flat = torch.zeros(world * 2, dtype=torch.float32)
    dist.all_gather_into_tensor(flat, x[1, :2])
    return [x, whole, flat]


def collectives_in_place(torch: Any, rank: int, world: int) -> Any:
    """As FSDP keeps its shards: the rank's own block of the buffer that the collective fills or reduces."""
    dist, out = torch.distributed, []
    for n in (3, 8):
        whole = torch.zeros(world * n)
        own = whole[rank * n : (rank + 1) * n]
        own.copy_(tensor(torch, n, start=rank))
        dist.all_gather_into_tensor(whole, own)
        out.append(whole.clone())
        dist.reduce_scatter_tensor(own, whole)
        out.append(whole.clone()[rank * n : (rank + 1) * n])
    return out


def subgroups(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    even = dist.new_group(list(range(0, world, 2)))
    odd = dist.new_group(list(range(1, world, 2)))
    mine = even if rank % 2 == 0 else odd
    x = torch.full((2,), float(rank + 1), dtype=torch.float32)
    dist.all_reduce(x, group=mine)
    y = torch.full((2,), float(rank), dtype=torch.float32)
    dist.broadcast(y, src=dist.get_global_rank(mine, 0), group=mine)
    z = torch.full((2,), float(rank), dtype=torch.float32)
    dist.broadcast(z, group=mine, group_src=dist.get_world_size(mine) - 1)
    pair, _ = dist.new_subgroups(group_size=2)
    w = torch.full((1,), float(rank), dtype=torch.float32)
    dist.all_reduce(w, group=pair)
    return [x, y, z, w, dist.get_rank(mine), dist.get_world_size(pair)]


def reduce_ops(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    out = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        x = tensor(torch, 5, start=3 * rank)
        dist.all_reduce(x, op=op)
        out.append(x)
    y = torch.arange(4) + rank
    dist.all_reduce(y)
    zero = torch.tensor(float(rank), dtype=torch.float32)
    dist.all_reduce(zero)
    return [*out, y, zero]


def reduce_scatters(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    out, whole = torch.empty(3, dtype=torch.float32), tensor(torch, 3 * world, start=rank)
    dist.reduce_scatter_tensor(out, whole)
    again = torch.empty(3, dtype=torch.float32)
    dist.reduce_scatter(again, list(whole.chunk(world)))
    return [out, again, torch.equal(out, again)]


def messages_with_tags(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    if rank == 0:
        works = [dist.isend(torch.full((2,), float(tag), dtype=torch.float32), 1, tag=tag) for tag in (7, 3)]
        return [work.wait() for work in works]
    if rank == 1:
        x, y = torch.zeros(2, dtype=torch.float32), torch.zeros(2, dtype=torch.float32)
        dist.recv(x, 0, tag=3)
        dist.recv(y, 0, tag=7)
        return [x, y]
    return []


def no_elements(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    nothing = torch.zeros(0, 3, dtype=torch.float32)
    dist.all_reduce(nothing)
    sends = [0] * world
    sends[(rank + 1) % world] = rank  # rank 0 sends nothing
    receives = [0] * world
    receives[(rank - 1) % world] = (rank - 1) % world
    out = torch.zeros(sum(receives), 2, dtype=torch.float32)
    dist.all_to_all_single(out, tensor(torch, rank, 2), receives, sends)
    return [nothing.numel(), out]


def barriers_and_queries(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    dist.barrier()
    dist.barrier(async_op=True).wait()
    return [
        dist.get_rank(),
        dist.get_world_size(),
        dist.is_initialized(),
        dist.get_process_group_ranks(dist.group.WORLD),
    ]


EVERY_WORLD = (megatron_mappings, megatron_mlp, megatron_sequence_parallel, collectives_in_place)
OF_TWO = (messages_with_tags, vocabulary_parallel_cross_entropy)
OF_FOUR = tuple(
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and not name.startswith("_")
    and value not in (tensor, *OF_TWO)
)
PROGRAMS = {2: (*EVERY_WORLD, *OF_TWO), 4: OF_FOUR, 8: EVERY_WORLD}
