"""`torch.distributed.tensor`: meshes, placements, and the functions that make DTensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from kernbench.common.array_types import Shape
from kernbench.common.errors import DistributedError
from kernbench.common.frozen import frozen
from kernbench.runtime_api.device_mesh import DeviceMesh, make_mesh
from kernbench.runtime_api.dtensor import as_local, cube_policy
from kernbench.runtime_api.dtensor_ops import DTensor
from kernbench.runtime_api.dtensor_placement import (
    Partial,
    Placement,
    Replicate,
    Shard,
    checked,
    chunk_bounds,
    local_shape,
)
from kernbench.runtime_api.not_modelled import refuse_name
from kernbench.runtime_api.op_launcher import ONE_PE
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_views import sizes_of


@frozen
class ParallelStyle:
    """How a layer is divided among the ranks of a mesh. `input_layouts` and `output_layouts` are placements of its
    input and output, (tokens, features); None takes those of the style.
    """

    input_layouts: Placement | None = None
    output_layouts: Placement | None = None
    use_local_output: bool = True


class ColwiseParallel(ParallelStyle):
    """Each rank has some outputs: the input is whole, or with Shard(0) split by tokens; outputs are split, or whole."""


class RowwiseParallel(ParallelStyle):
    """Each rank has some inputs: the output is the sum over ranks, or with Shard(0) split by tokens."""


class SequenceParallel(ParallelStyle):
    """Each rank has some tokens."""


class ParallelNamespace:
    """`torch.distributed.tensor.parallel`."""

    ColwiseParallel, RowwiseParallel, SequenceParallel = ColwiseParallel, RowwiseParallel, SequenceParallel
    ParallelStyle = ParallelStyle

    def parallelize_module(
        self, module: Any, device_mesh: DeviceMesh | None = None, parallelize_plan: Any = None
    ) -> Any:
        """Replace layers of a module by parallel ones, as a plan says: a style for the module itself, or styles by the
        names of its layers ("mlp.fc1"). Layers are those of `kernbench.tp`; returns the module.
        """
        if isinstance(parallelize_plan, ParallelStyle):
            return _parallel(module, type(module).__name__, parallelize_plan, device_mesh)
        if not isinstance(parallelize_plan, Mapping):
            raise DistributedError(
                f"parallelize_plan is {parallelize_plan!r}", hint='give styles by name: {"fc1": ColwiseParallel()}'
            )
        for path, style in parallelize_plan.items():
            *outer, last = path.split(".")
            owner = module
            for name in outer:
                owner = getattr(owner, name, None)
            layer = getattr(owner, last, None)
            if layer is None:
                raise DistributedError(f"{type(module).__name__} has no layer {path!r}", hint="name its attributes")
            setattr(owner, last, _parallel(layer, path, style, device_mesh))
        return module


def _parallel(layer: Any, path: str, style: Any, mesh: DeviceMesh | None) -> Any:
    change = getattr(layer, "parallelize", None)
    if change is None or not isinstance(style, ParallelStyle):
        raise DistributedError(
            f"{path}: a {type(layer).__name__} with {style!r}",
            hint="kernbench.tp.Linear takes ColwiseParallel and RowwiseParallel, its norms take SequenceParallel",
        )
    return change(style, mesh)


class TensorFunctions:
    """The functions of `torch.distributed.tensor`."""

    def __init__(self, torch: Any, n_cubes: int) -> None:
        self._torch = torch
        self._n_cubes = n_cubes
        self.parallel = ParallelNamespace()

    def init_device_mesh(
        self, device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None
    ) -> DeviceMesh:
        """A mesh of the world's ranks in row-major order; a last dimension named "cube" is that of each SIP's cubes."""
        return make_mesh(self._torch, self._n_cubes, device_type, mesh_shape, mesh_dim_names)

    def mesh_of(self, device_type: str, mesh: Any, *, mesh_dim_names: Sequence[str] | None = None) -> DeviceMesh:
        """A mesh of given ranks."""
        return DeviceMesh(self._torch, device_type, mesh, mesh_dim_names)

    # ---- DTensors

    def distribute_tensor(
        self,
        tensor: Any,
        device_mesh: DeviceMesh,
        placements: Sequence[Placement] | None = None,
        *,
        src_data_rank: int | None = 0,
    ) -> DTensor:
        """Give every rank its part of a tensor that the first rank has: chunks are scattered, replicas broadcast. Of a
        Partial sum every rank has its share of each element, of other Partials the element. With `src_data_rank=None`
        every rank takes its part of its own tensor, and nothing is sent.
        """
        whole = as_local(self._torch, tensor, "distribute_tensor")
        wanted = checked(placements, device_mesh, whole.ndim, "distribute_tensor")
        place = device_mesh.get_coordinate()
        if place is None:
            raise DistributedError(f"the caller is not in {device_mesh!r}", hint="let only its ranks call")
        local = whole.clone() if src_data_rank is None else whole
        for dim, each in enumerate(wanted):
            if device_mesh.is_cube(dim):
                dp = cube_policy(each, local.ndim, device_mesh.cubes, local.dp)
                local = self._torch.empty(local.shape, dtype=local.dtype, dp=dp, device=local.device).copy_(local)
            elif src_data_rank is None:
                local = _chunk(local, each, device_mesh.shape[dim], place[dim]).contiguous()
            else:
                local = self._sent(local, each, device_mesh, dim, place[dim])
            if each == Partial("sum"):
                local = local / device_mesh.shape[dim]
        return DTensor(local, device_mesh, wanted, whole.shape)

    def _sent(self, local: Tensor, placement: Placement, mesh: DeviceMesh, dim: int, me: int) -> Tensor:
        """What a rank gets along one dimension from the first rank of it."""
        dist, group, count = self._torch.distributed, mesh.get_group(dim), mesh.shape[dim]
        if not isinstance(placement, Shard):
            out: Tensor = local.clone() if me == 0 else self._torch.empty_like(local.contiguous())
            dist.broadcast(out, group=group, group_src=0)
            return out
        pieces = [_chunk(local, placement, count, at).contiguous() for at in range(count)]
        own: Tensor = self._torch.empty_like(pieces[me])
        if all(piece.shape == own.shape for piece in pieces):
            dist.scatter(own, pieces if me == 0 else None, group=group, group_src=0)
        elif me == 0:
            works = [
                dist.isend(piece, group=group, group_dst=at) for at, piece in enumerate(pieces) if at and piece.numel()
            ]
            own.copy_(pieces[0])
            for work in works:
                work.wait()
        elif own.numel():
            dist.recv(own, group=group, group_src=0)
        return own

    def zeros(self, *size: Any, device_mesh: DeviceMesh, placements: Any = None, dtype: Any = None) -> DTensor:
        return self.full(sizes_of(size), 0, device_mesh=device_mesh, placements=placements, dtype=dtype)

    def ones(self, *size: Any, device_mesh: DeviceMesh, placements: Any = None, dtype: Any = None) -> DTensor:
        return self.full(sizes_of(size), 1, device_mesh=device_mesh, placements=placements, dtype=dtype)

    def full(
        self, size: Shape, fill_value: float, *, device_mesh: DeviceMesh, placements: Any = None, dtype: Any = None
    ) -> DTensor:
        """A DTensor of one number, of which every rank makes its part."""
        wanted = checked(placements, device_mesh, len(size), "full")
        place = device_mesh.get_coordinate() or []
        dp = None if device_mesh.cubes is None else cube_policy(wanted[-1], len(size), device_mesh.cubes, ONE_PE)
        local = self._torch.full(local_shape(tuple(size), device_mesh, wanted, place), fill_value, dtype=dtype, dp=dp)
        return DTensor(local, device_mesh, wanted, tuple(size))


class TensorNamespace(TensorFunctions):
    """`torch.distributed.tensor`."""

    DTensor = DTensor
    Shard, Replicate, Partial, Placement = Shard, Replicate, Partial, Placement
    DeviceMesh = TensorFunctions.mesh_of

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            refuse_name("torch.distributed.tensor", name, None, dir(type(self)))


def _chunk(x: Tensor, placement: Placement, count: int, at: int) -> Tensor:
    if not isinstance(placement, Shard):
        return x
    first, end = chunk_bounds(x.shape[placement.dim], count, at)
    return x.narrow(placement.dim, first, end - first)
