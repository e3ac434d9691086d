"""Allocators of physical memory: one for each PE's HBM slice and TCM, for each cube's SRAM, for each SIP's far memory.

One allocator manages a PE's TCM for host and kernels: host allocations stay, and a kernel leases the largest free block
for as long as it runs. `TcmRingAllocator` subdivides a block that the host has allocated. Allocators return full
addresses, and a block is freed with the size it was allocated with; anything else is an AllocationError.
"""

from __future__ import annotations

from typing import NamedTuple

from kernbench.common.address_layout import RECORD_LAYOUT, UAL_BASE, AddressLayout
from kernbench.common.errors import AllocationError
from kernbench.common.ids import CubeId, PeId, SipId
from kernbench.policy.address.capacity import AddressConfig
from kernbench.policy.address.free_list import FreeList
from kernbench.policy.address.phyaddr import McpuSubUnit, PeSubUnit, PhysAddr, UnitType

__all__ = [
    "AddressConfig",
    "CubeSramAllocator",
    "FarMemoryAllocator",
    "FreeList",
    "PEMemAllocator",
    "TcmLease",
    "TcmRingAllocator",
]


LEASE_ALIGN_BYTES = 16  # alignment of a lease, equal to the alignment of tensors in kernels


class TcmLease(NamedTuple):
    """The part of a PE's TCM that a kernel may use."""

    offset: int
    nbytes: int


_NOTHING = TcmLease(0, 0)


class PEMemAllocator:
    """One PE's HBM slice, and its TCM without the part reserved for the scheduler. Where TCM is the home of tensors, a
    part at its start is an allocator of its own, which kernels do not lease.
    """

    def __init__(self, sip_id: int, die_id: int, pe_id: int, cfg: AddressConfig) -> None:
        self.sip_id, self.die_id, self.pe_id, self.cfg = sip_id, die_id, pe_id, cfg.of_cube(sip_id, die_id)
        cfg = self.cfg
        slice_bytes = max(cfg.hbm_slice_bytes, 1)  # without HBM nothing is allocated there
        self._hbm_base = PhysAddr.pe_hbm_addr(sip_id, die_id, pe_id, 0, slice_bytes, cfg.layout)
        cfg.check(PhysAddr.pe_tcm_addr(sip_id, die_id, pe_id, 0, cfg.layout), 1)  # the PE exists
        pe = PeId(sip_id, die_id, pe_id)
        self.hbm = FreeList(cfg.hbm_slice_bytes, name=f"{pe} HBM")
        self.tcm_home = FreeList(cfg.tcm_home_bytes_per_pe, name=f"{pe} TCM for tensors")
        self.tcm = FreeList(cfg.tcm_allocatable_bytes, base=cfg.tcm_home_bytes_per_pe, name=f"{pe} TCM")
        self._whole_tcm = TcmLease(cfg.tcm_home_bytes_per_pe, cfg.tcm_allocatable_bytes)
        self._leased: TcmLease | None = None

    def alloc_hbm(self, nbytes: int, align: int = 1) -> PhysAddr:
        """`nbytes` of this PE's HBM slice; `align` counts from the start of the slice."""
        return PhysAddr(self._hbm_base.raw + self.hbm.alloc(nbytes, align), self.cfg.layout)

    def free_hbm(self, addr: PhysAddr, nbytes: int) -> None:
        """Give back what `alloc_hbm` returned."""
        offset = addr.raw - self._hbm_base.raw
        if not 0 <= offset < self.cfg.hbm_slice_bytes:
            raise _foreign(addr, self.hbm)
        self.hbm.free(offset, nbytes)

    def alloc_tcm(self, nbytes: int, align: int = 1) -> PhysAddr:
        """`nbytes` of this PE's TCM; raises AllocationError if there is no room, or while a kernel leases it."""
        if self._leased is not None:
            raise AllocationError(
                f"{self.tcm.name}: {nbytes} bytes required, but a kernel is running and has what is free",
                hint="allocate before the launch, or when it is over",
            )
        return self._tcm_addr(self.tcm.alloc(nbytes, align))

    def alloc_tcm_home(self, nbytes: int, align: int = 1) -> PhysAddr:
        """`nbytes` of the part of this PE's TCM that is the home of tensors."""
        return self._tcm_addr(self.tcm_home.alloc(nbytes, align))

    def _tcm_addr(self, offset: int) -> PhysAddr:
        return PhysAddr.pe_tcm_addr(self.sip_id, self.die_id, self.pe_id, offset, self.cfg.layout)

    def free_tcm(self, addr: PhysAddr, nbytes: int) -> None:
        """Give back what `alloc_tcm` or `alloc_tcm_home` returned."""
        offset = _tcm_offset(addr, (self.sip_id, self.die_id, self.pe_id), self.tcm)
        (self.tcm if offset >= self.tcm.base else self.tcm_home).free(offset, nbytes)

    def lease_tcm(self) -> TcmLease:
        """Lease the largest free block to a kernel until `end_lease`; the lease is empty if nothing is free.

        Raises AllocationError while another kernel holds a lease.
        """
        if self._leased is not None:
            raise AllocationError(f"{self.tcm.name} is leased to a kernel already", hint="one kernel at a time")
        self._leased = self._whole_tcm if not self.tcm.used_bytes else self._largest()
        return self._leased

    def end_lease(self) -> None:
        """End the lease of the kernel that has finished."""
        self._leased = None

    def _largest(self) -> TcmLease:
        blocks = [
            TcmLease(start + -start % LEASE_ALIGN_BYTES, size - -start % LEASE_ALIGN_BYTES)
            for start, size in self.tcm.free_blocks
        ]
        largest = max(blocks, key=lambda block: block.nbytes, default=_NOTHING)
        return largest if largest.nbytes > 0 else _NOTHING


LONG_SHARE = 8  # a ring that takes such a part of the room or more is long
SHORT_SHARE = 4  # of the room for short rings, where there are long ones
WORDS_SHARE = 64  # of the room that they leave for words of credits


class TcmRingAllocator:
    """Allocates ring buffers in a part of one PE's TCM that was allocated before: long ones from its end, others and
    words of credits from its start. Words stay, and a short ring that holds a message cannot be moved: where there are
    long rings, short ones that may not go `anywhere` keep to the first quarter, so that they do not part the room of
    long ones.
    """

    def __init__(
        self, sip_id: int, die_id: int, pe_id: int, part: TcmLease, layout: AddressLayout = RECORD_LAYOUT
    ) -> None:
        self._layout = layout
        self._tcm_base = PhysAddr.pe_tcm_addr(sip_id, die_id, pe_id, 0, layout)
        self.tcm = FreeList(part.nbytes, base=part.offset, name=f"{PeId(sip_id, die_id, pe_id)} TCM for rings")

        self._has_long = False

    def alloc(self, nbytes: int, align: int = 1, *, anywhere: bool = True) -> PhysAddr:
        """`nbytes` of that part; `align` counts from the start of the TCM."""
        room = self.tcm.capacity_bytes
        if room <= LONG_SHARE * nbytes:
            self._has_long = True
            offset = self.tcm.alloc_at_end(nbytes, align)
        else:
            short_end = self.tcm.base + room // SHORT_SHARE - room // WORDS_SHARE
            offset = self.tcm.alloc(nbytes, align, short_end if self._has_long and not anywhere else None)
        return PhysAddr(self._tcm_base.raw + offset, self._layout)

    def free(self, addr: PhysAddr, nbytes: int) -> None:
        """Give back what `alloc` returned."""
        offset = addr.raw - self._tcm_base.raw
        if not 0 <= offset < self._layout.slot_bytes:
            raise _foreign(addr, self.tcm)
        self.tcm.free(offset, nbytes)


class CubeSramAllocator:
    """One cube's shared SRAM."""

    def __init__(self, sip_id: int, die_id: int, cfg: AddressConfig) -> None:
        self.sip_id, self.die_id, self.cfg = sip_id, die_id, cfg.of_cube(sip_id, die_id)
        cfg = self.cfg
        there = PhysAddr.mcpu_resource_addr(sip_id, die_id, McpuSubUnit.MCPU_ITCM, 0, cfg.layout)
        cfg.check(there, 1)  # the cube exists, whatever its SRAM's size
        self.sram = FreeList(cfg.sram_bytes_per_cube, name=f"{CubeId(sip_id, die_id)} SRAM")

    def alloc(self, nbytes: int, align: int = 1) -> PhysAddr:
        """`nbytes` of this cube's SRAM."""
        return PhysAddr.cube_sram_addr(self.sip_id, self.die_id, self.sram.alloc(nbytes, align), self.cfg.layout)

    def free(self, addr: PhysAddr, nbytes: int) -> None:
        """Give back what `alloc` returned."""
        mine = (addr.sip_id, addr.die_id) == (self.sip_id, self.die_id)
        if not mine or addr.unit_type is not UnitType.SRAM or addr.sub_offset is None:
            raise _foreign(addr, self.sram)
        self.sram.free(addr.sub_offset, nbytes)


class FarMemoryAllocator:
    """One SIP's part of far memory."""

    def __init__(self, sip_id: int, cfg: AddressConfig) -> None:
        self.sip_id, self.cfg = sip_id, cfg
        self.far = FreeList(cfg.far_bytes_per_sip, name=f"{SipId(sip_id)} far memory")

    def alloc(self, nbytes: int, align: int = 1) -> PhysAddr:
        """`nbytes` of this SIP's part."""
        return self.address(self.far.alloc(nbytes, align))

    def address(self, offset: int) -> PhysAddr:
        """A byte of this SIP's part."""
        return PhysAddr.ual_addr(self.sip_id, self.cfg.far_die, UAL_BASE + offset, self.cfg.layout)

    def free(self, addr: PhysAddr, nbytes: int) -> None:
        """Give back what `alloc` returned."""
        if addr.far_offset is None or (addr.sip_id, addr.die_id) != (self.sip_id, self.cfg.far_die):
            raise _foreign(addr, self.far)
        self.far.free(addr.far_offset, nbytes)


def _tcm_offset(addr: PhysAddr, pe: tuple[int, int, int], memory: FreeList) -> int:
    """The offset of an address in a PE's TCM; raises AllocationError for an address elsewhere."""
    mine = (addr.sip_id, addr.die_id, addr.pe_id) == pe
    if not mine or addr.sub_unit is not PeSubUnit.PE_TCM or addr.sub_offset is None:
        raise _foreign(addr, memory)
    return addr.sub_offset


def _foreign(addr: PhysAddr, memory: FreeList) -> AllocationError:
    return AllocationError(f"{memory.name}: {addr} is not in it", hint="free a block with the allocator it came from")
