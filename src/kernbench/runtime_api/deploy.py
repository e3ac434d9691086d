"""Where tensors lie: blocks in PEs' HBM or TCM, in cubes' SRAM or in far memory, a range of virtual or logical
addresses, and the mappings: entries of page tables, or segments.

Every shard is a separate block, aligned to an HBM burst. A tensor in SRAM has one part per cube, for all of its PEs.
With virtual addresses a tensor has one range, and the MMU of each PE maps every byte of it to one holder: the PE itself
if it holds that part, else a PE of the same cube that does, else one of the first cube that does. So a PE reads the
nearest replica, and reaches shards wherever they lie. A PE of another SIP has the same mappings as the PE with its cube
and PE number on the tensor's SIP, so different PEs access different replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.common.commands import Space
from kernbench.common.frozen import frozen
from kernbench.common.ids import CubeId, PeId, SipId
from kernbench.common.messages import BaawSegment, MapEntry, TensorShard
from kernbench.policy.address.allocator import CubeSramAllocator, FarMemoryAllocator, PEMemAllocator
from kernbench.policy.address.channel_map import channel_requests
from kernbench.policy.address.la_allocator import LogicalAllocator
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.policy.placement.dp import ShardSpec
from kernbench.topology.far_memory import far_node
from kernbench.topology.spec import MachineSpec


@frozen
class Allocation:
    """The memory of a tensor."""

    va_base: int | None  # of its virtual or logical range; None where addresses are physical
    va_bytes: int
    shards: tuple[TensorShard, ...]
    space: Space = "hbm"
    is_logical: bool = False  # the range is of logical addresses
    is_per_pe: bool = True  # each part belongs to one PE; else all PEs of a cube share it

    @property
    def sip(self) -> int:
        return self.shards[0].sip

    @property
    def cubes(self) -> tuple[int, ...]:
        """The cubes that hold a part, in order."""
        return tuple(dict.fromkeys(shard.cube for shard in self.shards))


class DeviceMemory:
    """The memory that a host allocates on a tray. `pe_memory` returns the allocator of a PE, which kernels share;
    `logical_ranges` is the machine's, with logical addresses.
    """

    def __init__(
        self,
        spec: MachineSpec,
        pe_memory: Callable[[int, int, int], PEMemAllocator],
        cube_memory: Callable[[int, int], CubeSramAllocator],
        far_memory: Callable[[int], FarMemoryAllocator],
        logical_ranges: LogicalAllocator | None,
    ) -> None:
        self._pe = pe_memory
        self._cube = cube_memory
        self._far = far_memory
        self.has_far = spec.system.far_memory is not None
        self.home = spec.cube.home  # where tensors lie unless the host says otherwise
        self._align = spec.cube.hbm_burst_bytes
        self._layout = spec.address_layout
        self._ranges: VirtualAllocator | LogicalAllocator | None = logical_ranges
        if spec.system.address_model == "va":
            self._ranges = VirtualAllocator(page_size=spec.cube.page_bytes)

    def alloc(self, specs: Sequence[ShardSpec], space: Space = "hbm", *, is_per_pe: bool = True) -> Allocation:
        """Allocate blocks for all shards of a tensor; raises AllocationError, and allocates nothing, if they do not
        fit.
        """
        shards: list[TensorShard] = []
        va_bytes = max(spec.offset_bytes + spec.nbytes for spec in specs)
        try:
            for spec in specs:
                pa = self._block(spec, space).encode()
                shards.append(TensorShard(spec.sip, spec.cube, spec.pe, pa, spec.nbytes, spec.offset_bytes))
            va_base = self._ranges.alloc(va_bytes) if self._ranges is not None else None
        except Exception:
            self._free_shards(shards, space)
            raise
        return Allocation(
            va_base, va_bytes, tuple(shards), space, isinstance(self._ranges, LogicalAllocator), is_per_pe
        )

    def _block(self, spec: ShardSpec, space: Space) -> PhysAddr:
        if space == "sram":
            return self._cube(spec.sip, spec.cube).alloc(spec.nbytes, self._align)
        if space == "far":
            return self._far(spec.sip).alloc(spec.nbytes, self._align)
        pe = self._pe(spec.sip, spec.cube, spec.pe)
        if space == "tcm":
            return (pe.alloc_tcm_home if self.home.space == "tcm" else pe.alloc_tcm)(spec.nbytes, self._align)
        return pe.alloc_hbm(spec.nbytes, self._align)

    def free(self, allocation: Allocation) -> None:
        """Free what `alloc` returned."""
        self._free_shards(allocation.shards, allocation.space)
        if self._ranges is not None and allocation.va_base is not None:
            self._ranges.free(allocation.va_base, allocation.va_bytes)

    def alloc_tcm(self, sip: int, cube: int, pe: int, nbytes: int, align: int = 1) -> PhysAddr:
        """Allocate part of a PE's TCM, which kernels do not get until it is freed; raises AllocationError if it does
        not fit.
        """
        return self._pe(sip, cube, pe).alloc_tcm(nbytes, align)

    def free_tcm(self, address: PhysAddr, nbytes: int) -> None:
        """Free what `alloc_tcm` returned."""
        assert address.pe_id is not None
        self._pe(address.sip_id, address.die_id, address.pe_id).free_tcm(address, nbytes)

    def used_bytes(self, sip: int, cube: int, pe: int) -> int:
        """How much tensors take of a PE's HBM slice; without HBM, of its TCM or of the SRAM of its cube."""
        if self.home.space == "sram":
            return self._cube(sip, cube).sram.used_bytes
        memory = self._pe(sip, cube, pe)
        return (memory.hbm if self.home.space == "hbm" else memory.tcm_home).used_bytes

    def _free_shards(self, shards: Sequence[TensorShard], space: Space) -> None:
        for shard in shards:
            address = PhysAddr.decode(shard.pa, self._layout)
            if space == "sram":
                self._cube(shard.sip, shard.cube).free(address, shard.nbytes)
            elif space == "far":
                self._far(shard.sip).free(address, shard.nbytes)
            elif space == "tcm":
                self.free_tcm(address, shard.nbytes)
            else:
                self._pe(*shard.key).free_hbm(address, shard.nbytes)


def map_entries(allocation: Allocation, cubes: Sequence[int], n_pes: int) -> tuple[MapEntry, ...]:
    """The mappings that the MMUs of all PEs of `cubes` need for a tensor."""
    assert allocation.va_base is not None
    entries: list[MapEntry] = []
    for offset, holders in _holders(allocation).items():
        va = allocation.va_base + offset
        over_cubes, over_pes = len(holders) > 1, any(len(pes) > 1 for pes in holders.values())
        for cube in cubes if over_cubes else (None,):
            own = holders.get(-1 if cube is None else cube) or next(iter(holders.values()))
            for pe in range(n_pes) if over_pes else (None,):
                shard = own.get(-1 if pe is None else pe) or list(own.values())[(pe or 0) % len(own)]
                entries.append(MapEntry(va, shard.pa, shard.nbytes, cube, pe))
    return tuple(entries)


def segments(allocation: Allocation, cubes: Sequence[int], spec: MachineSpec) -> tuple[BaawSegment, ...]:
    """The segments that the DMA engines of all PEs of `cubes` need for a tensor."""
    by_pa = {shard.pa: shard for shard in allocation.shards}
    entries = map_entries(allocation, cubes, spec.cube.n_pes)
    return tuple(_segment(entry, by_pa[entry.pa], allocation.space, spec) for entry in entries)


def _segment(entry: MapEntry, shard: TensorShard, space: Space, spec: MachineSpec) -> BaawSegment:
    cube = spec.cube
    holder = CubeId(shard.sip, shard.cube)
    owner = PeId(*shard.key)
    if space != "hbm":
        node = owner.part("pe_tcm")
        if space != "tcm":
            node = holder.sram() if space == "sram" else far_node(spec, shard.sip)
        return BaawSegment(entry.va, entry.nbytes, entry.pa, node, cube=entry.cube, pe=entry.pe)
    stacks = spec.sip.hbm_stacks  # the first of its group stands for all, as in `TopologyGraph.home_node`
    node = holder.hbm_ctrl(shard.pe) if stacks is None else SipId(shard.sip).hbm_stack(stacks.group_of(shard.cube)[0])
    if not cube.has_channel_routers:
        return BaawSegment(entry.va, entry.nbytes, entry.pa, node, cube=entry.cube, pe=entry.pe)
    base = entry.pa - (PhysAddr.decode(entry.pa, spec.address_layout).hbm_offset or 0)
    parts = channel_requests(entry.pa - base, entry.nbytes, cube.hbm_channels_per_pe, cube.hbm_burst_bytes)
    return BaawSegment(
        entry.va,
        entry.nbytes,
        entry.pa,
        node,
        "one_to_one",
        tuple(part.channel for part in parts),
        tuple(base + part.address for part in parts),
        tuple(owner.channel_router(part.channel) for part in parts),
        entry.cube,
        entry.pe,
    )


def _holders(allocation: Allocation) -> dict[int, dict[int, dict[int, TensorShard]]]:
    """The shards by offset, cube and PE."""
    found: dict[int, dict[int, dict[int, TensorShard]]] = {}
    for shard in allocation.shards:
        found.setdefault(shard.offset_bytes, {}).setdefault(shard.cube, {})[shard.pe] = shard
    return found
