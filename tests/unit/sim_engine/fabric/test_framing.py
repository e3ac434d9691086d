"""Links with packets: a transfer occupies one for its bytes and one header for each packet that it begins."""

from __future__ import annotations

import pytest

from kernbench.common.errors import FabricError
from kernbench.common.framing import Framing
from kernbench.sim_engine.fabric import Fabric, Network

UCIE = Framing(header_bytes=20, payload_bytes=236)


def line(framing: Framing | None, flit_bytes: int = 256, bw_gbs: float = 1.0) -> Network:
    network = Network(flit_bytes)
    for name in "abc":
        network.add_node(name)
    network.add_link("a", "b", bw_gbs)
    network.add_link("b", "c", 1024.0 * bw_gbs)
    if framing is not None:
        network.set_framing("a", "b", framing)
    return network


def busy_ns(network: Network, nbytes: int, transfers: int = 1) -> float:
    fabric = Fabric(network)
    for _ in range(transfers):
        fabric.inject(("a", "b", "c"), nbytes, 0.0)
    fabric.run()
    return fabric.link_counters("a", "b").busy_ns


@pytest.mark.parametrize("nbytes", [1, 100, 235, 236, 237, 256, 1000, 4096, 23600])
def test_a_transfer_occupies_a_link_for_its_bytes_and_one_header_for_each_packet(nbytes: int) -> None:
    packets = -(-nbytes // 236)
    assert busy_ns(line(UCIE), nbytes) == pytest.approx(nbytes + 20 * packets, abs=1e-4)  # a byte per ns


def test_transfers_do_not_share_packets() -> None:
    assert busy_ns(line(UCIE), 100, transfers=3) == pytest.approx(3 * (100 + 20), abs=1e-4)


def test_ethernet_packets_leave_a_router_of_chips_953_of_a_thousand_bytes() -> None:
    framing = Framing(header_bytes=48 + 5 * 50, payload_bytes=6144)  # five frames of at most 1500 B
    assert framing.efficiency == pytest.approx(0.9537, abs=1e-4)
    assert busy_ns(line(framing), 6144 * 100) == pytest.approx(100 * 6442, abs=0.01)


def test_bytes_that_are_counted_are_those_of_the_transfer() -> None:
    fabric = Fabric(line(UCIE))
    fabric.inject(("a", "b", "c"), 1000, 0.0)
    fabric.run()
    assert fabric.link_counters("a", "b").nbytes == 1000


def test_a_link_without_packets_is_as_it_was() -> None:
    assert busy_ns(line(None), 1000) == 1000.0
    assert busy_ns(line(Framing(0, 64)), 1000) == 1000.0


def test_the_last_flit_waits_for_headers_that_the_others_have_not_paid() -> None:
    """One flit of 16 B in a packet with a header of 84: 100 ns on the link, then a fast one."""
    fabric = Fabric(line(Framing(84, 6144), flit_bytes=16))
    transfer = fabric.inject(("a", "b", "c"), 16, 0.0)
    fabric.run()
    assert transfer.done_ns == 100.0 + 16 / 1024


@pytest.mark.parametrize("framing", [Framing(-1, 10), Framing(10, 0)])
def test_packets_without_a_length_are_refused(framing: Framing) -> None:
    with pytest.raises(FabricError, match=f"packets of {framing.payload_bytes} B with headers of"):
        line(framing)


def test_packets_on_a_link_that_carries_control_only_are_refused() -> None:
    network = Network(256)
    network.add_node("a")
    network.add_node("b")
    network.add_link("a", "b", None)
    with pytest.raises(FabricError, match="a link with bandwidth"):
        network.set_framing("a", "b", UCIE)
