"""From a block of pointers to accesses of the simulated machine.

Tensors stay where PyTorch has them: a pointer of a Triton program is an address of the host. Each storage has a copy on
the machine, of the same size and without contents. A block of pointers is cut into the lanes of each storage that it
touches; the distinct addresses of live lanes make runs, and runs make requests (`triton_emu.block_access`). An address
in no storage is an error with the program's id, the nearest tensor and the offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from kernbench.common.dtypes import DType, dtype_of
from kernbench.triton.refusals import refuse
from kernbench.triton_emu.block_access import Lanes, of_offsets

_KEPT = 4096  # patterns of lanes


class Storage(NamedTuple):
    """A storage of PyTorch as a launch sees it: `position` is that of its copy among the launch's tensors."""

    start: int
    end: int
    name: str
    position: int
    itemsize: int


class Access(NamedTuple):
    """Lanes of one storage, counted in bytes from `offset` on."""

    storage: Storage
    offset: int
    lanes: Lanes
    live: Any


class Storages:
    """The storages that a launch may touch. Patterns of lanes that shift from program to program are found once."""

    def __init__(self, storages: Sequence[Storage]) -> None:
        self._ordered = sorted(storages)
        self._starts = [storage.start for storage in self._ordered]

    def accesses(
        self, op: str, addresses: Any, live: Any, itemsize: int, dtype: str, program_id: tuple[int, int, int]
    ) -> list[Access]:
        """What a block of pointers touches, one access for each storage."""
        whole = bool(live.all())
        touched = addresses if whole else addresses[live]
        if not touched.size:
            return []
        low, high = int(touched.min()), int(touched.max()) + itemsize
        storage = self._at(low)
        if storage is not None and high <= storage.end:
            return [self._access(storage, addresses, live, whole, low, itemsize, dtype)]
        found = []
        left = live.copy()
        while left.any():
            low = int(addresses[left].min())
            storage = self._at(low)
            if storage is None or low + itemsize > storage.end:
                self._fail_outside(op, low, itemsize, program_id)
            here = left & (addresses >= storage.start) & (addresses < storage.end)
            if int(addresses[here].max()) + itemsize > storage.end:
                self._fail_outside(op, int(addresses[here].max()), itemsize, program_id)
            found.append(self._access(storage, addresses, here, False, low, itemsize, dtype))
            left &= ~here
        return found

    def _at(self, address: int) -> Storage | None:
        at = bisect_right(self._starts, address) - 1
        return self._ordered[at] if at >= 0 and address < self._ordered[at].end else None

    def _access(
        self, storage: Storage, addresses: Any, live: Any, whole: bool, low: int, itemsize: int, dtype: str
    ) -> Access:
        offsets = (addresses - np.uint64(low)).astype(np.int64)
        if not whole:
            offsets[~live] = 0
        return Access(storage, low - storage.start, _lanes_of(offsets, None if whole else live, dtype_of(dtype)), live)

    def _fail_outside(self, op: str, address: int, itemsize: int, program_id: tuple[int, int, int]) -> NoReturn:
        nearest = min(self._ordered, key=lambda each: max(each.start - address, address - each.end + 1), default=None)
        if nearest is None:
            refuse(f"{op} outside of every tensor in program {program_id}", "pass tensors to the kernel")
        size = nearest.itemsize
        offset, count = (address - nearest.start) // size, (nearest.end - nearest.start) // size
        refuse(
            f"{op} out of bounds in program {program_id}: element {offset} of '{nearest.name}', which has {count}",
            "mask the lanes beyond the tensor, or check strides and offsets; of a tensor that is no argument, ask for "
            "data_ptr() inside of the simulation",
        )


def covered(addresses: Any, live: Any, low: int, dtype: str) -> tuple[int, int]:
    """How many bytes a block of pointers touches, from address `low` on, each once, and how many runs they make."""
    offsets = (addresses - np.uint64(low)).astype(np.int64)
    whole = bool(live.all())
    if not whole:
        offsets[~live] = 0
    cover = _lanes_of(offsets, None if whole else live, dtype_of(dtype)).cover
    return sum(nbytes for _, nbytes in cover), len(cover)


_patterns: OrderedDict[tuple[object, ...], Lanes] = OrderedDict()


def _lanes_of(offsets: Any, mask: Any, dtype: DType) -> Lanes:
    """The runs of lanes at these distances; equal patterns are found once."""
    key = (offsets.shape, dtype.name, offsets.tobytes(), None if mask is None else mask.tobytes())
    lanes = _patterns.get(key)
    if lanes is None:
        if len(_patterns) >= _KEPT:
            _patterns.popitem(last=False)
        lanes = _patterns[key] = of_offsets(offsets, dtype, mask)
    return lanes
