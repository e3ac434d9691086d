"""Every collective of 256 KiB takes at least the time of its link, and at most 1.6 times that, on 2 SIPs; one of each
family on 8. On 4, to narrower margins: test_collective_times.py; on up to 16, committed rows: test_ccl_auto.py.

A SIP has one PCIe link, 128 GB/s each way. The bound is what must leave or enter the SIP that has most to send or
receive, whatever the algorithm: of an all-gather of n ranks, (n - 1) / n of the result. It is that of the slowest rank:
the time is from the first PE that starts to the last that ends, of all ranks.
"""

from __future__ import annotations

import pytest

from kernbench.benches._ccl_runs import measure_alone
from kernbench.benches._collective_calls import (
    COLLECTIVE_NAMES,
    MeasuredCollective,
    WantedCollective,
    bus_factor,
    forms,
)
from kernbench.topology import load_topology

PCIE_GBS = 128.0
NBYTES = 256 * 1024
MARGIN = 1.6
CASES = [
    *((2, name, form) for name in COLLECTIVE_NAMES if name != "barrier" for form in forms(name)),
    (8, "all_to_all", False),
    (8, "broadcast", True),
    (8, "reduce_scatter", False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "collective", "in_place"), CASES)
def test_a_large_collective_is_near_its_link_bound(ranks: int, collective: MeasuredCollective, in_place: bool) -> None:
    machine = load_topology(None, {"system.sips.count": ranks, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1})
    found = measure_alone(machine, WantedCollective(collective, NBYTES, "f16", in_place=in_place), check=False)
    bound_ns = bus_factor(collective, ranks) * found.nbytes / PCIE_GBS
    assert bound_ns <= found.time_ns <= MARGIN * bound_ns
