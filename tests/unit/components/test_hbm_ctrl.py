"""The HBM controller: how long a burst holds its channel, which channel it goes to, and what a turn costs.

Wires have no length here. A PE reads its own slice through one router: 2 ns there, the bursts, then its bytes over the
controller's link, 2 ns in the router and the DMA's link of 256 GB/s.
"""

from __future__ import annotations

import pytest

from kernbench.common.messages import PeDmaMsg
from kernbench.common.units import GRID_PER_NS
from kernbench.components.builtin.hbm_ctrl import HbmChannelSpec, HbmCtrlComponent, burst_ns
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

OWN_SLICE = "sip0.cube0.hbm_ctrl.pe0"


def engine(**memory: float) -> GraphEngine:
    penalty_ns = memory.pop("switch_penalty_ns", 0.0)
    keys = {f"cube.memory_map.hbm_{name}": value for name, value in memory.items()}
    penalty = {"cube.components.hbm_ctrl.attrs.switch_penalty_ns": penalty_ns}
    return GraphEngine(load_topology(None, {"system.ns_per_mm": 0.0, **keys, **penalty}))


def access_ns(engine: GraphEngine, address: int, nbytes: int, *, is_write: bool = False) -> float:
    """How long PE 0 takes to read or write its own slice."""
    pa = PhysAddr.hbm_addr(0, 0, address).encode()
    handle = engine.submit(PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=nbytes, is_write=is_write))
    engine.wait(handle)
    total_ns = engine.get_completion(handle)[1]["total_ns"]
    assert isinstance(total_ns, float)
    return total_ns


@pytest.mark.parametrize(
    ("channels", "burst_bytes", "channel_gbs", "expected_ns"),
    [
        (8, 256, 32.0, 8.0),  # 256 B at 32 B/ns
        (1, 256, 256.0, 1.0),
        (16, 256, 16.0, 16.0),
        (4, 64, 32.0, 2.0),
        (64, 512, 4.0, 128.0),
    ],
)
def test_a_burst_takes_its_bytes_over_the_bandwidth_of_one_channel(
    channels: int, burst_bytes: int, channel_gbs: float, expected_ns: float
) -> None:
    assert burst_ns(channels, burst_bytes, channel_gbs) == expected_ns


def test_channels_together_are_exactly_as_fast_as_the_link_where_neither_fits_the_grid() -> None:
    # A flit takes 256 / 240 ns on the link: 1 118 481.07 steps of the grid, rounded to 1 118 481. Eight flits and a
    # burst on each of eight channels take the same 8 947 848; a burst rounded by itself would take one step more.
    assert burst_ns(8, 256, 30.0) * GRID_PER_NS == 8 * 1_118_481 == 8_947_848
    assert round(256 / 30 * GRID_PER_NS) == 8_947_849


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_channels_come_from_the_machine_description() -> None:
    component = engine(channels_per_pe=4, channel_bw_gbs=16.0, switch_penalty_ns=2.5).component(OWN_SLICE)
    assert isinstance(component, HbmCtrlComponent)
    assert component.channels == HbmChannelSpec(channels=4, burst_ns=16.0, switch_penalty_ns=2.5)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.parametrize(
    ("nbytes", "expected_ns"),
    [
        (256, 2 + 8 + 1 + 2 + 1),
        (128, 2 + 8 + 0.5 + 2 + 0.5),  # a whole burst all the same
        (8 * 256, 2 + 8 + 8 * 1 + 2 + 1),  # eight bursts at once, one on each channel
        (9 * 256, 2 + 8 + 9 * 1 + 2 + 1),  # the ninth is there at 18, when the link has taken eight
    ],
)
def test_a_read_waits_for_its_bursts(nbytes: int, expected_ns: float) -> None:
    assert access_ns(engine(), 0, nbytes) == expected_ns


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.parametrize(
    ("nbytes", "expected_ns"),
    [
        # Two channels of 8 GB/s: 32 ns a burst, and 16 ns a flit on the controller's link.
        (256, 2 + 32 + 16 + 2 + 1),
        (2 * 256, 2 + 32 + 2 * 16 + 2 + 1),
        (4 * 256, 2 + 32 + 4 * 16 + 2 + 1),
    ],
)
def test_fewer_and_slower_channels_make_a_slower_read(nbytes: int, expected_ns: float) -> None:
    assert access_ns(engine(channels_per_pe=2, channel_bw_gbs=8.0), 0, nbytes) == expected_ns


@pytest.mark.parametrize(("address", "channel"), [(0, 0), (255, 0), (256, 1), (3 * 256, 3), (4 * 256, 0), (7 * 256, 3)])
def test_the_address_of_a_burst_names_its_channel(address: int, channel: int) -> None:
    machine = engine(channels_per_pe=4, channel_bw_gbs=64.0)
    access_ns(machine, address, 1)
    expected = [256 if at == channel else 0 for at in range(4)]
    assert [counters.nbytes for counters in machine.channel_counters(OWN_SLICE)] == expected


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_channel_that_turns_pays_the_penalty_and_its_first_direction_is_free() -> None:
    machine = engine(switch_penalty_ns=2.5)
    # A write: two links, a router, the burst, and the acknowledgement through the router.
    assert access_ns(machine, 0, 256, is_write=True) == 1 + 2 + 1 + 8 + 2
    assert access_ns(machine, 0, 256, is_write=True) == 14
    assert access_ns(machine, 0, 256) == 14 + 2.5
    assert access_ns(machine, 0, 256) == 14
    assert access_ns(machine, 256, 256) == 14  # another channel, which has done nothing yet
