"""The formula by hand on the default machine, and against the engine on an odd one."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.probes.cases import cases_of
from kernbench.probes.formula import is_plain, occupancy_ns, predict
from kernbench.probes.measure import measure
from kernbench.topology import load_topology

LOCAL = ("sip0.cube0.pe0.pe_dma", "sip0.cube0.noc.r0c0", "sip0.cube0.hbm_ctrl.pe0")


@cache
def default_machine():
    return load_topology()


@cache
def odd_machine():
    """Nothing here is a round number of ns."""
    return load_topology(
        None,
        {
            "sip.cube_mesh.w": 2,
            "sip.cube_mesh.h": 1,
            "system.flit_bytes": 128,
            "system.ns_per_mm": 0.137,
            "cube.components.hbm_ctrl.attrs.burst_bytes": 128,
            "cube.components.router.attrs.overhead_ns": 1.3,
            "cube.pe_template.components.pe_dma.attrs.overhead_ns": 0.7,
            "cube.memory_map.hbm_channel_bw_gbs": 13.7,
            "cube.memory_map.hbm_channels_per_pe": 4,
            "io_chiplet.links.per_connection_bw_gbs": 77.3,
            "io_chiplet.components.pcie_ep.attrs.overhead_ns": 3.1,
            "system.links.io_ep_to_switch.bw_gbs": 31.0,
        },
    )


def terms(nbytes, is_write):
    found = predict(default_machine(), LOCAL, nbytes, is_write)
    return found.overhead_ns, found.wire_ns, found.drain_ns, found.flit_ns, found.memory_ns


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.parametrize("is_write", [False, True])
def test_one_flit_to_the_local_slice(is_write):
    # The router there and back 2 + 2; 256 B at 256 GB/s on two links 1 + 1; a burst at 32 GB/s 8.
    assert terms(256, is_write) == (4.0, 0.0, 1.0, 1.0, 8.0)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_second_flit_adds_its_time_on_the_narrowest_link_once():
    assert terms(512, True) == (4.0, 0.0, 2.0, 1.0, 8.0)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_partial_flit_waits_for_the_whole_one_ahead():
    # 300 B: a whole flit and 44 B (0.171875 ns). On the second link the partial one comes at 3.17 and waits until 4.
    found = predict(default_machine(), LOCAL, 300, True)
    assert found.drain_ns == 1.171875
    assert found.formula_ns == 4.0 + 1.0 + 1.0 + 0.171875 + 8.0


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_partial_burst_waits_for_its_channel():
    # 8 whole flits reach the 8 channels at 4, 5, ... 11; the ninth, of 1 B, at 11 + 1/256. Channel 0 is free at 4 + 8.
    assert terms(8 * 256 + 1, True)[-1] == 8.0 + (12.0 - (11.0 + 1 / 256))
    assert terms(8 * 256 + 1, False)[-1] == 8.0  # a read books all its bursts beforehand


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_between_sips_every_stretch_pays_the_bytes_again():
    graph = default_machine()
    case = next(case for case in cases_of(graph, 32768) if case.name == "pe-cross-sip-hbm-write")
    found = measure(graph, case).prediction
    # PE to pcie_ep, pcie_ep to pcie_ep, pcie_ep to HBM: 3 x 32768 / 128.
    assert found.drain_ns == 3 * 256.0
    # Stretch 1 at 256, 128, 128, 512, 128, 128, 256 GB/s: 1 + 2 + 2 + 0.5 + 2 + 2 + 1, less one 2 that is in the drain.
    # Stretch 2 at 128, 128: 2 + 2 less 2. Stretch 3 as the first.
    assert found.flit_ns == 8.5 + 2.0 + 8.5
    # One way: routers 2 x 2, UCIe 2 x (8 + 8), endpoints 2 x 5, switch 5; and back.
    assert found.overhead_ns == 2 * (4 + 32 + 10 + 5)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_terms_add_up_to_the_formula():
    found = predict(default_machine(), LOCAL, 12345, True)
    parts = (found.overhead_ns, found.wire_ns, found.drain_ns, found.flit_ns, found.memory_ns)
    assert found.formula_ns == sum(parts)


def test_occupancy_counts_whole_flits_and_the_rest():
    link = default_machine().edge(LOCAL[0], LOCAL[1])
    assert occupancy_ns(default_machine(), link, 512) == 2.0
    assert occupancy_ns(default_machine(), link, 640) == 2.5


@settings(max_examples=15, deadline=None)
@given(nbytes=st.integers(1, 20_000), pick=st.integers(0, 17))
def test_formula_equals_measurement_for_any_size_and_place(nbytes, pick):
    lone = [case for case in cases_of(odd_machine(), nbytes) if case.is_uncontended]
    result = measure(odd_machine(), lone[pick % len(lone)])
    assert result.total_ns == result.prediction.formula_ns


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_block_of_the_users_own_is_not_plain():
    ours = "kernbench.components.builtin.forwarding:ForwardingComponent"
    graph = load_topology(None, {"cube.components.router.impl": ours, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1})
    assert not is_plain(graph, LOCAL)
    assert is_plain(default_machine(), LOCAL)
