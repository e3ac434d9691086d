"""Times that can be worked out on paper, in both modes. A flit is 256 B and takes 1 ns on a link of 256 GB/s."""

from __future__ import annotations

import pytest

from kernbench.sim_engine.fabric import Fabric, HopTimes, Network, Transfer
from kernbench.sim_engine.fabric.planned_trains import Mode

FLIT = 256

pytestmark = pytest.mark.parametrize("mode", ["flits", "adaptive"])


def line(*, overhead_ns: float = 2.0, wire_ns: float = 0.5, bw_gbs: tuple[float, ...] = (256.0, 256.0)) -> Network:
    """a - b - c: what leaves a link is ready 2.5 ns later."""
    network = Network()
    names = "abcdefgh"[: len(bw_gbs) + 1]
    for name in names:
        network.add_node(name, overhead_ns)
    for src, dst, bw in zip(names, names[1:], bw_gbs, strict=False):
        network.add_link(src, dst, bw, wire_ns)
    return network


def crossing(*, first: str = "x") -> Network:
    """x and y each reach m, m reaches z. Nodes x, y, m take 2 ns, wires nothing, z nothing."""
    network = Network()
    for name in "xym":
        network.add_node(name, 2.0)
    network.add_node("z")
    for src in (first, "y" if first == "x" else "x"):  # the lower index goes first in a tie
        network.add_link(src, "m", 256.0)
    network.add_link("m", "z", 256.0)
    return network


def memory(*, channels: int = 4, burst_ns: float = 4.0, penalty_ns: float = 0.0) -> Network:
    """pe and hbm, joined both ways without delay; a burst of one flit takes a channel 4 ns."""
    network = Network()
    network.add_node("pe")
    network.add_node("hbm")
    network.add_link("pe", "hbm", 256.0)
    network.add_link("hbm", "pe", 256.0)
    network.add_channels("hbm", channels, burst_ns, penalty_ns)
    return network


def test_one_flit_pays_the_link_the_wire_and_the_node(mode: Mode) -> None:
    fabric = Fabric(line(), mode=mode)
    transfer = fabric.inject("ab", FLIT)
    fabric.run()
    assert transfer.done_ns == 1 + 0.5 + 2


def test_the_second_of_two_flits_is_one_flit_time_behind(mode: Mode) -> None:
    fabric = Fabric(line(), mode=mode)
    transfer = fabric.inject("abc", 2 * FLIT, at_ns=10.0)
    fabric.run()
    assert transfer.total_ns == (1 + 2.5) + (1 + 2.5) + 1
    assert transfer.done_ns == 10 + transfer.total_ns


def test_a_partial_flit_takes_its_share_of_a_flit_time(mode: Mode) -> None:
    # 300 B are a flit and 44 B. The 44 B are ready for the second link at 1 + 44/256 + 2.5, but it is busy with the
    # first flit until 3.5 + 1; then they take 44/256 ns more.
    fabric = Fabric(line(), mode=mode)
    transfer = fabric.inject("abc", 300)
    fabric.run()
    assert transfer.done_ns == (3.5 + 1) + 44 / 256 + 2.5


def test_a_single_byte_costs_a_256th_of_a_flit(mode: Mode) -> None:
    fabric = Fabric(line(), mode=mode)
    transfer = fabric.inject("abc", 1)
    fabric.run()
    assert transfer.done_ns == 2 * (1 / 256 + 2.5)


def test_the_narrowest_link_sets_the_pace(mode: Mode) -> None:
    # 8 flits over links of 1, 4 and 2 ns a flit: the first flit pays all of them, seven more leave every 4 ns.
    fabric = Fabric(line(bw_gbs=(256.0, 64.0, 128.0)), mode=mode)
    transfer = fabric.inject("abcd", 8 * FLIT)
    fabric.run()
    assert transfer.done_ns == (1 + 4 + 2) + 3 * 2.5 + 7 * 4


def test_two_flows_that_meet_share_the_output_flit_by_flit(mode: Mode) -> None:
    # Both are ready at m at 1 + 2 = 3 and 4. Output: x0 until 4, y0 until 5, x1 until 6, y1 until 7.
    fabric = Fabric(crossing(), mode=mode)
    x, y = fabric.inject("xmz", 2 * FLIT), fabric.inject("ymz", 2 * FLIT)
    fabric.run()
    assert (x.done_ns, y.done_ns) == (6, 7)


def test_a_tie_is_decided_by_the_index_of_the_input_link(mode: Mode) -> None:
    fabric = Fabric(crossing(first="y"), mode=mode)
    x, y = fabric.inject("xmz", 2 * FLIT), fabric.inject("ymz", 2 * FLIT)
    fabric.run()
    assert (y.done_ns, x.done_ns) == (6, 7)


def test_in_a_tie_injections_come_last_in_their_own_order(mode: Mode) -> None:
    # At 3 ns a flit from x is ready at m, and two are injected there: x until 4, then the injections, as injected.
    fabric = Fabric(crossing(), mode=mode)
    first, second = fabric.inject("mz", FLIT, at_ns=3.0), fabric.inject("mz", FLIT, at_ns=3.0)
    x = fabric.inject("xmz", FLIT)
    fabric.run()
    assert (x.done_ns, first.done_ns, second.done_ns) == (4, 5, 6)


def test_a_late_comer_waits_for_what_was_ready_before_it(mode: Mode) -> None:
    # Four flits from x hold the output from 3 to 7. One flit from y is ready at 4.5: behind x1 (ready 4), before x2
    # (ready 5), so it leaves at 6, and x ends one later than alone.
    fabric = Fabric(crossing(), mode=mode)
    x, y = fabric.inject("xmz", 4 * FLIT), fabric.inject("ymz", FLIT, at_ns=1.5)
    fabric.run()
    assert (x.done_ns, y.done_ns) == (8, 6)


def test_a_store_and_forward_node_sends_on_when_it_has_everything(mode: Mode) -> None:
    # 4 flits a to b: 4 + 2.5. The block at b takes 5 ns. Then b to c again 4 + 2.5.
    fabric = Fabric(line(), mode=mode)
    ends: list[float] = []

    def forward(first: Transfer) -> None:
        fabric.inject("bc", 4 * FLIT, first.done_ns + 5, on_done=lambda second: ends.append(second.done_ns))

    fabric.inject("ab", 4 * FLIT, on_done=forward)
    fabric.run()
    assert ends == [6.5 + 5 + 6.5]


def test_a_control_message_pays_nodes_and_wires_and_never_waits(mode: Mode) -> None:
    fabric = Fabric(line(), mode=mode)
    data, control = fabric.inject("abc", 100 * FLIT), fabric.inject("abc", 0)
    fabric.run()
    assert control.done_ns == 2 * (0.5 + 2)
    assert data.done_ns == 2 * 3.5 + 99


def test_a_header_travels_in_front_of_the_bytes(mode: Mode) -> None:
    # 256 B and a header of 8 B are a flit and 8 B.
    fabric = Fabric(line(), mode=mode)
    transfer = fabric.inject("ab", FLIT, header_bytes=8)
    fabric.run()
    assert transfer.done_ns == 1 + 8 / 256 + 2.5
    assert fabric.link_counters("a", "b").nbytes == 264


def test_an_aligned_read_uses_all_channels_at_once(mode: Mode) -> None:
    # Four bursts on four channels are all finished at 4; the link then needs 4 ns for the four flits.
    fabric = Fabric(memory(), mode=mode)
    transfer = fabric.inject(("hbm", "pe"), 4 * FLIT, read_from=0)
    fabric.run()
    assert transfer.done_ns == 4 + 4


def test_a_second_round_of_bursts_comes_a_burst_time_later(mode: Mode) -> None:
    # Six bursts on two channels of 4 ns: two are finished at 4, two at 8, two at 12; the last leaves at 14.
    fabric = Fabric(memory(channels=2), mode=mode)
    transfer = fabric.inject(("hbm", "pe"), 6 * FLIT, read_from=0)
    fabric.run()
    assert transfer.done_ns == 12 + 2
    assert [channel.nbytes for channel in fabric.channel_counters("hbm")] == [3 * FLIT, 3 * FLIT]


def test_strided_reads_of_one_channel_queue_there(mode: Mode) -> None:
    # Stride of channels x burst: always channel 1. Finished at 4, 8, 12, and 1 ns on the link each.
    fabric = Fabric(memory(), mode=mode)
    reads = [fabric.inject(("hbm", "pe"), FLIT, read_from=FLIT + i * 4 * FLIT) for i in range(3)]
    fabric.run()
    assert [read.done_ns for read in reads] == [5, 9, 13]
    assert [channel.nbytes for channel in fabric.channel_counters("hbm")] == [0, 3 * FLIT, 0, 0]


def test_reads_of_neighbouring_channels_do_not_queue(mode: Mode) -> None:
    fabric = Fabric(memory(), mode=mode)
    reads = [fabric.inject(("hbm", "pe"), FLIT, read_from=i * FLIT) for i in range(3)]
    fabric.run()
    assert [read.done_ns for read in reads] == [5, 6, 7]


def test_a_write_is_done_when_its_last_burst_is(mode: Mode) -> None:
    # Five flits arrive at 1 to 5 on channels 0, 1, 2, 3, 0; channel 0 is free at 1 + 4, when the fifth arrives.
    fabric = Fabric(memory(), mode=mode)
    transfer = fabric.inject(("pe", "hbm"), 5 * FLIT, write_to=0)
    fabric.run()
    assert transfer.done_ns == 5 + 4


def test_turning_a_channel_costs_the_penalty(mode: Mode) -> None:
    # The write arrives at 1 and holds channel 0 until 5. The read comes at 2, starts at 5 + 3, is finished at 12, and
    # takes 1 ns on the link. A read after it does not turn the channel: 12 + 4 + 1.
    fabric = Fabric(memory(penalty_ns=3.0), mode=mode)
    write = fabric.inject(("pe", "hbm"), FLIT, write_to=0)
    read = fabric.inject(("hbm", "pe"), FLIT, 2.0, read_from=0)
    again = fabric.inject(("hbm", "pe"), FLIT, 2.0, read_from=4 * FLIT)
    fabric.run()
    assert (write.done_ns, read.done_ns, again.done_ns) == (5, 13, 17)


def test_reads_and_writes_share_a_channel(mode: Mode) -> None:
    # The read holds channel 0 until 4; the write's flit arrives at 1, starts at 4, is finished at 8.
    fabric = Fabric(memory(), mode=mode)
    read = fabric.inject(("hbm", "pe"), FLIT, read_from=0)
    write = fabric.inject(("pe", "hbm"), FLIT, write_to=0)
    other = fabric.inject(("pe", "hbm"), FLIT, write_to=FLIT)
    fabric.run()
    assert (read.done_ns, write.done_ns, other.done_ns) == (5, 8, 2 + 4)


def test_a_hop_trace_tells_arrival_and_departure_of_first_and_last_flit(mode: Mode) -> None:
    # b takes 2 ns after the wire's 0.5; the last of three flits is 2 ns behind the first everywhere.
    fabric = Fabric(line(), mode=mode)
    transfer = fabric.inject("abc", 3 * FLIT, 10.0, trace=True)
    fabric.run()
    assert fabric.hop_times(transfer) == [
        HopTimes("a", 10.0, 11.0, 10.0, 13.0),
        HopTimes("b", 11.5, 14.5, 13.5, 16.5),
        HopTimes("c", 15.0, 19.0, 17.0, 19.0),
    ]


def test_counters_tell_bytes_busy_time_and_the_longest_queue(mode: Mode) -> None:
    # As in the flows that meet: y1 is ready at 4 and taken at 6, the longest wait, which is 512 B of queue.
    fabric = Fabric(crossing(), mode=mode)
    fabric.inject("xmz", 2 * FLIT)
    fabric.inject("ymz", 2 * FLIT)
    fabric.run()
    counters = fabric.link_counters("m", "z")
    assert (counters.nbytes, counters.busy_ns) == (4 * FLIT, 4)
    assert (counters.longest_queue_ns, counters.longest_queue_bytes, counters.longest_queue_at_ns) == (2, 512, 4)


@pytest.mark.parametrize("trace", [False, True])
def test_a_flit_that_is_watched_counts_as_waiting_too(mode: Mode, trace: bool) -> None:
    # x and y send two flits each at 0. They come to m in pairs, at 3 and 4, and leave it for z at 4, 5, 6 and 7: the
    # last one waits from 4 to 6. On their own first links the second flits wait for 1 ns, from 0 on.
    fabric = Fabric(crossing(), mode=mode)
    for src in "xy":
        fabric.inject((src, "m", "z"), 2 * FLIT, trace=trace)
    fabric.run()
    waits = [fabric.link_counters(*link) for link in ("xm", "ym", "mz")]
    assert [(link.longest_queue_ns, link.longest_queue_at_ns) for link in waits] == [(1, 0), (1, 0), (2, 4)]
    assert [link.longest_queue_bytes for link in waits] == [FLIT, FLIT, 2 * FLIT]


def test_a_short_last_flit_of_a_read_waits_for_the_one_ahead_on_the_second_link(mode: Mode) -> None:
    # Four bursts are there at 8, four at 16, two at 24. The first link takes 1 ns per flit: of four the last waits 3.
    # Flit 8 passes it from 24 to 25 and the second link from 25 to 26. Half a flit behind it is there at 25.5.
    network = Network()
    for name in "mab":
        network.add_node(name)
    network.add_link("m", "a", 256.0)
    network.add_link("a", "b", 256.0)
    network.add_channels("m", 4, 8.0)
    fabric = Fabric(network, mode=mode)
    transfer = fabric.inject("mab", 9 * FLIT + 128, read_from=0)
    fabric.run()
    assert transfer.done_ns == 26.5
    waits = [fabric.link_counters(*link) for link in ("ma", "ab")]
    assert [(link.longest_queue_ns, link.longest_queue_at_ns) for link in waits] == [(3, 8), (0.5, 25.5)]


def test_a_write_may_be_done_within_the_first_nanosecond(mode: Mode) -> None:
    network = Network()
    network.add_node("pe")
    network.add_node("hbm")
    network.add_link("pe", "hbm", 1024.0)
    network.add_channels("hbm", 2, 0.125)
    fabric = Fabric(network, mode=mode)
    transfer = fabric.inject(("pe", "hbm"), FLIT, write_to=0)
    fabric.run()
    assert transfer.done_ns == 0.25 + 0.125


def test_a_read_ahead_of_a_write_on_its_way_counts_how_long_its_own_bursts_waited(mode: Mode) -> None:
    # The write's flits are at the memory at 11, 12, 13 and 14, each on an idle channel. The read at 1 has two bursts of
    # 0.5 ns for each of two channels; the second of them waits for the first.
    network = Network()
    network.add_node("pe")
    network.add_node("hbm")
    network.add_link("pe", "hbm", 256.0, 10.0)
    network.add_link("hbm", "pe", 256.0)
    network.add_channels("hbm", 2, 0.5)
    fabric = Fabric(network, mode=mode)
    write = fabric.inject(("pe", "hbm"), 4 * FLIT, write_to=0)
    read = fabric.inject(("hbm", "pe"), 4 * FLIT, at_ns=1.0, read_from=0)
    fabric.run()
    assert (write.done_ns, read.done_ns) == (14.5, 1 + 0.5 + 4)
    waits = [(channel.longest_queue_ns, channel.longest_queue_at_ns) for channel in fabric.channel_counters("hbm")]
    assert waits == [(0.5, 1), (0.5, 1)]


def test_a_delay_rule_sets_the_delay_of_every_flit_and_keeps_their_order(mode: Mode) -> None:
    # At b the first flit is delayed by 5 ns, the second 1 ns. They enter at 1 and 2, so the first is ready at 6 and the
    # second, which may not overtake, too. They leave at 7 and 8.
    network = Network()
    network.add_node("a")
    network.add_node("b", 2.0, lambda arrival: 5.0 if arrival.index == 0 else 1.0)
    network.add_node("c")
    network.add_link("a", "b", 256.0)
    network.add_link("b", "c", 256.0)
    fabric = Fabric(network, mode=mode)
    transfer = fabric.inject("abc", 2 * FLIT)
    fabric.run()
    assert transfer.done_ns == 8


def test_what_is_done_in_a_part_of_the_network_is_asked_for_by_itself(mode: Mode) -> None:
    network = Network(FLIT)
    for name, part in (("a", 0), ("b", 0), ("c", 1), ("d", 1)):
        network.add_node(name, part=part)
    for ends in ("ab", "bc", "cd"):
        network.add_link(*ends, 256.0)
    fabric = Fabric(network, mode=mode)
    fabric.inject("abcd", FLIT)
    fabric.run()
    before = fabric.done_so_far()
    for path, nbytes in (("abcd", 3 * FLIT), ("ab", FLIT), ("cd", 2 * FLIT)):
        fabric.inject(path, nbytes)
    fabric.run()
    between = {("a", "b"): 3.0, ("b", "c"): 3.0, ("c", "d"): 3.0}
    assert fabric.busy_since(before, [0]) == {**between, ("a", "b"): 4.0}
    assert fabric.busy_since(before, [1]) == {**between, ("c", "d"): 5.0}
    assert fabric.busy_since(before, [2]).keys() == between.keys()


# ---- counters that are read while transfers are under way


def test_waits_that_are_read_early_are_those_of_flits_that_have_come(mode: Mode) -> None:
    """Flit i is ready for b - c at 3.5 + i and takes it at 3.5 + 4 i, so it waits 3 i."""
    fabric = Fabric(line(bw_gbs=(256.0, 64.0)), mode=mode)
    transfer = fabric.inject("abc", 10 * FLIT)
    fabric.run(until=6.0)
    early = fabric.link_counters("b", "c")
    assert (early.longest_queue_ns, early.longest_queue_at_ns) == (6.0, 5.5)  # of flit 2; flit 3 comes at 6.5
    fabric.run()
    late = fabric.link_counters("b", "c")
    assert (late.longest_queue_ns, late.longest_queue_at_ns) == (27.0, 12.5)
    assert transfer.done_ns == 3.5 + 10 * 4 + 2.5


def test_waits_on_a_link_are_known_before_the_transfer_has_arrived(mode: Mode) -> None:
    """The third of three flits waits 2 ns. All have left the link at 3 ns and arrive after 50 ns more; another transfer
    takes the link meanwhile."""
    fabric = Fabric(line(overhead_ns=50.0), mode=mode)
    fabric.inject("ab", 3 * FLIT)
    fabric.inject("ab", FLIT, 10.0)
    fabric.run(until=20.0)
    assert fabric.link_counters("a", "b").longest_queue_ns == 2.0


def test_bursts_that_are_read_early_are_those_that_have_arrived(mode: Mode) -> None:
    """Flit i of a write arrives at 1 + i."""
    fabric = Fabric(memory(), mode=mode)
    fabric.inject(("pe", "hbm"), 8 * FLIT, write_to=0)
    fabric.run(until=3.5)
    assert fabric.channel_bytes("hbm") == 3 * FLIT
    fabric.run()
    assert fabric.channel_bytes("hbm") == 8 * FLIT
