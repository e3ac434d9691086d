"""Reads on a 4 x 4 torus whose rings turn one way only: request, service, response.

A request is a small packet of its own. When it has arrived, the memory there serves it, one request at a time, and the
response carries the bytes the rest of the way around the rings, because no link leads back. Each step starts the next
through `on_done`. The trace (JSON) says who reads how much from whom, and when.

    python examples/unidirectional_torus.py [trace.json]        prints examples/expected/unidirectional_torus.txt
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from kernbench.sim_engine.fabric import Fabric, Network, Transfer

SIDE = 4
ROUTER_NS, WIRE_NS, SERVICE_NS = 1.5, 0.5, 30.0
RING_GBS, PORT_GBS = 64.0, 32.0
REQUEST_BYTES = 16
TRACE = Path(__file__).parent / "data" / "torus_trace.json"

Node = tuple[str, int, int]


@dataclass
class Read:
    """One line of the trace, and what became of it."""

    reader: tuple[int, int]
    memory: tuple[int, int]
    nbytes: int
    at_ns: float
    asked_ns: float = 0.0  # the request is there
    served_ns: float = 0.0  # the memory has it ready
    done_ns: float = 0.0  # the last byte is back


def build_torus() -> Network:
    """Routers ("r", x, y) in rings along +x and +y; ports ("p", x, y) inject and eject."""
    network = Network(flit_bytes=64)
    places = [(x, y) for y in range(SIDE) for x in range(SIDE)]
    for x, y in places:
        network.add_node(("r", x, y), ROUTER_NS)
        network.add_node(("p", x, y))
    for x, y in places:
        network.add_link(("p", x, y), ("r", x, y), PORT_GBS)
        network.add_link(("r", x, y), ("p", x, y), PORT_GBS)
        network.add_link(("r", x, y), ("r", (x + 1) % SIDE, y), RING_GBS, WIRE_NS)
        network.add_link(("r", x, y), ("r", x, (y + 1) % SIDE), RING_GBS, WIRE_NS)
    return network


def route(src: tuple[int, int], dst: tuple[int, int]) -> list[Node]:
    """Around the x ring, then around the y ring."""
    x, y = src
    path: list[Node] = [("p", x, y), ("r", x, y)]
    while x != dst[0]:
        x = (x + 1) % SIDE
        path.append(("r", x, y))
    while y != dst[1]:
        y = (y + 1) % SIDE
        path.append(("r", x, y))
    return [*path, ("p", x, y)]


def run(reads: list[Read]) -> None:
    """Carry out all reads on one fabric."""
    fabric = Fabric(build_torus())
    free_ns: dict[tuple[int, int], float] = {}  # of each memory

    def serve(request: Transfer) -> None:
        read = request.tag
        assert isinstance(read, Read)
        read.asked_ns = request.done_ns
        read.served_ns = max(request.done_ns, free_ns.get(read.memory, 0.0)) + SERVICE_NS
        free_ns[read.memory] = read.served_ns
        fabric.inject(route(read.memory, read.reader), read.nbytes, read.served_ns, on_done=finish, tag=read)

    def finish(response: Transfer) -> None:
        assert isinstance(response.tag, Read)
        response.tag.done_ns = response.done_ns

    for read in reads:
        path = route(read.reader, read.memory)
        fabric.inject(path, 0, read.at_ns, header_bytes=REQUEST_BYTES, on_done=serve, tag=read)
    fabric.run()


def main(trace_file: Path) -> None:
    items = json.loads(trace_file.read_text())["reads"]
    reads = [Read(tuple(i["reader"]), tuple(i["memory"]), i["nbytes"], i["at_ns"]) for i in items]
    run(reads)
    print("reader  memory  bytes     at ns  asked ns  served ns   done ns")
    for read in reads:
        reader, memory = (f"({x},{y})" for x, y in (read.reader, read.memory))
        times = f"{read.at_ns:9.2f} {read.asked_ns:9.2f} {read.served_ns:10.2f} {read.done_ns:9.2f}"
        print(f"{reader:<7} {memory:<7} {read.nbytes:5d} {times}")
    print(f"all done at {max(read.done_ns for read in reads):.2f} ns")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TRACE)
