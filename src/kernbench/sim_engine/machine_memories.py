"""The allocators of a machine, one for each of its memories, and the TCM that its kernels lease.

Nothing here takes time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from kernbench.common.messages import LaunchStream
from kernbench.policy.address.allocator import (
    CubeSramAllocator,
    FarMemoryAllocator,
    PEMemAllocator,
    TcmLease,
    TcmRingAllocator,
)
from kernbench.policy.address.capacity import AddressConfig
from kernbench.policy.address.la_allocator import LogicalAllocator
from kernbench.sim_engine.communication_tcm import CommunicationTcm
from kernbench.topology.graph import TopologyGraph


class MachineMemories:
    """Who has which bytes of a machine's memories."""

    def __init__(self, graph: TopologyGraph, sizes: AddressConfig) -> None:
        self.graph, self._sizes = graph, sizes
        self._pe_memories: dict[tuple[int, int, int], PEMemAllocator] = {}
        self._leases: set[tuple[int, int, int]] = set()  # PEs whose kernel leases all TCM, before an allocator exists
        self._communication_tcm = CommunicationTcm(sizes, self.pe_memory)
        self._cube_memories: dict[tuple[int, int], CubeSramAllocator] = {}
        self._far_memories: dict[int, FarMemoryAllocator] = {}

    def pe_memory(self, sip: int, cube: int, pe: int) -> PEMemAllocator:
        """The one allocator of a PE's memories, made when it is first needed."""
        key = (sip, cube, pe)
        found = self._pe_memories.get(key)
        if found is None:
            found = self._pe_memories[key] = PEMemAllocator(sip, cube, pe, self._sizes)
            if key in self._leases:
                self._leases.remove(key)
                found.lease_tcm()
        return found

    def lease_tcm(self, sip: int, cube: int, pe: int, stream: LaunchStream) -> TcmLease:
        """Give a kernel the free part of a PE's TCM; all of it, without an allocator, where nothing has been allocated
        yet. A communication kernel gets the part reserved for it.
        """
        if stream != "compute":
            return self._communication_tcm.lease(sip, cube, pe, stream)
        found = self._pe_memories.get((sip, cube, pe))
        if found is not None:
            return found.lease_tcm()
        self._leases.add((sip, cube, pe))
        sizes = self._sizes.of_cube(sip, cube)
        return TcmLease(sizes.tcm_home_bytes_per_pe, sizes.tcm_allocatable_bytes)

    def tcm_for(self, sip: int, cube: int, pe: int, stream: LaunchStream) -> TcmLease:
        """What `lease_tcm` would lease now."""
        lease = self.lease_tcm(sip, cube, pe, stream)
        self.end_lease(sip, cube, pe, stream)
        return lease

    def tcm_holders(self, sip: int, cube: int, pe: int) -> list[tuple[str, int]]:
        """The holders of a PE's TCM other than its kernels, with their bytes, largest first."""
        rings, work = self._communication_tcm.parts_of(sip)
        memory = self._pe_memories.get((sip, cube, pe))
        placed = 0 if memory is None else memory.tcm.used_bytes - rings - work
        spec = self.graph.spec.cube_of(sip, cube)
        found = [
            ("tile buffers of the scheduler", spec.tcm_reserved_bytes),
            ("the home of tensors", spec.tcm_home_bytes),
            ("ring buffers of messages", rings),
            ("communication kernels", work),
            ("tensors that the host placed there", placed),
        ]
        return sorted(((name, nbytes) for name, nbytes in found if nbytes), key=lambda holder: -holder[1])

    def end_lease(self, sip: int, cube: int, pe: int, stream: LaunchStream) -> None:
        """End the lease of a PE's kernel, if there is one."""
        if stream != "compute":
            self._communication_tcm.end_lease(sip, cube, pe, stream)
            return
        self._leases.discard((sip, cube, pe))
        found = self._pe_memories.get((sip, cube, pe))
        if found is not None:
            found.end_lease()

    def reserve_communication_tcm(self, sips: Sequence[int], ring_bytes: int, work_bytes: int) -> None:
        """Reserve TCM on every PE of some SIPs for communication: `ring_bytes` for ring buffers, `work_bytes` for the
        tensors of its kernels. SIPs that have the same already stay as they are.

        Raises AllocationError, and reserves nothing, where a kernel runs, where there is no room, and where other sizes
        are reserved.
        """
        self._communication_tcm.reserve(sips, ring_bytes, work_bytes)

    def release_communication_tcm(self, sips: Sequence[int]) -> None:
        """Release what `reserve_communication_tcm` reserved on some SIPs. Raises AllocationError, and releases nothing,
        where nothing is reserved, a communication kernel runs, or ring buffers are left.
        """
        self._communication_tcm.release(sips)

    def communication_tcm_bytes(self, sip: int) -> int:
        """The TCM reserved for communication on each PE of a SIP, in bytes; 0 where none is."""
        return self._communication_tcm.bytes_of(sip)

    def communication_rings(self, sip: int, cube: int, pe: int) -> TcmRingAllocator:
        """The allocator of ring buffers in a PE's TCM; raises AllocationError where nothing is reserved."""
        return self._communication_tcm.rings(sip, cube, pe)

    def cube_memory(self, sip: int, cube: int) -> CubeSramAllocator:
        """The one allocator of a cube's SRAM, made when it is first needed."""
        found = self._cube_memories.get((sip, cube))
        if found is None:
            found = self._cube_memories[sip, cube] = CubeSramAllocator(sip, cube, self._sizes)
        return found

    def far_memory(self, sip: int) -> FarMemoryAllocator:
        """The one allocator of a SIP's part of far memory, made when it is first needed."""
        found = self._far_memories.get(sip)
        if found is None:
            found = self._far_memories[sip] = FarMemoryAllocator(sip, self._sizes)
        return found

    @cached_property
    def logical_ranges(self) -> LogicalAllocator:
        """The one allocator of logical addresses, which all hosts of a machine share: PEs have one table each."""
        return LogicalAllocator(align=self.graph.spec.cube.hbm_burst_bytes)
