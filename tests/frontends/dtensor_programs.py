"""Programs with DTensors, as PyTorch users write them: each receives `torch`, PyTorch's or ours, its rank and the
number of ranks, and returns results.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from tests.frontends.rank_programs import tensor


def _mesh(torch: Any, *shape: int) -> Any:
    names = ("dp", "tp")[-len(shape) :]
    return torch.distributed.device_mesh.init_device_mesh(_device(torch), shape, mesh_dim_names=names)


def _device(torch: Any) -> str:
    return "cpu" if hasattr(torch, "__version__") else "cuda"


def _placements(torch: Any) -> dict[str, Any]:
    dt = torch.distributed.tensor
    return {"S0": dt.Shard(0), "S1": dt.Shard(1), "R": dt.Replicate()}


def _placed(torch: Any, mesh: Any, name: str, rank: int, *shape: int) -> Any:
    """A DTensor with a placement; of Partial, every rank has its own addend."""
    dt = torch.distributed.tensor
    if name == "P":
        return dt.DTensor.from_local(tensor(torch, *shape, start=rank), mesh, [dt.Partial()])
    return dt.distribute_tensor(tensor(torch, *shape), mesh, [_placements(torch)[name]])


def transitions_of_every_pair(torch: Any, rank: int, world: int) -> Any:
    mesh, out = _mesh(torch, world), []
    for have, to in product(("S0", "S1", "R", "P"), ("S0", "S1", "R")):
        for shape in ((8, 8), (6, 5)):
            x = _placed(torch, mesh, have, rank, *shape)
            y = x.redistribute(mesh, [_placements(torch)[to]])
            out += [y.to_local(), tuple(y.shape)]
    return out


def distribute_and_collect(torch: Any, rank: int, world: int) -> Any:
    dt, mesh = torch.distributed.tensor, _mesh(torch, world)
    out = []
    for shape in ((8, 4), (7, 3), (1, 5)):
        for placement in (dt.Shard(0), dt.Shard(1), dt.Replicate()):
            x = dt.distribute_tensor(tensor(torch, *shape), mesh, [placement])
            out += [x.to_local(), x.full_tensor(), tuple(x.shape), x.size(0)]
    return out


def transitions_on_a_grid(torch: Any, rank: int, world: int) -> Any:
    mesh, out = _mesh(torch, 2, world // 2), []
    dt = torch.distributed.tensor
    kinds = [dt.Shard(0), dt.Shard(1), dt.Replicate()]
    pairs = list(product(kinds, kinds))
    for at, have in enumerate(pairs):
        to = pairs[(at * 4 + 5) % 9]
        x = dt.distribute_tensor(tensor(torch, 8, 8), mesh, list(have))
        y = x.redistribute(mesh, list(to))
        out += [x.to_local(), y.to_local(), y.full_tensor()]
    return out


def elementwise(torch: Any, rank: int, world: int) -> Any:
    mesh, out = _mesh(torch, world), []
    for have, other in product(("S0", "S1", "R", "P"), ("S0", "R")):
        x, y = _placed(torch, mesh, have, rank, 8, 8), _placed(torch, mesh, other, rank, 8, 8)
        out += [(x + y).full_tensor(), (x * y).full_tensor(), (x - 1).full_tensor(), (x / 2).full_tensor()]
        out += [torch.relu(x).full_tensor(), torch.nn.functional.gelu(x).full_tensor(), (-x).full_tensor()]
    return out


def products(torch: Any, rank: int, world: int) -> Any:
    mesh, out = _mesh(torch, world), []
    for left, right in product(("S0", "S1", "R", "P"), ("S0", "S1", "R")):
        x, w = _placed(torch, mesh, left, rank, 8, 8), _placed(torch, mesh, right, rank, 8, 8)
        out.append((x @ w).full_tensor())
    return out


def reductions_and_norms(torch: Any, rank: int, world: int) -> Any:
    mesh, out = _mesh(torch, world), []
    for have in ("S0", "S1", "R", "P"):
        x = _placed(torch, mesh, have, rank, 8, 8)
        out += [x.sum().full_tensor(), x.sum(0).full_tensor(), x.sum(1).full_tensor(), x.mean(1).full_tensor()]
        out += [x.softmax(-1).full_tensor(), torch.nn.functional.layer_norm(x, (8,)).full_tensor()]
        out.append(x.t().full_tensor())
    return out


def tensor_parallel_mlp(torch: Any, rank: int, world: int) -> Any:
    """Column-wise, then row-wise: one all-reduce, where the output is asked for."""
    dt, mesh = torch.distributed.tensor, _mesh(torch, world)
    x = dt.distribute_tensor(tensor(torch, 4, 8), mesh, [dt.Replicate()])
    up = dt.distribute_tensor(tensor(torch, 8, 16) / 4, mesh, [dt.Shard(1)])
    down = dt.distribute_tensor(tensor(torch, 16, 8, start=3) / 4, mesh, [dt.Shard(0)])
    hidden = torch.relu(x @ up)
    y = hidden @ down
    out = y.redistribute(mesh, [dt.Replicate()])
    return [hidden.to_local(), out.to_local(), hidden.placements[0].is_shard(1), y.placements[0].is_partial()]


def data_and_tensor_parallel(torch: Any, rank: int, world: int) -> Any:
    dt, mesh = torch.distributed.tensor, _mesh(torch, 2, world // 2)
    x = dt.distribute_tensor(tensor(torch, 8, 8), mesh, [dt.Shard(0), dt.Replicate()])
    w = dt.distribute_tensor(tensor(torch, 8, 8, start=4), mesh, [dt.Replicate(), dt.Shard(1)])
    y = x @ w
    own = mesh["tp"]
    return [y.to_local(), y.full_tensor(), own.size(), mesh.get_local_rank("dp"), mesh.get_local_rank("tp")]


def sharded_optimizer(torch: Any, rank: int, world: int) -> Any:
    """Gradients are addends of the ranks; each updates its shard of the weight."""
    dt, mesh = torch.distributed.tensor, _mesh(torch, world)
    w = dt.distribute_tensor(tensor(torch, 8, 4), mesh, [dt.Shard(0)])
    gradient = dt.DTensor.from_local(tensor(torch, 8, 4, start=rank), mesh, [dt.Partial()])
    w = w - 0.125 * gradient.redistribute(mesh, [dt.Shard(0)])
    return [w.to_local(), w.full_tensor()]


PROGRAMS = {
    4: (
        transitions_of_every_pair,
        distribute_and_collect,
        transitions_on_a_grid,
        elementwise,
        products,
        reductions_and_norms,
        tensor_parallel_mlp,
        data_and_tensor_parallel,
        sharded_optimizer,
    ),
    2: (transitions_of_every_pair, products),
}
