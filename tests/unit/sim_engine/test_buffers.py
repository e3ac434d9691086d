"""Finite buffers on links: what a slot, a credit, a virtual channel and a layer do to a transfer."""

import itertools

import pytest

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric import Buffers, Fabric, Network

INFINITY = float("inf")


def line(buffers, nodes="abcd", layer_rule=None):
    """Links of 1 ns per flit, and 8 ns to the next node."""
    network = Network(flit_bytes=32)
    for name in nodes:
        network.add_node(name)
    for src, dst in itertools.pairwise(nodes):
        network.add_link(src, dst, 32.0, 8.0)
    network.set_buffers(buffers, *([] if layer_rule is None else [layer_rule]))
    return network


def done(network, *sent):
    fabric = Fabric(network, compile_after=INFINITY)
    transfers = [fabric.inject(path, nbytes, at) for path, nbytes, at in sent]
    fabric.run()
    return [transfer.done_ns for transfer in transfers]


def test_enough_slots_change_nothing():
    # 10 flits: the last starts at 9 ns, and passes three links of 9 ns. A slot is used for 9 ns and 9 more until its
    # credit is back: 18 slots keep the link busy.
    assert done(line(Buffers(18, 9.0)), ("abcd", 320, 0.0)) == [9 + 3 * 9.0]


def test_too_few_slots_slow_a_transfer_down_to_slots_per_round_trip():
    # One slot: a flit may start on the first link 9 + 9 ns after the one before it: it arrives after 9 ns, starts on
    # the second link at once, and 9 ns later its slot is credited. The third link needs none.
    assert done(line(Buffers(1, 9.0)), ("abcd", 320, 0.0)) == [9 * 18 + 3 * 9.0]
    # Two slots: two flits every 18 ns, 1 ns apart. The tenth is the second of the fifth pair.
    assert done(line(Buffers(2, 9.0)), ("abcd", 320, 0.0)) == [4 * 18 + 1 + 3 * 9.0]


def test_a_packet_keeps_its_virtual_channel_to_its_last_flit():
    # Two transfers meet on the second link. Flits that own nothing take turns; a packet passes whole.
    sent = (("axcd", 320, 0.0), ("bxcd", 320, 0.0))

    def with_buffers(buffers):
        copy = Network(flit_bytes=32)
        for name in "abxcd":
            copy.add_node(name)
        for src, dst in ("ax", "bx", "xc", "cd"):
            copy.add_link(src, dst, 32.0, 8.0)
        copy.set_buffers(buffers)
        return done(copy, *sent)

    # Turns: the second link is busy from 9 to 29 ns; the last flits start there at 27 and 28 ns.
    assert with_buffers(Buffers(64, 9.0)) == [27 + 2 * 9.0, 28 + 2 * 9.0]
    # Packets, one channel: the first starts its last flit at 18 ns, the other one its own at 28 ns.
    assert with_buffers(Buffers(64, 9.0, ownership="packet")) == [18 + 2 * 9.0, 28 + 2 * 9.0]
    # Two channels: both packets have one, and take turns again.
    assert with_buffers(Buffers(64, 9.0, ownership="packet", channels=2)) == [27 + 2 * 9.0, 28 + 2 * 9.0]


def test_a_queue_per_output_lets_a_flit_pass_one_that_waits():
    def meeting(order):
        network = Network(flit_bytes=32)
        for name in "axcde":
            network.add_node(name)
        network.add_link("a", "x", 32.0, 8.0)
        network.add_link("x", "c", 1.0, 0.0)  # 32 ns per flit
        network.add_link("x", "d", 32.0, 0.0)
        network.add_link("c", "e", 32.0, 0.0)
        network.set_buffers(Buffers(8, 0.0, order=order))
        return done(network, ("axc", 64, 0.0), ("axd", 32, 0.0))

    # The second flit for c waits until 41 ns. In one queue the flit for d is behind it; in its own it starts at 11 ns.
    assert meeting("fifo") == [9 + 64.0, 41 + 1.0]
    assert meeting("voq") == [9 + 64.0, 11 + 1.0]


def test_a_transfer_has_arrived_when_all_its_packets_have():
    # Packets of two flits, two channels. That of b is for e, and its second flit waits for 32 ns in the first channel,
    # with the first packet of a behind it. When the second packet of a asks, one of g owns that channel: it takes the
    # other one, and is at d at 10 ns. The first starts for d at 34 ns, its second flit at 35.
    network = Network(flit_bytes=32)
    for name in "abgxcde":
        network.add_node(name)
    for src, dst in ("bx", "ax", "gx", "xc", "cd"):
        network.add_link(src, dst, 32.0, 0.0)
    network.add_link("c", "e", 1.0, 0.0)
    network.set_buffers(Buffers(8, 0.0, channels=2, ownership="packet", packet_bytes=64))
    assert done(network, ("bxce", 64, 0.0), ("axcd", 128, 2.0), ("gxcd", 64, 3.5))[1] == 36.0


def test_a_turn_of_round_robin_is_forgotten_when_no_flit_waits():
    # One slot behind x to c. The flit of a waits alone for the credit of 19 ns, and its slot is back at 37. Until then
    # b has asked at 26 ns, a at 29: as no flit waited in between, a comes first, as the lower input.
    network = Network(flit_bytes=32)
    for name in "abxcd":
        network.add_node(name)
    for src, dst, ns in (("a", "x", 0.0), ("b", "x", 0.0), ("x", "c", 8.0), ("c", "d", 0.0)):
        network.add_link(src, dst, 32.0, ns)
    network.set_buffers(Buffers(1, 9.0, arbitration="round_robin"))
    flits = ("bxcd", 32, 0.0), ("axcd", 32, 1.0), ("axcd", 32, 20.0), ("bxcd", 32, 25.0)
    assert done(network, *flits) == [11.0, 29.0, 47.0, 65.0]


def test_a_sender_may_go_on_when_its_last_flit_has_entered():
    network, left = line(Buffers(1, 9.0)), []
    fabric = Fabric(network, compile_after=INFINITY)
    fabric.inject("abcd", 96, 0.0, on_left=left.append)
    fabric.run()
    assert left == [2 * 18 + 1.0]  # the third flit starts when two slots have been credited


def ring(layer_rule, layers=1):
    network = Network(flit_bytes=32)
    for name in "abcd":
        network.add_node(name)
    for src, dst in ("ab", "bc", "cd", "da"):
        network.add_link(src, dst, 32.0, 8.0)
    network.set_buffers(Buffers(1, 9.0, layers), layer_rule)
    return network


AROUND = [(path, 320, 0.0) for path in ("abcd", "bcda", "cdab", "dabc")]


def test_routes_around_a_ring_are_refused_and_the_cycle_is_shown():
    with pytest.raises(FabricError, match=r"'d' to 'a' .layer 0. -> 'a' to 'b' .* -> 'd' to 'a' .layer 0."):
        done(ring(lambda path: [0] * 3), *AROUND)


def test_a_layer_behind_the_dateline_frees_them():
    def dateline(path):
        return [1 if "d" in path[: at + 1] else 0 for at in range(3)]

    ends = done(ring(dateline, 2), *AROUND)
    assert all(end < INFINITY for end in ends)


def test_virtual_channels_belong_to_packets():
    with pytest.raises(FabricError, match="flits own nothing"):
        line(Buffers(4, channels=2))


def test_plain_and_compiled_loops_trace_the_same_hops():
    def hops(compile_after):
        fabric = Fabric(line(Buffers(2, 9.0)), compile_after=compile_after, record=True)
        fabric.inject("abcd", 200, 0.0)
        fabric.run()
        return fabric.recorded

    assert hops(INFINITY) == hops(0)
    assert len(hops(INFINITY)) == 7 * 3
