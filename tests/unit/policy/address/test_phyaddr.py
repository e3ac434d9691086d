"""The 51-bit address: hand-made examples, round trips, and everything that must be refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import AddressError
from kernbench.common.units import GIB, KIB, MIB
from kernbench.policy.address.phyaddr import IocpuSubUnit, McpuSubUnit, PeSubUnit, PhysAddr, UnitType

SIPS, CUBES, IO_DIES, PES = st.integers(0, 15), st.integers(0, 15), st.integers(16, 20), st.integers(0, 15)
PE_BUDGETS = {0: 8 * KIB, 1: 8 * KIB, 2: 256 * KIB, 3: 16 * KIB, 4: 16 * KIB, 5: 192 * KIB, 6: 2 * MIB}
MCPU_BUDGETS = {0: 512 * KIB, 1: 512 * KIB, 2: 256 * KIB, 3: 8 * KIB, 4: 16 * KIB, 5: 10 * MIB}
IOCPU_BUDGETS = {0: 512 * KIB, 1: 512 * KIB, 2: 2 * MIB, 3: 8 * KIB, 4: 16 * KIB, 5: 64 * MIB}


def slots(budgets: dict[int, int]) -> st.SearchStrategy[tuple[int, int]]:
    return st.sampled_from(sorted(budgets)).flatmap(lambda u: st.tuples(st.just(u), st.integers(0, budgets[u] - 1)))


def round_trip(addr: PhysAddr) -> PhysAddr:
    again = PhysAddr.decode(addr.encode())
    assert again == addr
    assert hash(again) == hash(addr)
    assert int(again) == addr.encode() < 1 << 51
    return again


def test_hbm_example_is_built_from_its_bits() -> None:
    addr = PhysAddr.hbm_addr(2, 5, 0x1000)
    assert addr.encode() == (2 << 47) | (5 << 42) | (1 << 37) | 0x1000
    assert (addr.sip_id, addr.die_id, addr.kind, addr.hbm_offset) == (2, 5, "hbm", 0x1000)
    assert (addr.unit_type, addr.pe_id, addr.sub_unit, addr.sub_offset, addr.chiplet_offset) == (None,) * 5
    assert str(addr) == "sip2.cube5 HBM+0x1000"


def test_pe_tcm_example_is_built_from_its_bits() -> None:
    addr = PhysAddr.pe_tcm_addr(0, 0, 3, 0x400)
    assert addr.encode() == (3 << 29) | (6 << 25) | 0x400
    assert (addr.kind, addr.unit_type, addr.pe_id) == ("pe_resource", UnitType.PE, 3)
    assert (addr.sub_unit, addr.sub_offset, addr.hbm_offset) == (PeSubUnit.PE_TCM, 0x400, None)
    assert str(addr) == "sip0.cube0.pe3 PE_TCM+0x400"


def test_mcpu_sram_example_is_built_from_its_bits() -> None:
    addr = PhysAddr.mcpu_resource_addr(1, 3, McpuSubUnit.MCPU_SRAM, 0)
    assert addr.encode() == (1 << 47) | (3 << 42) | (1 << 34) | (5 << 25)
    assert (addr.unit_type, addr.sub_unit, addr.sub_offset) == (UnitType.MCPU, McpuSubUnit.MCPU_SRAM, 0)
    assert addr.pe_id is None
    assert str(addr) == "sip1.cube3.m_cpu MCPU_SRAM+0x0"


def test_iocpu_ipcq_example_is_built_from_its_bits() -> None:
    addr = PhysAddr.iocpu_resource_addr(1, 17, IocpuSubUnit.IPCQ, 0x20000)
    assert addr.encode() == (1 << 47) | (17 << 42) | (2 << 27) | 0x20000
    assert (addr.kind, addr.unit_type, addr.sub_unit) == ("iocpu", None, IocpuSubUnit.IPCQ)
    assert (addr.sub_offset, addr.chiplet_offset) == (0x20000, (2 << 27) | 0x20000)
    assert str(addr) == "sip1.die17 IPCQ+0x20000"


def test_ual_example_is_built_from_its_bits() -> None:
    addr = PhysAddr.ual_addr(0, 16, 0x1_0000_0000)
    assert addr.encode() == (16 << 42) | 0x1_0000_0000
    assert (addr.kind, addr.chiplet_offset, addr.sub_unit, addr.sub_offset) == ("ual", 4 * GIB, None, None)
    assert str(addr) == "sip0.die16 UAL+0x100000000"


def test_sram_is_resource_two() -> None:
    addr = PhysAddr.cube_sram_addr(0, 1, 0x40)
    assert addr.encode() == (1 << 42) | (2 << 34) | 0x40
    assert (addr.unit_type, addr.sub_unit, addr.sub_offset, addr.pe_id) == (UnitType.SRAM, None, 0x40, None)
    assert str(addr) == "sip0.cube1 SRAM+0x40"


def test_slice_of_a_pe_follows_the_slices_of_the_pes_before_it() -> None:
    assert PhysAddr.pe_hbm_addr(0, 0, 3, 0x10, 6 * GIB).hbm_offset == 18 * GIB + 0x10


def test_addresses_order_by_sip_then_die_then_offset() -> None:
    low, mid, high = PhysAddr.hbm_addr(0, 1, 9), PhysAddr.cube_sram_addr(0, 2, 0), PhysAddr.hbm_addr(1, 0, 0)
    assert sorted([high, mid, low]) == [low, mid, high]


def test_an_address_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        PhysAddr.hbm_addr(0, 0, 0).raw = 1  # type: ignore[misc]  # the point of the test


@given(SIPS, CUBES, st.integers(0, 128 * GIB - 1))
def test_hbm_round_trips(sip: int, cube: int, offset: int) -> None:
    addr = round_trip(PhysAddr.hbm_addr(sip, cube, offset))
    assert (addr.sip_id, addr.die_id, addr.kind, addr.hbm_offset) == (sip, cube, "hbm", offset)


@given(SIPS, CUBES, PES, st.integers(1, 8 * GIB), st.data())
def test_hbm_slices_round_trip(sip: int, cube: int, pe: int, size: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, size - 1))
    addr = round_trip(PhysAddr.pe_hbm_addr(sip, cube, pe, offset, size))
    assert addr.hbm_offset is not None
    assert divmod(addr.hbm_offset, size) == (pe, offset)


@given(SIPS, CUBES, PES, slots(PE_BUDGETS))
def test_pe_resources_round_trip(sip: int, cube: int, pe: int, slot: tuple[int, int]) -> None:
    addr = round_trip(PhysAddr.pe_resource_addr(sip, cube, pe, *slot))
    assert (addr.sip_id, addr.die_id, addr.pe_id, addr.sub_unit, addr.sub_offset) == (sip, cube, pe, *slot)
    assert addr.unit_type is UnitType.PE


@given(SIPS, CUBES, slots(MCPU_BUDGETS))
def test_mcpu_resources_round_trip(sip: int, cube: int, slot: tuple[int, int]) -> None:
    addr = round_trip(PhysAddr.mcpu_resource_addr(sip, cube, *slot))
    assert (addr.sip_id, addr.die_id, addr.sub_unit, addr.sub_offset) == (sip, cube, *slot)


@given(SIPS, CUBES, st.integers(0, 32 * MIB - 1))
def test_sram_round_trips(sip: int, cube: int, offset: int) -> None:
    addr = round_trip(PhysAddr.cube_sram_addr(sip, cube, offset))
    assert (addr.sip_id, addr.die_id, addr.unit_type, addr.sub_offset) == (sip, cube, UnitType.SRAM, offset)


@given(SIPS, IO_DIES, slots(IOCPU_BUDGETS))
def test_iocpu_resources_round_trip(sip: int, die: int, slot: tuple[int, int]) -> None:
    addr = round_trip(PhysAddr.iocpu_resource_addr(sip, die, *slot))
    assert (addr.sip_id, addr.die_id, addr.kind, addr.sub_unit, addr.sub_offset) == (sip, die, "iocpu", *slot)


@given(SIPS, IO_DIES, st.integers(2 * GIB, 1024 * GIB - 1))
def test_ual_round_trips(sip: int, die: int, offset: int) -> None:
    addr = round_trip(PhysAddr.ual_addr(sip, die, offset))
    assert (addr.sip_id, addr.die_id, addr.kind, addr.chiplet_offset) == (sip, die, "ual", offset)


def rebuilt(addr: PhysAddr) -> PhysAddr:
    """The same address through the factory of its kind, from its fields only."""
    sip, die, unit, offset = addr.sip_id, addr.die_id, addr.sub_unit, addr.sub_offset
    if addr.hbm_offset is not None:
        return PhysAddr.hbm_addr(sip, die, addr.hbm_offset)
    if addr.kind == "ual":
        assert addr.chiplet_offset is not None
        return PhysAddr.ual_addr(sip, die, addr.chiplet_offset)
    assert offset is not None
    if unit is None:
        return PhysAddr.cube_sram_addr(sip, die, offset)
    if addr.kind == "iocpu":
        return PhysAddr.iocpu_resource_addr(sip, die, unit, offset)
    if addr.pe_id is None:
        return PhysAddr.mcpu_resource_addr(sip, die, unit, offset)
    return PhysAddr.pe_resource_addr(sip, die, addr.pe_id, unit, offset)


# Uniform integers hit a reserved code almost always, so half of the draws keep the high bits of a legal place.
LIKELY = st.builds(
    lambda sip, die, local: sip << 47 | die << 42 | local,
    SIPS,
    st.integers(0, 21),
    st.one_of(st.integers(0, (1 << 36) - 1), st.integers(0, (1 << 42) - 1), st.integers(0, 1 << 20)),
)


@given(st.one_of(st.integers(0, (1 << 51) - 1), LIKELY))
def test_any_integer_decodes_to_itself_or_is_refused(raw: int) -> None:
    try:
        addr = PhysAddr.decode(raw)
    except AddressError:
        return
    assert addr.encode() == raw
    assert rebuilt(addr) == addr


MBZ = {
    "hbm": (PhysAddr.hbm_addr(0, 0, 0), [38, 39, 40, 41]),
    "pe": (PhysAddr.pe_tcm_addr(0, 0, 0, 0), [33, 38, 39, 40, 41]),
    "mcpu": (PhysAddr.mcpu_resource_addr(0, 0, 0, 0), [30, 31, 32, 33, 38, 39, 40, 41]),
    "sram": (PhysAddr.cube_sram_addr(0, 0, 0), [*range(25, 34), 38, 39, 40, 41]),
    "iocpu": (PhysAddr.iocpu_resource_addr(0, 16, 0, 0), [40, 41]),
    "ual": (PhysAddr.ual_addr(0, 20, 2 * GIB), [40, 41]),
}


@pytest.mark.parametrize(("kind", "bit"), [(kind, bit) for kind, (_, bits) in MBZ.items() for bit in bits])
def test_each_bit_that_must_be_zero_is_refused(kind: str, bit: int) -> None:
    good = MBZ[kind][0].encode()
    assert not good >> bit & 1
    with pytest.raises(AddressError, match="bits set in") as caught:
        PhysAddr.decode(good | 1 << bit)
    assert caught.value.hint == "these bits must be zero"


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        *((die << 42, f"reserved die {die}") for die in range(21, 32)),
        *((code << 34, f"reserved resource {code}") for code in range(3, 8)),
        *((unit << 25, f"reserved sub-unit {unit} of a PE") for unit in range(7, 16)),
        *((1 << 34 | unit << 25, f"reserved sub-unit {unit} of an M_CPU") for unit in range(6, 32)),
        *((16 << 42 | unit << 27, f"reserved sub-unit {unit} of an IO_CPU") for unit in range(6, 16)),
    ],
)
def test_each_reserved_code_is_refused(raw: int, what: str) -> None:
    with pytest.raises(AddressError, match=what):
        PhysAddr.decode(raw)


@pytest.mark.parametrize("owner", ["pe", "mcpu", "iocpu"])
def test_the_last_byte_of_each_budget_decodes_and_the_next_does_not(owner: str) -> None:
    base, shift, budgets = {
        "pe": (5 << 29, 25, PE_BUDGETS),
        "mcpu": (1 << 34, 25, MCPU_BUDGETS),
        "iocpu": (18 << 42, 27, IOCPU_BUDGETS),
    }[owner]
    for unit, budget in budgets.items():
        assert PhysAddr.decode(base | unit << shift | budget - 1).sub_offset == budget - 1
        with pytest.raises(AddressError, match=f"at offset {budget:#x} of sub-unit {unit}"):
            PhysAddr.decode(base | unit << shift | budget)


def test_the_factories_stop_at_the_end_of_their_windows() -> None:
    assert PhysAddr.hbm_addr(15, 15, 128 * GIB - 1).hbm_offset == 128 * GIB - 1
    assert PhysAddr.cube_sram_addr(0, 0, 32 * MIB - 1).sub_offset == 32 * MIB - 1
    assert PhysAddr.pe_tcm_addr(0, 0, 15, 2 * MIB - 1).sub_offset == 2 * MIB - 1
    calls: tuple[Callable[[], PhysAddr], ...] = (
        lambda: PhysAddr.hbm_addr(0, 0, 128 * GIB),
        lambda: PhysAddr.hbm_addr(16, 0, 0),
        lambda: PhysAddr.hbm_addr(0, 16, 0),
        lambda: PhysAddr.cube_sram_addr(0, 0, 32 * MIB),
        lambda: PhysAddr.pe_tcm_addr(0, 0, 0, 2 * MIB),
        lambda: PhysAddr.pe_tcm_addr(0, 0, 16, 0),
        lambda: PhysAddr.pe_hbm_addr(0, 0, 0, 4096, 4096),
        lambda: PhysAddr.pe_hbm_addr(0, 0, 15, 0, 16 * GIB),  # slice 15 would start at 240 GiB
        lambda: PhysAddr.pe_resource_addr(0, 0, 0, 7, 0),
        lambda: PhysAddr.mcpu_resource_addr(0, 0, 6, 0),
        lambda: PhysAddr.iocpu_resource_addr(0, 15, 0, 0),
        lambda: PhysAddr.iocpu_resource_addr(0, 21, 0, 0),
        lambda: PhysAddr.ual_addr(0, 16, 2 * GIB - 1),
        lambda: PhysAddr.ual_addr(0, 16, 1024 * GIB),
        lambda: PhysAddr.decode(1 << 51),
        lambda: PhysAddr.decode(-1),
    )
    for make in calls:
        with pytest.raises(AddressError) as caught:
            make()
        assert str(caught.value.hint).startswith("give a whole number from ")


@pytest.mark.parametrize("bad", [True, 1.0, -1, None, "1", 1 << 60])
def test_what_is_not_a_whole_number_in_range_is_refused_in_every_field(bad: int) -> None:
    makers: dict[Callable[..., PhysAddr], tuple[int, ...]] = {
        PhysAddr.hbm_addr: (0, 0, 0),
        PhysAddr.pe_hbm_addr: (0, 0, 0, 0, 4096),
        PhysAddr.pe_tcm_addr: (0, 0, 0, 0),
        PhysAddr.cube_sram_addr: (0, 0, 0),
        PhysAddr.pe_resource_addr: (0, 0, 0, 0, 0),
        PhysAddr.mcpu_resource_addr: (0, 0, 0, 0),
        PhysAddr.iocpu_resource_addr: (0, 16, 0, 0),
        PhysAddr.ual_addr: (0, 16, 2 * GIB),
        PhysAddr.decode: (0,),
    }
    for make, good in makers.items():
        make(*good)
        for at in range(len(good)):
            with pytest.raises(AddressError):
                make(*good[:at], bad, *good[at + 1 :])
