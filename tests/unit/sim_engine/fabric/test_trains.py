"""Trains that are planned, split and planned again, each by its own cause; times and counters as flit by flit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kernbench.sim_engine.fabric import Fabric, Network, Transfer
from kernbench.sim_engine.fabric.planned_trains import Mode

FLIT = 256

Traffic = Callable[[Fabric], list[Transfer]]


def star(*, memories: Sequence[str] = (), channels: int = 4, burst_ns: float = 4.0, penalty_ns: float = 0.0) -> Network:
    """a and b reach the router r, r reaches c and d, and each way back; r takes 2 ns."""
    network = Network()
    for name in "abcd":
        network.add_node(name)
    network.add_node("r", 2.0)
    for name in "abcd":
        network.add_link(name, "r", 256.0)
        network.add_link("r", name, 256.0)
    for name in memories:
        network.add_channels(name, channels, burst_ns, penalty_ns)
    return network


def same_in_both_modes(build: Callable[[], Network], traffic: Traffic) -> Fabric:
    """Run the traffic in both modes, compare everything, and return the adaptive fabric."""
    outcomes = []
    fabrics: list[Fabric] = []
    modes: list[Mode] = ["flits", "adaptive"]
    for mode in modes:
        network = build()
        fabric = Fabric(network, mode=mode)
        transfers = traffic(fabric)
        fabric.run()
        channels = [fabric.channel_counters(network.names[node]) for node in network.channel_specs]
        outcomes.append(([t.done_ns for t in transfers], fabric.all_link_counters(), channels))
        fabrics.append(fabric)
    assert outcomes[0] == outcomes[1]
    return fabrics[1]


def test_an_interfering_transfer_splits_the_train() -> None:
    fabric = same_in_both_modes(star, lambda f: [f.inject("arc", 40 * FLIT), f.inject("brc", 4 * FLIT, 10.25)])
    assert (fabric.planned, fabric.split) == (1, 1)


def test_a_transfer_elsewhere_leaves_the_train_as_it_is() -> None:
    fabric = same_in_both_modes(star, lambda f: [f.inject("arc", 40 * FLIT), f.inject("brd", 40 * FLIT, 10.25)])
    assert (fabric.planned, fabric.split) == (2, 0)


def test_what_is_injected_at_one_instant_is_planned_behind_the_first() -> None:
    fabric = same_in_both_modes(star, lambda f: [f.inject("arc", 9 * FLIT + 7), f.inject("ard", 3 * FLIT)])
    assert (fabric.planned, fabric.split) == (2, 0)


def test_splitting_a_train_splits_those_planned_behind_it() -> None:
    fabric = same_in_both_modes(
        star,
        lambda f: [f.inject("arc", 20 * FLIT), f.inject("arc", 20 * FLIT), f.inject("brc", 3 * FLIT, 6.5)],
    )
    assert (fabric.planned, fabric.split) == (2, 2)


def test_a_large_transfer_is_planned_again_when_it_is_alone_once_more() -> None:
    fabric = same_in_both_modes(star, lambda f: [f.inject("arc", 500 * FLIT + 9), f.inject("brc", 8 * FLIT, 50.125)])
    assert (fabric.planned, fabric.split, fabric.replanned) == (2, 1, 1)


def test_a_write_is_planned_again_with_flits_on_their_way_to_the_memory() -> None:
    fabric = same_in_both_modes(
        lambda: star(memories="c"),
        lambda f: [
            f.inject("arc", 700 * FLIT, write_to=0),
            f.inject("brc", 8 * FLIT, 50.125, write_to=77 * FLIT),
            f.inject("brc", 8 * FLIT, 300.0),
        ],
    )
    assert fabric.split == 2
    assert fabric.replanned == 2


@pytest.mark.parametrize("penalty_ns", [0.0, 3.0])
def test_a_read_takes_back_bursts_that_have_not_arrived(penalty_ns: float) -> None:
    fabric = same_in_both_modes(
        lambda: star(memories="c", penalty_ns=penalty_ns),
        lambda f: [f.inject("arc", 60 * FLIT, write_to=0), f.inject("crb", 20 * FLIT, 30.0, read_from=0)],
    )
    assert fabric.split == 1


def test_two_writes_reach_one_memory_over_different_links() -> None:
    def ring() -> Network:
        network = star(memories="c")
        network.add_node("q", 1.0)
        network.add_link("b", "q", 256.0)
        network.add_link("q", "c", 128.0)
        return network

    fabric = same_in_both_modes(
        ring,
        lambda f: [
            f.inject("arc", 60 * FLIT, write_to=0),
            f.inject("bqc", 30 * FLIT, 7.0, write_to=9 * FLIT),
        ],
    )
    assert (fabric.planned, fabric.split) == (1, 1)


def test_a_read_planned_as_a_train_gives_way_to_an_earlier_injection_at_the_same_instant() -> None:
    """The plain transfer has the lower number, so at 16 ns it goes before the read's flit that is ready then."""
    fabric = same_in_both_modes(
        lambda: star(memories="c", channels=1),
        lambda f: [f.inject("crb", 3 * FLIT, 16.0), f.inject("crb", 12 * FLIT, read_from=0), f.inject("cra", 0)],
    )
    assert fabric.split == 1


def test_a_path_that_passes_a_node_twice_can_be_a_train_and_one_that_passes_a_link_twice_cannot() -> None:
    def loop() -> Network:
        network = star(memories="c")
        network.add_link("c", "d", 256.0)
        return network

    fabric = same_in_both_modes(
        loop,
        lambda f: [f.inject("arcdrb", 90 * FLIT), f.inject("brd", 5 * FLIT, 20.0), f.inject("brc", 5 * FLIT, 40.0)],
    )
    assert fabric.split >= 1
    fabric = same_in_both_modes(
        loop,
        lambda f: [f.inject("arcrcrc", 90 * FLIT, write_to=0), f.inject("dra", FLIT, 3.0), f.inject("dra", 9, 200.0)],
    )
    assert fabric.planned == 2  # those that do not loop


@pytest.mark.parametrize("extra", [0, 100])
@pytest.mark.parametrize("at_ns", [20.0, 33.5, 90.0, 1000.0])
def test_a_read_from_a_memory_slower_than_the_link_is_a_train_of_rounds(at_ns: float, extra: int) -> None:
    """Four bursts every 8 ns on links that need 4 ns for them; split at some moment by a transfer across its way."""
    fabric = same_in_both_modes(
        lambda: star(memories="c", burst_ns=8.0),
        lambda f: [f.inject("crb", 300 * FLIT + extra, read_from=0), f.inject("arb", 7 * FLIT, at_ns)],
    )
    assert fabric.planned >= 1
    assert fabric.split == (1 if at_ns < 600 else 0)


def test_rounds_become_a_progression_on_a_slower_link() -> None:
    def slow() -> Network:
        network = star(memories="c", burst_ns=8.0)
        network.add_node("e")
        network.add_link("r", "e", 64.0)
        return network

    fabric = same_in_both_modes(
        slow, lambda f: [f.inject("cre", 300 * FLIT, read_from=0), f.inject("are", 7 * FLIT, 500.0)]
    )
    assert fabric.split == 1


def test_the_third_transfer_of_a_size_is_planned_from_a_template() -> None:
    def repeat(fabric: Fabric) -> list[Transfer]:
        spaced = [fabric.inject("arc", 16 * FLIT, i * 200.0, write_to=i * 3 * FLIT) for i in range(5)]
        reads = [fabric.inject("drb", 16 * FLIT + 5, 50.0 + i * 200.0, read_from=0) for i in range(5)]
        return [*spaced, *reads, fabric.inject("brc", 6 * FLIT, 805.0), fabric.inject("crb", 6 * FLIT, 858.0)]

    fabric = same_in_both_modes(lambda: star(memories="cd"), repeat)
    assert fabric.split == 2  # both of the fifth, which were planned from a template
    assert fabric.planned == 10


def test_a_template_is_not_used_where_a_link_or_a_memory_is_still_busy() -> None:
    def close(fabric: Fabric) -> list[Transfer]:
        reads = [fabric.inject("crb", 16 * FLIT, i * 200.0, read_from=0) for i in range(3)]
        reads += [fabric.inject("crb", 16 * FLIT, 600.0 + i * 9.0, read_from=0) for i in range(4)]
        return [*reads, *(fabric.inject("arb", 16 * FLIT, 1000.0 + i * 13.0) for i in range(6))]

    fabric = same_in_both_modes(lambda: star(memories="c", burst_ns=3.0, penalty_ns=1.0), close)
    assert fabric.planned > 4


def test_trains_survive_a_long_chain_and_an_interfering_transfer_at_its_far_end() -> None:
    def chain() -> Network:
        network = Network()
        for node in range(60):
            network.add_node(node, 1.0)
        for node in range(59):
            network.add_link(node, node + 1, 256.0 if node % 7 else 200.0, 0.25)
        return network

    fabric = same_in_both_modes(
        chain,
        lambda f: [
            f.inject(range(60), 200 * FLIT),
            f.inject(range(50, 60), 20 * FLIT, 260.0),
            f.inject((3, 4), 9, 5.0),
        ],
    )
    assert fabric.split >= 2
    assert fabric.replanned >= 1


def test_small_transfers_stop_trying_where_trains_are_always_split() -> None:
    def rush(fabric: Fabric) -> list[Transfer]:
        return [fabric.inject("arc" if i % 2 else "brc", 6 * FLIT, i * 5.0) for i in range(200)]

    fabric = same_in_both_modes(star, rush)
    assert fabric.planned < 20
