"""Ranks whose collectives the host does in numpy: so that layers are judged apart from collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import simpy
from greenlet import getcurrent, greenlet
from numpy.typing import NDArray

from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

Array = NDArray[np.generic]
Body = Callable[[int, RuntimeContext], object]


class NumpyGroups(NamedTuple):
    WORLD: tuple[int, ...]


class NumpyDistributed:
    """The part of `torch.distributed` that layers call. A group is a tuple of ranks."""

    def __init__(self, torch: RuntimeContext, world: int) -> None:
        self._torch = torch
        self._world = world
        self.group = NumpyGroups(tuple(range(world)))
        self.rank_of: WeakKeyDictionary[greenlet, int] = WeakKeyDictionary()
        self._met: dict[tuple[int, ...], dict[int, Array]] = {}
        self._event: dict[tuple[int, ...], simpy.Event] = {}
        self.calls: list[tuple[str, int]] = []

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return self._world

    def get_rank(self) -> int:
        return self.rank_of.get(getcurrent(), 0)

    def new_group(self, ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(ranks)

    def all_reduce(self, tensor: Tensor, *, group: tuple[int, ...], per: str) -> None:
        assert per == "sip"
        tensor.copy_(self._sum(group, "all_reduce", tensor))

    def all_gather_into_tensor(self, output: Tensor, tensor: Tensor, *, group: tuple[int, ...]) -> None:
        output.copy_(np.concatenate(self._meet(group, "all_gather", tensor)))

    def reduce_scatter_tensor(self, output: Tensor, tensor: Tensor, *, group: tuple[int, ...]) -> None:
        total = self._sum(group, "reduce_scatter", tensor)
        output.copy_(np.split(total, len(group))[group.index(self.get_rank())])

    def _sum(self, group: tuple[int, ...], call: str, tensor: Tensor) -> Array:
        return np.sum([part.astype(np.float32) for part in self._meet(group, call, tensor)], axis=0, dtype=np.float32)

    def _meet(self, group: tuple[int, ...], call: str, tensor: Tensor) -> list[Array]:
        """Every rank's contents, in order, when all have come."""
        mine = tensor.numpy()
        self.calls.append((call, self.get_rank()))
        found = self._met.setdefault(group, {})
        event = self._event.setdefault(group, self._torch.ranks.event())
        found[self.get_rank()] = mine
        if len(found) == len(group):
            del self._met[group], self._event[group]
            event.succeed()
        else:
            self._torch.ranks.wait([event], call)
        return [found[rank] for rank in group]


@cache
def machine(sips: int) -> TopologyGraph:
    """SIPs of 2 cubes of 4 PEs."""
    small = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    return load_topology(None, {"system.sips.count": sips, **small})


def run_ranks(world: int, body: Body, *, check_races: bool = False) -> list[object]:
    """What `body(rank, torch)` returns on each of `world` ranks."""
    engine = GraphEngine(machine(world), check_races=check_races)
    with RuntimeContext(engine) as torch:
        distributed = NumpyDistributed(torch, world)
        torch.distributed = distributed  # type: ignore[assignment]  # has what layers need of it

        def program(rank: int) -> object:
            distributed.rank_of[getcurrent()] = rank
            torch.ahbm.set_device(rank)
            return body(rank, torch)

        results = torch.ranks.run([partial(program, rank) for rank in range(world)])
    assert not engine.found_races()
    return results
