"""The physical address: an immutable value, decoded by bit position alone. It has 51 bits with the record's widths:

    [50:47] sip   [46:42] die   [41:0] offset in the die
    die 0..15    a cube         [41:38] zero  [37] 1: HBM, [36:0] offset
                                              [37] 0: [36:34] resource, [33:0] place in it
                 resource 0     a PE          [33] zero     [32:29] PE    [28:25] sub-unit  [24:0] offset
                 resource 1     the M_CPU     [33:30] zero  [29:25] sub-unit  [24:0] offset
                 resource 2     the SRAM      [33:25] zero  [24:0] offset
    die 16..20   an IO chiplet  [41:40] zero  below 2 GiB: [30:27] sub-unit  [26:0] offset; above: UAL
    die 21..31   reserved

A machine with more SIPs, cubes or PEs, or with larger memories, has wider fields (`common/address_layout.py`), and its
addresses are decoded with its layout. A bit that must be zero and is not, a reserved code, or an offset beyond its
sub-unit's budget is an AddressError, so a PhysAddr that exists is valid. The part that a given machine implements is
checked in `capacity`.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Literal

from kernbench.common.address_layout import (
    IO_SUB_UNIT_SHIFT,
    IOCPU_BUDGET_BYTES,
    MCPU_BUDGET_BYTES,
    MCPU_SUB_UNIT_BITS,
    N_IO_DIES,
    PE_SUB_UNIT_BITS,
    RECORD_LAYOUT,
    RESOURCE_BITS,
    UAL_BASE,
    AddressLayout,
)
from kernbench.common.errors import AddressError
from kernbench.common.frozen import frozen
from kernbench.common.ids import CubeId, PeId, SipId
from kernbench.common.units import format_bytes

IO_SLOT_BYTES = 1 << IO_SUB_UNIT_SHIFT

_RESOURCES = (1 << RESOURCE_BITS) - 1
_PE_SUB_UNITS, _MCPU_SUB_UNITS = (1 << PE_SUB_UNIT_BITS) - 1, (1 << MCPU_SUB_UNIT_BITS) - 1

AddressKind = Literal["hbm", "pe_resource", "iocpu", "ual"]


class UnitType(Enum):
    """The unit that a local resource of a cube belongs to. The value is the `resource` code."""

    PE = 0
    MCPU = 1
    SRAM = 2


class PeSubUnit(IntEnum):
    PE_CPU_DTCM = 0
    MATH_ENGINE_DTCM = 1
    IPCQ = 2
    PE_CPU_SFR = 3
    MATH_ENGINE_SFR = 4
    DMA_ENGINE_SFR = 5
    PE_TCM = 6


class McpuSubUnit(IntEnum):
    MCPU_ITCM = 0
    MCPU_DTCM = 1
    IPCQ = 2
    MCPU_SFR = 3
    MCPU_DMA_SFR = 4
    MCPU_SRAM = 5


class IocpuSubUnit(IntEnum):
    IOCPU_ITCM = 0
    IOCPU_DTCM = 1
    IPCQ = 2
    IOCPU_SFR = 3
    IO_DMA_SFR = 4
    IO_SRAM = 5


SubUnit = PeSubUnit | McpuSubUnit | IocpuSubUnit
_UNIT_TYPES, _PE_PARTS = tuple(UnitType), tuple(PeSubUnit)  # by code: quicker than asking the class


def _whole(name: str, value: object, first: int, end: int) -> int:
    """`value` if it is a whole number in [first, end); raises AddressError."""
    if isinstance(value, bool) or not isinstance(value, int) or not first <= value < end:
        shown = f"{value:#x}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
        raise AddressError(f"{name} is {shown}", hint=f"give a whole number from {first:#x} to {end - 1:#x}")
    return int(value)


def _zero(raw: int, high: int, low: int) -> None:
    if high >= low and raw >> low & (1 << high - low + 1) - 1:
        raise AddressError(f"address {raw:#x} has bits set in [{high}:{low}]", hint="these bits must be zero")


def _budget(raw: int, owner: str, budgets: tuple[int, ...], code: int, offset: int) -> None:
    if code >= len(budgets):
        raise AddressError(
            f"address {raw:#x} names reserved sub-unit {code} of {owner}", hint=f"use one of 0..{len(budgets) - 1}"
        )
    if offset >= budgets[code]:
        raise AddressError(
            f"address {raw:#x} is at offset {offset:#x} of sub-unit {code} of {owner}",
            hint=f"that sub-unit has {format_bytes(budgets[code])}: stay below {budgets[code]:#x}",
        )


def _check_cube(raw: int, layout: AddressLayout) -> None:
    _zero(raw, layout.die_shift - 1, layout.hbm_shift + 1)
    if raw >> layout.hbm_shift & 1:
        _zero(raw, layout.hbm_shift - 1, layout.widths.hbm_bits)
        return
    _zero(raw, layout.hbm_shift - 1, layout.resource_shift + RESOURCE_BITS)
    shift, slot = layout.sub_unit_shift, layout.slot_bytes
    code = raw >> layout.resource_shift & _RESOURCES
    if code == UnitType.PE.value:
        _zero(raw, layout.resource_shift - 1, layout.pe_end)
        _budget(raw, "a PE", layout.pe_budget_bytes, raw >> shift & _PE_SUB_UNITS, raw & slot - 1)
    elif code == UnitType.MCPU.value:
        _zero(raw, layout.resource_shift - 1, shift + MCPU_SUB_UNIT_BITS)
        _budget(raw, "an M_CPU", MCPU_BUDGET_BYTES, raw >> shift & _MCPU_SUB_UNITS, raw & slot - 1)
    elif code == UnitType.SRAM.value:
        _zero(raw, layout.resource_shift - 1, layout.widths.sram_bits)
    else:
        raise AddressError(f"address {raw:#x} names reserved resource {code}", hint="use 0 (PE), 1 (M_CPU) or 2 (SRAM)")


def _die(raw: int, layout: AddressLayout) -> int:
    return raw >> layout.die_shift & 2 * layout.n_cube_dies - 1


def _check(raw: int, layout: AddressLayout) -> None:
    die, first_io = _die(raw, layout), layout.first_io_die
    if die < first_io:
        _check_cube(raw, layout)
    elif die < first_io + N_IO_DIES:
        _zero(raw, layout.die_shift - 1, layout.widths.chiplet_bits)
        if raw & layout.chiplet_bytes - 1 < UAL_BASE:
            _budget(raw, "an IO_CPU", IOCPU_BUDGET_BYTES, raw >> IO_SUB_UNIT_SHIFT & 15, raw & IO_SLOT_BYTES - 1)
    else:
        raise AddressError(
            f"address {raw:#x} names reserved die {die}",
            hint=f"cubes are dies 0..{first_io - 1}, IO chiplets are dies {first_io}..{first_io + N_IO_DIES - 1}",
        )


@frozen(order=True)
class PhysAddr:
    """One byte of the tray. Every field is read from the bits of `raw`; None where it does not apply."""

    raw: int
    layout: AddressLayout = RECORD_LAYOUT

    def __post_init__(self) -> None:
        _check(_whole("an address", self.raw, 0, 1 << self.layout.address_bits), self.layout)

    @classmethod
    def decode(cls, raw: int, layout: AddressLayout = RECORD_LAYOUT) -> PhysAddr:
        """The address that `raw` encodes; raises AddressError when it encodes none."""
        return cls(raw, layout)

    def encode(self) -> int:
        return self.raw

    def __int__(self) -> int:
        return self.raw

    # -- factories -------------------------------------------------------------------------------------------------

    @classmethod
    def hbm_addr(cls, sip_id: int, die_id: int, hbm_offset: int, layout: AddressLayout = RECORD_LAYOUT) -> PhysAddr:
        """A byte of a cube's HBM."""
        offset = _whole("hbm_offset", hbm_offset, 0, layout.hbm_bytes)
        return cls(_cube_base(sip_id, die_id, layout) | 1 << layout.hbm_shift | offset, layout)

    @classmethod
    def pe_hbm_addr(
        cls,
        sip_id: int,
        die_id: int,
        pe_id: int,
        pe_local_hbm_offset: int,
        slice_size_bytes: int,
        layout: AddressLayout = RECORD_LAYOUT,
    ) -> PhysAddr:
        """A byte of the HBM slice of one PE, where every PE of the cube owns `slice_size_bytes`, in order."""
        pe = _whole("pe_id", pe_id, 0, layout.n_pes)
        size = _whole("slice_size_bytes", slice_size_bytes, 1, layout.hbm_bytes + 1)
        offset = _whole("pe_local_hbm_offset", pe_local_hbm_offset, 0, size)
        return cls.hbm_addr(sip_id, die_id, pe * size + offset, layout)

    @classmethod
    def pe_resource_addr(
        cls,
        sip_id: int,
        die_id: int,
        pe_id: int,
        sub_unit: int,
        sub_offset: int,
        layout: AddressLayout = RECORD_LAYOUT,
    ) -> PhysAddr:
        """A byte of one of a PE's local memories or register files."""
        pe = _whole("pe_id", pe_id, 0, layout.n_pes)
        unit, offset = _slot(sub_unit, sub_offset, layout.pe_budget_bytes)
        place = pe << layout.pe_shift | unit << layout.sub_unit_shift
        return cls(_cube_base(sip_id, die_id, layout) | place | offset, layout)

    @classmethod
    def pe_tcm_addr(
        cls, sip_id: int, die_id: int, pe_id: int, tcm_offset: int, layout: AddressLayout = RECORD_LAYOUT
    ) -> PhysAddr:
        """A byte of a PE's TCM."""
        return cls.pe_resource_addr(sip_id, die_id, pe_id, PeSubUnit.PE_TCM, tcm_offset, layout)

    @classmethod
    def mcpu_resource_addr(
        cls, sip_id: int, die_id: int, sub_unit: int, sub_offset: int, layout: AddressLayout = RECORD_LAYOUT
    ) -> PhysAddr:
        """A byte of one of an M_CPU's local memories or register files."""
        unit, offset = _slot(sub_unit, sub_offset, MCPU_BUDGET_BYTES)
        place = UnitType.MCPU.value << layout.resource_shift | unit << layout.sub_unit_shift
        return cls(_cube_base(sip_id, die_id, layout) | place | offset, layout)

    @classmethod
    def cube_sram_addr(
        cls, sip_id: int, die_id: int, sram_offset: int, layout: AddressLayout = RECORD_LAYOUT
    ) -> PhysAddr:
        """A byte of a cube's shared SRAM."""
        offset = _whole("sram_offset", sram_offset, 0, layout.sram_bytes)
        return cls(_cube_base(sip_id, die_id, layout) | UnitType.SRAM.value << layout.resource_shift | offset, layout)

    @classmethod
    def iocpu_resource_addr(
        cls, sip_id: int, die_id: int, sub_unit: int, sub_offset: int, layout: AddressLayout = RECORD_LAYOUT
    ) -> PhysAddr:
        """A byte of one of an IO_CPU's local memories or register files; `die_id` counts on from the cubes (16)."""
        unit, offset = _slot(sub_unit, sub_offset, IOCPU_BUDGET_BYTES)
        return cls(_io_base(sip_id, die_id, layout) | unit << IO_SUB_UNIT_SHIFT | offset, layout)

    @classmethod
    def ual_addr(cls, sip_id: int, die_id: int, chiplet_offset: int, layout: AddressLayout = RECORD_LAYOUT) -> PhysAddr:
        """A byte of an IO chiplet's UAL region, which starts at 2 GiB; `die_id` counts on from the cubes (16)."""
        offset = _whole("chiplet_offset", chiplet_offset, UAL_BASE, layout.chiplet_bytes)
        return cls(_io_base(sip_id, die_id, layout) | offset, layout)

    # -- fields ----------------------------------------------------------------------------------------------------

    @property
    def sip_id(self) -> int:
        return self.raw >> self.layout.sip_shift

    @property
    def die_id(self) -> int:
        return _die(self.raw, self.layout)

    @property
    def kind(self) -> AddressKind:
        raw, layout = self.raw, self.layout
        if _die(raw, layout) < layout.n_cube_dies:
            return "hbm" if raw >> layout.hbm_shift & 1 else "pe_resource"
        return "iocpu" if raw & layout.chiplet_bytes - 1 < UAL_BASE else "ual"

    @property
    def unit_type(self) -> UnitType | None:
        return _UNIT_TYPES[self.raw >> self.layout.resource_shift & _RESOURCES] if self.kind == "pe_resource" else None

    @property
    def pe_id(self) -> int | None:
        return self.raw >> self.layout.pe_shift & self.layout.n_pes - 1 if self.unit_type is UnitType.PE else None

    @property
    def sub_unit(self) -> SubUnit | None:
        if self.kind == "iocpu":
            return IocpuSubUnit(self.raw >> IO_SUB_UNIT_SHIFT & 15)
        unit, slot = self.unit_type, self.raw >> self.layout.sub_unit_shift
        if unit is UnitType.PE:
            return _PE_PARTS[slot & _PE_SUB_UNITS]
        return McpuSubUnit(slot & _MCPU_SUB_UNITS) if unit is UnitType.MCPU else None

    @property
    def sub_offset(self) -> int | None:
        """The offset in the sub-unit, or in the SRAM."""
        kind = self.kind
        if kind == "iocpu":
            return self.raw & IO_SLOT_BYTES - 1
        if kind != "pe_resource":
            return None
        is_sram = self.unit_type is UnitType.SRAM
        return self.raw & (self.layout.sram_bytes if is_sram else self.layout.slot_bytes) - 1

    @property
    def hbm_offset(self) -> int | None:
        """The offset in the cube's HBM, across all its slices."""
        return self.raw & self.layout.hbm_bytes - 1 if self.kind == "hbm" else None

    @property
    def far_offset(self) -> int | None:
        """The offset in the SIP's part of far memory."""
        return (self.raw & self.layout.chiplet_bytes - 1) - UAL_BASE if self.kind == "ual" else None

    @property
    def chiplet_offset(self) -> int | None:
        return self.raw & self.layout.chiplet_bytes - 1 if self.die_id >= self.layout.first_io_die else None

    def __str__(self) -> str:
        if self.kind == "hbm":
            return f"{CubeId(self.sip_id, self.die_id)} HBM+{self.hbm_offset:#x}"
        if self.kind == "ual":
            return f"{SipId(self.sip_id)}.die{self.die_id} UAL+{self.chiplet_offset:#x}"
        if self.sub_unit is None:
            return f"{CubeId(self.sip_id, self.die_id)} SRAM+{self.sub_offset:#x}"
        owner: object
        if self.kind == "iocpu":
            owner = f"{SipId(self.sip_id)}.die{self.die_id}"  # what the chiplet is called is the machine's choice
        elif self.pe_id is None:
            owner = CubeId(self.sip_id, self.die_id).m_cpu()
        else:
            owner = PeId(self.sip_id, self.die_id, self.pe_id)
        return f"{owner} {self.sub_unit.name}+{self.sub_offset:#x}"

    def __repr__(self) -> str:
        return f"PhysAddr({self.raw:#x}: {self})"


def _sip(sip_id: int, layout: AddressLayout) -> int:
    return _whole("sip_id", sip_id, 0, layout.n_sips) << layout.sip_shift


def _cube_base(sip_id: int, die_id: int, layout: AddressLayout) -> int:
    die = _whole("die_id of a cube", die_id, 0, layout.n_cube_dies)
    return _sip(sip_id, layout) | die << layout.die_shift


def _io_base(sip_id: int, die_id: int, layout: AddressLayout) -> int:
    first = layout.first_io_die
    return (
        _sip(sip_id, layout) | _whole("die_id of an IO chiplet", die_id, first, first + N_IO_DIES) << layout.die_shift
    )


def _slot(sub_unit: int, sub_offset: int, budgets: tuple[int, ...]) -> tuple[int, int]:
    unit = _whole("sub_unit", sub_unit, 0, len(budgets))
    return unit, _whole("sub_offset", sub_offset, 0, budgets[unit])
