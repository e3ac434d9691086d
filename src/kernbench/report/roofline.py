"""What bounds a launch: the least time that its flops take, that its bytes take, and that its messages take.

compute   the time that compute engines were busy, shared evenly by the PEs: GEMM and MATH together, as they take turns;
          an engine with a slot of its own by itself; the longest counts. As engines are charged by element type, so is
          this bound
memory    what it moved to and from HBM, in whole bursts, over what the slices that it touched can give; its reads and
          its writes, each over what the PEs' DMA ports take that way
link      the bytes of messages that crossed a link while it ran, over that link's bandwidth; the longest of all links
          counts, and says of which class it is: NoC (within a cube), UCIe (between dies of a SIP) or PCIe (between
          SIPs)

The largest is the bound: the launch is compute, memory or link bound, and never faster than that; how near it came is
`share`, its fraction of the roofline. The first two assume that work is spread evenly over its PEs and slices. Rates
are over the time that its PEs ran, without the launch's path there and back. Bytes are counted twice: as requested, and
as moved in whole bursts, which is what takes the memory's time. Not in the link bound: credits, loads and stores, and
what others send over the same links.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Literal

from kernbench.common.frozen import frozen
from kernbench.report.link_classes import LinkFamily, link_family
from kernbench.runtime_api.launches import Launch
from kernbench.topology.declarations import declaration_of
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec

Bound = Literal["compute", "memory", "link", "neither"]
FLOPS_PER_MAC = 2


@frozen
class Peak:
    """What some PEs and HBM slices can do: f16 products, and bytes. GFLOP/s is flops per ns."""

    gflops: float
    gbs: float

    def as_json(self) -> dict[str, float]:
        return {"gflops_f16": self.gflops, "hbm_gbs": self.gbs}


@frozen
class LinkLoad:
    """What messages take of one link."""

    link_class: LinkFamily
    src: str
    dst: str
    nbytes: int
    ns: float  # over the link's bandwidth


@frozen
class Roofline:
    """Where a launch sits. Shares are of `peak`, which is that of its PEs and of the slices it touched, for reads and
    writes in its proportion; 0 where nothing ran.
    """

    exec_ns: float
    flops: int
    nbytes: int  # moved to and from HBM, in whole bursts
    compute_ns: float
    memory_ns: float
    peak: Peak
    nbytes_requested: int = 0
    nbytes_sent: int = 0  # in messages
    link: LinkLoad | None = None  # that messages take longest; None where there were none
    read_share: float = 1.0  # of the bytes that it requested

    @property
    def bound(self) -> Bound:
        if not self.bound_ns:
            return "neither"
        if self.link_ns > max(self.compute_ns, self.memory_ns):
            return "link"
        return "compute" if self.compute_ns >= self.memory_ns else "memory"

    @property
    def bound_name(self) -> str:
        """The bound, and of links the class."""
        return f"link ({self.link.link_class})" if self.bound == "link" and self.link is not None else self.bound

    @property
    def link_ns(self) -> float:
        return self.link.ns if self.link is not None else 0.0

    @property
    def bound_ns(self) -> float:
        return max(self.compute_ns, self.memory_ns, self.link_ns)

    @property
    def share(self) -> float:
        """Its fraction of the roofline: of what the bound allows."""
        return _ratio(self.bound_ns, self.exec_ns)

    @property
    def gflops(self) -> float:
        return _ratio(self.flops, self.exec_ns)

    @property
    def gbs(self) -> float:
        """Moved, in whole bursts."""
        return _ratio(self.nbytes, self.exec_ns)

    @property
    def gbs_requested(self) -> float:
        return _ratio(self.nbytes_requested, self.exec_ns)

    @property
    def gbs_sent(self) -> float:
        """In messages."""
        return _ratio(self.nbytes_sent, self.exec_ns)

    @property
    def intensity(self) -> float:
        """Flops per byte moved to and from HBM."""
        return _ratio(self.flops, self.nbytes)

    @property
    def ridge(self) -> float:
        """The intensity from which on f16 products are compute bound."""
        return _ratio(self.peak.gflops, self.peak.gbs)

    def as_json(self) -> dict[str, object]:
        return {
            "bound": self.bound,
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


def peak_of(spec: MachineSpec, pes: int, read_share: float = 1.0) -> Peak:
    """The peak of `pes` PEs and as many HBM slices, as far as the PEs' DMA ports reach: those carry reads one way and
    writes the other, so with `read_share` of all bytes read the way with more of them is what counts.
    """
    cube = spec.cube
    macs_per_ns = cube.pe_template.components.pe_gemm.number_attr("macs_per_ns")
    port_gbs = cube.links.pe_dma_to_router_bw_gbs / max(read_share, 1 - read_share)
    return Peak(FLOPS_PER_MAC * macs_per_ns * pes, pes * min(port_gbs, cube.hbm_link_bw_gbs))


def roofline_of(launch: Launch, graph: TopologyGraph) -> Roofline:
    """Where a launch that is done sits."""
    spec, pes, nbytes = graph.spec, len(launch.pes), launch.bytes_hbm
    memory_ns = _memory_ns(launch, spec)
    peak = peak_of(spec, pes)
    return Roofline(
        exec_ns=launch.exec_ns,
        flops=launch.flops,
        nbytes=nbytes,
        compute_ns=_ratio(_compute_ns(launch, spec), pes),
        memory_ns=memory_ns,
        peak=Peak(peak.gflops, nbytes / memory_ns if nbytes else peak.gbs),
        nbytes_requested=launch.bytes_hbm_requested,
        read_share=_read_share(launch),
        nbytes_sent=launch.bytes_sent,
        link=_longest_link(launch, graph),
    )


def _longest_link(launch: Launch, graph: TopologyGraph) -> LinkLoad | None:
    """The link that the launch's messages take longest; the first of several on their way."""
    carried: dict[tuple[str, str], int] = {}
    for path, nbytes in launch.messages.items():
        for link in pairwise(path):
            carried[link] = carried.get(link, 0) + nbytes
    loads = []
    for (src, dst), nbytes in carried.items():
        edge = graph.edge(src, dst)
        if edge.bw_gbs is not None:
            loads.append(LinkLoad(link_family(edge.kind), src, dst, nbytes, nbytes / edge.bw_gbs))
    return max(loads, key=lambda load: load.ns, default=None)


def _compute_ns(launch: Launch, spec: MachineSpec) -> float:
    """How long the busiest compute slot was taken, all PEs together."""
    shared_ns, own_ns = 0.0, [0.0]
    for name, part in spec.cube.pe_template.components.parts.items():
        if name in launch.engines:
            declared, busy_ns = declaration_of(name, part.impl), launch.engines[name].busy_ns
            if declared.role == "compute" and declared.has_own_slot:
                own_ns.append(busy_ns)
            elif declared.role == "compute":
                shared_ns += busy_ns
    return max(shared_ns, *own_ns)


def _memory_ns(launch: Launch, spec: MachineSpec) -> float:
    slices = launch.hbm
    slices_gbs = len(slices) * spec.cube.hbm_link_bw_gbs
    ports_gbs = len(launch.pes) * spec.cube.links.pe_dma_to_router_bw_gbs
    return max(
        _ratio(launch.bytes_hbm, slices_gbs),
        _ratio(sum(use.read_bytes for use in slices.values()), ports_gbs),
        _ratio(sum(use.written_bytes for use in slices.values()), ports_gbs),
    )


def _read_share(launch: Launch) -> float:
    read = sum(use.read_bytes for use in launch.hbm.values())
    return read / launch.bytes_hbm_requested if launch.bytes_hbm_requested else 1.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
