"""Checks values of a plain network's description against each other."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.topology.faults import UnplacedFault
from kernbench.topology.spec_fabric import BuffersSpec
from kernbench.topology.spec_network import NetworkDescription


def check_network(description: NetworkDescription) -> list[UnplacedFault]:
    """Everything that does not fit together."""
    return list(_findings(description))


def _findings(description: NetworkDescription) -> Iterator[UnplacedFault]:
    network = description.network
    names = [noc.name for noc in network.nocs]
    if not names:
        yield UnplacedFault("network.nocs", "a network without a network on chip", "give at least one")
    for at, noc in enumerate(network.nocs):
        if noc.name in names[:at]:
            yield UnplacedFault(
                f"network.nocs[{at}].name", f"'{noc.name}' is there twice", "give every one a name of its own"
            )
        if noc.wrap == "mesh" and "both" not in (noc.x, noc.y) and (network.grid.w > 1 or network.grid.h > 1):
            yield UnplacedFault(
                f"network.nocs[{at}].wrap", "one-way rows and columns that do not wrap reach few tiles", "wrap: torus"
            )
        elif noc.wrap == "mesh" and (noc.x, noc.y) != ("both", "both"):
            yield UnplacedFault(
                f"network.nocs[{at}].wrap", "one-way links that do not wrap reach few tiles", "wrap: torus"
            )
    for at, kind in enumerate(network.tiles):
        for i, (x, y) in enumerate(kind.at):
            if x >= network.grid.w or y >= network.grid.h:
                size = f"{network.grid.w} x {network.grid.h}"
                yield UnplacedFault(
                    f"network.tiles[{at}].at[{i}]", f"tile ({x}, {y}) is not on the grid", f"it is {size}"
                )
    if network.cores is not None:
        columns, rows = network.cores.columns, network.cores.rows
        for key, places, end in (("columns", columns, network.grid.w), ("rows", rows, network.grid.h)):
            if not places or max(places) >= end or len(dict.fromkeys(places)) < len(places):
                what = f"cores in {key} {list(places)}"
                yield UnplacedFault(f"network.cores.{key}", what, f"give each once, from 0 to {end - 1}")
    if description.fabric.control_bytes:
        what, hint = "bytes of requests on a network without PEs", "give network.requests.nbytes"
        yield UnplacedFault("fabric.control_bytes", what, hint)
    if description.fabric.buffers is not None:
        yield from check_buffers(description.fabric.buffers, network.flit_bytes, "network.flit_bytes")


def check_buffers(buffers: BuffersSpec, flit_bytes: int, flit_key: str) -> Iterator[UnplacedFault]:
    """Options that exclude each other, and packets that hold no flit."""
    if buffers.packet_bytes and buffers.ownership == "flit":
        what = f"packets of {buffers.packet_bytes} bytes where flits own nothing"
        yield UnplacedFault("fabric.buffers.packet_bytes", what, "give `ownership: packet`, or no `packet_bytes`",
                      uses=("fabric.buffers.packet_bytes", "fabric.buffers.ownership"))  # fmt: skip
    elif 0 < buffers.packet_bytes < flit_bytes:
        what = f"packets of {buffers.packet_bytes} bytes hold no flit of {flit_bytes}"
        hint = f"give at least {flit_bytes}, or 0 for one packet per transfer"
        yield UnplacedFault("fabric.buffers.packet_bytes", what, hint, uses=("fabric.buffers.packet_bytes", flit_key))
    if buffers.ownership == "flit" and buffers.channels > 1:
        what = f"{buffers.channels} virtual channels per layer where flits own nothing"
        yield UnplacedFault("fabric.buffers.channels", what, "give `ownership: packet`, or one channel",
                      uses=("fabric.buffers.ownership",))  # fmt: skip
