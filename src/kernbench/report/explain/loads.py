"""How loaded the places and engines of a scope are: what limits a forecast once the first bottleneck is gone.

The load of a place is how long the bytes that passed it in the scope take there. Requests that no longer queue at one
place queue at the next most loaded place of their path instead; the stages of a composite that wait for the slowest
engine wait for the second slowest instead.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from kernbench.common.array_types import Floats
from kernbench.report.explain.path import PathScope, PathSegment, RunData
from kernbench.report.runs.access_times import channels_at_once
from kernbench.report.runs.parts import TILE, Ints

MEMORY_PORTS = ("hbm port", "sram port", "far link")
CHANNEL_LINKS = ("hbm port", "channel router")  # of which each channel has its own, where channels have routers


class Loads:
    """Loads of one scope of a run."""

    def __init__(self, run: RunData, scope: PathScope) -> None:
        self._run = run
        ops = run.ops
        inside = (ops.t_end > scope.begin_ns) & (ops.t_start < scope.end_ns)
        self._rows = np.flatnonzero(inside)
        own = inside if scope.launch < 0 else inside & (ops.launch == scope.launch)
        self._own_rows = np.flatnonzero(own)  # of the scope itself: those of others may end after it

    def queue_left(self, segment: PathSegment, links: Collection[str]) -> float:
        """The part of a queue, from 0 to 1, that stays if links of these classes take no time.

        It is the load of the most loaded place that is left on the path, over that of the most loaded one where the op
        queued. What is left is not longer than the load of others at that place.
        """
        ops, places = self._run.ops, self._run.places
        row = int(ops.row_of[segment.op])
        route = ops.route.of(row)
        others = [float(self._of_place[int(place)]) for place in route if places[int(place)].link_class not in links]
        waited = [int(place) for place in ops.wait_places.of(row)] or [segment.place]
        others += [self._load_at(place, route) for place in waited if places[place].link_class not in links]
        here = max(self._load_at(place, route) for place in waited)
        most, queued = max(others, default=0.0), float(ops.queue_ns[row])
        own = min(
            (int(ops.nbytes[row]) / places[int(place)].gbs for place in route if places[int(place)].gbs), default=0.0
        )
        if not here or not any(places[place].link_class in links for place in waited):
            return 1.0
        return min(1.0, most / here, max(0.0, most - own) / queued if queued else 1.0)

    def most(self, links: Collection[str]) -> float:
        """The load of the most loaded place of all whose class is not one of `links`; nothing ends sooner. Accesses to
        several memories are left out, since a route does not say how their bytes are divided.
        """
        places, graph = self._run.places, self._run.graph
        of_place = self._of_one_memory
        loads = [float(of_place[place.index]) for place in places if place.link_class not in links]
        memories: dict[str, float] = {}
        for place in places:  # reads and writes share the channels of a memory
            if place.link_class == "hbm port" and "hbm channel" not in links:
                for node in (place.src, place.dst):
                    if graph.nodes[node].kind == "hbm_ctrl":
                        memories[node] = memories.get(node, 0.0) + float(of_place[place.index]) * place.gbs
        for memory, nbytes in memories.items():
            spec = graph.cube_at(memory)
            loads.append(nbytes / (spec.hbm_channels_per_pe * spec.hbm_channel_peak_gbs))
        return max(loads, default=0.0)

    @cached_property
    def _of_one_memory(self) -> Floats:
        """By link: how long the bytes take of ops that access one memory, or none."""
        ops = self._run.ops
        is_port = np.array([place.link_class in MEMORY_PORTS for place in self._run.places], bool)
        row_of = np.repeat(np.arange(len(ops)), np.diff(ops.route.starts))
        ports = np.bincount(row_of, is_port[ops.route.values.astype(np.int64)], len(ops))
        return self._loads_of(self._own_rows[ports[self._own_rows] <= channels_at_once(self._run.graph)])

    def engine_left(self, segment: PathSegment, part: str) -> float:
        """The part of an engine's time, from 0 to 1, that stays if it takes no time: of a composite's op, what the next
        busiest engine of its PE needs.
        """
        ops = self._run.ops
        if not ops.name[int(ops.row_of[segment.op])].startswith(TILE):
            return 0.0
        pe = self._run.lanes[segment.lane].component.rpartition(".")[0]
        mine = self._engine(pe, part)
        others = [ns for (owner, name), ns in self._engines.items() if owner == pe and name != part]
        return min(1.0, max(others, default=0.0) / mine) if mine else 0.0

    def _engine(self, pe: str, part: str) -> float:
        return self._engines.get((pe, part), 0.0)

    @cached_property
    def _engines(self) -> dict[tuple[str, str], float]:
        """Busy time of tiles by PE and engine: of its busiest lane, without queueing."""
        ops, found = self._run.ops, dict[tuple[str, str], float]()
        tiles = [code for code, word in enumerate(ops.name.words) if word.startswith(TILE)]
        rows = self._rows[np.isin(ops.name.codes[self._rows], tiles)]
        busy = ops.t_end[rows] - ops.t_start[rows] - ops.queue_ns[rows]
        sums = np.bincount(ops.lane[rows], busy, len(self._run.lanes))
        for lane in np.flatnonzero(sums):
            component = self._run.lanes[int(lane)].component
            pe, _, part = component.rpartition(".")
            found[pe, part] = max(found.get((pe, part), 0.0), float(sums[lane]))
        return found

    @cached_property
    def _of_place(self) -> Floats:
        """By link: how long its bytes take."""
        return self._loads_of(self._rows)

    def _loads_of(self, rows: Ints) -> Floats:
        """By link: how long the bytes of some ops take."""
        ops = self._run.ops
        counts = np.diff(ops.route.starts)
        in_scope = np.zeros(len(ops), bool)
        in_scope[rows] = True
        links = ops.route.values[np.repeat(in_scope, counts)]
        moved = np.repeat(ops.nbytes[rows], counts[rows]) / self._channels_of(links, counts[rows])
        nbytes = np.bincount(links, moved, len(self._run.places))
        gbs = np.array([place.gbs or np.inf for place in self._run.places])
        loads: Floats = nbytes / gbs
        return loads

    def _channels_of(self, links: Ints, counts: Ints) -> Ints:
        """For each link of some routes, one after the other: among how many links of its route the bytes are divided.
        Where channels have routers, an access sends each channel's bytes over links of their own.
        """
        shares = np.ones(len(links), np.int64)
        if channels_at_once(self._run.graph) == 1:
            return shares
        route_of = np.repeat(np.arange(len(counts)), counts)
        for cls in CHANNEL_LINKS:
            chosen = np.array([place.link_class == cls for place in self._run.places], bool)[links]
            shares[chosen] = np.bincount(route_of[chosen], minlength=len(counts))[route_of[chosen]]
        return shares

    def _load_at(self, place: int, route: Sequence[int] | np.ndarray) -> float:
        """The load of a place: of a memory channel, that of its memory, over all its channels."""
        found = self._run.places[place]
        if found.kind == "link":
            return float(self._of_place[place])
        places = self._run.places
        channels = self._run.graph.cube_at(found.src).hbm_channels_per_pe
        nbytes = [
            self._of_place[int(link)] * places[int(link)].gbs
            for link in route
            if found.src in (places[int(link)].src, places[int(link)].dst)
        ]
        return float(sum(nbytes) / (channels * found.gbs)) if found.gbs else 0.0
