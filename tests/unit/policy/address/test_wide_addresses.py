"""Addresses of machines that exceed the record: fields widen, round trips hold, smaller machines keep their bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.address_layout import RECORD_LAYOUT, FieldWidths, bits_for, layout_of
from kernbench.common.errors import AddressError
from kernbench.common.units import GIB, MIB
from kernbench.policy.address.capacity import AddressConfig
from kernbench.policy.address.phyaddr import IocpuSubUnit, McpuSubUnit, PhysAddr, UnitType
from kernbench.topology import load_topology
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import machine_hash

WIDTHS = st.builds(
    FieldWidths,
    sip_bits=st.integers(1, 8),
    cube_bits=st.integers(3, 9),
    pe_bits=st.integers(1, 8),
    hbm_bits=st.integers(30, 40),
    sram_bits=st.integers(20, 36),
    tcm_bits=st.integers(16, 27),
)


def test_the_shipped_machine_has_the_addresses_of_the_record() -> None:
    spec = load_spec()
    assert spec.address_layout == RECORD_LAYOUT
    assert (RECORD_LAYOUT.sip_shift, RECORD_LAYOUT.die_shift, RECORD_LAYOUT.hbm_shift) == (47, 42, 37)
    assert (RECORD_LAYOUT.resource_shift, RECORD_LAYOUT.pe_shift, RECORD_LAYOUT.sub_unit_shift) == (34, 29, 25)
    assert RECORD_LAYOUT.address_bits == 51


def test_fields_widen_with_the_machine_and_move_those_above() -> None:
    wide = {
        "system.sips.count": 64,
        "sip.cube_mesh": {"w": 5, "h": 4},
        "cube.memory_map": {"hbm_total_gb_per_cube": 192, "sram_mb_per_cube": 63, "tcm_mb_per_pe": 8},
    }
    layout = load_spec(overrides=wide).address_layout
    assert layout.widths == FieldWidths(sip_bits=6, cube_bits=5, pe_bits=4, hbm_bits=38, sram_bits=26, tcm_bits=23)
    assert layout.pe_shift == 29  # a TCM of 8 MiB fits the 32 MiB of a sub-unit
    assert layout.hbm_shift == 38  # above 256 GiB
    assert layout.die_shift == 42
    assert layout.sip_shift == 42 + 6  # 32 cubes, and as many numbers for IO chiplets
    assert layout.address_bits == 54
    last = PhysAddr.pe_hbm_addr(63, 19, 7, 0, 24 * GIB, layout)
    assert last.raw == 63 << 48 | 19 << 42 | 1 << 38 | 7 * 24 * GIB
    assert str(last) == f"sip63.cube19 HBM+{7 * 24 * GIB:#x}"
    assert PhysAddr.iocpu_resource_addr(0, 32, IocpuSubUnit.IPCQ, 0, layout).die_id == 32


def test_a_field_of_the_description_is_as_wide_as_it_says() -> None:
    spec = load_spec(overrides={"system.address_map.sip_bits": 9})
    assert spec.address_layout.n_sips == 512
    assert spec.address_layout.sip_shift == 47


@given(WIDTHS, st.data())
def test_addresses_of_any_widths_round_trip(widths: FieldWidths, data: st.DataObject) -> None:
    layout = layout_of(widths)
    sip = data.draw(st.integers(0, layout.n_sips - 1))
    cube = data.draw(st.integers(0, layout.n_cube_dies - 1))
    pe = data.draw(st.integers(0, layout.n_pes - 1))
    hbm = data.draw(st.integers(0, layout.hbm_bytes - 1))
    sram = data.draw(st.integers(0, layout.sram_bytes - 1))
    tcm = data.draw(st.integers(0, (1 << widths.tcm_bits) - 1))
    made = (
        PhysAddr.hbm_addr(sip, cube, hbm, layout),
        PhysAddr.cube_sram_addr(sip, cube, sram, layout),
        PhysAddr.pe_tcm_addr(sip, cube, pe, tcm, layout),
        PhysAddr.mcpu_resource_addr(sip, cube, McpuSubUnit.MCPU_SRAM, 5, layout),
    )
    again = [PhysAddr.decode(address.raw, layout) for address in made]
    assert again == list(made)
    assert all(address.raw < 1 << 63 and (address.sip_id, address.die_id) == (sip, cube) for address in again)
    in_hbm, in_sram, in_tcm, in_mcpu = again
    assert (in_hbm.hbm_offset, in_sram.sub_offset, in_tcm.sub_offset, in_tcm.pe_id) == (hbm, sram, tcm, pe)
    assert (in_sram.unit_type, in_mcpu.unit_type, in_mcpu.sub_offset) == (UnitType.SRAM, UnitType.MCPU, 5)
    assert len({address.raw for address in made}) == 4


def test_widths_of_more_than_63_bits_are_refused() -> None:
    with pytest.raises(AddressError, match="64 bits, more than 63"):
        layout_of(FieldWidths(sip_bits=16, cube_bits=5))  # 16 + (5 + 1) + 42


def test_what_the_wide_machine_lacks_is_refused_with_its_own_counts() -> None:
    sizes = AddressConfig.from_spec(load_spec(overrides={"system.sips.count": 20}))
    address = PhysAddr.cube_sram_addr(20, 0, 0, sizes.layout)
    with pytest.raises(AddressError, match="names SIP 20") as caught:
        sizes.check(address, 1)
    assert caught.value.hint == "it has SIP 0..19"
    with pytest.raises(AddressError, match="sip_id is 0x14"):
        PhysAddr.cube_sram_addr(20, 0, 0)  # with the record's widths


def test_the_width_of_a_field() -> None:
    assert [bits_for(n) for n in (1, 2, 16, 17, 128 * GIB, 2 * MIB)] == [0, 1, 4, 5, 37, 21]


def test_machines_within_the_record_keep_their_fingerprint() -> None:
    spec = load_spec()
    assert machine_hash(load_spec(overrides={"system.address_map.sip_bits": 4})) == machine_hash(spec)
    assert machine_hash(load_spec(overrides={"system.address_map.sip_bits": 5})) != machine_hash(spec)


def test_a_corner_of_16_pes_has_four_rows_of_four() -> None:
    graph = load_topology(
        None,
        {
            "system.sips.count": 1,
            "sip.cube_mesh": {"w": 1, "h": 1},
            "cube.geometry.cube_mm": {"w": 28, "h": 28},
            "cube.pe_layout": {"pe_per_corner": 16, "rows_per_corner": 4},
        },
    )
    assert graph.spec.n_pes == 64
    places = [graph.node(f"sip0.cube0.pe{pe}.pe_dma") for pe in range(16)]
    assert [node.x_mm for node in places[:4]] == [1.5, 3.5, 5.5, 7.5]
    rows = sorted({node.y_mm for node in places})
    assert len(rows) == 4  # rows 0, 2, 4, 6 of the 8 above the HBM: (14 - 1.5 - 1.5 - 1.5) / 7 apart
    assert rows[1] - rows[0] == pytest.approx(2 * 9.5 / 7, abs=1e-5)
    assert {node.y_mm for node in (graph.node(f"sip0.cube0.pe{pe}.pe_dma") for pe in range(16, 32))}.isdisjoint(rows)
