"""The time of an uncontended transfer in closed form, from nodes and links, without simulation.

A request and its reply pass every node and wire of the path; one of the two carries the bytes (a write's request, a
read's reply), the other is control, which with `fabric.control_bytes` pays its links, too. To those latencies the bytes
add, for each segment between blocks that store and forward, their time on the segment's narrowest link and one flit's
time on each other link. HBM adds one burst: before a read's first flit leaves, after a write's last flit has arrived.
Where an access is split over channels, the terms of the bytes come from `channel_formula`, and `drain_ns` is the
longest time on a narrowest link. All terms are on the time grid, so the sum equals the simulated time exactly. User
components (`impl: module:Class`) may have other timing; `is_plain` is False if one is on the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernbench.common.units import on_grid, transfer_ns
from kernbench.components.builtin.hbm_ctrl import burst_ns, last_burst_ns
from kernbench.probes.channel_formula import split_ns
from kernbench.topology.graph import Edge, Node, TopologyGraph

STORE_AND_FORWARD = frozenset({"pcie_ep", "io_cpu", "m_cpu"})


@dataclass(frozen=True, slots=True)
class Charge:
    """The latency that one node or one wire adds, in one of the two directions."""

    where: Node | Edge
    ns: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The five terms of an uncontended transfer; `flit_ns` is the part of the links other than the narrowest."""

    overhead_ns: float
    wire_ns: float
    drain_ns: float
    flit_ns: float
    memory_ns: float
    bottleneck_gbs: float

    @property
    def formula_ns(self) -> float:
        return self.overhead_ns + self.wire_ns + self.drain_ns + self.flit_ns + self.memory_ns


def predict(graph: TopologyGraph, path: Sequence[str], nbytes: int, is_write: bool) -> Prediction:
    """The time of `nbytes` between the two ends of `path` when nothing else moves."""
    latency = list(latency_charges(graph, path))
    segments = list(_segments(graph, path if is_write else path[::-1]))
    is_split = graph.node(path[-1]).kind == "hbm_ctrl" and graph.spec.cube.has_channel_routers
    drain_ns, flit_ns, memory_ns = (_split_terms if is_split else _terms)(graph, path, segments, nbytes, is_write)
    flit_ns += _control_ns(graph, path[::-1] if is_write else path)
    return Prediction(
        overhead_ns=sum(charge.ns for charge in latency if isinstance(charge.where, Node)),
        wire_ns=sum(charge.ns for charge in latency if isinstance(charge.where, Edge)),
        drain_ns=drain_ns,
        flit_ns=flit_ns,
        memory_ns=memory_ns,
        bottleneck_gbs=min(access_gbs(graph, link) for links in segments for link in links),
    )


def _terms(
    graph: TopologyGraph, path: Sequence[str], segments: Sequence[Sequence[Edge]], nbytes: int, is_write: bool
) -> tuple[float, float, float]:
    """The terms that the bytes add: drain, flits, memory."""
    carried = [_carry_ns(graph, links, nbytes) for links in segments]
    drain_ns = sum(drain for drain, _ in carried)
    carry_ns = sum(whole for _, whole in carried)
    return drain_ns, carry_ns - drain_ns, _memory_ns(graph, path[-1], segments[-1], nbytes, is_write)


def _split_terms(
    graph: TopologyGraph, path: Sequence[str], segments: Sequence[Sequence[Edge]], nbytes: int, is_write: bool
) -> tuple[float, float, float]:
    """The same for an access that is split over channels."""
    memory = graph.node(path[-1])
    channels, burst_bytes = int(memory.attrs["num_pcs"]), int(memory.attrs["burst_bytes"])
    burst = burst_ns(channels, burst_bytes, float(memory.attrs["pc_bw_gbs"]))
    widths = tuple(tuple(_gbs(link) for link in links) for links in segments)
    short = last_burst_ns(memory, nbytes)
    total_ns = split_ns(widths, nbytes, channels, burst_bytes, burst, short, is_write=is_write)
    narrowest = [min(links, key=lambda link: access_gbs(graph, link)) for links in segments]
    drain_ns = max(occupancy_ns(graph, link, nbytes) for link in narrowest)
    first = short if nbytes < burst_bytes else burst
    return drain_ns, total_ns - drain_ns - first, first


def _control_ns(graph: TopologyGraph, path_taken: Sequence[str]) -> float:
    """What a request, or an acknowledgement, pays on links where it is a packet."""
    nbytes = graph.spec.fabric.control_bytes
    return sum(_carry_ns(graph, links, nbytes)[1] for links in _segments(graph, path_taken)) if nbytes else 0.0


def is_plain(graph: TopologyGraph, path: Sequence[str]) -> bool:
    """Whether every block on the path is a builtin, whose timing rules the formula implements. It has none for packets
    of an access that is split over channels.
    """
    has_packets = any(graph.framing_of(graph.edge(a, b)) for a, b in pairwise(path)) or graph.spec.fabric.control_bytes
    if graph.spec.cube.has_channel_routers and has_packets:
        return False
    return all(graph.node(node).impl.startswith("builtin.") for node in path)


def latency_charges(graph: TopologyGraph, path: Sequence[str]) -> Iterator[Charge]:
    """Nodes and wires on the path, for request and reply. The issuer is charged twice, at departure and at return."""
    issuer = graph.node(path[0])
    yield Charge(issuer, on_grid(issuer.overhead_ns))
    for path_taken in (path, path[::-1]):
        for a, b in pairwise(path_taken):
            edge, node = graph.edge(a, b), graph.node(b)
            yield Charge(edge, on_grid(edge.distance_mm * graph.spec.system.ns_per_mm))
            yield Charge(node, on_grid(node.overhead_ns))


def links_of(graph: TopologyGraph, path: Sequence[str], is_write: bool) -> list[Edge]:
    """The links that carry the bytes: along the path for a write, in reverse for a read."""
    path_taken = path if is_write else path[::-1]
    return [graph.edge(a, b) for a, b in pairwise(path_taken)]


def occupancy_ns(graph: TopologyGraph, link: Edge, nbytes: int) -> float:
    """How long `nbytes`, cut into flits, keep a link busy, or the links of all channels together."""
    whole_ns, last_ns = _flits_ns(graph, link, access_gbs(graph, link), nbytes)
    return (-(-nbytes // graph.spec.system.flit_bytes) - 1) * whole_ns + last_ns


def _flits_ns(graph: TopologyGraph, link: Edge, gbs: float, nbytes: int) -> tuple[float, float]:
    """How long a whole flit and the last flit of a transfer occupy a link, with headers where the link has packets."""
    flit_bytes, framing = graph.spec.system.flit_bytes, graph.framing_of(link)
    before = (nbytes - 1) // flit_bytes * flit_bytes
    if framing is None:
        return transfer_ns(flit_bytes, gbs), transfer_ns(nbytes - before, gbs)
    last_bytes = nbytes - before + framing.headers(nbytes) - framing.share(before)
    return transfer_ns(flit_bytes + framing.share(flit_bytes), gbs), transfer_ns(last_bytes, gbs)


def _segments(graph: TopologyGraph, path_taken: Sequence[str]) -> Iterator[list[Edge]]:
    """The links of a path, split at blocks that store and forward."""
    links: list[Edge] = []
    for a, b in pairwise(path_taken):
        links.append(graph.edge(a, b))
        if b == path_taken[-1] or _stores(graph.node(b)):
            yield links
            links = []


def _stores(node: Node) -> bool:
    return node.kind in STORE_AND_FORWARD or node.impl == "builtin.sip_port"


def _carry_ns(graph: TopologyGraph, links: Sequence[Edge], nbytes: int) -> tuple[float, float]:
    """Time on the narrowest link, and until the last flit is off the last link, propagation and nodes aside."""
    before_last, last = _last_flits_ns(graph, links, nbytes)
    narrowest = min(links, key=_gbs)
    return occupancy_ns(graph, narrowest, nbytes), last if last is not None else before_last


def _last_flits_ns(graph: TopologyGraph, links: Sequence[Edge], nbytes: int) -> tuple[float, float | None]:
    """When the last whole flit has left the last link, and when a last flit of another length behind it has.

    Whole flits are alike: n of them have left a link when the first has traversed all links so far and n - 1 more have
    followed at the rate of the slowest. A partial flit catches up, and may wait on each link for the whole one ahead.
    So may the last flit of a transfer in packets, which pays what is missing of their headers.
    """
    whole, rest = divmod(nbytes, graph.spec.system.flit_bytes)
    differs = rest > 0 or any(graph.framing_of(link) is not None for link in links)
    alike = whole if rest or not differs else whole - 1
    first_ns = slowest = 0.0
    ahead = 0.0
    last: float | None = None
    for link in links:
        flit_ns, last_ns = _flits_ns(graph, link, _gbs(link), nbytes)
        first_ns += flit_ns
        slowest = max(slowest, flit_ns)
        ahead = first_ns + (alike - 1) * slowest if alike else 0.0
        if differs:
            last = max(last or 0.0, ahead) + last_ns
    return ahead, last


def _memory_ns(graph: TopologyGraph, memory: str, last_links: Sequence[Edge], nbytes: int, is_write: bool) -> float:
    """One burst, if the memory has channels. A partial last burst of a write is shorter, and may wait for its own."""
    node = graph.node(memory)
    if "num_pcs" not in node.attrs:
        return 0.0
    channels, burst_bytes = int(node.attrs["num_pcs"]), int(node.attrs["burst_bytes"])
    burst = burst_ns(channels, burst_bytes, float(node.attrs["pc_bw_gbs"]))
    whole, rest = divmod(nbytes, burst_bytes)
    if not rest or (whole and not is_write):
        return burst
    short = last_burst_ns(node, nbytes)
    if not whole:
        return short
    # The channel's burst before came `channels` flits earlier: `channels - 1` steps before the last whole flit.
    ahead, partial = _last_flits_ns(graph, last_links, nbytes)
    assert partial is not None
    step_ns = max(_flits_ns(graph, link, _gbs(link), nbytes)[0] for link in last_links)
    free_ns = ahead - (channels - 1) * step_ns + burst if whole >= channels else 0.0
    return max(max(free_ns - partial, 0.0) + short, ahead + burst - partial)


def access_gbs(graph: TopologyGraph, link: Edge) -> float:
    """The bandwidth that one access has over a link, or over those of all channels."""
    gbs = graph.access_gbs(link)
    assert gbs is not None, "bytes are routed over links with bandwidth only"
    return gbs


def _gbs(link: Edge) -> float:
    assert link.bw_gbs is not None, "bytes are routed over links with bandwidth only"
    return link.bw_gbs
