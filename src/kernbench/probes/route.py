"""How a transfer went, node by node: when its first and last flit came and left, and which link held it up.

A case of many issuers is shown for the one that finished last. A leg without bytes is a request or an acknowledgement:
its first flit is its last, and no link holds it up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kernbench.probes.cases import Case
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.graph import TopologyGraph


@dataclass(frozen=True, slots=True)
class TracedHop:
    """A node on the path. `link_gbs` is the link it is left by; None at the end."""

    node: str
    first_arrival_ns: float
    first_departure_ns: float
    last_arrival_ns: float
    last_departure_ns: float
    link_gbs: float | None
    is_bottleneck: bool


@dataclass(frozen=True, slots=True)
class TracedLeg:
    """A stretch between two blocks that take whole messages."""

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


def trace_route(graph: TopologyGraph, case: Case) -> TracedRoute:
    """Run a case once more with its hops watched."""
    engine = GraphEngine(graph, trace_hops=True)
    handles = [engine.submit(request) for request in case.requests]
    engine.wait_all()
    traces = [engine.get_completion(handle)[1] for handle in handles]
    last = max(traces, key=lambda trace: float(trace["total_ns"]))
    legs = tuple(_leg(graph, leg) for leg in last["hops"])
    return TracedRoute(case.name, float(last["total_ns"]), tuple(last["path"]), legs)


def _leg(graph: TopologyGraph, leg: Mapping[str, Any]) -> TracedLeg:
    """One leg of a trace. The narrowest link is where its bytes queue; among equals the first."""
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
