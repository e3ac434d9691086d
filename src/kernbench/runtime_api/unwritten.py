"""Elements of a tensor that nothing was ever written to: how many, and where the first one is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId
from kernbench.policy.placement.dp import ShardSpec

Mask = NDArray[np.bool_]  # of a shard's elements, in the order in which they lie


@frozen
class Unwritten:
    """`first` is an index of the whole tensor; `pes` hold such elements, in order of their shards."""

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
    """Of some shards, each with which elements are wanted and which were written; None when nothing is missing."""
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
