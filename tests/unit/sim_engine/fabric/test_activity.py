"""What a watched fabric sees: bytes and waiting in bins of time, and whose transfers were held up where."""

from __future__ import annotations

import random

import pytest

from kernbench.sim_engine.fabric import Fabric
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fabric.bins import METRICS, Bins
from kernbench.sim_engine.fabric.model import Network


def network() -> Network:
    """a, b -> hub -> memory with two channels; 256 B take 1 ns on a link and 8 ns on a channel."""
    net = Network(256)
    for node in "ab":
        net.add_node(node)
    net.add_node("hub", 2.0)
    net.add_node("memory")
    net.add_channels("memory", 2, 8.0)
    for src, dst in (("a", "hub"), ("b", "hub"), ("hub", "memory")):
        net.add_link(src, dst, 256.0, 1.0)
        net.add_link(dst, src, 256.0, 1.0)
    return net


def test_a_flit_adds_its_bytes_to_the_bins_during_which_it_is_on_the_link():
    bins = Bins(2.0, 64)
    bins.use(7, 3.0, 5.0, 256)  # 1 ns in bin 1, 1 ns in bin 2
    bins.use(7, 6.0, 8.0, 100)  # all of bin 3, whose end is not in bin 4
    assert bins.read().of(7) == [0.0, 128.0, 128.0, 100.0]


def test_parts_of_a_flit_that_cannot_be_halved_still_sum_to_its_bytes():
    bins = Bins(1.0, 64)
    bins.use(0, 0.25, 3.5, 100)  # 3.25 ns: 23.07..., 30.76..., 30.76..., 15.38...
    parts = bins.read().of(0)
    assert sum(parts) == 100.0
    assert parts == pytest.approx([75 / 3.25, 100 / 3.25, 100 / 3.25, 50 / 3.25], abs=1e-5)


def test_waiting_is_cut_at_bin_edges_and_bins_are_merged_in_pairs_when_there_are_too_many():
    bins = Bins(2.0, 4)
    bins.wait(3, 1.0, 7.0, 0.0)
    bins.wait(3, 2.0, 3.0, 0.5)
    binned = bins.read()
    assert (binned.bin_ns, binned.of(3, "wait_ns")) == (2.0, [1.0, 3.0, 2.0, 1.0])
    assert binned.of(3, "contended_ns")[1] == 0.5
    bins.wait(3, 4.0, 12.0, 0.0)
    binned = bins.read()
    assert (binned.bin_ns, binned.of(3, "wait_ns")) == (4.0, [4.0, 7.0, 4.0, 0.0])


def test_two_senders_meet_on_one_link_and_the_second_is_held_up_there():
    activity = Activity(lambda tag: tag)
    net = network()
    fabric = Fabric(net, mode="flits", activity=activity)
    fabric.inject(("a", "hub", "memory"), 1024, 0.0, tag="first")
    fabric.inject(("b", "hub", "memory"), 256, 0.0, tag="second")
    fabric.run()
    shared = net.link_index("hub", "memory")
    # Flit i of a is ready for the shared link at 4 + i, b's only one at 4: it goes behind a's first, held up for 1 ns.
    # So does a's second behind it. The third and fourth of a wait 1 ns each behind flits of a: that is not contention.
    assert activity.transfer_groups["second"].waits == {shared: 1.0}
    assert activity.transfer_groups["first"].waits == {shared: 1.0}
    binned = activity.bins.read()
    assert sum(binned.of(shared, "wait_ns")) == 4.0
    assert binned.of(shared) == [0.0] * 4 + [256.0] * 5
    # Flits of a wait behind each other on their first link: 1 + 2 + 3 ns, without another transfer as the cause.
    first = net.link_index("a", "hub")
    assert (sum(binned.of(first, "wait_ns")), sum(binned.of(first, "contended_ns"))) == (6.0, 0.0)


def test_a_read_that_finds_channels_taken_waits_for_them():
    activity = Activity(lambda tag: tag)
    fabric = Fabric(network(), mode="flits", activity=activity)
    fabric.inject(("memory", "hub", "a"), 512, 0.0, read_from=0, tag="first")  # both channels for 8 ns
    fabric.inject(("memory", "hub", "b"), 256, 2.0, read_from=0, tag="second")
    fabric.run()
    channel = activity.channel_place(3, 0)
    assert activity.transfer_groups["second"].waits[channel] == 6.0
    assert activity.channel_at(channel) == (3, 0)
    assert sum(activity.bins.read().of(channel)) == 512.0


@pytest.mark.parametrize("seed", range(12))
def test_a_watched_fabric_takes_the_same_times_and_its_bins_sum_to_the_counters(seed):
    rng = random.Random(seed)
    within_ns, most_bytes = (60, 3000) if seed % 2 else (9000, 30000)  # crowded, and mostly alone: then trains run
    work = [
        (
            rng.choice("ab"),
            rng.random() < 0.7,
            rng.randrange(1, most_bytes),
            float(rng.randrange(within_ns)),
            rng.randrange(8) * 256,
        )
        for _ in range(20)
    ]

    def ends(**options):
        fabric = Fabric(network(), **options)
        done = []
        for tag, (node, reads, nbytes, at, address) in enumerate(work):
            path = ("memory", "hub", node) if reads else (node, "hub", "memory")
            where = {"read_from": address} if reads else {"write_to": address}
            fabric.inject(path, nbytes, at, tag=tag, on_done=done.append, **where)
        fabric.run()
        return fabric, sorted((transfer.seq, transfer.done_ns) for transfer in done)

    def watch(mode):
        activity = Activity(lambda tag: tag, bin_ns=1.0, most_bins=64)
        return activity, *ends(mode=mode, activity=activity)

    activity, watched, times = watch("adaptive")
    assert times == ends()[1]
    one_by_one, _, _ = watch("flits")
    binned, other = activity.bins.read(), one_by_one.bins.read()
    assert binned.places == other.places
    for place in binned.places:
        for metric in METRICS:
            assert binned.of(place, metric) == pytest.approx(other.of(place, metric), abs=1e-3), (place, metric)
    assert {tag: group.waits for tag, group in activity.transfer_groups.items()} == {
        tag: group.waits for tag, group in one_by_one.transfer_groups.items()
    }
    assert seed % 2 or watched.planned > 2
    net = watched.network
    for (src, dst), counters in watched.all_link_counters().items():
        assert sum(binned.of(net.link_index(src, dst))) == counters.nbytes
    for channel, counters in enumerate(watched.channel_counters("memory")):
        nbytes = binned.of(activity.channel_place(3, channel))
        assert sum(nbytes) == counters.nbytes
        assert max(nbytes) <= 32.0 * binned.bin_ns * (1 + 1e-6)  # never busier than always
    assert binned.bin.max() < 64
