"""How long a launch takes at least, before it is simulated: for configurations that cannot win.

Two rates bound it. A PE's programs read their bytes through its DMA port. And where operands lie in pages over the
memories of all PEs, every program reads about as much from each of them: the link that most of these paths share
carries its part of all bytes. Programs are taken to read as much as the least of those that were run ahead.

A *likely* time counts operands in slabs, too, that several programs share, as if they were read from all memories.
It is no bound: a trial that is likely to lose has to show its pace, only sooner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from kernbench.common.ids import CubeId, PeId
from kernbench.sim_engine.wiring import wiring_of
from kernbench.topology.graph import TopologyGraph
from kernbench.triton.look_ahead import LookAhead

LIKELY_MARGIN = 0.25  # of the best time so far by which the likely time of a launch exceeds it that is likely to lose
_SHARED = 2.0  # so often is each byte of a slab used that other PEs must read it, too
MARGIN = 0.1  # of the best time so far by which the least time must exceed it: pages are not used perfectly evenly


StorageSize = tuple[int, bool]  # bytes of a storage, and whether it lies in pages over all memories


class LeastTimes:
    """Least times of launches on one SIP of a machine."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._graph = graph
        self._port_gbs = graph.spec.cube.links.pe_dma_to_router_bw_gbs
        self._ns_per_byte: dict[int, float] = {}  # of the busiest link, by the PEs that read

    def of(
        self, seen: Sequence[LookAhead], programs: int, waves: int, sizes: Mapping[int, StorageSize]
    ) -> tuple[float, float]:
        """The least and the likely time of a launch of so many programs in so many waves; `sizes` are its storages, by
        position. 0 where programs were not run ahead to their end.
        """
        if not seen or not all(each.is_complete for each in seen):
            return 0.0, 0.0
        read = min(each.read_bytes for each in seen)
        port_ns = max(max(each.read_bytes for each in seen), waves * read) / self._port_gbs
        dealt = min(sum(n for at, n in each.reads.items() if sizes[at][1]) for each in seen)
        shared = min(
            sum(n for at, n in each.reads.items() if sizes[at][1] or programs * n > _SHARED * sizes[at][0])
            for each in seen
        )
        if not shared:
            return port_ns, port_ns
        pes = self._graph.spec.cube.n_pes * self._graph.spec.sip.n_cubes
        ns = programs * self._link_ns_per_byte(min(programs, pes))
        return max(port_ns, dealt * ns), max(port_ns, shared * ns)

    def _link_ns_per_byte(self, pes: int) -> float:
        """What a byte adds to the time of the busiest link, where the first PEs read from all memories alike."""
        found = self._ns_per_byte.get(pes)
        if found is None:
            found = self._ns_per_byte[pes] = self._busiest_link(pes)
        return found

    def _busiest_link(self, readers: int) -> float:
        cube = self._graph.spec.cube
        places = [(at, pe) for at in range(self._graph.spec.sip.n_cubes) for pe in range(cube.n_pes)]
        if any(CubeId(0, at).hbm_ctrl(pe) not in self._graph.nodes for at, pe in places):
            return 0.0  # PEs without a memory of their own: no bound
        router, paths = wiring_of(self._graph).router, dict[tuple[str, str], int]()
        for cube_of, pe in places[:readers]:
            for cube_at, slice_ in places:
                nodes = router.find_path(str(PeId(0, cube_of, pe)), CubeId(0, cube_at).hbm_ctrl(slice_))
                for link in pairwise(reversed(nodes)):  # data comes back the way that the request went
                    paths[link] = paths.get(link, 0) + 1
        each = readers * len(places)
        rates = [(count, self._graph.payload_gbs(self._graph.edge(*link))) for link, count in paths.items()]
        return max((count / each / gbs for count, gbs in rates if gbs is not None), default=0.0)
