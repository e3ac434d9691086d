"""The traffic that the fabric's speed is judged by: one transfer that is alone, up to hotspots that saturate a memory.

A workload is a network and a list of streams. A stream sends its messages one after the other, each when the one before
it is done, so a stream of one is a plain transfer. Messages into memory are writes that its channels must take.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from kernbench.sim_engine.fabric import Network

KIB = 1 << 10
LINK_GBS, WIRE_NS, ROUTER_NS = 256.0, 0.25, 2.0
CHANNELS, BURST_NS = 8, 8.0

Path = tuple[str, ...]


@dataclass(frozen=True)
class Stream:
    """`count` messages of `nbytes` along `path`: the first at `at_ns`, every other one when that before it is done."""

    path: Path
    nbytes: int
    count: int = 1
    at_ns: float = 0.0
    write_to: int | None = None


@dataclass(frozen=True)
class Workload:
    name: str
    network: Network
    streams: list[Stream]

    @property
    def by_processes(self) -> bool:
        """Whether messages depend on one another, so that SimPy processes must drive them."""
        return any(stream.count > 1 for stream in self.streams)

    @property
    def flit_hops(self) -> int:
        flit_bytes = self.network.flit_bytes
        return sum(s.count * -(-s.nbytes // flit_bytes) * (len(s.path) - 1) for s in self.streams)


def alone(nbytes: int = 1024 * KIB, hops: int = 12) -> Workload:
    network = Network()
    path = tuple(f"n{i}" for i in range(hops + 1))
    for node in path:
        network.add_node(node, ROUTER_NS)
    for a, b in pairwise(path):
        network.add_link(a, b, LINK_GBS, WIRE_NS)
    return Workload(f"{nbytes // KIB} KiB over {hops} hops, alone", network, [Stream(path, nbytes)])


def disjoint(pairs: int = 128, nbytes: int = 64 * KIB) -> Workload:
    network = Network()
    streams = []
    for i in range(pairs):
        path = (f"pe{i}", f"r{i}", f"end{i}")
        for node in path:
            network.add_node(node, ROUTER_NS)
        for a, b in pairwise(path):
            network.add_link(a, b, LINK_GBS, WIRE_NS)
        streams.append(Stream(path, nbytes))
    return Workload(f"{pairs} x {nbytes // KIB} KiB, disjoint", network, streams)


def row_of_memories(width: int) -> Network:
    """A row of routers, each with a PE and a memory of its own."""
    network = Network()
    for i in range(width):
        network.add_node(f"pe{i}")
        network.add_node(f"r{i}", ROUTER_NS)
        network.add_node(f"hbm{i}")
        network.add_channels(f"hbm{i}", CHANNELS, BURST_NS)
    for i in range(width):
        network.add_link(f"pe{i}", f"r{i}", LINK_GBS)
        network.add_link(f"r{i}", f"hbm{i}", LINK_GBS)
    for i in range(width - 1):
        network.add_link(f"r{i}", f"r{i + 1}", LINK_GBS, WIRE_NS)
        network.add_link(f"r{i + 1}", f"r{i}", LINK_GBS, WIRE_NS)
    return network


def along_row(src: int, dst: int) -> Path:
    step = 1 if dst >= src else -1
    return (f"pe{src}", *(f"r{i}" for i in range(src, dst + step, step)), f"hbm{dst}")


def hotspot(senders: int = 8, nbytes: int = 16 * KIB) -> Workload:
    """Every PE of a row writes into the same memory at once."""
    target = senders // 2
    streams = [Stream(along_row(i, target), nbytes, write_to=i * nbytes) for i in range(senders)]
    name = f"{senders} x {nbytes // KIB} KiB to one HBM node"
    return Workload(name, row_of_memories(senders), streams)


def dependent_streams(width: int = 8, own: int = 1000, shared: int = 125) -> Workload:
    """Every PE writes to its own memory, message by message, and with a second stream to a memory that all share."""
    nbytes = 4 * KIB
    streams = [Stream(along_row(i, i), nbytes, own, write_to=i * nbytes) for i in range(width)]
    streams += [Stream(along_row(i, width // 2), nbytes, shared, write_to=i * nbytes) for i in range(width)]
    return Workload(f"{width} streams of {own} x 4 KiB, and a hotspot", row_of_memories(width), streams)


def random_mesh(width: int = 6, messages: int = 2000, over_ns: float = 4000.0) -> Workload:
    """Random pairs on a mesh, routed along x first, that set out at random times."""
    rng = random.Random(6)
    network = Network()
    tiles = [(x, y) for y in range(width) for x in range(width)]
    for x, y in tiles:
        network.add_node(f"pe{x}.{y}")
        network.add_node(f"r{x}.{y}", ROUTER_NS)
    for x, y in tiles:
        network.add_link(f"pe{x}.{y}", f"r{x}.{y}", LINK_GBS)
        network.add_link(f"r{x}.{y}", f"pe{x}.{y}", LINK_GBS)
        for u, v in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            if (u, v) in tiles:
                network.add_link(f"r{x}.{y}", f"r{u}.{v}", LINK_GBS, WIRE_NS)
    streams = []
    for _ in range(messages):
        (x, y), (u, v) = rng.sample(tiles, 2)
        streams.append(Stream(x_first(x, y, u, v), 4 * KIB, at_ns=rng.randrange(int(over_ns * 1024)) / 1024))
    return Workload(f"{messages} x 4 KiB random on a {width} x {width} mesh", network, streams)


def x_first(x: int, y: int, u: int, v: int) -> Path:
    path = [f"pe{x}.{y}", f"r{x}.{y}"]
    while x != u:
        x += 1 if u > x else -1
        path.append(f"r{x}.{y}")
    while y != v:
        y += 1 if v > y else -1
        path.append(f"r{x}.{y}")
    return (*path, f"pe{u}.{v}")


FULL: list[Callable[[], Workload]] = [
    alone,
    hotspot,
    disjoint,
    random_mesh,
    dependent_streams,
    lambda: hotspot(nbytes=256 * KIB),
]

QUICK: list[Callable[[], Workload]] = [
    lambda: alone(16 * KIB, 4),
    lambda: hotspot(4, 2 * KIB),
    lambda: disjoint(4, 8 * KIB),
    lambda: random_mesh(3, 40, 200.0),
    lambda: dependent_streams(3, 10, 5),
    lambda: hotspot(4, 8 * KIB),
]
