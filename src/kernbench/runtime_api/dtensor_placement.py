"""Placements of a DTensor along the dimensions of a mesh, and the sizes that follow from them. Pure: no device.

Shard(d) gives each place of a mesh dimension a chunk of axis d, by the rule of `torch.chunk`: chunks of ceil(n / p)
elements, the last ones smaller or empty. Where several mesh dimensions shard one axis, the later cut what the earlier
left.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.array_types import Shape
from kernbench.common.errors import DistributedError, DistributedTypeError
from kernbench.common.frozen import frozen
from kernbench.runtime_api.device_mesh import DeviceMesh

REDUCE_OPS = ("sum", "avg", "max", "min", "product")


class Placement:
    """Base of placements."""

    def is_shard(self, dim: int | None = None) -> bool:
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        return isinstance(self, Replicate)

    def is_partial(self) -> bool:
        return isinstance(self, Partial)


@frozen
class _Shard:
    dim: int


class Shard(_Shard, Placement):
    """Each place has a chunk of one axis."""

    def __repr__(self) -> str:
        return f"Shard({self.dim})"


class Replicate(Placement):
    """Each place has all of it."""

    def __repr__(self) -> str:
        return "Replicate()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replicate)

    def __hash__(self) -> int:
        return hash(Replicate)


@frozen
class _Partial:
    reduce_op: str = "sum"


class Partial(_Partial, Placement):
    """Each place has an addend; the tensor is their sum, or another reduction."""

    def __post_init__(self) -> None:
        if self.reduce_op not in REDUCE_OPS:
            raise DistributedError(f"Partial({self.reduce_op!r})", hint=f"use one of {', '.join(REDUCE_OPS)}")

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op!r})"


Placements = tuple[Placement, ...]


def chunk_bounds(n: int, parts: int, index: int) -> tuple[int, int]:
    """Chunk `index` of n elements in `parts`: its first element and its end."""
    size = -(-n // parts)
    return min(index * size, n), min((index + 1) * size, n)


def checked(placements: object, mesh: DeviceMesh, ndim: int, op: str) -> Placements:
    """Placements for every dimension of a mesh; all Replicate for None. Negative axes are counted from the end."""
    if placements is None:
        return (Replicate(),) * mesh.ndim
    given = (placements,) if isinstance(placements, Placement) else placements
    if not isinstance(given, Sequence) or not all(isinstance(each, Placement) for each in given):
        raise DistributedTypeError(
            f"{op}: placements are {placements!r}", hint="give a list of Shard(dim), Replicate() and Partial()"
        )
    if len(given) != mesh.ndim:
        raise DistributedError(
            f"{op}: {len(given)} placements {list(given)} for {mesh!r} of {mesh.ndim} dimensions",
            hint="give one for each dimension of the mesh",
        )
    found: list[Placement] = []
    for at, each in enumerate(given):
        if isinstance(each, Shard):
            if not -ndim <= each.dim < ndim:
                raise DistributedError(f"{op}: {each} of a tensor of {ndim} axes", hint=f"use {-ndim} to {ndim - 1}")
            each = Shard(each.dim % ndim)
        if mesh.is_cube(at):
            _check_cube(each, ndim, op)
        found.append(each)
    return tuple(found)


def _check_cube(placement: Placement, ndim: int, op: str) -> None:
    is_edge = isinstance(placement, Shard) and placement.dim in (0, ndim - 1)
    if not (isinstance(placement, Replicate) or is_edge):
        raise DistributedError(
            f"{op}: {placement} along the cubes of a SIP", hint=f"use Replicate(), Shard(0) or Shard({ndim - 1})"
        )


def bounds_of(shape: Shape, mesh: DeviceMesh, placements: Placements, place: Sequence[int]) -> list[tuple[int, int]]:
    """The index ranges of the whole tensor that a place of the mesh holds."""
    bounds = [(0, n) for n in shape]
    for dim, placement in enumerate(placements):
        if isinstance(placement, Shard) and not mesh.is_cube(dim):
            first, end = bounds[placement.dim]
            a, b = chunk_bounds(end - first, mesh.shape[dim], place[dim])
            bounds[placement.dim] = (first + a, first + b)
    return bounds


def local_shape(shape: Shape, mesh: DeviceMesh, placements: Placements, place: Sequence[int]) -> Shape:
    return tuple(end - first for first, end in bounds_of(shape, mesh, placements, place))
