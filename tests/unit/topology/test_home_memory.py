"""The memory that tensors lie in by default: what each kind has, and what a PE's allocator makes of a home in TCM."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.common.errors import AllocationError
from kernbench.policy.address.allocator import AddressConfig, PEMemAllocator, TcmLease
from kernbench.topology import load_topology
from kernbench.topology.machine_hash import machine_hash, values_of

NO_HBM = {"cube.memory_map.hbm_total_gb_per_cube": 0}
IN_TCM = {**NO_HBM, "cube.memory_map.tcm_home_mb_per_pe": 0.25}
KIB = 1024


@pytest.mark.parametrize(
    ("machine", "space", "node", "of_cube", "gbs"),
    [
        ({}, "hbm", "sip1.cube2.hbm_ctrl.pe3", 48 << 30, (256.0, 256.0, 256.0)),
        (NO_HBM, "sram", "sip1.cube2.sram", 32 << 20, (32.0, 16.0, 16.0)),  # an eighth of the port each way
        (IN_TCM, "tcm", "sip1.cube2.pe3.pe_tcm", 8 * 256 * KIB, (1024.0, 512.0, 512.0)),  # past the port of 256
    ],
)
def test_each_kind_has_its_size_its_rates_and_its_node(
    machine: dict[str, Any], space: str, node: str, of_cube: int, gbs: tuple[float, float, float]
) -> None:
    graph = load_topology(None, machine)
    cube = graph.spec.cube
    assert (cube.home.space, graph.home_node(1, 2, 3), cube.home_bytes) == (space, node, of_cube)
    assert (cube.home_gbs, cube.home_read_gbs, cube.home_write_gbs) == gbs


def test_a_slower_port_limits_what_is_behind_a_router() -> None:
    narrow = {"cube.links.pe_dma_to_router_bw_gbs": 8.0}
    rates = [load_topology(None, machine | narrow).spec.cube.home_read_gbs for machine in ({}, NO_HBM, IN_TCM)]
    assert rates == [8.0, 8.0, 512.0]


def test_tensors_have_the_start_of_a_tcm_and_kernels_what_follows() -> None:
    sizes = AddressConfig.from_spec(load_topology(None, IN_TCM).spec)
    memory = PEMemAllocator(0, 1, 2, sizes)
    assert memory.lease_tcm() == TcmLease(256 * KIB, 768 * KIB)
    first, second = memory.alloc_tcm_home(200 * KIB), memory.alloc_tcm_home(56 * KIB)  # while a kernel runs
    assert [(each.die_id, each.pe_id, each.sub_offset) for each in (first, second)] == [(1, 2, 0), (1, 2, 200 * KIB)]
    with pytest.raises(AllocationError, match=r"sip0.cube1.pe2 TCM for tensors overflow"):
        memory.alloc_tcm_home(1)
    memory.end_lease()
    ring = memory.alloc_tcm(KIB)
    assert ring.sub_offset == 256 * KIB
    for address, nbytes in ((ring, KIB), (first, 200 * KIB), (second, 56 * KIB)):
        memory.free_tcm(address, nbytes)
    assert (memory.tcm_home.used_bytes, memory.tcm.used_bytes) == (0, 0)


def test_a_machine_without_a_home_in_tcm_keeps_its_fingerprint() -> None:
    assert "tcm_home_mb_per_pe" not in values_of(load_topology().spec)["cube"]["memory_map"]
    assert machine_hash(load_topology(None, NO_HBM).spec) != machine_hash(load_topology(None, IN_TCM).spec)
