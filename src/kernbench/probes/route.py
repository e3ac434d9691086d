"""The trace of a transfer, node by node: arrival and departure of its first and last flit, and its bottleneck link.

Of many issuers, the last to finish is shown. A leg is the part of a route between two blocks that store and forward. A
leg without bytes is a request or an acknowledgement: its first flit is its last, and it has no bottleneck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kernbench.probes.cases import ProbeCase
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.graph import TopologyGraph


@dataclass(frozen=True, slots=True)
class TracedHop:
    """A node on the path. `link_gbs` is the bandwidth of the outgoing link; None at the end."""

    node: str
    first_arrival_ns: float
    first_departure_ns: float
    last_arrival_ns: float
    last_departure_ns: float
    link_gbs: float | None
    is_bottleneck: bool


@dataclass(frozen=True, slots=True)
class TracedLeg:
    """The part of a route between two blocks that store and forward."""

    src: str
    dst: str
    nbytes: int
    start_ns: float
    end_ns: float
    hops: tuple[TracedHop, ...]


@dataclass(frozen=True, slots=True)
class TracedRoute:
    """One issuer's transfer."""

    name: str
    total_ns: float
    path: tuple[str, ...]
    legs: tuple[TracedLeg, ...]


def trace_route(graph: TopologyGraph, case: ProbeCase) -> TracedRoute:
    """Run a case again with hop tracing."""
    engine = GraphEngine(graph, trace_hops=True)
    handles = [engine.submit(request) for request in case.requests]
    engine.wait_all()
    traces = [engine.get_completion(handle)[1] for handle in handles]
    last = max(traces, key=lambda trace: float(trace["total_ns"]))
    legs = tuple(_leg(graph, leg) for leg in last["hops"])
    return TracedRoute(case.name, float(last["total_ns"]), tuple(last["path"]), legs)


def _leg(graph: TopologyGraph, leg: Mapping[str, Any]) -> TracedLeg:
    """One leg of a trace. The bottleneck is the narrowest link; of equals, the first."""
    nodes: Sequence[Mapping[str, Any]] = leg["nodes"]
    names = [str(node["node"]) for node in nodes]
    links = [graph.edge(a, b).bw_gbs for a, b in pairwise(names)]
    speeds = [gbs for gbs in links if gbs is not None]
    bottleneck = links.index(min(speeds)) if speeds and leg["nbytes"] else -1
    hops = tuple(
        TracedHop(
            node=names[place],
            first_arrival_ns=float(node["first_arrival_ns"]),
            first_departure_ns=float(node["first_departure_ns"]),
            last_arrival_ns=float(node["last_arrival_ns"]),
            last_departure_ns=float(node["last_departure_ns"]),
            link_gbs=links[place] if place < len(links) else None,
            is_bottleneck=place == bottleneck,
        )
        for place, node in enumerate(nodes)
    )
    return TracedLeg(
        str(leg["from"]), str(leg["to"]), int(leg["nbytes"]), float(leg["start_ns"]), float(leg["end_ns"]), hops
    )
