"""Finite buffers: the loop of the fabric, compiled and plain, against an obvious model of the same rules."""

from random import Random

import pytest
from tests.oracle.naive_buffers import NaiveBuffers

from kernbench.sim_engine.fabric import Buffers, Fabric, Network

INFINITY = float("inf")
RULES = [
    Buffers(2, 3.0),
    Buffers(4, 9.0, order="voq"),
    Buffers(2, 2.0, arbitration="round_robin"),
    Buffers(3, 1.5, ownership="packet"),
    Buffers(2, 4.0, channels=2, ownership="packet", packet_bytes=128),
    Buffers(4, 9.0, channels=2, ownership="packet", arbitration="round_robin"),
    Buffers(3, 5.0, channels=2, ownership="packet", order="voq", packet_bytes=256),
    Buffers(1, 0.0, order="voq", arbitration="round_robin"),
]


def mesh(side, buffers, random):
    """Routers with a port each, links of two rates; routes go along x, then along y, so that one layer is enough."""
    network = Network(flit_bytes=64)
    for x in range(side):
        for y in range(side):
            network.add_node(("r", x, y), 1.0)
            network.add_node(("p", x, y))
    for x in range(side):
        for y in range(side):
            network.add_link(("p", x, y), ("r", x, y), random.choice([16.0, 32.0]))
            network.add_link(("r", x, y), ("p", x, y), random.choice([16.0, 32.0]), 0.5)
            for nx, ny in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                if 0 <= nx < side and 0 <= ny < side:
                    network.add_link(("r", x, y), ("r", nx, ny), 32.0, 2.0)
    network.set_buffers(buffers)
    return network


def path(src, dst):
    (x, y), found = src, [("p", *src), ("r", *src)]
    while (x, y) != dst:
        x, y = (x + (1 if dst[0] > x else -1), y) if x != dst[0] else (x, y + (1 if dst[1] > y else -1))
        found.append(("r", x, y))
    return [*found, ("p", *dst)]


def traffic(side, count, random):
    places = [(x, y) for x in range(side) for y in range(side)]
    for _ in range(count):
        src, dst = random.sample(places, 2)
        yield (
            path(src, dst if random.random() < 0.6 else (0, 0) if src != (0, 0) else dst),
            random.randint(1, 900),
            float(random.randint(0, 60)),
        )


@pytest.mark.parametrize("compile_after", [0, INFINITY], ids=["compiled", "plain"])
@pytest.mark.parametrize("buffers", RULES, ids=str)
def test_every_transfer_ends_when_the_obvious_model_says(buffers, compile_after):
    for seed in range(3):
        random = Random(seed)
        network = mesh(3, buffers, random)
        fabric, naive = Fabric(network, compile_after=compile_after), NaiveBuffers(network)
        sent = list(traffic(3, 25, random))
        ours = [fabric.inject(*each) for each in sent]
        theirs = [naive.inject(*each) for each in sent]
        fabric.run()
        naive.run()
        assert [transfer.done_ns for transfer in ours] == [message.done_ns for message in theirs]


def rectangle(src, random):
    """Paths from a port to those of a rectangle of the mesh; routes along x, then along y, form a tree."""
    xs, ys = (sorted(random.sample(range(3), 2)) for _ in "xy")
    ends = [(x, y) for x in range(xs[0], xs[1] + 1) for y in range(ys[0], ys[1] + 1) if (x, y) != src]
    return [path(src, end) for end in random.sample(ends, len(ends))]


@pytest.mark.parametrize("compile_after", [0, INFINITY], ids=["compiled", "plain"])
@pytest.mark.parametrize(
    "buffers", [rules for rules in RULES if rules.ownership == "flit" or rules.order == "fifo"], ids=str
)
def test_multicasts_among_other_traffic_end_when_the_obvious_model_says(buffers, compile_after):
    for seed in range(4):
        random = Random(seed)
        network = mesh(3, buffers, random)
        fabric, naive = Fabric(network, compile_after=compile_after), NaiveBuffers(network)
        ours, theirs = [], []
        for each in traffic(3, 14, random):
            ours.append(fabric.inject(*each))
            theirs.append(naive.inject(*each))
            paths, at_ns = rectangle((random.randrange(3), random.randrange(3)), random), float(random.randint(0, 60))
            fits = buffers.ownership == "flit" or buffers.packet_bytes
            size = each[1] if fits else min(each[1], 64 * buffers.slots)
            ours += fabric.multicast(paths, size, at_ns)
            theirs += naive.multicast(paths, size, at_ns)
        fabric.run()
        naive.run()
        assert [transfer.done_ns for transfer in ours] == [message.done_ns for message in theirs]
