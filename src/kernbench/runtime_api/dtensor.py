"""DTensor: a tensor whose parts lie on the ranks of a mesh, and the collectives that move it from one placement to
another.

    from                to                  how
    Shard(a)            Replicate()         all_gather
    Shard(a)            Shard(b)            all_to_all
    Replicate()         Shard(b)            each rank keeps its chunk
    Partial()           Replicate()         all_reduce
    Partial()           Shard(b)            reduce_scatter
    Replicate()         Partial("sum")      within operations: the first rank keeps it, the others have zeros

Along the cubes of a SIP a transition is a copy on the device. Dimensions of the mesh change one after the other, in an
order in which no axis is cut by an outer dimension after an inner one; where there is none, through Replicate().
Forward only: there is no autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from kernbench.common.array_types import Shape
from kernbench.common.dtypes import DType
from kernbench.common.errors import DistributedError, DistributedTypeError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.device import Device
from kernbench.runtime_api.device_mesh import DeviceMesh
from kernbench.runtime_api.dtensor_placement import (
    Partial,
    Placement,
    Placements,
    Replicate,
    Shard,
    checked,
    chunk_bounds,
    local_shape,
)
from kernbench.runtime_api.layout import axis_of
from kernbench.runtime_api.not_modelled import DTENSOR_NAMES, refuse_name
from kernbench.runtime_api.tensor import Tensor


class DTensorBase:
    """One rank's view of a distributed tensor."""

    def __init__(self, local: Tensor, mesh: DeviceMesh, placements: Placements, shape: Shape) -> None:
        self._torch = mesh.torch
        self._local = local
        self.device_mesh = mesh
        self.placements = placements
        self.shape = shape

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Called for missing names: the error names what to use instead."""
            if name.startswith("_"):
                raise AttributeError(name)
            refuse_name("DTensor", name, DTENSOR_NAMES.get(name), dir(type(self)))

    # ---- what it is

    @property
    def dtype(self) -> DType:
        return self._local.dtype

    @property
    def device(self) -> Device:
        return self._local.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[axis_of(dim, self.ndim)]

    def numel(self) -> int:
        total = 1
        for n in self.shape:
            total *= n
        return total

    def __len__(self) -> int:
        return self.shape[0]

    def to_local(self) -> Tensor:
        """This rank's part; it shares memory with the DTensor."""
        return self._local

    def full_tensor(self) -> Tensor:
        """All of it, on every rank."""
        everywhere: DTensorBase = self.redistribute(placements=(Replicate(),) * self.device_mesh.ndim)
        return everywhere.to_local()

    def numpy(self) -> Any:
        """The contents of all of it, on every rank: a collective."""
        return self.full_tensor().numpy()

    def tolist(self) -> Any:
        return self.full_tensor().tolist()

    def item(self) -> Any:
        return self.full_tensor().item()

    def __repr__(self) -> str:
        local = f"{self.dtype}{list(self._local.shape)} here"
        return f"DTensor({self.dtype}{list(self.shape)}, {self.device_mesh!r}, {list(self.placements)}, {local})"

    def _with(self, local: Tensor, placements: Placements, shape: Shape | None = None) -> Any:
        if self.device_mesh.cubes is not None and placements[-1].is_partial():  # on a device sums are taken at once
            placements = (*placements[:-1], placement_on_cubes(local))
        return type(self)(local, self.device_mesh, placements, self.shape if shape is None else shape)

    # ---- from one placement to another

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        async_op: bool = False,
    ) -> Any:
        """The same tensor with other placements, by the cheapest collective for each change. `async_op` is accepted for
        compatibility. Raises DistributedError for a change to Partial, as PyTorch does.
        """
        if device_mesh is not None and device_mesh != self.device_mesh:
            raise DistributedError(
                f"redistribute from {self.device_mesh!r} to {device_mesh!r}", hint="a DTensor stays on its mesh"
            )
        target = checked(placements, self.device_mesh, self.ndim, "redistribute")
        for dim, (have, to) in enumerate(zip(self.placements, target, strict=True)):
            if to.is_partial() and to != have:
                raise DistributedError(
                    f"redistribute from {have} to {to} along dimension {dim} of {self.device_mesh!r}: addends are what "
                    "operations leave",
                    hint="DTensor.from_local(x, mesh, [Partial()]) makes a DTensor of addends that the ranks have",
                )
        return self._redistributed(target)

    def _redistributed(self, target: Placements) -> Any:
        current = self
        while pending := [dim for dim, each in enumerate(target) if each != current.placements[dim]]:
            ready = [dim for dim in pending if not _is_blocked(current.placements, target, dim)]
            if ready:
                current = current._changed(ready[0], target[ready[0]])
                continue
            first = pending[0]  # blocked by inner dimensions that cut its axis: the innermost is gathered
            cuts = [each for each in (current.placements[first], target[first]) if each.is_shard()]
            innermost = max(dim for dim, each in enumerate(current.placements) if dim > first and each in cuts)
            current = current._changed(innermost, Replicate())
        return current

    def _changed(self, dim: int, to: Placement) -> Any:
        """With another placement along one dimension of the mesh."""
        have, placements = self.placements[dim], (*self.placements[:dim], to, *self.placements[dim + 1 :])
        if self.device_mesh.is_cube(dim):
            return self._with(_on_cubes(self._torch, self._local, to, self.device_mesh.cubes), placements)
        if isinstance(have, Replicate) and isinstance(to, Shard):
            local = self._chunk(self._local, dim, to.dim, self._place[dim]).contiguous()
            return self._with(local.clone() if local.storage is self._local.storage else local, placements)
        if isinstance(have, Partial) and isinstance(to, Replicate):
            local = self._local.clone()
            self._dist.all_reduce(local, op=have.reduce_op, group=self._group(dim))
            return self._with(local, placements)
        if isinstance(have, Partial) and isinstance(to, Shard):
            return self._with(self._scattered(dim, have.reduce_op, to.dim), placements)
        if isinstance(have, Shard) and isinstance(to, Replicate):
            return self._with(self._gathered(dim, have.dim), placements)
        if isinstance(have, Shard) and isinstance(to, Shard):
            return self._with(self._exchanged(dim, have.dim, to.dim), placements)
        if isinstance(have, Replicate) and isinstance(to, Partial):
            first = to.reduce_op != "sum" or self._place[dim] == 0
            return self._with(self._local.clone() if first else self._torch.zeros_like(self._local), placements)
        raise DistributedError(
            f"redistribute from {have} to {to} along dimension {dim} of {self.device_mesh!r}",
            hint="go through Replicate()",
        )

    def _scattered(self, dim: int, op: str, axis: int) -> Tensor:
        """Partial to Shard: this rank's chunk of the reduction."""
        pieces = [self._chunk(self._local, dim, axis, at).contiguous() for at in range(self.device_mesh.shape[dim])]
        out: Tensor = self._torch.empty_like(pieces[self._place[dim]])
        even = all(piece.shape == out.shape for piece in pieces)
        if axis == 0 and even and self._local.is_contiguous():
            self._dist.reduce_scatter_tensor(out, self._local, op=op, group=self._group(dim))
        else:
            self._dist.reduce_scatter(out, pieces, op=op, group=self._group(dim))
        return out

    def _gathered(self, dim: int, axis: int) -> Tensor:
        """Shard to Replicate: all chunks, one after the other."""
        shapes = [self._shape_at(dim, at) for at in range(self.device_mesh.shape[dim])]
        local = self._local.contiguous()
        where = {"dtype": local.dtype, "dp": local.dp, "device": local.device}
        if axis == 0 and all(shape == local.shape for shape in shapes):
            out: Tensor = self._torch.empty(len(shapes) * local.shape[0], *local.shape[1:], **where)
            self._dist.all_gather_into_tensor(out, local, group=self._group(dim))
            return out
        parts = [self._torch.empty(shape, **where) for shape in shapes]
        self._dist.all_gather(parts, local, group=self._group(dim))
        return _joined(self._torch, parts, axis)

    def _exchanged(self, dim: int, axis: int, to: int) -> Tensor:
        """Shard to another Shard: chunks of the chunk go to the ranks that need them."""
        count, me = self.device_mesh.shape[dim], self._place[dim]
        pieces = [self._chunk(self._local, dim, to, at).contiguous() for at in range(count)]
        parts: list[Tensor] = []
        for at in range(count):
            shape = list(self._shape_at(dim, at))
            first, end = chunk_bounds(shape[to], count, me)
            shape[to] = end - first
            parts.append(
                self._torch.empty(shape, dtype=self._local.dtype, dp=self._local.dp, device=self._local.device)
            )
        self._dist.all_to_all(parts, pieces, group=self._group(dim))
        return _joined(self._torch, parts, axis)

    # ---- inside

    @property
    def _dist(self) -> Any:
        return self._torch.distributed

    @property
    def _place(self) -> list[int]:
        place = self.device_mesh.get_coordinate()
        if place is None:
            raise DistributedError(f"the caller is not in {self.device_mesh!r}", hint="let only its ranks call")
        return place

    def _group(self, dim: int) -> Any:
        return self.device_mesh.get_group(dim)

    def _chunk(self, x: Tensor, dim: int, axis: int, at: int) -> Tensor:
        first, end = chunk_bounds(x.shape[axis], self.device_mesh.shape[dim], at)
        return x.narrow(axis, first, end - first)

    def _shape_at(self, dim: int, at: int) -> Shape:
        """The local shape of the rank at another place along one dimension."""
        place = self._place
        place[dim] = at
        return local_shape(self.shape, self.device_mesh, self.placements, place)


def _is_blocked(current: Placements, target: Placements, dim: int) -> bool:
    """Whether a change along one dimension would cut an axis in the wrong order."""
    have, to = current[dim], target[dim]
    later = range(dim + 1, len(current))
    if isinstance(have, Shard) and any(current[other] == have for other in later):
        return True
    if not isinstance(to, Shard):
        return False
    earlier = [other for other in range(dim) if target[other] == to and current[other] != to]
    held = [other for other in range(dim) if current[other] == to and target[other] != to]
    return bool(earlier or held) or any(current[other] == to for other in later)


def _joined(torch: Any, parts: Sequence[Tensor], axis: int) -> Tensor:
    """Chunks one after the other; empty ones are left out."""
    some = [part for part in parts if part.numel()]
    if some:
        joined: Tensor = some[0] if len(some) == 1 else torch.cat(some, axis)
        return joined
    first, total = parts[0], sum(part.shape[axis] for part in parts)
    nothing: Tensor = torch.empty((*first.shape[:axis], total, *first.shape[axis + 1 :]), dtype=first.dtype)
    return nothing


def cube_policy(placement: Placement, ndim: int, cubes: int | None, dp: DPPolicy) -> DPPolicy:
    """The placement on a device that a placement along its cubes stands for."""
    split: Any = "replicate"
    if isinstance(placement, Shard):
        split = "row_wise" if placement.dim == 0 else "column_wise"
    return replace(dp, cube=split, num_cubes=cubes)


def placement_on_cubes(x: Tensor) -> Placement:
    """The placement along the cubes that a tensor's placement on its device is."""
    if not x.ndim or not x.storage.is_split or x.dp.cube not in ("row_wise", "column_wise"):
        return Replicate()
    return Shard(0 if x.dp.cube == "row_wise" else x.ndim - 1)


def _on_cubes(torch: Any, x: Tensor, placement: Placement, cubes: int | None) -> Tensor:
    dp = cube_policy(placement, x.ndim, cubes, x.dp)
    if dp == x.dp:
        return x
    out: Tensor = torch.empty(x.shape, dtype=x.dtype, dp=dp, device=x.device)
    return out.copy_(x)


def as_local(torch: Any, x: object, op: str) -> Tensor:
    """A plain tensor that a program passed."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, DTensorBase):
        raise DistributedTypeError(f"{op}: got a DTensor with {list(x.placements)}", hint="use x.redistribute(...)")
    made: Tensor = torch.tensor(x)
    return made
