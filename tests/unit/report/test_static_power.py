"""Static power comes from one source, and is counted once."""

from __future__ import annotations

import pytest

from kernbench.benches.gemm import gemm_single_pe
from kernbench.report.energy import energy_of
from kernbench.report.feasible import feasibility_of
from kernbench.report.silicon import static_w
from kernbench.report.static_power import static_power
from kernbench.runtime_api.bench_runner import run
from kernbench.topology import load_topology

SMALL = {
    "system.sips.count": 2, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1,
}  # fmt: skip
BY_BLOCK = {**SMALL, "energy.static_w.pe_gemm": 0.5}


def test_static_power_of_blocks_takes_the_place_of_idle_power_by_area() -> None:
    by_area, by_block = load_topology(None, SMALL), load_topology(None, BY_BLOCK)
    assert static_power(by_area) == static_w(by_area)
    assert static_power(by_block).value == 2 * 4 * 0.5  # 4 PEs on each of two SIPs


def test_the_power_of_a_sip_has_static_power_once() -> None:
    """On one SIP: its 4 blocks of 0.5 W, and the work of the launch over its time."""
    found = []
    for settings in (SMALL, BY_BLOCK):
        result = run(gemm_single_pe, load_topology(None, settings), device="sip:0", params={"m": 64, "k": 64, "n": 64})
        energy = energy_of(result)
        limits = feasibility_of(result.engine.graph, energy, tuple(result.launches))
        found.append(limits.sip_w.value - limits.static_w.value / 2)
        work = energy.launches[0].work_j.value / energy.launches[0].span_ns * 1e9
        assert found[-1] == pytest.approx(work)
    assert found[0] == pytest.approx(found[1])
    assert limits.static_w.value == 4.0
