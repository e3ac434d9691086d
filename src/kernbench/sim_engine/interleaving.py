"""Memory that is interleaved over several paths: an access to it is one request for each path that it uses."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from kernbench.common.ids import SipId
from kernbench.common.message_traffic import NodePath
from kernbench.policy.address.channel_map import channel_path, channel_requests
from kernbench.policy.address.stack_map import stack_requests
from kernbench.policy.routing.router import PathRouter
from kernbench.topology.graph import TopologyGraph


class Interleaving(Protocol):
    """Which bytes of a memory are reached by which of `paths`."""

    @property
    def paths(self) -> Sequence[NodePath]: ...

    def requests(self, address: int, nbytes: int) -> Sequence[tuple[int, int, int]]:
        """What an access becomes: for each path that it uses its index, the first address there, and the bytes."""

    def index_of_last(self, address: int, nbytes: int) -> int:
        """The path of an access' last burst."""

    def index_of_notice(self, address: int) -> int:
        """The path of a message without data: its end has the name that listeners wait at."""


def interleaving(
    graph: TopologyGraph, router: PathRouter, with_channels: Container[str], path: NodePath
) -> Interleaving | None:
    """How the memory at the end of a path is interleaved; None where there is one path to all of it."""
    if path[-1] not in with_channels or graph.node(path[-1]).kind != "hbm_ctrl":
        return None
    if graph.spec.sip.hbm_stacks is not None:
        stacks = StackInterleaving(graph, router, path)
        return stacks if len(stacks.paths) > 1 else None
    return ChannelInterleaving(graph, path) if graph.spec.cube.has_channel_routers else None


class ChannelInterleaving:
    """The channels of an HBM slice, each behind its own router."""

    __slots__ = ("_burst_bytes", "paths")

    def __init__(self, graph: TopologyGraph, path: NodePath) -> None:
        cube = graph.cube_at(path[-1])
        self._burst_bytes = cube.hbm_burst_bytes
        self.paths = [channel_path(path, channel) for channel in range(cube.hbm_channels_per_pe)]

    def requests(self, address: int, nbytes: int) -> Sequence[tuple[int, int, int]]:
        return channel_requests(address, nbytes, len(self.paths), self._burst_bytes)

    def index_of_last(self, address: int, nbytes: int) -> int:
        return (address // self._burst_bytes + (nbytes - 1) // self._burst_bytes) % len(self.paths)

    def index_of_notice(self, address: int) -> int:
        return address // self._burst_bytes % len(self.paths)  # all paths end at the controller


class StackInterleaving:
    """HBM stacks; the given path leads to the first of them, whose name stands for all."""

    __slots__ = ("_interleave_bytes", "paths")

    def __init__(self, graph: TopologyGraph, router: PathRouter, path: NodePath) -> None:
        stacks = graph.spec.sip.hbm_stacks
        assert stacks is not None
        first, sip = path[-1].rpartition(".")[2], graph.node(path[-1]).place.sip
        home = next(place.cube for place in stacks.places if place.id == first)
        self._interleave_bytes = stacks.interleave_bytes
        self.paths = [tuple(self._path(router, path, SipId(sip).hbm_stack(name))) for name in stacks.group_of(home)]

    @staticmethod
    def _path(router: PathRouter, path: NodePath, stack: str) -> list[str]:
        if path[0].endswith(".pe_dma"):
            return router.find_path(path[0].rpartition(".")[0], stack)
        return router.find_memory_path(path[0], stack)

    def requests(self, address: int, nbytes: int) -> Sequence[tuple[int, int, int]]:
        return stack_requests(address, nbytes, len(self.paths), self._interleave_bytes)

    def index_of_last(self, address: int, nbytes: int) -> int:
        return (address + nbytes - 1) // self._interleave_bytes % len(self.paths)

    def index_of_notice(self, address: int) -> int:
        return 0
