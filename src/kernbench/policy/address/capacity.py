"""The part of the address map that a machine implements: its sizes, and the check of an access against them.

Decoding an address depends on the widths of its fields alone; this check on the sizes of the machine. An access must
lie in one memory: each HBM slice has its own controller, so a range that runs from one slice into the next is two
accesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING

from kernbench.common.address_layout import (
    IOCPU_BUDGET_BYTES,
    MCPU_BUDGET_BYTES,
    N_IO_DIES,
    RECORD_LAYOUT,
    UAL_BASE,
    AddressLayout,
)
from kernbench.common.errors import AddressError
from kernbench.common.frozen import frozen
from kernbench.common.units import format_bytes
from kernbench.policy.address.phyaddr import PeSubUnit, PhysAddr, UnitType
from kernbench.topology.far_memory import far_index

if TYPE_CHECKING:
    from kernbench.topology.spec import MachineSpec
    from kernbench.topology.spec_cube import CubeSpec


@frozen
class AddressConfig:
    """The sizes of one machine that addresses and allocators depend on. HBM slice i of a cube belongs to PE i."""

    n_sips: int
    n_cubes: int  # in a SIP
    n_io_chiplets: int  # in a SIP
    n_pes: int  # in a cube
    hbm_slice_bytes: int
    sram_bytes_per_cube: int
    tcm_bytes_per_pe: int
    tcm_scheduler_reserved_bytes: int
    tcm_home_bytes_per_pe: int = 0
    far_bytes_per_sip: int = 0
    far_die: int = 0  # whose window it is in
    layout: AddressLayout = RECORD_LAYOUT
    others: Mapping[tuple[int, int], AddressConfig] = field(default_factory=dict, hash=False)  # where cubes have others

    def __post_init__(self) -> None:
        layout = self.layout
        for name, least, most in (
            ("n_sips", 1, layout.n_sips),
            ("n_cubes", 1, layout.n_cube_dies),
            ("n_io_chiplets", 0, N_IO_DIES),
            ("n_pes", 1, layout.n_pes),
            ("hbm_slice_bytes", 0, layout.hbm_bytes // max(self.n_pes, 1)),
            ("sram_bytes_per_cube", 0, layout.sram_bytes),
            ("tcm_bytes_per_pe", 0, layout.pe_budget_bytes[PeSubUnit.PE_TCM]),
            ("tcm_scheduler_reserved_bytes", 0, self.tcm_bytes_per_pe),
            ("tcm_home_bytes_per_pe", 0, self.tcm_bytes_per_pe - self.tcm_scheduler_reserved_bytes),
            ("far_bytes_per_sip", 0, layout.chiplet_bytes - UAL_BASE),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise AddressError(
                    f"{name} is {value}, which the address map cannot hold", hint=f"give {least} to {most}"
                )

    def of_cube(self, sip: int, cube: int) -> AddressConfig:
        """The sizes of the machine, with those of the memories of one cube."""
        return self.others.get((sip, cube), self)

    @property
    def tcm_allocatable_bytes(self) -> int:
        """The TCM without the part at its top that is reserved for the scheduler, and the home of tensors at its
        start.
        """
        return self.tcm_bytes_per_pe - self.tcm_scheduler_reserved_bytes - self.tcm_home_bytes_per_pe

    @classmethod
    def from_spec(cls, spec: MachineSpec) -> AddressConfig:
        """The sizes of a checked machine description."""
        of_type = {name: cls._with_cube(spec, cube) for name, cube in spec.cube_types.items()}
        others = {
            (sip, cube): of_type[name]
            for sip in range(spec.n_sips if of_type else 0)
            for name, cubes in spec.types_of_sip(sip).items()
            for cube in cubes
        }
        return cls._with_cube(spec, spec.cube, others)

    @classmethod
    def _with_cube(
        cls, spec: MachineSpec, cube: CubeSpec, others: Mapping[tuple[int, int], AddressConfig] = MappingProxyType({})
    ) -> AddressConfig:
        return cls(
            n_sips=spec.n_sips,
            n_cubes=spec.sip.n_cubes,
            n_io_chiplets=len(spec.sip.io_chiplets),
            n_pes=cube.n_pes,
            hbm_slice_bytes=cube.hbm_slice_bytes,
            sram_bytes_per_cube=cube.sram_bytes,
            tcm_bytes_per_pe=cube.tcm_bytes,
            tcm_scheduler_reserved_bytes=cube.tcm_reserved_bytes,
            tcm_home_bytes_per_pe=cube.tcm_home_bytes,
            far_bytes_per_sip=spec.system.far_bytes_per_sip,
            far_die=0 if spec.system.far_memory is None else spec.address_layout.first_io_die + far_index(spec),
            layout=spec.address_layout,
            others=others,
        )

    def check(self, addr: PhysAddr, nbytes: int) -> None:
        """Raise AddressError unless `nbytes` at `addr` lie in one memory of this machine."""
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1:
            raise AddressError(f"an access of {nbytes!r} bytes", hint="give a whole number of 1 or more")
        sizes = self.of_cube(addr.sip_id, addr.die_id) if self.others else self
        sizes._check_place(addr)
        start, size, memory = sizes._memory_of(addr)
        if start + nbytes > size:
            raise AddressError(
                f"{nbytes} bytes at {addr} run past the end of {memory}",
                hint=f"{memory} has {format_bytes(size)}: at most {max(size - start, 0)} bytes fit there",
            )

    def _check_place(self, addr: PhysAddr) -> None:
        io = addr.die_id - self.layout.first_io_die
        _in_machine(addr, "SIP", addr.sip_id, self.n_sips)
        if io >= 0:
            _in_machine(addr, "IO chiplet", io, self.n_io_chiplets)
        else:
            _in_machine(addr, "cube", addr.die_id, self.n_cubes)
        if addr.pe_id is not None:
            _in_machine(addr, "PE", addr.pe_id, self.n_pes)
        if addr.hbm_offset is not None:
            if not self.hbm_slice_bytes:
                raise AddressError(f"{addr} is in HBM, and this machine has none", hint="use SRAM or TCM")
            _in_machine(addr, "HBM slice", addr.hbm_offset // self.hbm_slice_bytes, self.n_pes)

    def _memory_of(self, addr: PhysAddr) -> tuple[int, int, str]:
        """The offset of an address in its memory, and the size and name of that memory."""
        if addr.hbm_offset is not None:
            owner, start = divmod(addr.hbm_offset, self.hbm_slice_bytes)
            return start, self.hbm_slice_bytes, f"HBM slice {owner}"
        if addr.far_offset is not None:
            if addr.die_id != self.far_die or not self.far_bytes_per_sip:
                raise AddressError(f"{addr} is in no far memory", hint="system.far_memory describes it")
            return addr.far_offset, self.far_bytes_per_sip, "the SIP's far memory"
        offset, unit = addr.sub_offset, addr.sub_unit
        assert offset is not None, "what is neither HBM nor far memory has a unit"
        if unit is None:
            return offset, self.sram_bytes_per_cube, "the SRAM"
        if unit is PeSubUnit.PE_TCM:
            return offset, self.tcm_bytes_per_pe, "the TCM"
        if addr.unit_type is UnitType.PE:
            return offset, self.layout.pe_budget_bytes[unit], unit.name
        if addr.unit_type is UnitType.MCPU:
            return offset, MCPU_BUDGET_BYTES[unit], unit.name
        return offset, IOCPU_BUDGET_BYTES[unit], unit.name


def _in_machine(addr: PhysAddr, what: str, index: int, count: int) -> None:
    if index >= count:
        has = f"it has {what} 0..{count - 1}" if count else f"it has no {what}"
        raise AddressError(f"{addr} names {what} {index}, which this machine does not have", hint=has)
