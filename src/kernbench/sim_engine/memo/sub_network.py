"""Key: the sub-network that one composite uses, the links and memory channels between its PE and its operands.

It is a network of its own, in which nodes are named by their position only, so PEs whose sub-networks are alike have
equal ones (`SubNetwork.kind`). The order of links, by which the fabric breaks ties, is that of the whole network.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from kernbench.common.framing import Framing
from kernbench.common.message_traffic import NodePath
from kernbench.sim_engine.fabric import Network
from kernbench.sim_engine.fabric.buffers import Buffers
from kernbench.sim_engine.fabric.channel_bank import ChannelSpec

# Of finite buffers: what they are like, links in series as three nodes, and layers along each path, there and back.
BuffersShape = tuple[
    Buffers, tuple[tuple[str, str, str], ...], tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
]  # fmt: skip
# Bytes of a flit; of each link its ends, bandwidth, propagation and framing; overheads of nodes; channels by node;
# the paths; buffers.
SubNetworkShape = tuple[
    int,
    tuple[tuple[int, int, float | None, float, Framing | None], ...],
    tuple[float, ...],
    tuple[tuple[int, ChannelSpec], ...],
    tuple[NodePath, ...],
    BuffersShape | None,
]


class SubNetwork:
    """The paths to some memories, `paths[i]` from a PE to the i-th of them."""

    def __init__(self, whole: Network, paths: Sequence[NodePath]) -> None:
        routes = [(whole.route(path), whole.route(path[::-1])) for path in paths]
        self.links = sorted({link for there, back in routes for link in (*there.links, *back.links)})
        nodes: dict[int, int] = {}  # from the whole network's index to ours
        for link in self.links:
            for node in whole.link_ends[link]:
                nodes.setdefault(node, len(nodes))
        self.routes = routes  # in the whole network, there and back
        self.paths = [tuple(str(nodes[node]) for node in there.nodes) for there, _ in routes]  # in ours
        self.channels = [(at, node) for node, at in nodes.items() if node in whole.channel_specs]  # ours, the whole's
        self.memories = [whole.names[node] for _, node in self.channels]
        self.can_be_reserved = not any(
            route.loops or route.has_delay_rule or route.control_only_link is not None
            for both in routes
            for route in both
        )
        # A request that takes no time reaches a memory in the instant in which it is made; the state within an instant,
        # before one of several simultaneous accesses, cannot be restored.
        self.has_latency = all(there.control_ns > 0 for there, _ in routes)
        rows: list[tuple[int, int, float | None, float, Framing | None]] = []
        for link in self.links:
            src, dst = whole.link_ends[link]
            rows.append((nodes[src], nodes[dst], whole.bw_gbs[link], whole.propagation_ns[link], whole.framing[link]))
        overheads = tuple(whole.overhead_ns[node] for node in nodes)
        specs = tuple((at, whole.channel_specs[node]) for at, node in self.channels)
        self.kind: SubNetworkShape = (whole.flit_bytes, tuple(rows), overheads, specs, tuple(self.paths), None)
        if whole.buffers is not None:
            layers = tuple(
                (tuple(whole.layers_along(there.path)), tuple(whole.layers_along(back.path))) for there, back in routes
            )
            self.kind = (*self.kind[:-1], (whole.buffers, self._series(whole, nodes), layers))

    def _series(self, whole: Network, nodes: Mapping[int, int]) -> tuple[tuple[str, str, str], ...]:
        """Links that have one buffer, at the far end of the last: as three nodes of ours."""
        found: list[tuple[str, str, str]] = []
        for link in self.links:
            feeder = whole.sole_feeder.get(link)
            if feeder is not None:
                (src, via), (_, dst) = whole.link_ends[feeder], whole.link_ends[link]
                found.append((str(nodes[src]), str(nodes[via]), str(nodes[dst])))
        return tuple(found)

    def network(self) -> Network:
        """The links and channels, with names that are places."""
        flit_bytes, rows, overheads, specs, paths, buffered = self.kind
        network = Network(flit_bytes)
        for place, overhead_ns in enumerate(overheads):
            network.add_node(str(place), overhead_ns)
        for src, dst, bw_gbs, propagation_ns, framing in rows:
            network.add_link(str(src), str(dst), bw_gbs, propagation_ns)
            if framing is not None:
                network.set_framing(str(src), str(dst), framing)
        for place, spec in specs:
            network.add_channels(
                str(place), spec.channels, spec.burst_ns, spec.penalty_ns, separate=spec.separate,
                granule_bytes=spec.granule_bytes, open_ns=spec.open_ns, drain_bytes=spec.drain_bytes,
            )  # fmt: skip
        if buffered is not None:
            buffers, series, layers = buffered
            for three in series:
                network.add_series(*three)
            by_path: dict[tuple[Hashable, ...], tuple[int, ...]] = {}
            for path, (there, back) in zip(paths, layers, strict=True):
                by_path[path], by_path[path[::-1]] = there, back
            network.set_buffers(buffers, by_path.__getitem__)
        return network
