"""A multicast by hand: every link of the tree carries a flit once, and every destination gets it on its own path."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric import Buffers, Fabric, FabricEnvironment, Network

FLIT, FLITS = 64, 10
OCCUPY = 2.0  # ns of a flit on a link of 32 GB/s
WIRE, NODE = 0.5, 1.0


def row(n: int = 4, out_gbs: float = 32.0, **options: Any) -> Network:
    """Routers in a row, a port at each."""
    network = Network(FLIT)
    for i in range(n):
        network.add_node(("router", i), NODE, **options)
        network.add_node(("port", i))
    for i in range(n):
        network.add_link(("port", i), ("router", i), 32.0)
        network.add_link(("router", i), ("port", i), out_gbs)
        if i:
            network.add_link(("router", i - 1), ("router", i), 32.0, WIRE)
    return network


def path(src: int, dst: int) -> list[tuple[str, int]]:
    return [("port", src), *(("router", i) for i in range(src, dst + 1)), ("port", dst)]


@pytest.mark.parametrize("mode", ["adaptive", "flits"])
def test_a_lone_multicast_takes_the_closed_form_at_every_destination(mode: Any) -> None:
    fabric = Fabric(row(), mode=mode)
    transfers = fabric.multicast([path(0, i) for i in (3, 1, 2)], FLIT * FLITS, 0.0)
    fabric.run()
    for transfer, hops in zip(transfers, (3, 1, 2), strict=True):
        # All flits one by one on the first link, the last one once more on each router link and the way out.
        expected = FLITS * OCCUPY + NODE + hops * (OCCUPY + WIRE + NODE) + OCCUPY
        assert transfer.done_ns == expected
    # A tree of 1 + 3 + 3 links: port 0 to its router, three links between routers, three ways out.
    counters = fabric.all_link_counters()
    assert len(counters) == 7
    assert {link.nbytes for link in counters.values()} == {FLIT * FLITS}
    assert {link.busy_ns for link in counters.values()} == {FLITS * OCCUPY}


def test_links_that_unicasts_share_are_crossed_once() -> None:
    unicast, multicast = Fabric(row()), Fabric(row())
    one_by_one = [unicast.inject(path(0, i), FLIT * FLITS, 0.0) for i in (1, 2, 3)]
    together = multicast.multicast([path(0, i) for i in (1, 2, 3)], FLIT * FLITS, 0.0)
    unicast.run()
    multicast.run()
    first = ("port", 0), ("router", 0)
    assert unicast.link_counters(*first).nbytes == 3 * multicast.link_counters(*first).nbytes
    # The first link is the limit of both: three times the flits there, the last transfer's two flit times earlier on.
    assert one_by_one[2].done_ns - together[2].done_ns == 2 * FLITS * OCCUPY
    assert one_by_one[0].done_ns == together[0].done_ns


@pytest.mark.parametrize("at_ns", [0.0, 3.0, 7.5, 13.0, 21.0, 24.5])
def test_a_planned_multicast_that_is_interrupted_goes_on_as_flits_would(at_ns: float) -> None:
    def ends(mode: Any) -> list[float]:
        fabric = Fabric(row(), mode=mode)
        transfers = fabric.multicast([path(0, i) for i in (3, 1, 2)], FLIT * FLITS, 0.0)
        transfers += [fabric.inject(path(1, 2), 300, at_ns), fabric.inject(path(2, 3), 700, at_ns + 1.0)]
        fabric.run()
        assert not any(fabric.engine.links.users)
        return [transfer.done_ns for transfer in transfers]

    assert ends("adaptive") == ends("flits")


def test_a_process_waits_for_the_last_destination() -> None:
    fabric = Fabric(row())
    env = FabricEnvironment(fabric)
    ended: list[float] = []

    def process() -> Any:
        yield env.timeout(4.0)
        transfer = yield env.multicast([path(0, i) for i in (1, 3)], FLIT)
        ended.append(env.now)
        assert transfer.done_ns == env.now

    env.process(process())
    env.run()
    assert ended == [4.0 + OCCUPY + NODE + 3 * (OCCUPY + WIRE + NODE) + OCCUPY]


def test_recorded_multicasts_have_one_row_per_flit_and_link_of_the_tree() -> None:
    fabric = Fabric(row(), record=True)
    fabric.multicast([path(0, i) for i in (1, 2, 3)], 2 * FLIT, 0.0)
    fabric.run()
    assert fabric.recorded is not None
    assert len(fabric.recorded) == 2 * 7


@pytest.mark.parametrize(
    ("paths", "nbytes", "says"),
    [
        ([path(0, 1), path(1, 2)], 64, "from several nodes"),
        ([], 64, "or to none"),
        ([path(0, 1), path(0, 1)], 64, "where another path ends"),
        ([path(0, 1), path(0, 1)[:-1]], 64, "where another path ends"),
        ([path(0, 1)], 0, "0 bytes"),
        ([path(0, 3), [("port", 0), ("router", 1), ("port", 1)]], 64, "by two paths"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused(paths: Any, nbytes: int, says: str) -> None:
    with pytest.raises(FabricError, match=says):
        Fabric(row()).multicast(paths, nbytes, 0.0)


def buffered_row(buffers: Buffers) -> Network:
    network = row()
    network.set_buffers(buffers)
    return network


@pytest.mark.parametrize("buffers", [Buffers(16, 4.0), Buffers(16, 4.0, order="voq")], ids=["fifo", "voq"])
def test_deep_buffers_change_nothing_for_a_lone_multicast(buffers: Buffers) -> None:
    fabric = Fabric(buffered_row(buffers), compile_after=float("inf"))
    transfers = fabric.multicast([path(0, i) for i in (3, 1, 2)], FLIT * FLITS, 0.0)
    fabric.run()
    closed = [FLITS * OCCUPY + NODE + hops * (OCCUPY + WIRE + NODE) + OCCUPY for hops in (3, 1, 2)]
    assert [transfer.done_ns for transfer in transfers] == closed
    assert {link.nbytes for link in fabric.all_link_counters().values()} == {FLIT * FLITS}


@pytest.mark.parametrize("order", ["fifo", "voq"])
def test_a_flit_keeps_its_slot_until_its_last_copy_has_started(order: Any) -> None:
    # Ways out take 16 ns per flit. The first flit is in router 1 at 2 + 1 + 2 + 0.5 + 1 = 6.5 ns, starts towards router
    # 2 at once and its copy on the way out, so that its slot is credited at 7.5 ns. The second one is there at 11 ns
    # and starts towards router 2 then; its copy has to wait until 6.5 + 16 = 22.5 ns, and the slot as long.
    network = row(out_gbs=4.0)
    network.set_buffers(Buffers(1, 1.0, order=order))
    fabric = Fabric(network, compile_after=float("inf"), record=True)
    fabric.multicast([path(0, 2), path(0, 1)], 3 * FLIT, 0.0)
    fabric.run()
    assert fabric.recorded is not None
    link = network.link_index(("router", 0), ("router", 1))
    starts = [hop.leave_ns - OCCUPY for hop in fabric.recorded if hop.link == link]
    assert starts == [3.0, 6.5 + 1.0, 22.5 + 1.0]


def test_a_packet_is_copied_whole_to_one_branch_after_another() -> None:
    # Both flits are in router 1 at 6.5 and 8.5 ns and start towards router 2 at once. Then the packet goes out: its
    # first flit starts at 8.5 ns, its second at 10.5.
    fabric = Fabric(buffered_row(Buffers(16, 4.0, ownership="packet")), compile_after=float("inf"))
    transfers = fabric.multicast([path(0, 2), path(0, 1)], 2 * FLIT, 0.0)
    fabric.run()
    assert [transfer.done_ns for transfer in transfers] == [10.5 + WIRE + NODE + OCCUPY, 12.5]


def test_packets_that_do_not_fit_or_would_mix_and_delay_rules_are_refused() -> None:
    paths, short = [path(0, 1), path(0, 2)], Buffers(4, ownership="packet", packet_bytes=4 * FLIT)
    with pytest.raises(FabricError, match="packets of 5 flits, where a buffer has 4 slots"):
        Fabric(buffered_row(Buffers(4, ownership="packet"))).multicast(paths, 4 * FLIT + 1, 0.0)
    assert len(Fabric(buffered_row(short)).multicast(paths, 4 * FLIT + 1, 0.0)) == 2
    with pytest.raises(FabricError, match="packets would mix"):
        Fabric(buffered_row(Buffers(4, ownership="packet", order="voq"))).multicast(paths, 64, 0.0)
    with pytest.raises(FabricError, match="delay rule"):
        Fabric(row(delay=lambda arrival: 1.0)).multicast([path(0, 1), path(0, 2)], 64, 0.0)
