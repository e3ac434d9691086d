"""The widths of the fields of a physical address, and the positions that follow from them.

The widths that a machine does not exceed are those of the record, so that its addresses are the record's, bit for bit.
A machine with more SIPs, cubes or PEs, or with larger memories, moves the fields above the one that grew:

    [sip] [die] [offset in the die]      dies 0 .. 2**cube_bits - 1 are cubes, the next N_IO_DIES are IO chiplets
    offset in a cube: one bit for HBM above everything, 3 bits of resource, then PE, sub-unit, offset in the sub-unit

An address is kept as a signed 64-bit number in recordings, so all fields together have at most 63 bits.
"""

from __future__ import annotations

from functools import cache

from kernbench.common.errors import AddressError
from kernbench.common.frozen import frozen
from kernbench.common.units import KIB, MIB

MOST_BITS = 63
N_IO_DIES = 5
IO_SUB_UNIT_SHIFT, UAL_SHIFT = 27, 31
UAL_BASE = 1 << UAL_SHIFT  # where the memory behind an IO chiplet begins in its window
LEAST_CHIPLET_BITS = UAL_SHIFT + 1
RESOURCE_BITS, PE_SUB_UNIT_BITS, MCPU_SUB_UNIT_BITS = 3, 4, 5
LEAST_CUBE_BITS = 3  # the second half of the die numbers has room for the IO chiplets

# The least positions: those of the record.
_SLOT_BITS, _RESOURCE_SHIFT, _DIE_SHIFT = 25, 34, 42

# Bytes behind each sub-unit of a PE, by code; the last one, the TCM, is as large as its field.
_PE_BUDGET_BYTES = (8 * KIB, 8 * KIB, 256 * KIB, 16 * KIB, 16 * KIB, 192 * KIB)
MCPU_BUDGET_BYTES = (512 * KIB, 512 * KIB, 256 * KIB, 8 * KIB, 16 * KIB, 10 * MIB)
IOCPU_BUDGET_BYTES = (512 * KIB, 512 * KIB, 2 * MIB, 8 * KIB, 16 * KIB, 64 * MIB)


@frozen(order=True)
class FieldWidths:
    """Bits of each field that a description may widen; the defaults are the record's."""

    sip_bits: int = 4
    cube_bits: int = 4
    pe_bits: int = 4
    hbm_bits: int = 37  # of an offset in a cube's HBM
    sram_bits: int = 25  # of an offset in a cube's SRAM
    tcm_bits: int = 21  # of an offset in a PE's TCM
    chiplet_bits: int = 40  # of an offset in the window of an IO chiplet, far memory included


@frozen(order=True)
class AddressLayout:
    """Positions, counts and sizes. Made by `layout_of`."""

    widths: FieldWidths
    slot_bytes: int  # one sub-unit of a PE or an M_CPU
    sub_unit_shift: int
    pe_shift: int
    pe_end: int  # the first bit above the PE
    resource_shift: int
    hbm_shift: int  # of the bit that says HBM
    die_shift: int
    sip_shift: int
    address_bits: int
    n_sips: int
    n_cube_dies: int
    n_pes: int
    hbm_bytes: int
    sram_bytes: int
    chiplet_bytes: int
    pe_budget_bytes: tuple[int, ...]

    @property
    def first_io_die(self) -> int:
        return self.n_cube_dies


@cache
def layout_of(widths: FieldWidths) -> AddressLayout:
    """The positions that follow from the widths; raises AddressError when they need more than 63 bits."""
    slot_bits = max(_SLOT_BITS, widths.tcm_bits)
    pe_shift = slot_bits + PE_SUB_UNIT_BITS
    pe_end = pe_shift + widths.pe_bits
    resource_shift = max(_RESOURCE_SHIFT, pe_end, slot_bits + MCPU_SUB_UNIT_BITS, widths.sram_bits)
    hbm_shift = max(widths.hbm_bits, resource_shift + RESOURCE_BITS)
    die_shift = max(_DIE_SHIFT, hbm_shift + 1, widths.chiplet_bits)
    sip_shift = die_shift + widths.cube_bits + 1
    address_bits = sip_shift + widths.sip_bits
    if address_bits > MOST_BITS:
        raise AddressError(
            f"an address of these fields has {address_bits} bits, more than {MOST_BITS}",
            hint="use fewer SIPs, cubes or PEs, or smaller memories",
        )
    return AddressLayout(
        widths,
        1 << slot_bits,
        slot_bits,
        pe_shift,
        pe_end,
        resource_shift,
        hbm_shift,
        die_shift,
        sip_shift,
        address_bits,
        1 << widths.sip_bits,
        1 << widths.cube_bits,
        1 << widths.pe_bits,
        1 << widths.hbm_bits,
        1 << widths.sram_bits,
        1 << widths.chiplet_bits,
        (*_PE_BUDGET_BYTES, 1 << widths.tcm_bits),
    )


RECORD_LAYOUT = layout_of(FieldWidths())


def bits_for(count: int) -> int:
    """The width of a field that numbers `count` things, or the bytes of a memory."""
    return max(count - 1, 0).bit_length()
