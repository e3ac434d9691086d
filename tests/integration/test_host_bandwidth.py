"""Host traffic uses every connection of the PHYs on its path; with a fast PCIe endpoint it is as fast as they are."""

from __future__ import annotations

import pytest

from kernbench.probes.probe import run_probe
from kernbench.topology import load_topology

FAST = {"io_chiplet.links.pcie_ep_to_noc_bw_gbs": 4096.0, "system.sips.count": 1}


@pytest.mark.parametrize("suffix", ["", "-write"])
@pytest.mark.parametrize(
    ("case", "connections"),
    [
        ("contention-host-to-cube", 4),  # of one PHY, 128 GB/s each
        ("contention-host-to-row", 16),  # of four
    ],
)
def test_host_traffic_has_the_bandwidth_of_all_connections(case: str, connections: int, suffix: str) -> None:
    report = run_probe(load_topology(overrides=FAST), case + suffix, 64 << 10, sweep=False)
    (result,) = report.cases
    assert report.ok
    assert result.aggregate_peak_gbs == connections * 128.0
    # The endpoint sends one write after another at 4096 GB/s: of 32 the last begins 31 x 16 ns late, so not all is had.
    assert result.effective_gbs > 0.6 * connections * 128.0
    assert f"over {connections} of {connections} connections" in report.notes[-1]


def test_the_default_endpoint_feeds_two_connections_worth() -> None:
    report = run_probe(load_topology(overrides={"system.sips.count": 1}), "contention-host-to-cube-write", sweep=False)
    assert report.cases[0].aggregate_peak_gbs == 256.0  # pcie_ep to io_noc


def test_a_single_connection_carries_its_own_bandwidth_only() -> None:
    graph = load_topology(overrides={**FAST, "io_chiplet.n_connections": 1})
    (result,) = run_probe(graph, "contention-host-to-cube-write", sweep=False).cases
    assert result.aggregate_peak_gbs == 128.0
