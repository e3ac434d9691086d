"""Where an address lies: found once for a window of addresses, and checked each time."""

from __future__ import annotations

import pytest

from kernbench.common.errors import AddressError
from kernbench.policy.address.phyaddr import PeSubUnit, PhysAddr
from kernbench.policy.routing.resolver import AddressResolver
from kernbench.topology import load_topology

MIB = 1 << 20
PLACES = [
    *(PhysAddr.pe_tcm_addr(0, 1, 2, offset) for offset in (0, 5, MIB - 1, MIB, MIB + 300)),
    *(PhysAddr.hbm_addr(1, 3, offset) for offset in (0, 3 * MIB + 7, 6 << 30, (6 << 30) - 1)),
    *(PhysAddr.cube_sram_addr(0, 2, offset) for offset in (0, 31 * MIB + 64)),
]


def test_an_address_is_located_where_it_is_resolved():
    resolver = AddressResolver(load_topology())
    for address in (*PLACES, *reversed(PLACES)):
        assert resolver.locate(address.raw) == (resolver.resolve(address), resolver.local_address(address))


def test_an_address_that_encodes_nothing_is_refused_though_its_window_is_known():
    resolver = AddressResolver(load_topology())
    known = PhysAddr.pe_resource_addr(0, 0, 0, PeSubUnit.PE_CPU_DTCM, 0)
    resolver.locate(known.raw)
    with pytest.raises(AddressError, match="sub-unit 0 of a PE"):
        resolver.locate(known.raw + MIB - 1)
