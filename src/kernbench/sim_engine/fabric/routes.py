"""Paths through a network, looked up once: their links with their times, for whole flits and for the last one.

What a flit meets on its way is a chain of traversals, one for each link: how long it occupies the link, and when it is
ready behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric.occupancy import LinkOccupancy, LinkRate

CONTROL = -1  # in place of spare granules: of requests, acknowledgements and credits, which access no memory channel
FINAL, IN_SERIES = 1, 2  # what is special about a traversal: bits of `LinkTraversal.special`


class LinkTables(Protocol):
    """What a route asks of its network (`fabric/model.py::Network`): lists are by link, or by node."""

    flit_bytes: int
    has_delay_rules: bool
    has_framing: bool
    rate: list[LinkRate]
    tail_ns: list[float]
    bw_gbs: list[float | None]
    sole_feeder: dict[int, int]

    @property
    def delay_rule(self) -> Sequence[object]: ...
    @property
    def framing(self) -> Sequence[object]: ...
    def along(self, path: Sequence[Hashable], /) -> tuple[tuple[int, ...], tuple[int, ...]]: ...
    def node_index(self, name: Hashable, /) -> int: ...
    def occupancy_of(self, nbytes: int, /) -> LinkOccupancy: ...


class LinkTraversal(NamedTuple):
    """A flit passes one link, and the traversal after that. A link below 0 stands for some other event.

    `special` says in one look what is rare: FINAL for the last flit of a transfer, IN_SERIES where the link after this
    one takes flits from this one only (`Network.add_series`).
    """

    link: int
    occupy_ns: float
    tail_ns: float  # from leaving the link to being ready in the node it leads to
    onward: LinkTraversal | None
    special: int

    @property
    def final(self) -> bool:
        """Whether it is that of the last flit of a transfer."""
        return self.special & FINAL != 0


class LastFlit:
    """The last flit of transfers along one route, by its size, and by what its burst lacks at a memory. Compared by
    identity: what is done is tallied by it.
    """

    __slots__ = ("_occupancy", "kind_bytes", "nbytes", "route", "spare", "templates", "traversals")

    def __init__(
        self, route: Route, nbytes: int, kind_bytes: int, spare: int, traversals: tuple[LinkTraversal, ...]
    ) -> None:
        self.route = route
        self.nbytes = nbytes
        self.kind_bytes = kind_bytes  # for which `Route.last_flit` answers this one: its own, or those of the transfer
        self.spare = spare  # granules
        self.traversals = traversals
        # Kept here for trains, by flits, whether it is a read and, with finite buffers, whether it is a write.
        self.templates: dict[tuple[int, ...], object] = {}
        self._occupancy: tuple[list[float], list[float]] | None = None

    @property
    def occupancy(self) -> tuple[list[float], list[float]]:
        """How long each link is occupied: by a whole flit, and by the last one. Asked again for every launch."""
        if self._occupancy is None:
            whole_ns = [traversal.occupy_ns for traversal in self.route.traversals]
            self._occupancy = whole_ns, [traversal.occupy_ns for traversal in self.traversals]
        return self._occupancy

    def counterpart(self, route: Route) -> LastFlit:
        """The same on a route of equal links, which takes as long."""
        found = LastFlit(route, self.nbytes, self.kind_bytes, self.spare, self.traversals)
        found._occupancy = self.occupancy
        return found


class Route:
    """A path, looked up once: its links with their times. `nodes` are indices."""

    DERIVED = ("_last_flits", "traversals", "heads", "hops", "links", "origin", "path")  # made once

    __slots__ = (
        "_last_flits",
        "control_ns",
        "control_only_link",
        "has_delay_rule",
        "has_framing",
        "heads",
        "hops",
        "links",
        "loops",
        "nodes",
        "origin",
        "path",
        "traversals",
    )

    def __init__(self, network: LinkTables, path: tuple[Hashable, ...], origin: Hashable = None) -> None:
        self.path = path
        self.nodes, self.links = network.along(path)
        self.origin = self.nodes[0] if origin is None else network.node_index(origin)  # where its bytes come from
        self.hops = len(self.links)
        self.loops = len(dict.fromkeys(self.links)) < self.hops  # passes a link twice
        rules = network.delay_rule
        self.has_delay_rule = network.has_delay_rules and any(rules[node] is not None for node in self.nodes[1:])
        self.has_framing = network.has_framing and any(network.framing[link] is not None for link in self.links)
        # A list is faster than a generator here: a machine of 4,096 PEs has tens of thousands of routes.
        self.control_ns = sum([network.tail_ns[link] for link in self.links])
        rates = [network.bw_gbs[link] for link in self.links]
        self.control_only_link = self.links[rates.index(None)] if None in rates else None
        self.traversals: tuple[
            LinkTraversal, ...
        ] = ()  # made for the first bytes: most routes carry control messages only
        self.heads: tuple[int, ...] = ()  # by hop: where the series begins that it is part of; itself, if of none
        self._last_flits: dict[tuple[int, int], LastFlit] = {}

    def last_flit(self, network: LinkTables, wire_bytes: int, spare: int = 0) -> LastFlit:
        """For transfers of `wire_bytes` whose last burst lacks `spare` granules. Without framing on the route, all with
        equal last flits are of one kind.
        """
        kind_bytes = wire_bytes if self.has_framing else (wire_bytes - 1) % network.flit_bytes + 1
        last_flit = self._last_flits.get((kind_bytes, spare))
        if last_flit is None:
            if not self.traversals:
                self.heads = self._heads(network)
                self.traversals = self._traversals(network, network.occupancy_of(network.flit_bytes), final=False)
            nbytes = (wire_bytes - 1) % network.flit_bytes + 1
            occupancy = LinkOccupancy(nbytes, wire_bytes) if self.has_framing else network.occupancy_of(nbytes)
            traversals = self._traversals(network, occupancy, final=True)
            last_flit = self._last_flits[kind_bytes, spare] = LastFlit(self, nbytes, kind_bytes, spare, traversals)
        return last_flit

    def _traversals(self, network: LinkTables, occupancy: LinkOccupancy, *, final: bool) -> tuple[LinkTraversal, ...]:
        traversals: list[LinkTraversal] = []
        onward, heads, rate, tail_ns, new = None, self.heads, network.rate, network.tail_ns, tuple.__new__
        for hop in range(self.hops - 1, -1, -1):
            link = self.links[hop]
            special = FINAL * final | IN_SERIES * (heads[hop + 1] <= hop)
            # as LinkTraversal(...), in half the time: a replay on other SIPs makes those of all its routes
            onward = new(LinkTraversal, (link, occupancy[rate[link]], tail_ns[link], onward, special))
            traversals.append(onward)
        traversals.reverse()
        return tuple(traversals)

    def _heads(self, network: LinkTables) -> tuple[int, ...]:
        heads: list[int] = []
        before: int | None = None
        for hop, link in enumerate(self.links):
            feeder = network.sole_feeder.get(link)
            if feeder is not None and feeder != before:
                a, b = self.path[hop : hop + 2]
                raise FabricError(
                    f"bytes from {self.path[0]!r} to {self.path[-1]!r} would enter the link from {a!r} to {b!r}, which "
                    f"is in series behind another",
                    hint="take another path, or do not declare the series with add_series",
                )
            heads.append(hop if feeder is None else heads[-1])
            before = link
        return (*heads, self.hops)


class WholeNetwork(LinkTables, Protocol):
    """What counterparts ask of a network."""

    names: list[Hashable]
    link_ends: list[tuple[int, int]]

    def link_index(self, src: Hashable, dst: Hashable, /) -> int: ...
    def route(self, path: Sequence[Hashable], /) -> Route: ...


class _Counterpart(Route):
    """A route, with nodes and links of its own."""

    __slots__ = ("_names",)

    def __init__(
        self, here: Route, names: list[Hashable], nodes: tuple[int, ...], links: tuple[int, ...], origin: int
    ) -> None:
        self._names = names
        self.nodes, self.links, self.origin, self._last_flits = nodes, links, origin, {}
        self.hops, self.loops, self.heads, self.traversals = here.hops, here.loops, here.heads, here.traversals
        self.has_delay_rule, self.has_framing = here.has_delay_rule, here.has_framing
        self.control_ns, self.control_only_link = here.control_ns, here.control_only_link

    @property
    def path(self) -> tuple[Hashable, ...]:  # type: ignore[override]  # seldom asked for, and thousands are made
        return tuple([self._names[node] for node in self.nodes])


class _There(dict[int, int]):
    """From indices in the first part to those in the other one, found as they are asked for."""

    def __init__(self, find: Callable[[int], int]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, here: int) -> int:
        self[here] = there = self._find(here)
        return there


class Counterparts:
    """Routes of one part of a network, as another part has them that is built alike: to count what was moved there.
    Names of nodes begin with `here` in the one, with `there` in the other, and are the same from there on.

    They have nodes and links of their own. Their traversals are those of the first part, whose times are the same, and
    whose links are not theirs: no transfer may be sent along them.
    """

    __slots__ = ("_cut", "_links", "_network", "_nodes", "_routes", "_there")

    def __init__(self, network: WholeNetwork, here: str, there: str) -> None:
        self._network, self._cut, self._there = network, len(here), there
        self._nodes = _There(self._node)
        self._links = _There(self._link)
        self._routes: dict[Route, Route] = {}

    def last_flit(self, last: LastFlit) -> LastFlit:
        """What `Route.last_flit` answers there, where it answers `last` in the first part."""
        here = last.route
        there = self._routes.get(here)
        if there is None:
            there = self._routes[here] = self._route(here)
        if there is here:
            return last
        kind = last.kind_bytes, last.spare
        found = there._last_flits.get(kind)
        if found is None:
            found = there._last_flits[kind] = last.counterpart(there)
        return found

    def _route(self, here: Route) -> Route:
        nodes = tuple(map(self._nodes.__getitem__, here.nodes))
        if nodes == here.nodes:
            return here
        links = tuple(map(self._links.__getitem__, here.links))
        return _Counterpart(here, self._network.names, nodes, links, self._nodes[here.origin])

    def _node(self, node: int) -> int:
        return self._network.node_index(self._name_of(node))

    def _link(self, link: int) -> int:
        src, dst = self._network.link_ends[link]
        return self._network.link_index(self._name_of(src), self._name_of(dst))

    def _name_of(self, node: int) -> str:
        return self._there + str(self._network.names[node])[self._cut :]
