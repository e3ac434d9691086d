"""Key: where the tensors of a launch lie, relative to one region of the machine, and how places translate to another.

A *region* is a cube, a SIP or several SIPs. A kernel names its bytes by addresses; as tensor, part, and place among the
memory's channels they are the same for kernels that do the same in other regions, or in later launches. Regions whose
tensors have one `layout` have parts of the same sizes, at the same places among channels. Within a part a kernel may be
elsewhere than the recorded one, whole rounds of channels apart (`Offsets`): kernels that each take other rows of one
tensor do the same, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from kernbench.common.address_layout import RECORD_LAYOUT, AddressLayout
from kernbench.common.ids import PeId, PeKey
from kernbench.common.launch import TensorArg, TensorShard
from kernbench.common.messages import KernelLaunchMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.memo.regions import AnyRegion

PartKey = tuple[int, int]  # which tensor, which of its parts in the region
RelativeAddress = tuple[int, int, int]  # the same, and where among the memory's channels
PartOffsets = dict[PartKey, int]  # how much further behind the start of a part a kernel is than the one that it follows


class TensorPart(NamedTuple):
    """A part of a tensor in a region: its addresses as kernels say them, and its physical address."""

    start: int
    end: int
    tensor: int
    number: int  # among the tensor's parts in the region
    pa: int

    @property
    def key(self) -> PartKey:
        return self.tensor, self.number

    @property
    def nbytes(self) -> int:
        return self.end - self.start


class LaunchPlaces:
    """The tensors of a launch, or of those of a collective, as far as they lie in a region. `round_bytes` go once round
    a memory's channels.
    """

    def __init__(self, launches: Sequence[KernelLaunchMsg], region: AnyRegion, round_bytes: int) -> None:
        tensors = [arg for launch in launches for arg in launch.all_args if isinstance(arg, TensorArg)]
        parts: list[TensorPart] = []
        layout: list[Hashable] = []
        for at, tensor in enumerate(tensors):
            shards = [shard for shard in tensor.shards if region.holds(shard.sip, shard.cube)]
            own = [_part(tensor, shard, at, number) for number, shard in enumerate(shards)]
            parts += own
            layout.append((tensor.dtype, tensor.space, tensor.layout, _layout(own, shards, region, round_bytes)))
        self.parts = sorted(parts)
        self.layout = tuple(layout)
        self._round_bytes = round_bytes
        self._starts = [part.start for part in self.parts]

    def place_of(self, address: int) -> RelativeAddress | None:
        """A kernel's address; None for one that is not in the region."""
        part = self._at(address)
        return None if part is None else (part.tensor, part.number, (address - part.start) % self._round_bytes)

    def within(self, address: int) -> tuple[PartKey, int] | None:
        """The part that a kernel's address is in, and how far behind its start."""
        part = self._at(address)
        return None if part is None else (part.key, address - part.start)

    def part_at(self, pa: int) -> TensorPart | None:
        """The part that a physical address is in; None for one that is not in the region."""
        at = bisect_right(self._pas, pa) - 1
        if at < 0:
            return None
        part = self._by_pa[at]
        return part if pa < part.pa + part.end - part.start else None

    def part_of(self, key: PartKey) -> TensorPart:
        return self._by_key[key]

    @cached_property
    def are_apart(self) -> bool:
        """Whether no two parts share bytes."""
        return all(a.pa + a.nbytes <= b.pa for a, b in pairwise(self._by_pa))

    def _at(self, address: int) -> TensorPart | None:
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address > self.parts[at].end:
            return None
        return self.parts[at]

    @cached_property
    def _by_key(self) -> dict[PartKey, TensorPart]:
        return {part.key: part for part in self.parts}

    @cached_property
    def _by_pa(self) -> list[TensorPart]:
        return sorted(self.parts, key=attrgetter("pa"))

    @cached_property
    def _pas(self) -> list[int]:
        return [part.pa for part in self._by_pa]


def _part(tensor: TensorArg, shard: TensorShard, at: int, number: int) -> TensorPart:
    start = shard.pa if tensor.va_base is None else tensor.va_base + shard.offset_bytes
    return TensorPart(start, start + shard.nbytes, at, number, shard.pa)


def _layout(
    parts: Sequence[TensorPart], shards: Sequence[TensorShard], region: AnyRegion, round_bytes: int
) -> Hashable:
    """Of each part: whose it is, how long, how far from the first, where among channels, and whether it goes on where
    the one before it ends, so that both are one piece of memory.
    """
    found: list[Hashable] = []
    end = -1
    for part, shard in zip(parts, shards, strict=True):
        distance = part.start - parts[0].start
        found.append((region.relative(shard.key), part.nbytes, distance, part.pa % round_bytes, part.pa == end))
        end = part.pa + part.nbytes
    return tuple(found)


class Pointers:
    """The addresses that one kernel names, in the order in which it does."""

    def __init__(self, places: LaunchPlaces) -> None:
        self.places = places
        self.addresses: list[int] = []

    def place_of(self, address: int) -> RelativeAddress | None:
        self.addresses.append(address)
        return self.places.place_of(address)

    def offsets_from(self, followed: Pointers) -> PartOffsets | None:
        """How far this kernel is from one that has named as many; None where that is not one number for a part."""
        found: PartOffsets = {}
        if len(self.addresses) != len(followed.addresses):
            return None
        for here, there in zip(self.addresses, followed.addresses, strict=True):
            own, other = self.places.within(here), followed.places.within(there)
            if own is None or other is None or found.setdefault(own[0], own[1] - other[1]) != own[1] - other[1]:
                return None
        return found


class Shift:
    """From a region, and the places that a launch had there, to another one and those of another launch.

    `offsets` are those of each PE, in the order of the region's PEs.
    """

    def __init__(
        self,
        regions: tuple[AnyRegion, AnyRegion],
        places: tuple[LaunchPlaces, LaunchPlaces],
        keys: Sequence[PeKey],
        offsets: Sequence[PartOffsets],
        layout: AddressLayout = RECORD_LAYOUT,
    ) -> None:
        self._layout = layout
        (self._from, self._to), (self._places, self._others) = regions, places
        self._cut = len(self._from.name)
        self._names: dict[str, str] = {}
        self._tcm_shifts: dict[PeKey, int] = {}
        self._keys = {str(PeId(*key)): key for key in keys}
        self._offsets = dict(zip(self._keys, offsets, strict=True))

    @property
    def region(self) -> AnyRegion:
        """The other region."""
        return self._to

    def name(self, node: str) -> str:
        """A node of the region, there."""
        found = self._names.get(node)
        if found is None:
            found = self._names[node] = self._to.name + node[self._cut :]
        return found

    def key(self, key: PeKey) -> PeKey:
        """A PE of the region, there."""
        return self._to.moved(key)

    def address(self, pe: str, address: int) -> int:
        """What a kernel on a PE of the region says, there: of a tensor, or of its own TCM."""
        found = self._places.within(address)
        if found is None:
            key = self._keys[pe]
            by = self._tcm_shifts.get(key)
            if by is None:
                by = self._tcm_shifts[key] = self._tcm(self.key(key)) - self._tcm(key)
            return address + by
        part, offset = found
        return self._others.part_of(part).start + offset + self._offsets[pe].get(part, 0)

    def _tcm(self, key: PeKey) -> int:
        return PhysAddr.pe_tcm_addr(*key, 0, self._layout).raw

    def pa(self, pe: str, pa: int) -> int:
        """A physical address of a tensor that a kernel on a PE of the region reaches, there."""
        part = self._places.part_at(pa)
        assert part is not None, "a recording does not leave its region"
        return self.base(pe, part.key) + pa - part.pa

    def base(self, pe: str, part: PartKey) -> int:
        """What the physical address of a part is to a kernel on a PE of the region, there."""
        return self._others.part_of(part).pa + self._offsets[pe].get(part, 0)

    def pes(self) -> dict[str, str]:
        """Names of PEs, here and there."""
        return {name: str(PeId(*self.key(key))) for name, key in self._keys.items()}
