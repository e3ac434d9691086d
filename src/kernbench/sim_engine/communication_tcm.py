"""TCM reserved for communication: ring buffers, and the tensors of kernels in the communication streams.

On every PE of a SIP it is one block, an ordinary allocation of the PE's one allocator, so the lease of a compute kernel
is smaller by that much. The block begins with the part for tensors, followed by the part for ring buffers. A kernel
leases its stream's share of the tensor part while it runs: point-to-point sends have an eighth of it, receives another
eighth, collectives the rest. Ring buffers are allocated in the second part and stay until they are freed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernbench.common.errors import AllocationError, KernBenchError
from kernbench.common.ids import PeId, PeKey
from kernbench.common.messages import LaunchStream
from kernbench.policy.address.allocator import LEASE_ALIGN_BYTES, PEMemAllocator, TcmLease, TcmRingAllocator
from kernbench.policy.address.block_allocator import whole
from kernbench.policy.address.capacity import AddressConfig
from kernbench.policy.address.phyaddr import PhysAddr

_NAME = "TCM for communication"


def lease_of(work_bytes: int, stream: LaunchStream) -> TcmLease:
    """The share of the tensor part that kernels of a stream lease: offset from its start, and bytes."""
    message_bytes = work_bytes // 8 // LEASE_ALIGN_BYTES * LEASE_ALIGN_BYTES
    if stream == "communication":
        return TcmLease(0, work_bytes - 2 * message_bytes)
    return TcmLease(work_bytes - (2 if stream == "send" else 1) * message_bytes, message_bytes)


@dataclass(slots=True)
class TcmReservation:
    """What is reserved on the PEs of one SIP."""

    ring_bytes: int
    work_bytes: int
    blocks: dict[PeKey, PhysAddr] = field(default_factory=dict)
    rings: dict[PeKey, TcmRingAllocator] = field(default_factory=dict)  # where one was asked for

    @property
    def nbytes(self) -> int:
        """On each PE."""
        return self.ring_bytes + self.work_bytes


class CommunicationTcm:
    """The reservations of one machine, whose PEs' allocators `pe_memory` finds."""

    def __init__(self, sizes: AddressConfig, pe_memory: Callable[[int, int, int], PEMemAllocator]) -> None:
        self._pes = [(cube, pe) for cube in range(sizes.n_cubes) for pe in range(sizes.n_pes)]  # of a SIP
        self._sizes, self._layout = sizes, sizes.layout
        self._pe_memory = pe_memory
        self._reserved: dict[int, TcmReservation] = {}  # by SIP
        self._running: dict[tuple[PeKey, LaunchStream], None] = {}  # PEs whose communication kernel runs

    def reserve(self, sips: Sequence[int], ring_bytes: int, work_bytes: int) -> None:
        """See `Machine.reserve_communication_tcm`."""
        whole(_NAME, "ring_bytes", ring_bytes, 0)
        whole(_NAME, "work_bytes", work_bytes, 1)
        self._check_room(ring_bytes, work_bytes)
        wanted = [sip for sip in dict.fromkeys(sips) if not self._has(sip, ring_bytes, work_bytes)]
        made: dict[int, TcmReservation] = {}
        try:
            for sip in wanted:
                made[sip] = TcmReservation(ring_bytes, work_bytes)
                for cube, pe in self._pes:
                    block = self._pe_memory(sip, cube, pe).alloc_tcm(made[sip].nbytes, LEASE_ALIGN_BYTES)
                    made[sip].blocks[sip, cube, pe] = block
        except KernBenchError as error:
            for reservation in made.values():
                self._free(reservation)
            if not isinstance(error, AllocationError):  # for example, a SIP that does not exist
                raise
            raise AllocationError(
                f"{_NAME} cannot be reserved: {error.what}", where=error.where, hint=error.hint
            ) from None
        self._reserved |= made

    def _check_room(self, ring_bytes: int, work_bytes: int) -> None:
        """Raise AllocationError where not even an empty TCM has room."""
        sizes, needed = self._sizes, ring_bytes + work_bytes
        if needed > sizes.tcm_allocatable_bytes:
            home = sizes.tcm_home_bytes_per_pe
            raise AllocationError(
                f"{_NAME} cannot be reserved: rings take {ring_bytes} bytes and kernels of collectives {work_bytes}, "
                f"and a TCM of {sizes.tcm_bytes_per_pe} bytes has {sizes.tcm_allocatable_bytes} beside the "
                f"{sizes.tcm_scheduler_reserved_bytes} of the scheduler"
                + (f" and the {home} of tensors" if home else ""),
                where="cube.memory_map.tcm_mb_per_pe",
                hint="raise it, lower cube.memory_map.tcm_scheduler_reserved_mb"
                + (" or cube.memory_map.tcm_home_mb_per_pe" if home else "")
                + ", or lower defaults.ring_bytes and defaults.work_bytes in ccl.yaml",
            )

    def _has(self, sip: int, ring_bytes: int, work_bytes: int) -> bool:
        """Whether a SIP has these sizes already; raises AllocationError when it has others."""
        known = self._reserved.get(sip)
        if known is None:
            return False
        if (known.ring_bytes, known.work_bytes) != (ring_bytes, work_bytes):
            raise AllocationError(
                f"sip {sip} keeps {known.ring_bytes} bytes of TCM for rings and {known.work_bytes} for communication "
                f"kernels, not {ring_bytes} and {work_bytes}",
                hint="give the same sizes, or call torch.distributed.destroy_process_group first",
            )
        return True

    def release(self, sips: Sequence[int]) -> None:
        """See `Machine.release_communication_tcm`."""
        found = {sip: self._of(sip) for sip in sips}
        for sip, reservation in found.items():
            running = next((key for key, _ in self._running if key[0] == sip), None)
            if running is not None:
                raise AllocationError(
                    f"{PeId(*running)} runs a communication kernel, whose TCM cannot be released",
                    hint="wait for its launch first",
                )
            left = next((rings.tcm for rings in reservation.rings.values() if rings.tcm.used_bytes), None)
            if left is not None:
                raise AllocationError(
                    f"{left.name} cannot be released: {left.used_bytes} bytes are in use", hint="free the ring buffers"
                )
        for sip, reservation in found.items():
            self._free(reservation)
            del self._reserved[sip]

    def _free(self, reservation: TcmReservation) -> None:
        for key, block in reservation.blocks.items():
            self._pe_memory(*key).free_tcm(block, reservation.nbytes)

    def bytes_of(self, sip: int) -> int:
        """How many bytes are reserved on each PE of a SIP."""
        return sum(self.parts_of(sip))

    def parts_of(self, sip: int) -> tuple[int, int]:
        """How much of it is for ring buffers, and how much for tensors of kernels."""
        found = self._reserved.get(sip)
        return (0, 0) if found is None else (found.ring_bytes, found.work_bytes)

    def rings(self, sip: int, cube: int, pe: int) -> TcmRingAllocator:
        """See `Machine.communication_rings`."""
        key = (sip, cube, pe)
        reservation = self._of(sip, key)
        found = reservation.rings.get(key)
        if found is None:
            part = TcmLease(self._offset(reservation, key) + reservation.work_bytes, reservation.ring_bytes)
            found = reservation.rings[key] = TcmRingAllocator(*key, part, self._layout)
        return found

    def lease(self, sip: int, cube: int, pe: int, stream: LaunchStream) -> TcmLease:
        """Lease a kernel its stream's share of the tensor part; raises AllocationError where nothing is reserved."""
        key = (sip, cube, pe)
        reservation = self._of(sip, key)
        self._running[key, stream] = None
        offset = self._offset(reservation, key)
        lease = lease_of(reservation.work_bytes, stream)
        return TcmLease(offset + lease.offset, lease.nbytes)

    def end_lease(self, sip: int, cube: int, pe: int, stream: LaunchStream) -> None:
        """End the lease of a PE's kernel, if there is one."""
        self._running.pop(((sip, cube, pe), stream), None)

    def _offset(self, reservation: TcmReservation, key: PeKey) -> int:
        """Where a PE's block begins in its TCM."""
        block = reservation.blocks.get(key)
        if block is None:
            raise AllocationError(f"there is no {PeId(*key)}", hint=f"a SIP has {len(self._pes)} PEs")
        assert block.sub_offset is not None
        return block.sub_offset

    def _of(self, sip: int, pe: PeKey | None = None) -> TcmReservation:
        found = self._reserved.get(sip)
        if found is None:
            raise AllocationError(
                f"{f'sip {sip}' if pe is None else PeId(*pe)} has no TCM reserved for communication",
                hint="call torch.distributed.init_process_group first, which reserves it",
            )
        return found
