"""A network of your own: a 6 x 6 mesh, dimension-order routes, traffic from a JSON file.

No word of SIPs or cubes: the fabric takes nodes that delay, links that serialise, and paths. Every router has a network
interface with an injection and an ejection link of their own rate, slower than the mesh. Each row says when a transfer
was done, and how much of that it waited for others.

    python examples/plain_mesh.py [trace.json]        prints examples/expected/plain_mesh.txt
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kernbench.sim_engine.fabric import Fabric, Network

SIDE = 6
ROUTER_NS, WIRE_NS = 2.0, 0.25
MESH_GBS, INJECT_GBS, EJECT_GBS = 64.0, 32.0, 48.0
TRACE = Path(__file__).parent / "data" / "mesh_trace.json"

Node = tuple[str, int, int]


def build_mesh() -> Network:
    """Routers ("r", x, y), each with an interface ("ni", x, y)."""
    network = Network(flit_bytes=64)
    places = [(x, y) for y in range(SIDE) for x in range(SIDE)]
    for x, y in places:
        network.add_node(("r", x, y), ROUTER_NS)
        network.add_node(("ni", x, y))
    for x, y in places:
        network.add_link(("ni", x, y), ("r", x, y), INJECT_GBS)
        network.add_link(("r", x, y), ("ni", x, y), EJECT_GBS)
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            if 0 <= x + dx < SIDE and 0 <= y + dy < SIDE:
                network.add_link(("r", x, y), ("r", x + dx, y + dy), MESH_GBS, WIRE_NS)
    return network


def route(src: tuple[int, int], dst: tuple[int, int]) -> list[Node]:
    """Along x first, then along y."""
    (x, y), (to_x, to_y) = src, dst
    path: list[Node] = [("ni", x, y), ("r", x, y)]
    while x != to_x:
        x += 1 if to_x > x else -1
        path.append(("r", x, y))
    while y != to_y:
        y += 1 if to_y > y else -1
        path.append(("r", x, y))
    return [*path, ("ni", x, y)]


def run(network: Network, trace: list[dict[str, Any]]) -> list[float]:
    """When each transfer of `trace` is done, all of them on one fabric."""
    fabric = Fabric(network)
    transfers = [
        fabric.inject(
            route(tuple(item["src"]), tuple(item["dst"])),
            item["nbytes"],
            item["at_ns"],
            header_bytes=item.get("header_bytes", 0),
        )
        for item in trace
    ]
    fabric.run()
    return [transfer.done_ns for transfer in transfers]


def main(trace_file: Path) -> None:
    trace = json.loads(trace_file.read_text())["transfers"]
    network = build_mesh()
    together = run(network, trace)
    print("from    to      bytes  header     at ns   done ns  alone ns  waited ns")
    for item, done_ns in zip(trace, together, strict=True):
        (alone_ns,) = run(network, [item])
        src, dst = (f"({x},{y})" for x, y in (item["src"], item["dst"]))
        print(
            f"{src:<7} {dst:<7} {item['nbytes']:5d} {item.get('header_bytes', 0):7d} {item['at_ns']:9.2f}"
            f" {done_ns:9.2f} {alone_ns - item['at_ns']:9.2f} {done_ns - alone_ns:10.2f}"
        )
    print(f"all done at {max(together):.2f} ns")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TRACE)
