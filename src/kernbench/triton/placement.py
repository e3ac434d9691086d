"""Where the tensors of a launch lie on the machine.

`slabs` puts each part of a tensor into the memory next to the PE whose programs use it: the starts of the slabs follow
from the first bytes that the programs touch. `interleave` deals pages to the memories of all PEs, for operands that
many programs share; `replicate` gives each PE a copy of what programs only read. By default each tensor gets what fits
it: three programs of the grid, the first two and the last, are run ahead (`look_ahead.py`), to see which bytes they
touch. A tensor keeps its place as long as it lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from kernbench.policy.placement.dp import DPPolicy, parts_of
from kernbench.triton.look_ahead import ByteRange, LookAhead

StoragePlacement = Literal["auto", "slabs", "interleave", "replicate"]
PLACEMENTS = ("auto", "slabs", "interleave", "replicate")
_DENSE = 0.5  # of the bytes from the first to the last that a program touches are used
_SHARED = 2.0  # so often is each byte of a shared operand used


def policy_of(
    placement: StoragePlacement,
    at: int,
    nbytes: int,
    seen: Sequence[LookAhead],
    start: int,
    programs: int,
    pes: int,
    page: int,
) -> DPPolicy:
    """The policy of storage `at` of a launch, which has `nbytes` from address `start` on."""
    if placement == "replicate" and not any(at in each.written for each in seen):
        return DPPolicy(cube="replicate", pe="replicate")
    touched = [each.touched.get(at) for each in seen]
    if placement == "interleave" or (placement in ("auto", "replicate") and _is_shared(at, nbytes, seen, programs)):
        return DPPolicy(cube="interleave", pe="interleave")
    shares = parts_of(programs, pes)
    starts = []
    for first, _ in shares:
        byte = _first_byte(touched, first, programs, start, nbytes)
        starts.append(min(-(-byte // page) * page, nbytes))
    starts[0] = 0
    return DPPolicy(cube="row_wise", pe="row_wise", starts=tuple(np.maximum.accumulate(starts).tolist()))


def _is_shared(at: int, nbytes: int, seen: Sequence[LookAhead], programs: int) -> bool:
    """Whether programs together use the bytes of a storage several times, or go through it side by side."""
    spans = sorted(span for each in seen if (span := each.touched.get(at)) is not None)
    if len(spans) < 2 or not nbytes:
        return False
    if all(each.bytes[at] >= _DENSE * (span[1] - span[0]) for each in seen if (span := each.touched.get(at))):
        return False  # each program uses a block that lies in one piece
    return any(end >= start for (_, end), (start, _) in pairwise(spans)) or (
        sum(each.bytes.get(at, 0) for each in seen) / len(seen) * programs > _SHARED * nbytes
    )


def _first_byte(touched: Sequence[ByteRange | None], program: int, programs: int, start: int, nbytes: int) -> int:
    """Where the bytes of a program begin: at equal distances if the programs that were seen are, else in proportion."""
    first, second, last = (*touched, None, None, None)[:3]
    if first is not None and second is not None and programs > 1:
        step = second[0] - first[0]
        expected = first[0] + (programs - 1) * step
        if step > 0 and (last is None or last[0] == expected):
            return first[0] + program * step - start
    return program * nbytes // max(programs, 1)
