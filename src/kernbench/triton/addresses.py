"""From a block of pointers to accesses of the simulated machine.

Tensors stay where PyTorch has them: a pointer of a Triton program is an address of the host. Each storage has a copy on
the machine, of the same size and without contents. A block of pointers is cut into the lanes of each storage that it
touches; the distinct addresses of live lanes make runs, and runs make requests (`triton_emu.block_access`). A lane
outside of the storage that its pointer comes from (`origins`) is an error with the program's id, the tensor and the
offset; so is an address in no storage, of a pointer whose origin is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from kernbench.common.dtypes import DType, dtype_of
from kernbench.triton.origins import Origins
from kernbench.triton.refusals import refuse
from kernbench.triton.spinning import Polls
from kernbench.triton_emu.block_access import Lanes, of_offsets

_MOST_BYTES = 128 << 20  # of patterns of lanes that are kept, about
_RUN_BYTES = 160  # of a run of lanes, about, in Python


class LaunchStorage(NamedTuple):
    """A storage of PyTorch as a launch sees it: `position` is that of its copy among the launch's tensors."""

    start: int
    end: int
    name: str
    position: int
    itemsize: int
    is_replicated: bool = False


_NOWHERE = LaunchStorage(0, 0, "", -1, 1)  # addresses before the first storage


class LaneAccess(NamedTuple):
    """Lanes of one storage, counted in bytes from `offset` on."""

    storage: LaunchStorage
    offset: int
    lanes: Lanes
    live: Any


class Storages:
    """The storages that a launch may touch. Patterns of lanes that shift from program to program are found once."""

    def __init__(self, storages: Sequence[LaunchStorage]) -> None:
        self.polls: list[Polls] = []  # of the PEs that run programs
        self._ordered = sorted(storages)
        self._starts = [storage.start for storage in self._ordered]

    def accesses(
        self,
        op: str,
        addresses: Any,
        live: Any,
        itemsize: int,
        dtype: str,
        program_id: tuple[int, int, int],
        origins: Origins | None,
    ) -> list[LaneAccess]:
        """What a block of pointers touches, one access for each storage, in the order of the launch's tensors. Raises
        KernelError for a lane outside of the storages that its pointer comes from.
        """
        whole = bool(live.all())
        touched = addresses if whole else addresses[live]
        if not touched.size:
            return []
        low, high = int(touched.min()), int(touched.max()) + itemsize
        storage = self._at(origins[0].start if origins is not None and len(origins) == 1 else low)
        if storage is not None and storage.start <= low and high <= storage.end and _may_hold(storage, origins):
            return [self._access(storage, addresses, live, whole, low, itemsize, dtype)]
        at = np.searchsorted(np.array(self._starts, np.uint64), addresses, side="right") - 1
        ends = np.array([each.end if _may_hold(each, origins) else 0 for each in (*self._ordered, _NOWHERE)])
        outside = live & (addresses + np.uint64(itemsize) > ends.astype(np.uint64)[at])
        if outside.any():
            self._fail_outside(op, int(addresses[outside].min()), itemsize, program_id, origins)
        found = []
        for storage in sorted((self._ordered[each] for each in np.unique(at[live])), key=lambda each: each.position):
            here = live & (addresses >= storage.start) & (addresses < storage.end)
            first = int(addresses[here].min())
            found.append(self._access(storage, addresses, here, False, first, itemsize, dtype))
        return found

    def _at(self, address: int) -> LaunchStorage | None:
        at = bisect_right(self._starts, address) - 1
        return self._ordered[at] if at >= 0 and address < self._ordered[at].end else None

    def _access(
        self, storage: LaunchStorage, addresses: Any, live: Any, whole: bool, low: int, itemsize: int, dtype: str
    ) -> LaneAccess:
        offsets = (addresses - np.uint64(low)).astype(np.int64)
        if not whole:
            offsets[~live] = 0
        return LaneAccess(
            storage, low - storage.start, _lanes_of(offsets, None if whole else live, dtype_of(dtype)), live
        )

    def _fail_outside(
        self, op: str, address: int, itemsize: int, program_id: tuple[int, int, int], origins: Origins | None
    ) -> NoReturn:
        homes = [each for each in self._ordered if _may_hold(each, origins)]
        nearest = min(homes, key=lambda each: max(each.start - address, address - each.end + 1), default=None)
        if origins is None and nearest is None:
            refuse(f"{op} outside of every tensor in program {program_id}", "pass tensors to the kernel")
        near = nearest or LaunchStorage(address, address, "", 0, itemsize)  # of a tensor without elements
        start, end, name, size = near.start, near.end, near.name, near.itemsize
        names = [each.name for each in origins or () if nearest is None or start <= each.start < end]
        offset, count = (address - start) // size, (end - start) // size
        refuse(
            f"{op} out of bounds in program {program_id}: element {offset} of '{(names or [name])[0]}', which has "
            f"{count}",
            "mask the lanes beyond the tensor, or check strides and offsets"
            if origins is not None
            else "mask the lanes beyond the tensor, or check strides and offsets; of a tensor that is no argument, ask "
            "for data_ptr() inside of the simulation",
        )


def _may_hold(storage: LaunchStorage, origins: Origins | None) -> bool:
    """Whether pointers from there may point into a storage."""
    return origins is None or any(storage.start <= each.start < storage.end for each in origins)


def covered(addresses: Any, live: Any, low: int, dtype: str) -> tuple[int, int]:
    """How many bytes a block of pointers touches, from address `low` on, each once, and how many runs they make."""
    offsets = (addresses - np.uint64(low)).astype(np.int64)
    whole = bool(live.all())
    if not whole:
        offsets[~live] = 0
    cover = _lanes_of(offsets, None if whole else live, dtype_of(dtype)).cover
    return sum(nbytes for _, nbytes in cover), len(cover)


class Patterns:
    """The runs of lanes at distances from the first one; equal patterns are found once. The oldest are dropped where
    they take more than `most_bytes`.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._found: OrderedDict[tuple[object, ...], tuple[Lanes, int]] = OrderedDict()
        self.nbytes = 0

    def lanes_of(self, offsets: Any, mask: Any, dtype: DType) -> Lanes:
        key = (offsets.shape, dtype.name, offsets.tobytes(), None if mask is None else mask.tobytes())
        found = self._found.get(key)
        if found is not None:
            return found[0]
        lanes = of_offsets(offsets, dtype, mask)
        nbytes = offsets.nbytes + (0 if mask is None else mask.nbytes) + len(lanes.runs) * _RUN_BYTES
        self._found[key] = lanes, nbytes
        self.nbytes += nbytes
        while self.nbytes > self._most_bytes:
            self.nbytes -= self._found.popitem(last=False)[1][1]
        return lanes


_lanes_of = Patterns(_MOST_BYTES).lanes_of


def refuse_replicated_write(op: str, access: LaneAccess) -> None:
    """Refuse a write to a tensor of which every PE has a copy: other PEs would not see it."""
    if access.storage.is_replicated:
        name = access.storage.name
        refuse(f"{op} to '{name}', of which every PE has a copy", hint="give the launch placement='auto'")
