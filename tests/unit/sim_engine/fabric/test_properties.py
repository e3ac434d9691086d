"""What must hold on any network: bytes are kept, nothing leaves before it came, no link idles while a flit waits."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.units import transfer_ns
from kernbench.sim_engine.fabric import Fabric, FlitHop, Network, Transfer

MIB, GIB = 1 << 20, 1 << 30
INJECTED = 1 << 30


@dataclass
class Plan:
    """A ring of nodes with some chords, and transfers along it."""

    nodes: int
    overheads: list[float]
    links: list[tuple[int, int, float, float]]
    transfers: list[tuple[tuple[int, ...], int, float]]

    def network(self, scale: float = 1.0) -> Network:
        network = Network(64)
        for node in range(self.nodes):
            network.add_node(node, self.overheads[node] / scale)
        for src, dst, bw_gbs, wire_ns in self.links:
            network.add_link(src, dst, bw_gbs * scale, wire_ns / scale)
        return network

    def run(self, fabric: Fabric, scale: float = 1.0) -> list[Transfer]:
        done = [fabric.inject(path, nbytes, at_ns / scale) for path, nbytes, at_ns in self.transfers]
        fabric.run()
        return done


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    nodes = draw(st.integers(2, 5))
    ends = [(i, (i + 1) % nodes) for i in range(nodes)]
    ends += [(i, (i - 1) % nodes) for i in range(nodes) if nodes > 2]
    ends = draw(st.permutations(ends))
    links = [
        (a, b, draw(st.sampled_from([64.0, 64.0, 32.0, 128.0])), draw(st.sampled_from([0, 0, 0.5]))) for a, b in ends
    ]
    transfers = []
    for _ in range(draw(st.integers(1, 6))):
        src, hops, turn = (
            draw(st.integers(0, nodes - 1)),
            draw(st.integers(1, 4)),
            draw(st.sampled_from([1, nodes - 1])),
        )
        path = tuple((src + turn * hop) % nodes for hop in range(hops + 1))
        transfers.append((path, draw(st.integers(1, 700)), float(draw(st.integers(0, 12)))))
    overheads = [draw(st.sampled_from([0.0, 0.0, 1.0, 2.0])) for _ in range(nodes)]
    return Plan(nodes, overheads, links, transfers)


def by_link(hops: list[FlitHop]) -> dict[int, list[FlitHop]]:
    links: dict[int, list[FlitHop]] = defaultdict(list)
    for hop in sorted(hops, key=lambda hop: hop.leave_ns):
        links[hop.link].append(hop)
    return links


def recorded(plan: Plan) -> tuple[Network, list[Transfer], list[FlitHop]]:
    network = plan.network()
    fabric = Fabric(network, record=True)
    transfers = plan.run(fabric)
    assert fabric.recorded is not None
    return network, transfers, fabric.recorded


@given(plans())
def test_bytes_in_are_bytes_out_on_every_link(plan: Plan) -> None:
    _, transfers, hops = recorded(plan)
    carried: dict[int, int] = defaultdict(int)
    for hop in hops:
        carried[hop.link] += hop.nbytes
    expected: dict[int, int] = defaultdict(int)
    for transfer in transfers:
        for link in transfer.links:
            expected[link] += transfer.nbytes
    assert carried == expected
    counters = Fabric(network := plan.network())
    plan.run(counters)
    for (src, dst), counter in counters.all_link_counters().items():
        assert counter.nbytes == expected[network.link_index(src, dst)]


@given(plans())
def test_no_flit_leaves_before_it_came_and_none_overtakes(plan: Plan) -> None:
    network, transfers, hops = recorded(plan)
    flits: dict[tuple[int, int], list[FlitHop]] = defaultdict(list)
    for hop in hops:
        assert hop.leave_ns >= hop.ready_ns + transfer_ns(hop.nbytes, network.bw_gbs[hop.link] or 1.0)
        flits[hop.transfer, hop.flit].append(hop)
    for (seq, _), way in flits.items():
        way.sort(key=lambda hop: hop.leave_ns)
        transfer = transfers[seq]
        assert [hop.link for hop in way] == list(transfer.links)
        assert way[0].ready_ns == transfer.at_ns
        for before, after in pairwise(way):
            assert after.ready_ns == before.leave_ns + network.tail_ns[before.link]
        assert way[-1].leave_ns + network.tail_ns[way[-1].link] <= transfer.done_ns


@given(plans())
def test_a_link_is_never_idle_while_a_flit_waits_for_it(plan: Plan) -> None:
    network, _, hops = recorded(plan)
    for link, row in by_link(hops).items():
        free = 0.0
        for hop in row:
            start = hop.leave_ns - transfer_ns(hop.nbytes, network.bw_gbs[link] or 1.0)
            assert start == max(hop.ready_ns, free)
            free = hop.leave_ns


@given(plans())
def test_a_link_takes_flits_by_readiness_then_input_then_injection(plan: Plan) -> None:
    _, transfers, hops = recorded(plan)
    came_in: dict[tuple[int, int, float], int] = {}
    for hop in hops:
        links = transfers[hop.transfer].links
        came_in[hop.transfer, hop.flit, hop.ready_ns] = INJECTED
        place = links.index(hop.link)
        if place and len(set(links)) == len(links):
            came_in[hop.transfer, hop.flit, hop.ready_ns] = links[place - 1]
    for row in by_link(hops).values():
        if any(len(set(transfers[hop.transfer].links)) < transfers[hop.transfer].hops for hop in row):
            continue  # a path that passes a link twice: its input does not follow from the record
        turns = [(hop.ready_ns, came_in[hop.transfer, hop.flit, hop.ready_ns], hop.transfer, hop.flit) for hop in row]
        injected = [turn if turn[1] == INJECTED else (*turn[:2], 0, 0) for turn in turns]
        assert injected == sorted(injected)


@given(plans())
def test_twice_the_speed_takes_half_the_time(plan: Plan) -> None:
    """Every duration and every start halved: the same traffic, on a clock that runs twice as fast."""
    plan.transfers = [(path, 16 * nbytes, at_ns) for path, nbytes, at_ns in plan.transfers]  # on the grid at both
    slow = plan.run(Fabric(plan.network()))
    fast = plan.run(Fabric(plan.network(scale=2.0)), scale=2.0)
    assert [transfer.done_ns for transfer in fast] == [transfer.done_ns / 2 for transfer in slow]


@given(st.lists(st.sampled_from([16.0, 64.0, 100.0, 512.0]), min_size=1, max_size=4), st.integers(1, 5000))
def test_alone_more_bytes_take_longer_and_more_bandwidth_does_not(bandwidths: list[float], nbytes: int) -> None:
    def alone(nbytes: int, scale: float) -> float:
        network = Network(64)
        for node in range(len(bandwidths) + 1):
            network.add_node(node, 1.0)
        for node, bw_gbs in enumerate(bandwidths):
            network.add_link(node, node + 1, bw_gbs * scale, 0.25)
        fabric = Fabric(network)
        transfer = fabric.inject(range(len(bandwidths) + 1), nbytes)
        fabric.run()
        return transfer.done_ns

    assert alone(nbytes + 1, 1.0) > alone(nbytes, 1.0)
    assert alone(nbytes, 1.5) <= alone(nbytes, 1.0)
    flits, last = -(-nbytes // 64), (nbytes - 1) % 64 + 1
    if last == 64:  # the textbook sum: every link and node once, then the narrowest link for the rest
        times = [transfer_ns(64, bw_gbs) for bw_gbs in bandwidths]
        assert alone(nbytes, 1.0) == sum(times) + 1.25 * len(times) + (flits - 1) * max(times)


@given(plans())
def test_two_fabrics_on_one_network_do_not_affect_one_another(plan: Plan) -> None:
    network = plan.network()
    expected = [transfer.done_ns for transfer in plan.run(Fabric(network))]
    one, other = Fabric(network), Fabric(network, mode="flits")
    ones = [one.inject(*transfer) for transfer in plan.transfers]
    others = [other.inject(*transfer) for transfer in plan.transfers]
    while min(one.next_time(), other.next_time()) < float("inf"):
        one.advance(one.next_time())
        other.advance(other.next_time())
    assert [transfer.done_ns for transfer in ones] == expected
    assert [transfer.done_ns for transfer in others] == expected


@settings(deadline=None)
@given(plans())
def test_running_in_small_steps_changes_nothing(plan: Plan) -> None:
    network = plan.network()
    expected = [transfer.done_ns for transfer in plan.run(Fabric(network))]
    fabric = Fabric(network)
    transfers = [fabric.inject(*transfer) for transfer in plan.transfers]
    for step in range(200):
        fabric.run(until=step * 0.75)
        assert fabric.now == step * 0.75
    fabric.run()
    assert [transfer.done_ns for transfer in transfers] == expected


def machine(channels: int) -> Network:
    network = Network()
    for name, overhead_ns in (("pe", 0.0), ("r", 2.0), ("hbm", 0.0)):
        network.add_node(name, overhead_ns)
    for src, dst in (("pe", "r"), ("r", "hbm"), ("hbm", "r"), ("r", "pe")):
        network.add_link(src, dst, 256.0)
    network.add_channels("hbm", channels, 8.0)
    return network


@pytest.mark.parametrize("channels", [1, 4, 8, 16])
@pytest.mark.parametrize("kind", ["plain", "read", "write"])
def test_events_of_a_transfer_that_is_alone_do_not_grow_with_its_size(kind: str, channels: int) -> None:
    def events(nbytes: int) -> int:
        fabric = Fabric(machine(channels))
        if kind == "read":
            fabric.inject(("hbm", "r", "pe"), nbytes, read_from=0)
        else:
            fabric.inject(("pe", "r", "hbm"), nbytes, write_to=0 if kind == "write" else None)
        fabric.run()
        return fabric.events

    assert events(GIB) == events(GIB + 100) == events(64 * 256) <= 2


def test_a_gibibyte_alone_needs_no_memory() -> None:
    fabric = Fabric(machine(8))
    tracemalloc.start()
    read = fabric.inject(("hbm", "r", "pe"), GIB, read_from=0)
    fabric.inject(("pe", "r", "hbm"), GIB, 2.0)
    fabric.run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 2^22 flits, one a ns: the first at 8 + 1 + 2 + 1, where the memory keeps the link busy.
    assert read.done_ns == 8 + 2 * 1 + 2 + (GIB // 256 - 1)
    assert peak < 100_000


def test_memory_grows_with_flits_in_flight_not_with_bytes_moved() -> None:
    """Two flows of 8 MiB each share a link that is fast enough for both: few flits are ever under way."""
    network = Network()
    for name in "xymz":
        network.add_node(name, 2.0)
    for src in "xy":
        network.add_link(src, "m", 256.0)
    network.add_link("m", "z", 512.0)
    network.add_channels("z", 8, 4.0)
    fabric = Fabric(network, mode="flits")
    fabric.inject("xmz", 8 * MIB, write_to=0)
    fabric.inject("ymz", 8 * MIB, write_to=0)
    largest = 0
    for step in range(1, 8):
        fabric.run(until=step * 4096.0)
        largest = max(largest, len(fabric.engine.agenda) + len(fabric.engine.groups[network.node_index("z")].pending))
    assert 0 < largest < 400
