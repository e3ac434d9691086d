"""The roofline of a launch: lower bounds of its time from compute, memory and link bandwidth.

compute   the time that compute engines were busy, shared evenly by the PEs: GEMM and MATH together, as they do
          not overlap; an engine with its own slot separately; the longest counts. As engines are charged by element
          type, so is this bound
memory    bytes moved to and from the memories that it accessed, over their bandwidth (`memory_times`): HBM, far memory,
          SRAM, and TCM where tensors lie in it; its reads and its writes of memories outside the PE, each over the
          bandwidth of the PEs' DMA ports in that direction; of a launch that accessed none of them, bytes between TCM
          and registers over the ports of TCM
link      the bytes of messages on a link while it ran, over that link's bandwidth; the longest of all links counts,
          and gives the class: NoC (within a cube), UCIe (between dies of a SIP) or PCIe (between SIPs)

The largest is the bound: the launch is compute, memory or link bound, and never faster than that; `share` is the
fraction of the roofline that it reached. What reaches less than half of it is limited by latency (`limit_of`). The
first two assume that work is spread evenly over PEs and memories. Rates are over the time that its PEs ran, without the
launch's path there and back. Bytes are counted twice: as requested, and as moved in whole bursts, which is what takes
the memory's time. Not in the link bound: credits, loads and stores, and traffic of other launches on the same links.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from typing import Literal

import numpy as np

from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId
from kernbench.common.launch import PeResult
from kernbench.common.work_units import BYTES
from kernbench.components.builtin.product_cost import peak_macs
from kernbench.report.link_classes import LinkFamily, link_family
from kernbench.report.memory_times import NAMES, memory_times
from kernbench.report.runs.parts import PeRun
from kernbench.runtime_api.launches import Launch
from kernbench.topology.declarations import declaration_of
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_cube import CubeSpec

Bound = Literal["compute", "memory", "link", "neither"]
FLOPS_PER_MAC = 2
LATENCY = "latency"  # of launches, dependencies and what is not overlapped
LIMITING_SHARE = 0.5  # of the roofline, from which its largest term is what limits


def limit_of(bound: str, share: float) -> str:
    """What limits a launch or a run: the largest term of the roofline where it reaches half of that or more, else
    latency. `neither` where nothing is computed or moved.
    """
    return bound if share >= LIMITING_SHARE or bound == "neither" else LATENCY


@frozen
class Peak:
    """The peak of some PEs and memories: f16 products, and bytes. GFLOP/s is flops per ns."""

    gflops: float
    gbs: float

    def as_json(self) -> dict[str, float]:
        return {"gflops_f16": self.gflops, "hbm_gbs": self.gbs}


@frozen
class LinkLoad:
    """The load of one link by messages."""

    link_class: LinkFamily
    src: str
    dst: str
    nbytes: int
    ns: float  # over the link's bandwidth


@frozen
class Roofline:
    """A launch on the roofline. Shares are fractions of `peak`: the peak of its PEs and of the slices it accessed, for
    its proportion of reads and writes; 0 if nothing ran.
    """

    exec_ns: float
    flops: int
    nbytes: int  # moved to and from memories, in whole bursts
    compute_ns: float
    memory_ns: float
    peak: Peak
    nbytes_requested: int = 0
    nbytes_sent: int = 0  # in messages
    link: LinkLoad | None = None  # the link with the longest time; None without messages
    read_share: float = 1.0  # of the bytes that it requested
    memory: str = "HBM"  # the kinds of memory that it accessed

    @property
    def bound(self) -> Bound:
        if not self.bound_ns:
            return "neither"
        if self.link_ns > max(self.compute_ns, self.memory_ns):
            return "link"
        return "compute" if self.compute_ns >= self.memory_ns else "memory"

    @property
    def bound_name(self) -> str:
        """The bound; for a link bound, with its class."""
        return f"link ({self.link.link_class})" if self.bound == "link" and self.link is not None else self.bound

    @property
    def limited_by(self) -> str:
        """What limits it: see `limit_of`; for a link bound, with its class."""
        return limit_of(self.bound_name, self.share)

    @property
    def link_ns(self) -> float:
        return self.link.ns if self.link is not None else 0.0

    @property
    def bound_ns(self) -> float:
        return max(self.compute_ns, self.memory_ns, self.link_ns)

    @property
    def share(self) -> float:
        """The fraction of the roofline: the bound over the execution time."""
        return _ratio(self.bound_ns, self.exec_ns)

    @property
    def gflops(self) -> float:
        return _ratio(self.flops, self.exec_ns)

    @property
    def gbs(self) -> float:
        """Bandwidth of bytes moved, in whole bursts."""
        return _ratio(self.nbytes, self.exec_ns)

    @property
    def gbs_requested(self) -> float:
        return _ratio(self.nbytes_requested, self.exec_ns)

    @property
    def gbs_sent(self) -> float:
        """Bandwidth of messages."""
        return _ratio(self.nbytes_sent, self.exec_ns)

    @property
    def intensity(self) -> float:
        """Flops per byte moved to and from memories."""
        return _ratio(self.flops, self.nbytes)

    @property
    def ridge(self) -> float:
        """The intensity above which f16 products are compute bound."""
        return _ratio(self.peak.gflops, self.peak.gbs)

    def as_json(self) -> dict[str, object]:
        return {
            "bound": self.bound,
            "limited_by": self.limited_by,
            "bound_ns": self.bound_ns,
            "compute_ns": self.compute_ns,
            "memory_ns": self.memory_ns,
            "share": self.share,
            "gflops": self.gflops,
            "gbs": self.gbs,
            "gbs_requested": self.gbs_requested,
            "share_of_peak_gflops": _ratio(self.gflops, self.peak.gflops),
            "share_of_peak_gbs": _ratio(self.gbs, self.peak.gbs),
            "intensity": self.intensity,
            "ridge": self.ridge,
            "peak": self.peak.as_json(),
            "link_ns": self.link_ns,
            "link": asdict(self.link) if self.link is not None else None,
            "gbs_sent": self.gbs_sent,
        }


def peak_of(spec: MachineSpec, pes: int | Iterable[tuple[int, int]] | None = None, read_share: float = 1.0) -> Peak:
    """The peak of PEs and their parts of the memory that tensors lie in by default, limited by the PEs' DMA ports where
    they pass those: of so many PEs of `cube`, of one in each of the cubes given by SIP and number, or of all. A port
    carries reads in one direction and writes in the other, so with `read_share` of all bytes read, the busier
    direction is the limit.
    """

    def flops(cube: CubeSpec) -> float:
        return FLOPS_PER_MAC * peak_macs(cube.pe_template.components.pe_gemm)

    def gbs(cube: CubeSpec) -> float:
        each_way = ((cube.home_read_gbs, read_share), (cube.home_write_gbs, 1 - read_share))
        return min(cube.home_gbs, *(gbs / share for gbs, share in each_way if share > 0))

    if pes is None:
        return Peak(
            spec.sum_over_cubes(lambda cube: cube.n_pes * flops(cube)),
            spec.sum_over_cubes(lambda cube: cube.n_pes * gbs(cube)),
        )
    if isinstance(pes, int):
        return Peak(pes * flops(spec.cube), pes * gbs(spec.cube))
    cubes = list(pes)
    return Peak(spec.sum_at(cubes, flops), spec.sum_at(cubes, gbs))


def roofline_of(launch: Launch, graph: TopologyGraph) -> Roofline:
    """The roofline of a finished launch."""
    spec, uses = graph.spec, launch.memories
    nbytes, requested = sum(use.burst_bytes for use in uses.values()), _requested(launch)
    kinds = memory_times(graph, uses)
    memory_ns = max(_ports_ns(launch, spec), *kinds.values(), 0.0)
    if not uses:  # nothing but TCM
        nbytes, memory_ns = _tcm_use(launch, spec)
        requested = nbytes
    peak = peak_of(spec, cubes_of_pes(launch.pes))
    return Roofline(
        exec_ns=launch.exec_ns,
        flops=launch.flops,
        nbytes=nbytes,
        compute_ns=_ratio(_compute_ns(launch, spec), len(launch.pes)),
        memory_ns=memory_ns,
        peak=Peak(peak.gflops, nbytes / memory_ns if nbytes else peak.gbs),
        nbytes_requested=requested,
        read_share=_ratio(sum(use.read_bytes for use in uses.values()), requested) if requested else 1.0,
        nbytes_sent=launch.bytes_sent,
        link=_longest_link(launch, graph),
        memory=" + ".join(NAMES[kind] for kind in kinds) or ("TCM" if nbytes else spec.cube.home.name),
    )


def _longest_link(launch: Launch, graph: TopologyGraph) -> LinkLoad | None:
    """The link on which the launch's messages take longest; of equals, the first on the path."""
    carried = launch.messages
    if not carried:
        return None
    numbers = {node: number for number, node in enumerate(dict.fromkeys(chain.from_iterable(carried)))}
    nodes = np.fromiter(map(numbers.__getitem__, chain.from_iterable(carried)), np.int64)
    lengths = np.fromiter(map(len, carried), np.int64)
    at_end = np.zeros(len(nodes), bool)
    at_end[np.cumsum(lengths) - 1] = True
    links = (nodes[:-1] * len(numbers) + nodes[1:])[~at_end[:-1]]  # both ends in one number, path after path
    used, first, place = np.unique(links, return_index=True, return_inverse=True)
    nbytes = np.bincount(place, np.repeat(np.fromiter(carried.values(), np.int64), lengths - 1), len(used))
    names, longest = list(numbers), None
    in_order = np.argsort(first)
    ends = np.stack(np.divmod(used[in_order], len(numbers)), axis=1)
    for (src, dst), moved in zip(ends.tolist(), nbytes[in_order].astype(np.int64).tolist(), strict=True):
        edge = graph.edge(names[src], names[dst])
        gbs = graph.payload_gbs(edge)
        if gbs is not None and (longest is None or moved / gbs > longest.ns):
            longest = LinkLoad(link_family(edge.kind), edge.src, edge.dst, moved, moved / gbs)
    return longest


def _compute_ns(launch: Launch, spec: MachineSpec) -> float:
    """The time that the busiest compute slot was in use, summed over PEs."""
    shared_ns, own_ns = 0.0, [0.0]
    for name, part in spec.cube.pe_template.components.parts.items():
        if name in launch.engines:
            declared, busy_ns = declaration_of(name, part.impl), launch.engines[name].busy_ns
            if declared.role == "compute" and declared.has_own_slot:
                own_ns.append(busy_ns)
            elif declared.role == "compute":
                shared_ns += busy_ns
    return max(shared_ns, *own_ns)


def _ports_ns(launch: Launch, spec: MachineSpec) -> float:
    uses = [
        use
        for pe in launch.ended
        for node, use in pe.memories
        if not node.startswith(f"{PeId(pe.sip, pe.cube, pe.pe)}.")  # its own TCM
    ]
    ports_gbs = spec.sum_at(cubes_of_pes(launch.pes), lambda cube: cube.links.pe_dma_to_router_bw_gbs)
    each_way = (sum(use.read_bytes for use in uses), sum(use.written_bytes for use in uses))
    return _ratio(max(each_way), ports_gbs)


def _tcm_use(launch: Launch, spec: MachineSpec) -> tuple[int, float]:
    """Bytes between the PEs' TCM and their registers, and how long they take at least: over the ports of all PEs."""
    fetched = launch.engines.get("pe_fetch_store")
    nbytes = int(fetched.amounts.get(BYTES, 0)) if fetched is not None else 0
    gbs = spec.sum_at(cubes_of_pes(launch.pes), _tcm_gbs)
    return nbytes, _ratio(nbytes, gbs)


def _tcm_gbs(cube: CubeSpec) -> float:
    links = cube.pe_template.links
    return links.tcm_read_bw_gbs + links.tcm_write_bw_gbs


def _requested(launch: Launch) -> int:
    return sum(use.read_bytes + use.written_bytes for use in launch.memories.values())


def cubes_of_pes(pes: Iterable[PeResult | PeRun]) -> list[tuple[int, int]]:
    """SIP and number of the cube of each PE."""
    return [(pe.sip, pe.cube) for pe in pes]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
