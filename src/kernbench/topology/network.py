"""A plain network, compiled: tiles on a grid, and what every network on chip has at each of them.

At tile (x, y) of a network on chip `noc`: `noc.in.x.y` injects, `noc.router.x.y` routes, `noc.out.x.y` ejects;
`noc.ask.x.y` passes requests of reads on, unless they are packets, and `noc.serve.x.y` is where one is served. Links
are numbered by tile, row by row, which decides ties (`sim_engine.fabric`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from kernbench.common.errors import Fault, RoutingError, TopologyError
from kernbench.common.ids import Place
from kernbench.topology.graph import Edge, EdgeKind, Node, TopologyGraph
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_fabric import BuffersSpec
from kernbench.topology.spec_network import NetworkDescription, NetworkSpec, NocSpec, RingDirection

TilePosition = tuple[int, int]


class OneWayLink(NamedTuple):
    """One direction of a link; without bandwidth it carries requests only."""

    src: str
    dst: str
    bw_gbs: float | None
    propagation_ns: float


class NetworkTopology(TopologyGraph):
    """What `load_topology` makes of a description with the key `network`."""

    def __init__(self, description: NetworkDescription) -> None:
        network = description.network
        tiles = [(x, y) for y in range(network.grid.h) for x in range(network.grid.w)]
        nodes: dict[str, Node] = {}
        for noc in network.nocs:
            for tile in tiles:
                for kind in ("router", "in", "out", "ask", "serve"):
                    overhead_ns = _tile_value(network, tile, "service_ns") if kind == "serve" else 0.0
                    name = node_name(noc.name, kind, tile)
                    attrs = MappingProxyType({"overhead_ns": overhead_ns})
                    nodes[name] = Node(name, kind, "builtin.forwarding", attrs, float(tile[0]), float(tile[1]), Place())
        wires = tuple(wire for noc in network.nocs for tile in tiles for wire in _wires(network, noc, tile))
        wires += tuple(wire for noc in network.nocs for tile in tiles for wire in _request_wires(network, noc, tile))
        edges = tuple(Edge(src, dst, EdgeKind.ROUTER_MESH, bw_gbs, 0.0) for src, dst, bw_gbs, _ in wires)
        for name, value in (("nodes", MappingProxyType(nodes)), ("edges", edges), ("wires", wires)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "network", network)
        object.__setattr__(self, "_paths", {})
        object.__setattr__(self, "_requests", {})
        object.__setattr__(self, "buffers", description.fabric.buffers)

    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]
    wires: tuple[OneWayLink, ...]
    network: NetworkSpec
    buffers: BuffersSpec | None
    _paths: dict[tuple[str, TilePosition, TilePosition], tuple[str, ...]]
    _requests: dict[tuple[str, TilePosition, TilePosition], list[tuple[tuple[str, ...], int]]]

    @property
    def spec(self) -> MachineSpec:
        """A plain network has none: raises TopologyError."""
        what = f"'{self.network.name}' is a plain network: it has no SIPs and no PEs"
        hint = "`kernbench validate` runs recorded traffic on it; kernels need a machine with `system:` and `cube:`"
        raise TopologyError([Fault(what, "", "network", hint)])

    def path(self, noc: str, src: TilePosition, dst: TilePosition) -> tuple[str, ...]:
        """The way of data from one tile to another."""
        found = self._paths.get((noc, src, dst))
        if found is None:
            routers = tuple(node_name(noc, "router", tile) for tile in self._tiles(noc, src, dst))
            found = (node_name(noc, "in", src), *routers, node_name(noc, "out", dst))
            self._paths[noc, src, dst] = found
        return found

    def requests(self, noc: str, src: TilePosition, dst: TilePosition) -> list[tuple[tuple[str, ...], int]]:
        """What a request from one tile to another is: paths and bytes of transfers, one after the other."""
        found = self._requests.get((noc, src, dst))
        if found is None:
            served, nbytes = node_name(noc, "serve", dst), self.network.requests.nbytes
            if nbytes:
                found = [(self.path(noc, src, dst), nbytes), ((node_name(noc, "out", dst), served), 0)]
            else:
                asks = tuple(node_name(noc, "ask", tile) for tile in self._tiles(noc, src, dst))
                found = [((*asks, served), 0)]
            self._requests[noc, src, dst] = found
        return found

    def layers_of(self, path: tuple[object, ...]) -> tuple[int, ...]:
        """The layer of each link of a data path: 1 from where it has wrapped around a row or column, to the end of it.

        The way out belongs to the second dimension, and so does a path that has no hop in it.
        """
        noc = self._noc(str(path[0]).split(".")[0])
        tiles = [_tile_of(str(node)) for node in path[1:-1]]
        layers, layer, dimension = [0], 0, str(noc.first)
        for (ax, ay), (bx, by) in pairwise(tiles):
            along = "x" if ax != bx else "y"
            if along != dimension:
                layer, dimension = 0, along
            if _wraps(noc.x if along == "x" else noc.y, bx - ax + by - ay):
                layer = 1
            layers.append(layer)
        return (*layers, layer if dimension != noc.first else 0)

    @property
    def n_layers(self) -> int:
        return 2 if any(noc.wrap == "torus" for noc in self.network.nocs) else 1

    def _noc(self, name: str) -> NocSpec:
        for noc in self.network.nocs:
            if noc.name == name:
                return noc
        raise RoutingError(
            f"the machine has no network on chip '{name}'", hint=f"use {', '.join(n.name for n in self.network.nocs)}"
        )

    def _tiles(self, name: str, src: TilePosition, dst: TilePosition) -> list[TilePosition]:
        """Dimension order."""
        noc, grid = self._noc(name), self.network.grid
        tiles, (x, y) = [src], src
        for along in ("x", "y") if noc.first == "x" else ("y", "x"):
            size, here, there = (grid.w, x, dst[0]) if along == "x" else (grid.h, y, dst[1])
            step = _step(noc.x if along == "x" else noc.y, noc.wrap == "torus", here, there, size)
            while here != there:
                here = (here + step) % size
                x, y = (here, y) if along == "x" else (x, here)
                tiles.append((x, y))
        return tiles


def node_name(noc: str, kind: str, tile: TilePosition) -> str:
    return f"{noc}.{kind}.{tile[0]}.{tile[1]}"


def _tile_of(node: str) -> TilePosition:
    x, y = node.split(".")[-2:]
    return int(x), int(y)


def _step(direction: RingDirection, wraps: bool, here: int, there: int, size: int) -> int:
    if direction != "both":
        return 1 if direction == "forward" else -1
    ahead = (there - here) % size if wraps else there - here
    return 1 if (2 * ahead <= size if wraps else ahead > 0) else -1


def _wraps(direction: RingDirection, step: int) -> bool:
    """Whether a step leads from one end of a row or column to the other."""
    return step < 0 if direction == "forward" else step > 0 if direction == "backward" else abs(step) > 1


def _tile_value(network: NetworkSpec, tile: TilePosition, name: str) -> float:
    """What is given for tiles of this kind, or for all."""
    for kind in network.tiles:
        if tile in kind.at:
            return kind.injection_gbs if name == "injection_gbs" else kind.service_ns
    return network.links.injection.bw_gbs if name == "injection_gbs" else network.requests.service_ns


def _wires(network: NetworkSpec, noc: NocSpec, tile: TilePosition) -> Iterator[OneWayLink]:
    links, router = network.links, node_name(noc.name, "router", tile)
    injection_gbs = _tile_value(network, tile, "injection_gbs")
    ejection_gbs = next((kind.ejection_gbs for kind in network.tiles if tile in kind.at), None)
    yield OneWayLink(node_name(noc.name, "in", tile), router, injection_gbs, links.injection.propagation_ns)
    yield OneWayLink(
        router, node_name(noc.name, "out", tile), ejection_gbs or links.ejection.bw_gbs, links.ejection.propagation_ns
    )
    for neighbour in _neighbours(network, noc, tile):
        there = node_name(noc.name, "router", neighbour)
        yield OneWayLink(router, there, links.router.bw_gbs, links.router.propagation_ns)


def _request_wires(network: NetworkSpec, noc: NocSpec, tile: TilePosition) -> Iterator[OneWayLink]:
    here = node_name(noc.name, "ask", tile)
    yield OneWayLink(here, node_name(noc.name, "serve", tile), None, 0.0)
    yield OneWayLink(node_name(noc.name, "out", tile), node_name(noc.name, "serve", tile), None, 0.0)
    for neighbour in _neighbours(network, noc, tile):
        yield OneWayLink(here, node_name(noc.name, "ask", neighbour), None, network.requests.hop_ns)


def _neighbours(network: NetworkSpec, noc: NocSpec, tile: TilePosition) -> Iterator[TilePosition]:
    """Where links lead, in the directions that there are."""
    (x, y), grid = tile, network.grid
    for to in _along(noc.x, noc.wrap == "torus", x, grid.w):
        yield to, y
    for to in _along(noc.y, noc.wrap == "torus", y, grid.h):
        yield x, to


def _along(direction: RingDirection, wraps: bool, at: int, size: int) -> list[int]:
    steps = {"forward": (1,), "backward": (-1,), "both": (1, -1)}[direction]
    found = [(at + step) % size for step in steps if wraps or 0 <= at + step < size]
    return [to for to in dict.fromkeys(found) if to != at]
