"""The stacks that a range of HBM is interleaved over, as one block reaches them."""

from __future__ import annotations

from kernbench.common.ids import SipId
from kernbench.policy.address.stack_map import StackRequest, stack_requests
from kernbench.policy.routing.router import PathRouter
from kernbench.topology.graph import TopologyGraph


class StackGroup:
    """Made from the path to the first stack of the group; `paths` has one for each stack."""

    __slots__ = ("_interleave_bytes", "paths")

    def __init__(self, graph: TopologyGraph, router: PathRouter, path: tuple[str, ...]) -> None:
        stacks = graph.spec.sip.hbm_stacks
        assert stacks is not None
        first, sip = path[-1].rpartition(".")[2], graph.node(path[-1]).place.sip
        home = next(place.cube for place in stacks.places if place.id == first)
        self._interleave_bytes = stacks.interleave_bytes
        self.paths = [tuple(self._path(router, path, SipId(sip).hbm_stack(name))) for name in stacks.group_of(home)]

    @staticmethod
    def _path(router: PathRouter, path: tuple[str, ...], stack: str) -> list[str]:
        if path[0].endswith(".pe_dma"):
            return router.find_path(path[0].rpartition(".")[0], stack)
        return router.find_memory_path(path[0], stack)

    def requests(self, address: int, nbytes: int) -> list[StackRequest]:
        """What an access becomes: a request for each stack that it touches."""
        return stack_requests(address, nbytes, len(self.paths), self._interleave_bytes)

    def stack_of(self, address: int) -> int:
        return address // self._interleave_bytes % len(self.paths)
