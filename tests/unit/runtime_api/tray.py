"""A small tray whose ranks call collectives, carried out on the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from tests.unit.runtime_api.host_backend import HostBackend

from kernbench.ccl.calls import CollectiveCall
from kernbench.ccl.config import CclSource
from kernbench.common.errors import SpawnException
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.distributed import DistributedContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

RANKS = 3


@cache
def machine(sips: int = RANKS) -> TopologyGraph:
    """SIPs of two cubes."""
    return load_topology(None, {"system.sips.count": sips, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})


class Tray:
    """A context, and the backends that were made for its process groups."""

    def __init__(self, sips: int = RANKS) -> None:
        self.backends: list[HostBackend] = []
        self.torch = RuntimeContext(GraphEngine(machine(sips)), backend=self._backend)

    def _backend(self, torch: RuntimeContext, _: CclSource) -> HostBackend:
        self.backends.append(HostBackend(torch))
        return self.backends[-1]

    @property
    def dist(self) -> DistributedContext:
        return self.torch.distributed

    @property
    def started(self) -> list[CollectiveCall]:
        return [call for backend in self.backends for call in backend.started]

    def spawn(self, fn: Callable[..., object], *args: object, nprocs: int = RANKS) -> dict[int, Any]:
        """What each rank returns, in a world that the main program has made."""
        if not self.dist.is_initialized():
            self.dist.init_process_group("ahbm", world_size=nprocs)
        return self.workers(fn, *args, nprocs=nprocs)

    def workers(self, fn: Callable[..., object], *args: object, nprocs: int = RANKS) -> dict[int, Any]:
        returned: dict[int, Any] = {}

        def body(rank: int) -> None:
            returned[rank] = fn(rank, *args)

        self.torch.multiprocessing.spawn(body, nprocs=nprocs)
        return returned

    def error(self, fn: Callable[..., object], nprocs: int = RANKS) -> dict[int, BaseException]:
        """What each rank raises."""
        with pytest.raises(SpawnException) as caught:
            self.spawn(fn, nprocs=nprocs)
        return caught.value.errors
