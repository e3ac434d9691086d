"""The uncontended time of a transfer is its own: it does not depend on what was measured before."""

from __future__ import annotations

import pytest

from kernbench.sim_engine.fabric import Network
from kernbench.sim_engine.fabric.activity import SeenTransfer, TransferGroup
from kernbench.sim_engine.fabric.channel_bank import CHANNEL_SHIFT
from kernbench.sim_engine.uncontended import Uncontended

FLIT = 256
PENALTY_NS = 50.0


def memory() -> Network:
    """pe and hbm, joined both ways at 1 ns per flit; a burst takes its channel 4 ns, a turnaround 50 ns."""
    network = Network()
    network.add_node("pe")
    network.add_node("hbm")
    network.add_link("pe", "hbm", 256.0)
    network.add_link("hbm", "pe", 256.0)
    network.add_channels("hbm", 4, 4.0, PENALTY_NS)
    return network


def queue_ns(uncontended: Uncontended, network: Network, *, write: bool, lasted_ns: float) -> float:
    """How long a transfer of one flit waited that took `lasted_ns`."""
    path = ("pe", "hbm") if write else ("hbm", "pe")
    piece = SeenTransfer(network.route(path), FLIT, not write, write, 0, 0.0, lasted_ns)
    return uncontended.queue_ns(TransferGroup([piece]))


@pytest.mark.parametrize("before", [(), (False,), (True,), (True, False), (False, True)])
def test_a_measurement_leaves_no_turnaround_for_the_next(before: tuple[bool, ...]) -> None:
    """Uncontended, a flit takes 1 ns on the link and 4 ns on its channel, read or written, whatever came before."""
    network = memory()
    uncontended = Uncontended(network)
    for write in before:
        queue_ns(uncontended, network, write=write, lasted_ns=5.0)
    assert queue_ns(uncontended, network, write=True, lasted_ns=5.0 + 7.0) == 7.0
    assert queue_ns(uncontended, network, write=False, lasted_ns=5.0 + PENALTY_NS) == PENALTY_NS


def test_pieces_on_separate_channels_use_them_together() -> None:
    """4 channels of 64 GB/s behind links of 64: 4 pieces of one flit take what 4 flits take at 256 GB/s, 4 ns."""
    network = Network(FLIT)
    for name in ("pe", "hbm", *"abcd"):
        network.add_node(name)
    for name in "abcd":
        network.add_link("pe", name, 256.0)
        network.add_link(name, "hbm", 64.0)
    network.add_channels("hbm", 4, 4.0, separate=True)
    pieces = [
        SeenTransfer(
            network.route(("pe", name, "hbm")), FLIT, False, True, channel << CHANNEL_SHIFT, 0.0, 12.0, (channel, 4)
        )
        for channel, name in enumerate("abcd")
    ]
    group = TransferGroup(pieces)
    assert Uncontended(network).transfer_ns(group) == 4.0
    # The last has the fourth place: 3 ns, 1 to its router, 4 to the memory, a burst of 4.
    assert Uncontended(network).queue_ns(group) == 0.0
