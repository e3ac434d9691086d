"""Elements of a tensor that were never written: how many, and the index of the first one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernbench.common.array_types import Mask
from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId
from kernbench.policy.placement.dp import ShardSpec


@frozen
class Unwritten:
    """`first` is an index of the whole tensor; `pes` are the PEs that hold such elements, in the order of shards."""

    nbytes: int
    of_bytes: int
    first: tuple[int, ...]
    pes: tuple[PeId, ...]

    def __str__(self) -> str:
        others = len(self.pes) - 1
        more = f" and {others} more PE{'s' if others > 1 else ''}" if others else ""
        return (
            f"{self.nbytes} of {self.of_bytes} bytes were never written, "
            f"the first of them element {list(self.first)}, on {self.pes[0]}{more}"
        )


def unwritten_in(parts: Mapping[ShardSpec, tuple[Mask, Mask]], itemsize: int) -> Unwritten | None:
    """The unwritten elements of some shards, each with masks of wanted and written elements; None if there are none."""
    count = wanted_count = 0
    first: tuple[int, ...] = ()
    pes: list[PeId] = []
    for part, (wanted, written) in parts.items():
        wanted_count += int(np.count_nonzero(wanted))
        missing = np.flatnonzero(wanted & ~written)
        if missing.size:
            if not pes:
                within = np.unravel_index(int(missing[0]), part.local_shape)
                first = tuple(low + int(at) for (low, _), at in zip(part.box, within, strict=True))
            pes.append(PeId(part.sip, part.cube, part.pe))
            count += missing.size
    return Unwritten(count * itemsize, wanted_count * itemsize, first, tuple(pes)) if pes else None
