"""Programs of several ranks that try what a user of PyTorch relies on: methods of works, views and roots of subgroups
in messages, reductions of integers, meshes, factories and products of DTensors, and the kinds of errors.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from tests.frontends.dtensor_programs import _mesh
from tests.frontends.rank_programs import tensor


def work_methods(torch: Any, rank: int, world: int) -> Any:
    dist, out = torch.distributed, []
    x = tensor(torch, 4, start=rank)
    work = dist.all_reduce(x, async_op=True)
    out += [work.wait(), work.is_completed(), x]
    y = torch.zeros(world * 2, dtype=torch.float32)
    work = dist.all_gather_into_tensor(y, tensor(torch, 2, start=rank), async_op=True)
    work.get_future().wait()  # of gloo, `is_completed` may follow its future a little later
    out += [work.wait(), work.is_completed(), y]
    sent = dist.isend(x[:2], (rank + 1) % world)
    z = torch.zeros(2, dtype=torch.float32)
    received = dist.irecv(z, (rank - 1) % world)
    return [*out, received.wait(), sent.wait(), z]


def messages_of_views(torch: Any, rank: int, world: int) -> Any:
    dist, peer = torch.distributed, rank ^ 1
    x, y = tensor(torch, 6, 4, start=rank), torch.zeros(6, 4, dtype=torch.float32)
    if rank % 2 == 0:
        dist.send(x[1:3], peer)
        dist.recv(y[2:4], peer)
    else:
        dist.recv(y[4:], peer)
        dist.send(x[0:2], peer)
    return [x, y]


def a_message_of_any_rank(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    if rank:
        dist.send(torch.full((2,), float(rank), dtype=torch.float32), 0)
        return [rank]
    total, sources = torch.zeros(2, dtype=torch.float32), []
    for _ in range(world - 1):
        x = torch.empty(2, dtype=torch.float32)
        sources.append(dist.recv(x))
        total += x
    return [total, sorted(sources)]


def roots_of_a_subgroup(torch: Any, rank: int, world: int) -> Any:
    """Ranks 1 to 3, of which the last is the root, named as in the group and as in the world."""
    dist = torch.distributed
    group = dist.new_group([1, 2, 3])
    if rank == 0:
        return [dist.get_rank(group)]
    last = dist.get_world_size(group) - 1
    x, y = tensor(torch, 3, start=rank), tensor(torch, 3, start=10 * rank)
    dist.reduce(x, group=group, group_dst=last)
    dist.broadcast(y, 3, group=group)
    parts = [torch.zeros(3, dtype=torch.float32) for _ in range(3)] if rank == 3 else None
    dist.gather(tensor(torch, 3, start=rank), parts, group=group, group_dst=last)
    z = torch.zeros(3, dtype=torch.float32)
    dist.scatter(z, [tensor(torch, 3, start=at) for at in range(3)] if rank == 3 else None, src=3, group=group)
    shared = ["root"] if rank == 3 else [None]
    dist.broadcast_object_list(shared, group=group, group_src=last)
    names: list[Any] = [None] * 3
    dist.all_gather_object(names, f"rank {rank}", group=group)
    return [x if rank == 3 else None, y, parts, z, shared, names, dist.get_group_rank(group, rank)]


def reductions_of_integers(torch: Any, rank: int, world: int) -> Any:
    dist, out = torch.distributed, []
    for dtype in (torch.int64, torch.int32, torch.uint8):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            x = (torch.arange(5) + rank + 1).to(dtype)
            dist.all_reduce(x, op=op)
            out.append(x)
    return out


def scalars_and_shapes(torch: Any, rank: int, world: int) -> Any:
    """Tensors without axes, outputs that are stacked, and lists that are views of one tensor."""
    dist = torch.distributed
    loss = torch.tensor(float(rank + 1), dtype=torch.float32)
    dist.all_reduce(loss, op=dist.ReduceOp.MAX)
    stacked = torch.zeros(world, 2, 3, dtype=torch.float32)
    dist.all_gather_into_tensor(stacked.view(-1, 3), tensor(torch, 2, 3, start=rank))
    buffer = torch.zeros(world * 2, dtype=torch.float32)
    dist.all_gather(list(buffer.split(2)), tensor(torch, 2, start=rank))
    out = torch.zeros(2, 3, dtype=torch.float32)
    dist.reduce_scatter_tensor(out, stacked.view(-1, 3))
    return [loss, loss.item(), stacked, buffer, out]


def objects_of_all_kinds(torch: Any, rank: int, world: int) -> Any:
    dist = torch.distributed
    found: list[Any] = [None] * world
    dist.all_gather_object(found, [None, rank, "é" * rank, {"nested": (rank, [rank] * rank)}][rank % 4])
    own: list[Any] = [None]
    dist.scatter_object_list(own, [{at: at} for at in range(world)] if rank == world - 1 else None, src=world - 1)
    dist.monitored_barrier()
    return [found, own]


def gradient_accumulation(torch: Any, rank: int, world: int) -> Any:
    """Several asynchronous reductions are under way while the next gradients are computed."""
    dist, works, grads = torch.distributed, [], []
    w = tensor(torch, 4, 4)
    for step in range(3):
        x = tensor(torch, 4, 4, start=rank + step)
        grad = x.t() @ (x @ w)
        grads.append(grad)
        works.append(dist.all_reduce(grad, async_op=True))
    for work in works:
        work.wait()
    return [sum(grads[1:], grads[0]) / world]


def sharded_checkpoint(torch: Any, rank: int, world: int) -> Any:
    """Shards are gathered on one rank, changed there, and scattered again."""
    dist = torch.distributed
    shard = tensor(torch, 3, 2, start=rank)
    parts = [torch.zeros_like(shard) for _ in range(world)] if rank == 2 else None
    dist.gather(shard, parts, dst=2)
    back = torch.zeros_like(shard)
    dist.scatter(back, [part * 2 for part in parts] if parts else None, src=2)
    return [back, torch.cat(parts).sum() if parts else None]


def kinds_of_errors(torch: Any, rank: int, world: int) -> Any:
    """Which of Python's errors a wrong call raises, before it sends anything."""
    dist = torch.distributed
    x = torch.zeros(4, dtype=torch.float32)
    wrong: list[Callable[[], Any]] = [
        lambda: dist.all_reduce("x"),
        lambda: dist.all_gather([x], [x]),
        lambda: dist.broadcast(x, 99),
        lambda: dist.send(x, rank),
        lambda: dist.recv(x, rank),
        lambda: dist.all_to_all_single(x, torch.zeros(3, dtype=torch.float32)),
        lambda: dist.all_gather_into_tensor(x, x[:3]),
        lambda: dist.P2POp(dist.all_reduce, x, 1),
        lambda: dist.all_reduce(x, op="sun"),
        lambda: x[9],
        lambda: x.view(3),
        lambda: torch.cat([x.view(2, 2), x]),
        lambda: torch.isclose(x, 1.0),
        lambda: x @ torch.zeros(3, dtype=torch.float32),
        lambda: torch.zeros(2, 2) + torch.zeros(3),
        lambda: x.no_such_name,
        lambda: dist.no_such_name,
        lambda: torch.no_such_name,
    ]
    return [_caught(call) for call in wrong]


def _caught(call: Callable[[], Any]) -> str:
    try:
        call()
    except (TypeError, IndexError, AttributeError) as error:
        return next(kind.__name__ for kind in (TypeError, IndexError, AttributeError) if isinstance(error, kind))
    except (RuntimeError, ValueError):  # PyTorch's own checks raise one, those of its backends the other
        return "RuntimeError or ValueError"
    return "nothing"


# ---- DTensors


def _placed(torch: Any, mesh: Any, names: str, rank: int, *shape: int) -> Any:
    """A DTensor on a grid with placements such as "0R" or "P1": Shard(0), Replicate, Partial, Shard(1). Of Partial
    every rank has its own addend, of the other dimensions all ranks have the same.
    """
    dt = torch.distributed.tensor
    places = {"0": dt.Shard(0), "1": dt.Shard(1), "R": dt.Replicate(), "P": dt.Partial()}
    if "P" not in names:
        return dt.distribute_tensor(tensor(torch, *shape), mesh, [places[name] for name in names])
    at = [mesh.get_local_rank(dim) for dim in range(2)]
    start = sum(10**dim * at[dim] for dim in range(2) if names[dim] == "P")
    local = tensor(torch, *shape, start=start)
    return dt.DTensor.from_local(local, mesh, [places[name] for name in names], run_check=False)


def transitions_of_pairs_on_a_grid(torch: Any, rank: int, world: int) -> Any:
    dt, mesh, out = torch.distributed.tensor, _mesh(torch, 2, world // 2), []
    places = {"0": dt.Shard(0), "1": dt.Shard(1), "R": dt.Replicate()}
    targets = ["".join(pair) for pair in product("01R", repeat=2)]
    for at, pair in enumerate(product("01RP", repeat=2)):
        x = _placed(torch, mesh, "".join(pair), rank, 4, 4)
        for to in (targets[at % 9], targets[(at + 4) % 9]):
            y = x.redistribute(mesh, [places[name] for name in to])
            out += [y.to_local(), tuple(y.shape)]
    return out


def factories_of_dtensors(torch: Any, rank: int, world: int) -> Any:
    dt, mesh, out = torch.distributed.tensor, _mesh(torch, world), []
    for placement in (dt.Shard(0), dt.Shard(1), dt.Replicate(), dt.Partial()):
        for made in (
            dt.ones(6, 5, device_mesh=mesh, placements=[placement]),
            dt.zeros((6, 5), device_mesh=mesh, placements=[placement]),
            dt.full((6, 5), 3.0, device_mesh=mesh, placements=[placement]),
        ):
            out += [made.to_local(), made.full_tensor(), tuple(made.shape), made.ndim]
    x = dt.distribute_tensor(tensor(torch, 4, 4), mesh, [dt.Partial()])
    return [*out, x.to_local(), x.full_tensor()]


def uneven_shards(torch: Any, rank: int, world: int) -> Any:
    dt, mesh, out = torch.distributed.tensor, _mesh(torch, world), []
    for shape in ((5, 3), (3, 7), (1, 2)):
        for axis, other in ((0, 1), (1, 0)):
            x = dt.distribute_tensor(tensor(torch, *shape), mesh, [dt.Shard(axis)])
            y = x.redistribute(mesh, [dt.Shard(other)])
            out += [x.to_local(), y.to_local(), (x * 2 + 1).full_tensor(), x.sum(axis).full_tensor()]
    return out


def products_on_a_grid(torch: Any, rank: int, world: int) -> Any:
    mesh, out = _mesh(torch, 2, world // 2), []
    for left, right in (("0R", "R1"), ("01", "R0"), ("R1", "R0"), ("0P", "RR"), ("RR", "11"), ("10", "00")):
        x, w = _placed(torch, mesh, left, rank, 4, 4), _placed(torch, mesh, right, rank, 4, 4)
        y = x @ w
        out += [y.full_tensor(), tuple(y.shape)]
    return out


def norms_of_dtensors(torch: Any, rank: int, world: int) -> Any:
    dt, mesh, out = torch.distributed.tensor, _mesh(torch, world), []
    for placement in (dt.Shard(0), dt.Shard(1), dt.Replicate()):
        x = dt.distribute_tensor(tensor(torch, 8, 8), mesh, [placement])
        out += [
            x.mean().full_tensor(),
            x.amax(1).full_tensor(),
            x.softmax(0).full_tensor(),
            x.abs().sqrt().full_tensor(),
        ]
        weight = dt.distribute_tensor(tensor(torch, 8), mesh, [dt.Replicate()])
        out.append(torch.nn.functional.layer_norm(x, (8,), weight).full_tensor())
    return out


def meshes(torch: Any, rank: int, world: int) -> Any:
    dist, mesh = torch.distributed, _mesh(torch, 2, world // 2)
    rows, columns = mesh["dp"], mesh["tp"]
    x = torch.full((1,), float(rank), dtype=torch.float32)
    dist.all_reduce(x, group=columns.get_group())
    y = torch.full((1,), float(rank), dtype=torch.float32)
    dist.all_reduce(y, group=mesh.get_group("dp"))
    return [
        tuple(mesh.shape), mesh.ndim, mesh.size(), mesh.size(1), list(mesh.mesh_dim_names), mesh.get_rank(),
        list(mesh.get_coordinate()), rows.size(), columns.get_local_rank(), mesh.mesh.tolist(), x, y,
    ]  # fmt: skip


def two_dimensional_parallel_step(torch: Any, rank: int, world: int) -> Any:
    """Rows of the batch over one dimension, columns of the weight over the other; the gradient is summed over rows."""
    dt, mesh = torch.distributed.tensor, _mesh(torch, 2, world // 2)
    x = dt.distribute_tensor(tensor(torch, 8, 4), mesh, [dt.Shard(0), dt.Replicate()])
    w = dt.distribute_tensor(tensor(torch, 4, 8, start=2), mesh, [dt.Replicate(), dt.Shard(1)])
    y = torch.relu(x @ w)
    gradient = x.t() @ y
    w = w - 0.01 * gradient.redistribute(mesh, [dt.Replicate(), dt.Shard(1)])
    return [y.full_tensor(), w.to_local(), w.full_tensor()]


PROGRAMS = tuple(
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and not name.startswith("_")
    and value is not tensor
)
