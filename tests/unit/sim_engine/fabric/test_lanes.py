"""Lanes: what a stream of reads costs when nobody crosses it, and what happens when somebody does.

m has two channels of 4 ns a burst; m to a takes 2 ns a flit, a to b 2 ns, every node 1 ns. A read of four flits is two
rounds: bursts end at 4 and 8, flits leave m at 6, 8, 10, 12 and are at b 1 + 2 + 1 ns later.
"""

from __future__ import annotations

import pytest

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric import Fabric, LinkCounters, Network, Transfer
from kernbench.sim_engine.fabric.planned_trains import Mode

FLIT = 64
READ_NS = 16.0


def network() -> Network:
    made = Network(FLIT)
    for name in "mabc":
        made.add_node(name, 1.0)
    for src, dst in ("ma", "ab", "ca", "bm"):
        made.add_link(src, dst, FLIT / 2)
    made.add_channels("m", 2, 4.0)
    return made


def stream(mode: Mode, reads: int, cross_at_ns: float | None = None) -> tuple[Fabric, list[float]]:
    """Reads from m to b, one after the other; a message from c to b may cross them."""
    fabric = Fabric(network(), mode=mode)
    lane = fabric.lane(fabric.network.route("mab"), with_channels=True)
    ends: list[float] = []

    def done(transfer: Transfer) -> None:
        ends.append(transfer.done_ns)
        if len(ends) < reads:
            lane.read(4 * FLIT, 0, transfer.done_ns, done, None)

    lane.read(4 * FLIT, 0, 0.0, done, None)
    if cross_at_ns is not None:
        fabric.inject("cab", 8 * FLIT, cross_at_ns)
    fabric.run()
    return fabric, ends


def counters(fabric: Fabric) -> tuple[dict[object, LinkCounters], list[LinkCounters]]:
    return dict(fabric.all_link_counters()), fabric.channel_counters("m")


def test_reads_that_nobody_crosses_are_one_event_each_and_no_train() -> None:
    fabric, ends = stream("adaptive", 5)
    assert ends == [READ_NS * n for n in range(1, 6)]
    assert (fabric.events, fabric.planned) == (5, 0)


def test_counters_know_of_reads_that_left_no_trace_on_links() -> None:
    fabric, _ = stream("adaptive", 5)
    plain, _ = stream("flits", 5)
    assert counters(fabric) == counters(plain)
    assert fabric.link_counters("m", "a").nbytes == 5 * 4 * FLIT
    assert fabric.channel_bytes("m") == 5 * 4 * FLIT


@pytest.mark.parametrize("cross_at_ns", [0.0, 5.0, 16.0, 21.0, 23.0, 31.0, 32.0, 40.0])
def test_whoever_crosses_finds_the_read_under_way_as_it_is(cross_at_ns: float) -> None:
    fabric, ends = stream("adaptive", 5, cross_at_ns)
    plain, expected = stream("flits", 5, cross_at_ns)
    assert ends == expected
    assert ends[-1] > 5 * READ_NS  # it was held up
    assert counters(fabric) == counters(plain)


def test_a_request_takes_its_time_to_the_memory() -> None:
    fabric = Fabric(network())
    ends: list[float] = []
    lane = fabric.lane(fabric.network.route("mab"), with_channels=True, lead_ns=10.0)
    lane.read(4 * FLIT, 0, 3.0, lambda transfer: ends.append(transfer.done_ns), "tag")
    fabric.run()
    assert ends == [13.0 + READ_NS]


def test_a_write_that_comes_before_the_request_is_there_goes_first() -> None:
    ends: dict[str, list[float]] = {}
    for mode in ("adaptive", "flits"):
        fabric = Fabric(network(), mode=mode)
        found = ends[mode] = []
        lane = fabric.lane(fabric.network.route("mab"), with_channels=True, lead_ns=10.0)
        lane.read(4 * FLIT, 0, 0.0, lambda transfer, found=found: found.append(transfer.done_ns), None)
        fabric.inject("bm", 6 * FLIT, 0.0, write_to=0)
        fabric.run()
    assert ends["adaptive"] == ends["flits"]
    assert ends["adaptive"][0] > 10.0 + READ_NS


def test_two_reads_at_once_share_the_way_as_any_two_do() -> None:
    ends: dict[str, list[float]] = {}
    for mode in ("adaptive", "flits"):
        fabric = Fabric(network(), mode=mode)
        found = ends[mode] = []
        lane = fabric.lane(fabric.network.route("mab"), with_channels=True)
        for _ in range(2):
            lane.read(4 * FLIT, 0, 0.0, lambda transfer, found=found: found.append(transfer.done_ns), None)
        fabric.run()
    assert ends["adaptive"] == ends["flits"]


def test_a_lane_from_a_node_without_memory_is_refused() -> None:
    fabric = Fabric(network())
    with pytest.raises(FabricError, match="no memory channels"):
        fabric.lane(fabric.network.route("ab"), with_channels=True)


def test_reads_that_are_counted_late_stay_counted_when_a_write_planned_before_is_split() -> None:
    def counted(mode: Mode) -> list[LinkCounters]:
        fabric, _ = stream(mode, 3)
        fabric.inject("bm", 16 * FLIT, 60.0, write_to=0)
        fabric.run(65.0)
        fabric.channel_counters("m")  # the lane's reads are counted now, the bursts of the write were planned before
        fabric.inject("mab", 4 * FLIT, 66.0, read_from=0)
        fabric.run()
        return fabric.channel_counters("m")

    assert counted("adaptive") == counted("flits")
