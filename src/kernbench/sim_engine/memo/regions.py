"""Key: cubes, SIPs and groups of SIPs as regions of a machine's network, with their links and memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from kernbench.common.ids import CubeId, PeKey, Place, SipId
from kernbench.sim_engine.fabric import Network
from kernbench.sim_engine.machine import Machine
from kernbench.topology.graph import TopologyGraph


class Region(NamedTuple):
    """A cube, or with `cube` None a whole SIP."""

    sip: int
    cube: int | None

    @property
    def name(self) -> str:
        return str(SipId(self.sip) if self.cube is None else CubeId(self.sip, self.cube))

    def holds(self, sip: int, cube: int) -> bool:
        return sip == self.sip and self.cube in (None, cube)

    def holds_path(self, places: Sequence[Place]) -> bool:
        return all(self.holds(place.sip, place.cube) for place in places)

    def moved(self, key: PeKey) -> PeKey:
        """A PE of a region that is alike, here."""
        return self.sip, key[1] if self.cube is None else self.cube, key[2]

    def relative(self, key: PeKey) -> tuple[int, ...]:
        """A PE as regions that are alike have it."""
        return key[1:] if self.cube is None else key[2:]


class SipGroupRegion(NamedTuple):
    """Several SIPs, and the links between them. Its recordings serve only itself, so names are not translated."""

    sips: tuple[int, ...]

    @property
    def cube(self) -> None:
        return None

    @property
    def name(self) -> str:
        return ""

    def holds(self, sip: int, cube: int) -> bool:
        return sip in self.sips

    def holds_path(self, places: Sequence[Place]) -> bool:
        """Of what belongs to no SIP, the links to one of these."""
        inside = [place.sip in self.sips for place in places]
        is_outside = any(place.sip >= 0 and not here for place, here in zip(places, inside, strict=True))
        return not is_outside and all(one or other for one, other in pairwise(inside))

    def moved(self, key: PeKey) -> PeKey:
        return key

    def relative(self, key: PeKey) -> tuple[int, ...]:
        return key


AnyRegion = Region | SipGroupRegion


@dataclass(eq=False)
class RegionParts:
    """Links of a region, and its nodes that have memory channels, in order of index. All cubes of a machine
    without types of cubes are alike, and so are its SIPs: in their blocks, in their links and the order of these, in
    their channels.
    """

    links: list[int] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)


@lru_cache(maxsize=4)  # networks of our own blocks, which all engines on a machine share and `wiring.py` keeps, too
def regions_of(graph: TopologyGraph, network: Network) -> dict[Region, RegionParts]:
    """The cubes and SIPs of a machine: links whose ends are both in one, and its memories."""
    nodes = [graph.node(str(name)) for name in network.names]
    found: dict[Region, RegionParts] = {}
    for at, node in enumerate(nodes):
        for region in _regions_with(node.place):
            parts = found.setdefault(region, RegionParts())
            if at in network.channel_specs:
                parts.memories.append(at)
    for link, (src, dst) in enumerate(network.link_ends):
        if network.bw_gbs[link] is None:
            continue
        there = _regions_with(nodes[dst].place)
        for region in _regions_with(nodes[src].place):
            if region in there:
                found[region].links.append(link)
    return found


def sip_group_parts(machine: Machine, sips: Sequence[RegionParts], sip_group: SipGroupRegion) -> RegionParts:
    """Those of its SIPs, and the links between them and what belongs to no SIP."""
    network, node_of = machine.fabric.network, machine.graph.node
    found = RegionParts([link for sip in sips for link in sip.links], [node for sip in sips for node in sip.memories])
    place_of = [node_of(str(name)).place.sip for name in network.names]
    for link, (src, dst) in enumerate(network.link_ends):
        ends = sorted((place_of[src], place_of[dst]))
        if network.bw_gbs[link] is not None and ends[0] != ends[1] and ends[0] in (-1, *sip_group.sips):
            found.links += [link] if ends[1] in sip_group.sips else []
    return found


def _regions_with(place: Place) -> list[Region]:
    """The SIP and the cube that a node is in."""
    found = [Region(place.sip, None)] if place.sip >= 0 else []
    return [*found, Region(place.sip, place.cube)] if place.cube >= 0 else found
