"""DeviceMesh: ranks in a grid, with a process group along each of its dimensions.

A dimension named "cube" stands for the cubes of every rank's SIP: it has no ranks of its own, and sharding along it is
placement on the device (`DPPolicy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernbench.common.errors import DistributedError, DistributedTypeError
from kernbench.runtime_api.groups import GroupArg
from kernbench.runtime_api.process_group import NonMember

CUBE = "cube"


class DeviceMesh:
    """A grid of ranks; every rank of the world makes it, in the same order with other groups. `mesh` has the ranks, of
    all dimensions but the cubes.
    """

    def __init__(
        self,
        torch: Any,
        device_type: str,
        mesh: Any,
        mesh_dim_names: Sequence[str] | None = None,
        cubes: int | None = None,
        groups: Sequence[GroupArg] | None = None,
    ) -> None:
        self.torch = torch  # the context
        dist = self._dist = torch.distributed
        self.device_type = device_type
        self.mesh = np.asarray(mesh, np.int64)
        self.mesh_dim_names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        self.cubes = cubes  # of the dimension "cube", the last one; None: there is none
        ranks = self.mesh.reshape(-1).tolist()
        if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(dist.get_world_size())):
            raise DistributedError(f"a mesh of ranks {self.mesh.tolist()}", hint="give each rank of the world once")
        if self.mesh_dim_names is not None and len(set(self.mesh_dim_names)) != self.ndim:
            raise DistributedError(
                f"names {list(self.mesh_dim_names)} of a mesh of {self.ndim} dimensions", hint="give one name for each"
            )
        self._groups = tuple(self._along(axis) for axis in range(self.mesh.ndim)) if groups is None else tuple(groups)

    def _along(self, axis: int) -> GroupArg:
        """The caller's group along a dimension; all groups of it are made, as every rank must."""
        lines = np.moveaxis(self.mesh, axis, -1).reshape(-1, self.mesh.shape[axis]).tolist()
        mine: GroupArg = NonMember.NON_GROUP_MEMBER
        for ranks in lines:
            is_world = sorted(ranks) == list(range(self._dist.get_world_size()))
            group = None if is_world else self._dist.new_group(ranks)
            if self._dist.get_rank() in ranks:
                mine = group
        return mine

    # ---- queries

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.mesh.shape, *(() if self.cubes is None else (self.cubes,)))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def size(self, mesh_dim: int | None = None) -> int:
        """The number of devices, or along one dimension."""
        return int(np.prod(self.shape)) if mesh_dim is None else self.shape[mesh_dim]

    def is_cube(self, mesh_dim: int) -> bool:
        """Whether a dimension is that of cubes."""
        return mesh_dim == self.mesh.ndim

    def get_rank(self) -> int:
        """The caller's global rank."""
        rank: int = self._dist.get_rank()
        return rank

    def get_coordinate(self) -> list[int] | None:
        """The caller's place along each dimension of ranks; None if it is not in the mesh."""
        found = np.argwhere(self.mesh == self._dist.get_rank())
        return [int(n) for n in found[0]] if len(found) else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """The caller's place along one dimension."""
        place = self.get_coordinate()
        if place is None:
            raise DistributedError(f"rank {self.get_rank()} is not in {self!r}", hint="let only its ranks call")
        return place[self._dim(mesh_dim)]

    def get_group(self, mesh_dim: int | str | None = None) -> GroupArg:
        """The caller's process group along one dimension."""
        return self._groups[self._dim(mesh_dim)]

    def get_all_groups(self) -> list[GroupArg]:
        return list(self._groups)

    def _dim(self, mesh_dim: int | str | None) -> int:
        if mesh_dim is None and self.mesh.ndim == 1:
            return 0
        names = self.mesh_dim_names or ()
        found = names.index(mesh_dim) if isinstance(mesh_dim, str) and mesh_dim in names else mesh_dim
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < self.mesh.ndim:
            raise DistributedError(
                f"no dimension {mesh_dim!r} of ranks in {self!r}",
                hint="give its number or its name; cubes have no group",
            )
        return found

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The mesh of some dimensions that the caller is in: `mesh["tp"]`."""
        wanted = (names,) if isinstance(names, str) else tuple(names)
        known = self.mesh_dim_names or ()
        for name in wanted:
            if name not in known:
                raise DistributedError(
                    f"no dimension {name!r} in {self!r}", hint=f"there are: {', '.join(known) or 'none'}"
                )
        place = self.get_coordinate()
        if place is None:
            raise DistributedError(f"rank {self.get_rank()} is not in {self!r}", hint="let only its ranks call")
        dims = [known.index(name) for name in wanted if not self.is_cube(known.index(name))]
        index = tuple(slice(None) if axis in dims else place[axis] for axis in range(self.mesh.ndim))
        cubes = self.cubes if CUBE in wanted else None
        groups = [self._groups[axis] for axis in sorted(dims)]
        return DeviceMesh(self.torch, self.device_type, self.mesh[index], wanted, cubes, groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and np.array_equal(self.mesh, other.mesh) and self.cubes == other.cubes

    def __hash__(self) -> int:
        return hash((self.mesh.tobytes(), self.cubes))

    def __repr__(self) -> str:
        names = "" if self.mesh_dim_names is None else f", {', '.join(self.mesh_dim_names)}"
        cubes = "" if self.cubes is None else f", {self.cubes} cubes"
        return f"DeviceMesh({self.mesh.tolist()}{names}{cubes})"


def make_mesh(
    torch: Any, n_cubes: int, device_type: str, mesh_shape: Sequence[int], mesh_dim_names: Sequence[str] | None = None
) -> DeviceMesh:
    """A mesh of all ranks in row-major order, as `torch.distributed.init_device_mesh` makes it."""
    if not isinstance(mesh_shape, Sequence) or not all(isinstance(n, int) and n > 0 for n in mesh_shape):
        raise DistributedTypeError(f"mesh_shape is {mesh_shape!r}", hint="give a tuple of sizes, e.g. (2, 4)")
    world = torch.distributed.get_world_size()
    names = None if mesh_dim_names is None else tuple(mesh_dim_names)
    sizes, cubes = tuple(mesh_shape), None
    if names is not None and CUBE in names:
        if names[-1] != CUBE or len(names) != len(sizes):
            raise DistributedError(f"dimensions {list(names)}", hint='let "cube" be the last dimension')
        sizes, cubes = sizes[:-1], sizes[-1]
        if cubes > n_cubes:
            raise DistributedError(f"a mesh over {cubes} cubes", hint=f"a SIP of this machine has {n_cubes}")
    count = int(np.prod(sizes, dtype=np.int64))
    if count > world or not sizes:
        raise DistributedError(
            f"a mesh of {list(sizes)}, {count} ranks, in a world of {world}",
            hint="let the sizes multiply to the number of ranks",
        )
    return DeviceMesh(torch, device_type, np.arange(count).reshape(sizes), names, cubes)
