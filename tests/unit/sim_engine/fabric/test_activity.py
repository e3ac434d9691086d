"""What a watched fabric sees: bytes and waiting in bins of time, and whose transfers were held up where."""

from __future__ import annotations

import random

import pytest

from kernbench.sim_engine.fabric import Fabric
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fabric.bins import Track
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
    track = Track()
    track.add_bytes(256, 3.0, 5.0, 2.0)  # 1 ns in bin 1, 1 ns in bin 2
    track.add_bytes(100, 6.0, 8.0, 2.0)  # all of bin 3, whose end is not in bin 4
    assert track.nbytes == [0.0, 128.0, 128.0, 100.0]


def test_waiting_is_cut_at_bin_edges_and_several_flits_add_up():
    track = Track()
    track.add_wait(0, 1.0, 7.0, 2.0)
    track.add_wait(0, 2.0, 3.0, 2.0)
    assert track.waits(0, 2.0) == [1.0, 3.0, 2.0, 1.0]
    track.merge(2.0)
    assert track.waits(0, 4.0) == [4.0, 3.0]
    track.add_wait(0, 4.0, 12.0, 4.0)
    assert track.waits(0, 4.0) == [4.0, 7.0, 4.0, 0.0]


def test_two_senders_meet_on_one_link_and_the_second_is_held_up_there():
    activity = Activity()
    activity.purpose_of = lambda tag: tag
    net = network()
    fabric = Fabric(net, mode="flits", activity=activity)
    fabric.inject(("a", "hub", "memory"), 1024, 0.0, tag="first")
    fabric.inject(("b", "hub", "memory"), 256, 0.0, tag="second")
    fabric.run()
    shared = net.link_index("hub", "memory")
    # Flit i of a is ready for the shared link at 4 + i, b's only one at 4: it goes behind a's first, held up for 1 ns.
    # So does a's second behind it. The third and fourth of a wait 1 ns each behind flits of a: that is not contention.
    assert activity.errands["second"].waits == {shared: 1.0}
    assert activity.errands["first"].waits == {shared: 1.0}
    assert sum(activity.tracks[shared].waits(0, 1.0)) == 4.0
    assert activity.tracks[shared].nbytes == [0.0] * 4 + [256.0] * 5
    # Flits of a wait behind each other on their first link: 1 + 2 + 3 ns, and nobody is to blame.
    first = activity.tracks[net.link_index("a", "hub")]
    assert (sum(first.waits(0, 1.0)), sum(first.waits(1, 1.0))) == (6.0, 0.0)


def test_a_read_that_finds_channels_taken_waits_for_them():
    activity = Activity()
    activity.purpose_of = lambda tag: tag
    fabric = Fabric(network(), mode="flits", activity=activity)
    fabric.inject(("memory", "hub", "a"), 512, 0.0, read_from=0, tag="first")  # both channels for 8 ns
    fabric.inject(("memory", "hub", "b"), 256, 2.0, read_from=0, tag="second")
    fabric.run()
    channel = activity.channel_place(3, 0)
    assert activity.errands["second"].waits[channel] == 6.0
    assert activity.channel_at(channel) == (3, 0)
    assert sum(activity.tracks[channel].nbytes) == 512.0


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
        activity = Activity(bin_ns=1.0, most_bins=64)
        activity.purpose_of = lambda tag: tag
        return activity, *ends(mode=mode, activity=activity)

    activity, watched, times = watch("adaptive")
    assert times == ends()[1]
    one_by_one, _, _ = watch("flits")
    assert sorted(activity.tracks) == sorted(one_by_one.tracks)
    for place, track in activity.tracks.items():
        other = one_by_one.tracks[place]
        assert track.nbytes == pytest.approx(other.nbytes, abs=1e-3)
        for which in (0, 1):
            assert track.waits(which, activity.bin_ns) == pytest.approx(other.waits(which, activity.bin_ns))
    assert {tag: errand.waits for tag, errand in activity.errands.items()} == {
        tag: errand.waits for tag, errand in one_by_one.errands.items()
    }
    assert seed % 2 or watched.planned > 2
    net = watched.network
    for (src, dst), counters in watched.all_link_counters().items():
        assert sum(activity.tracks[net.link_index(src, dst)].nbytes) == counters.nbytes
    for channel, counters in enumerate(watched.channel_counters("memory")):
        track = activity.tracks[activity.channel_place(3, channel)]
        assert sum(track.nbytes) == counters.nbytes
        assert max(track.nbytes) <= 32.0 * activity.bin_ns  # never busier than always
    assert max(len(track.nbytes) for track in activity.tracks.values()) <= 64
