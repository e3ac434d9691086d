"""Bounds by hand, on the shipped machine: 128 PEs per SIP of 4096 MACs, 128 f32 lanes and 256 bytes per ns."""

from __future__ import annotations

import pytest

from kernbench.models.bounds import Need, rates_of
from kernbench.topology import load_topology


def test_rates_are_those_of_one_sip() -> None:
    rates = rates_of(load_topology().spec)
    assert rates.macs == 128 * 4096
    assert rates.f32_lanes == 128 * 128
    assert rates.hbm_bytes == 128 * 256
    assert rates.cube_bytes == 2 * 512  # a corner cube has two neighbours
    assert rates.sip_bytes == 128


@pytest.mark.parametrize(
    ("need", "name", "ns"),
    [
        (Need(macs=128 * 4096 * 10, hbm_bytes=128 * 256 * 9), "compute", 10),
        (Need(macs=128 * 4096 * 3, lanes=128 * 128 * 4), "compute", 7),  # they take turns
        (Need(macs=128 * 4096, hbm_bytes=128 * 256 * 9), "HBM", 9),
        (Need(cube_bytes=2048, hbm_bytes=100), "link", 2),
        (Need(sip_bytes=1280), "collective", 10),
    ],
)
def test_the_largest_is_the_bound(need: Need, name: str, ns: float) -> None:
    assert need.bound(rates_of(load_topology().spec)) == (name, ns)
