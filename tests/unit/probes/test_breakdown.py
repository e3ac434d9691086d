"""Where the time of a transfer went."""

from __future__ import annotations

from functools import cache

import pytest

from kernbench.probes.cases import cases_of
from kernbench.probes.measure import measure
from kernbench.topology import load_topology


@cache
def machine():
    return load_topology(None, {"sip.cube_mesh.h": 1, "cube.pe_template.components.pe_dma.attrs.overhead_ns": 3.0})


def parts(name, nbytes=4096):
    case = next(case for case in cases_of(machine(), nbytes) if case.name == name)
    result = measure(machine(), case)
    assert result.breakdown.total_ns == result.total_ns
    return result.breakdown


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_local_read_is_setup_router_bytes_and_a_burst():
    found = parts("pe-local-hbm")
    assert found.pe_setup_ns == 3.0 + 3.0  # to depart, and when the answer comes in
    assert found.noc_ns == 2.0 + 2.0
    assert found.transfer_ns == 16.0 + 1.0  # 4096 / 256, and one flit on the other link
    assert found.memory_ns == 8.0
    assert found.ucie_ns == found.io_pcie_ns == found.contention_ns == 0.0


def test_the_next_cube_adds_two_ports_there_and_back():
    found = parts("pe-cross-cube-hbm-best")
    overhead_ns = 2 * (8.0 + 8.0)
    assert overhead_ns < found.ucie_ns < overhead_ns + 5.0  # and some wire
    assert found.io_pcie_ns == 0.0


def test_another_sip_is_reached_through_endpoints_and_the_switch():
    found = parts("pe-cross-sip-hbm-write")
    overhead_ns = 2 * (5.0 + 5.0 + 5.0)
    assert overhead_ns < found.io_pcie_ns < overhead_ns + 5.0


def test_sram_charges_its_own_overhead_and_no_burst():
    assert parts("pe-sram").memory_ns == 2.0


def test_what_others_cost_is_contention():
    uncontended, shared = parts("contention-1-to-slice"), parts("contention-all-to-slice")
    assert uncontended.contention_ns == 0.0
    # Seven others move 16 ns each over the slice's link; paths of unequal length hide a part of it.
    assert 5 * 16.0 < shared.contention_ns <= 7 * 16.0
