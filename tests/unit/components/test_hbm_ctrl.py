"""The controller's one timing rule: how long a burst holds its channel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.units import GRID_PER_NS, transfer_ns
from kernbench.components.builtin.hbm_ctrl import ChannelSpec, HbmCtrlComponent, burst_ns
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology


def test_default_channel_takes_a_burst_in_8_ns() -> None:
    assert burst_ns(8, 256, 32.0) == 256 / 32 == 8


@pytest.mark.parametrize(("channels", "expected_ns"), [(1, 1.0), (4, 4.0), (16, 16.0)])
def test_channels_share_the_slice_between_them(channels: int, expected_ns: float) -> None:
    assert burst_ns(channels, 256, 256.0 / channels) == expected_ns


@given(st.sampled_from([1, 2, 8, 64]), st.sampled_from([64, 256]), st.floats(0.1, 1000.0))
def test_channels_together_are_exactly_as_fast_as_the_link(channels: int, burst_bytes: int, bw_gbs: float) -> None:
    took = burst_ns(channels, burst_bytes, bw_gbs)
    assert took == channels * transfer_ns(burst_bytes, channels * bw_gbs)
    assert (took * GRID_PER_NS).is_integer()


def test_channels_come_from_the_machine_description() -> None:
    graph = load_topology(
        None,
        {
            "cube.memory_map.hbm_channels_per_pe": 4,
            "cube.memory_map.hbm_channel_bw_gbs": 16.0,
            "cube.components.hbm_ctrl.attrs.switch_penalty_ns": 2.5,
        },
    )
    component = GraphEngine(graph).component("sip0.cube0.hbm_ctrl.pe0")
    assert isinstance(component, HbmCtrlComponent)
    assert component.channels == ChannelSpec(channels=4, burst_ns=16.0, switch_penalty_ns=2.5)
