"""A network as plain data: nodes that delay, links that serialise, groups of memory channels. No word of SIPs or cubes.

A node delays every flit that enters it by its overhead and blocks no flit; the source of a transfer is not entered. A
link is a serial FIFO: a flit occupies it for bytes / bandwidth, packet headers included where the link has framing, and
arrives a propagation delay later. A channel group
is the memory channels behind one node: a flit's burst goes to the channel that its address names and occupies it for
one burst time. All durations are rounded to the time grid here, once. Queues have no
limit, unless `set_buffers` gives links finite buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from math import inf, log2

from kernbench.common.errors import FabricError
from kernbench.common.flits import FlitArrival
from kernbench.common.framing import Framing
from kernbench.common.units import (
    GRID_NS,
    MAX_TIME_NS,
    is_power_of_two,
    on_grid,
)
from kernbench.sim_engine.fabric.buffers import Buffers, Channel, Dependencies, LayerRule, one_layer
from kernbench.sim_engine.fabric.channel_bank import ChannelSpec
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.occupancy import LinkOccupancy, LinkRate
from kernbench.sim_engine.fabric.routes import Counterparts, Route

DelayRule = Callable[[FlitArrival], float]

BETWEEN = None  # in no part of a network more than in another


class Network:
    """Nodes, links and channel groups. Build it, then put a `Fabric` on it; from then on it stays.

    Fabrics may share a network. Names are any hashable values. A link has an index, in order of `add_link`: where flits
    become ready for one output at the same instant, the lower index goes first.
    """

    def __init__(self, flit_bytes: int = 256) -> None:
        if flit_bytes < 1:
            raise FabricError(f"a flit of {flit_bytes} bytes", hint="give flit_bytes of 1 or more")
        self.flit_bytes = flit_bytes
        self.names: list[Hashable] = []
        self.overhead_ns: list[float] = []
        self.delay_rule: list[DelayRule | None] = []
        self.has_delay_rules = False  # at some node
        self.has_framing = False  # on some link
        self.part: list[Hashable] = []
        self.link_ends: list[tuple[int, int]] = []
        self.bw_gbs: list[float | None] = []
        self.framing: list[Framing | None] = []  # of packets on the link
        self.rate: list[LinkRate] = []  # both
        self.propagation_ns: list[float] = []
        self.flit_ns: list[float] = []  # how long a whole flit occupies the link
        self.tail_ns: list[float] = []  # from leaving the link to being ready in the node it leads to
        self.channel_specs: dict[int, ChannelSpec] = {}
        self.plain_memories: set[int] = set()  # without channels, whose traffic is counted
        self.buffers: Buffers | None = None  # of links; without any, queues have no limit
        self.sole_feeder: dict[int, int] = {}  # by link in series: the one whose flits it takes, and no others
        self._nodes: dict[Hashable, int] = {}
        self._links: dict[tuple[int, int], int] = {}
        self._routes: dict[tuple[Hashable, ...], Route] = {}
        self._segments: dict[tuple[Hashable, tuple[Hashable, ...]], Route] = {}
        self._counterparts: dict[tuple[str, str], Counterparts] = {}
        self._link_times: dict[tuple[float | None, float], tuple[float, float]] = {}
        self._occupancies: dict[int, LinkOccupancy] = {}  # by bytes of a flit
        self._in_use = False
        self._layer_rule: LayerRule = one_layer
        self._layers: dict[Route, Sequence[int]] = {}  # as asked for
        self._dependencies = Dependencies(self._link_name)

    def add_node(
        self, name: Hashable, overhead_ns: float = 0.0, delay: DelayRule | None = None, part: Hashable = BETWEEN
    ) -> int:
        """A node that delays a flit by `overhead_ns`, or by what `delay` says of it; of which `part` of the network."""
        self._may_change()
        if name in self._nodes:
            raise FabricError(
                f"node {name!r} is there already",
                hint="give every node a name of its own",
            )
        if not 0 <= overhead_ns < MAX_TIME_NS:
            raise FabricError(
                f"node {name!r} has an overhead of {overhead_ns} ns",
                hint="give 0 or more",
            )
        index = self._nodes[name] = len(self.names)
        self.names.append(name)
        self.overhead_ns.append(on_grid(overhead_ns))
        self.delay_rule.append(delay)
        self.has_delay_rules = self.has_delay_rules or delay is not None
        self.part.append(part)
        return index

    def count_traffic_at(self, name: Hashable) -> None:
        """Count what is moved to and from a memory without channels, by the other end."""
        self._may_change()
        self.plain_memories.add(self.node_index(name))

    def occupancy_of(self, nbytes: int) -> LinkOccupancy:
        """For flits of `nbytes`."""
        found = self._occupancies.get(nbytes)
        if found is None:
            found = self._occupancies[nbytes] = LinkOccupancy(nbytes)
        return found

    def part_of(self, route: Route) -> Hashable:
        """The part of the network that a route stays in; BETWEEN for one that does not."""
        parts = set(map(self.part.__getitem__, route.nodes))
        return parts.pop() if len(parts) == 1 else BETWEEN

    def add_link(self, src: Hashable, dst: Hashable, bw_gbs: float | None, propagation_ns: float = 0.0) -> int:
        """One direction of a link. Without bandwidth it carries control messages only."""
        self.add_links([(src, dst, bw_gbs, propagation_ns)])
        return len(self.link_ends) - 1

    def set_framing(self, src: Hashable, dst: Hashable, framing: Framing) -> None:
        """Give a link packets: its bytes then occupy it together with one header for each packet."""
        self._may_change()
        link = self.link_index(src, dst)
        if framing.header_bytes < 0 or framing.payload_bytes < 1 or self.bw_gbs[link] is None:
            raise FabricError(
                f"packets of {framing.payload_bytes} B with headers of {framing.header_bytes} B on the link from "
                f"{src!r} to {dst!r}",
                hint="give a link with bandwidth, a payload of 1 or more, and a header of 0 or more",
            )
        self.framing[link], self.has_framing = framing, True
        self.rate[link] = self.bw_gbs[link], framing
        self.flit_ns[link] = self.occupancy_of(self.flit_bytes)[self.rate[link]]

    def add_links(self, links: Iterable[tuple[Hashable, Hashable, float | None, float]]) -> None:
        """Links as `add_link` takes them, in their order."""
        self._may_change()
        nodes, known, times_of, overhead_ns = self._nodes, self._links, self._link_times, self.overhead_ns
        for src, dst, bw_gbs, propagation_ns in links:
            if src not in nodes or dst not in nodes:
                self.node_index(dst if src in nodes else src)  # raises
            ends = nodes[src], nodes[dst]
            if ends in known:
                raise FabricError(f"a link from {src!r} to {dst!r} is there already", hint="add up their bandwidths")
            times = times_of.get((bw_gbs, propagation_ns))
            if times is None:  # a machine has thousands of links, of a few kinds
                times = times_of[bw_gbs, propagation_ns] = self._times_of(src, dst, bw_gbs, propagation_ns)
            known[ends] = len(self.link_ends)
            self.link_ends.append(ends)
            self.bw_gbs.append(bw_gbs)
            self.framing.append(None)
            self.rate.append((bw_gbs, None))
            self.propagation_ns.append(times[0])
            self.flit_ns.append(times[1])
            self.tail_ns.append(times[0] + overhead_ns[ends[1]])

    def _times_of(
        self, src: Hashable, dst: Hashable, bw_gbs: float | None, propagation_ns: float
    ) -> tuple[float, float]:
        """How long a link's propagation takes, and how long a whole flit occupies it."""
        if bw_gbs is not None and not self.flit_bytes / MAX_TIME_NS < bw_gbs < inf:
            raise FabricError(
                f"link {src!r} to {dst!r} has {bw_gbs} GB/s",
                hint="give more than 0, or None for control only",
            )
        if not 0 <= propagation_ns < MAX_TIME_NS:
            raise FabricError(f"link {src!r} to {dst!r} takes {propagation_ns} ns", hint="give 0 or more")
        return on_grid(propagation_ns), self.occupancy_of(self.flit_bytes)[bw_gbs, None]

    def add_series(self, src: Hashable, via: Hashable, dst: Hashable) -> None:
        """Promise that all bytes on the link from `via` to `dst` come over the one from `src` to `via`.

        Flits then take the second link in the order in which they took the first, whatever else happens, and one event
        serves both. A path for bytes that breaks the promise is refused.
        """
        self._may_change()
        feeder, link = self.link_index(src, via), self.link_index(via, dst)
        if self.delay_rule[self.node_index(via)] is not None:
            raise FabricError(
                f"a series through node {via!r}, which has a delay rule",
                hint="a rule may change the order of flits: leave it out of series",
            )
        if self.sole_feeder.setdefault(link, feeder) != feeder:
            raise FabricError(
                f"the link from {via!r} to {dst!r} is in series behind two others", hint="leave both out of series"
            )

    def set_buffers(self, buffers: Buffers, layer_rule: LayerRule = one_layer) -> None:
        """Give all links finite buffers. `layer_rule` says of a path in which layer each of its links is taken."""
        self._may_change()
        buffers.check()
        if self.has_delay_rules:
            raise FabricError(
                "finite buffers on a network with delay rules",
                hint="leave the rules out: they may change the order of flits within a buffer",
            )
        self.buffers, self._layer_rule = buffers, layer_rule

    def layers_of(self, route: Route) -> Sequence[int]:
        """The layer of each link of a route; raises FabricError where it could deadlock with those asked for before."""
        found = self._layers.get(route)
        if found is None:
            found = self._layers[route] = self.layers_along(route.path)
            try:
                self._dependencies.add_route(self._channels(route))
            except FabricError:
                del self._layers[route]
                raise
        return found

    def layers_along(self, path: tuple[Hashable, ...]) -> Sequence[int]:
        """The layer of each link of a path."""
        assert self.buffers is not None
        found = self._layer_rule(path)
        if len(found) != len(path) - 1 or not all(0 <= layer < self.buffers.layers for layer in found):
            raise FabricError(
                f"layers {list(found)} for the {len(path) - 1} links from {path[0]!r} to {path[-1]!r}",
                hint=f"answer one layer below {self.buffers.layers} for each link",
            )
        return found

    def add_branch(self, route: Route, path: tuple[Hashable, ...], feeder: Route, hop: int) -> None:
        """Give a segment of a multicast, which begins before `hop` of another, the layers that its whole `path` has.

        Raises FabricError where it begins within a series of links, and where it could deadlock with routes asked for
        before.
        """
        before = feeder.links[hop - 1]
        if self.sole_feeder.get(feeder.links[hop]) == before:
            raise FabricError(
                f"a multicast that forks at {route.path[0]!r}, within a series of links",
                hint="take other paths, or do not declare the series with add_series",
            )
        if route not in self._layers:
            self._layers[route] = self.layers_along(path)[-route.hops :]
        forked = before, self._layers[feeder][hop - 1]
        self._dependencies.add_route([forked, *self._channels(route)])

    def _channels(self, route: Route) -> list[Channel]:
        """The buffers that a route's flits wait in: one for each link, or series of links."""
        layers, onward = self._layers[route], (*route.links[1:], -1)
        return [
            (link, layer)
            for link, layer, after in zip(route.links, layers, onward, strict=True)
            if self.sole_feeder.get(after) != link
        ]

    def _link_name(self, link: int) -> str:
        src, dst = self.link_ends[link]
        return f"{self.names[src]!r} to {self.names[dst]!r}"

    def add_channels(
        self,
        node: Hashable,
        channels: int,
        burst_ns: float,
        switch_penalty_ns: float = 0.0,
        *,
        separate: bool = False,
        granule_bytes: int = 0,
        open_ns: float = 0.0,
        drain_bytes: int = 0,
    ) -> None:
        """Memory channels behind `node`. A flit is one burst; its address picks the channel. A transfer rotates over
        all channels or, where they are `separate`, stays on one. A burst that is not full takes whole granules, and at
        least `open_ns`. With `drain_bytes` the penalty is paid once for so many bytes written between reads.
        """
        self._may_change()
        index = self.node_index(node)
        if index in self.channel_specs:
            raise FabricError(
                f"node {node!r} has memory channels already",
                hint="add all channels of a node at once",
            )
        if not is_power_of_two(channels) or not is_power_of_two(self.flit_bytes):
            raise FabricError(
                f"{channels} channels and bursts of {self.flit_bytes} B at {node!r}",
                hint="make both powers of two, so that address bits name the channel",
            )
        if not 0 < burst_ns < MAX_TIME_NS or not 0 <= switch_penalty_ns < MAX_TIME_NS:
            raise FabricError(
                f"channels at {node!r} with bursts of {burst_ns} ns and a switch penalty of {switch_penalty_ns} ns",
                hint="give a burst time above 0 and a penalty of 0 or more",
            )
        granule_bytes = granule_bytes or self.flit_bytes
        if not is_power_of_two(granule_bytes) or granule_bytes > self.flit_bytes:
            raise FabricError(
                f"granules of {granule_bytes} B in bursts of {self.flit_bytes} B at {node!r}",
                hint="give a power of two up to the bytes of a burst",
            )
        if not 0 <= open_ns <= burst_ns or drain_bytes < 0:
            raise FabricError(
                f"channels at {node!r} that open a row in {open_ns} ns and drain {drain_bytes} B",
                hint=f"give 0 to {burst_ns} ns, the time of a burst, and 0 bytes or more",
            )
        burst_ns = max(on_grid(burst_ns), GRID_NS)
        self.channel_specs[index] = ChannelSpec(
            channels, self.flit_bytes, burst_ns, on_grid(switch_penalty_ns), separate, granule_bytes, on_grid(open_ns),
            drain_bytes,
        )  # fmt: skip

    def node_index(self, name: Hashable) -> int:
        try:
            return self._nodes[name]
        except KeyError:
            raise FabricError(f"the network has no node {name!r}", hint="add it with add_node") from None

    def link_index(self, src: Hashable, dst: Hashable) -> int:
        try:
            return self._links[self.node_index(src), self.node_index(dst)]
        except KeyError:
            raise FabricError(
                f"no link from {src!r} to {dst!r}",
                hint="add it with add_link, or take another path",
            ) from None

    def along(self, path: Sequence[Hashable]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Indices of a path's nodes and links."""
        try:
            nodes = [self._nodes[node] for node in path]
            return tuple(nodes), tuple([self._links[ends] for ends in pairwise(nodes)])
        except KeyError:
            for a, b in pairwise(path):
                self.link_index(a, b)  # says what there is not
            raise

    def route(self, path: Sequence[Hashable]) -> Route:
        """The path's links and times; found once, then looked up."""
        key = tuple(path)
        found = self._routes.get(key)
        if found is None:
            if len(key) < 2:
                raise FabricError(
                    f"a path of {len(key)} nodes",
                    hint="give at least a source and a destination",
                )
            found = self._routes[key] = Route(self, key)
        return found

    def counterparts(self, here: str, there: str) -> Counterparts:
        """Routes of the part whose nodes' names begin with `here` as the part `there` has them."""
        found = self._counterparts.get((here, there))
        if found is None:
            found = self._counterparts[here, there] = Counterparts(self, here, there)
        return found

    def segment(self, path: tuple[Hashable, ...], origin: Hashable) -> Route:
        """A part of a path that begins somewhere on the way of bytes from `origin`."""
        if path[0] == origin:
            return self.route(path)
        found = self._segments.get((origin, path))
        if found is None:
            found = self._segments[origin, path] = Route(self, path, origin)
        return found

    def put_to_use(self) -> dict[int, ChannelGroup]:
        """Called by a fabric: the network stays as it is from now on. Returns fresh channel state, by node."""
        self._in_use = True
        return {node: ChannelGroup(node, *spec) for node, spec in self.channel_specs.items()}

    @cached_property
    def typical_hop_ns(self) -> float:
        """How long a flit takes over a typical link and node, as a power of two; asked when it is in use."""
        times = sorted(occupy + tail for occupy, tail in zip(self.flit_ns, self.tail_ns, strict=True) if occupy)
        return 2.0 ** int(log2(max(times[(len(times) - 1) // 2], GRID_NS))) if times else 1.0

    def _may_change(self) -> None:
        if self._in_use:
            raise FabricError(
                "the network is in use by a fabric",
                hint="build all of it first, then put a Fabric on it",
            )
