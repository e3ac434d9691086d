"""Hop traces: when the first and the last flit of every leg of a request arrived at a node and left it.

A leg is what the fabric carries in one go, from one active block to the next. A control message is one flit without
size: it leaves a node its overhead after it arrived.
"""

from __future__ import annotations

from typing import Any

from kernbench.sim_engine.fabric import Fabric, HopTimes, Transfer


def leg_trace(fabric: Fabric, transfer: Transfer) -> dict[str, Any]:
    """One finished leg as plain data."""
    hops = fabric.hop_times(transfer) if transfer.times is not None else _control_hops(fabric, transfer)
    return {
        "from": transfer.route.path[0],
        "to": transfer.route.path[-1],
        "nbytes": transfer.nbytes,
        "start_ns": transfer.at_ns,
        "end_ns": transfer.done_ns,
        "nodes": [
            {
                "node": hop.node,
                "first_arrival_ns": hop.first_arrival_ns,
                "first_departure_ns": hop.first_departure_ns,
                "last_arrival_ns": hop.last_arrival_ns,
                "last_departure_ns": hop.last_departure_ns,
            }
            for hop in hops
        ],
    }


def _control_hops(fabric: Fabric, transfer: Transfer) -> list[HopTimes]:
    network, route = fabric.network, transfer.route
    now = transfer.at_ns
    rows = [HopTimes(route.path[0], now, now, now, now)]
    for link, node in zip(route.links, route.path[1:], strict=True):
        arrival = now + network.propagation_ns[link]
        now += network.tail_ns[link]
        rows.append(HopTimes(node, arrival, now, arrival, now))
    return rows
