"""Placement: a tensor over the cubes of one SIP, and each cube's part over its PEs.

At each level a policy either replicates (every cube, or every PE, holds the whole) or splits one axis: `row_wise` the
first, `column_wise` the last; the one axis of a 1-D tensor is both. Of n elements over p parts, each part gets n // p
and the first n % p parts one more, so that parts differ by at most one; an empty part is no shard.

A shard is stored in its PE's memory as a contiguous, row-major tensor of its own local shape. In the tensor's address
range the distinct shards follow one another without gaps, cube by cube and PE by PE: that is `offset_bytes`. Replicas
have the same offset. So the range is as long as the tensor; it reads as the plain row-major tensor when only rows are
split (or nothing is), and otherwise as one shard after another: PE i's columns are at its offset, not interleaved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from itertools import pairwise
from math import prod
from numbers import Integral
from typing import Literal

from kernbench.common.errors import UsageError
from kernbench.common.frozen import frozen

Split = Literal["replicate", "column_wise", "row_wise"]
SPLITS = ("replicate", "column_wise", "row_wise")
MAX_DIMS = 4
Range = tuple[int, int]  # first index and end
Box = tuple[Range, ...]  # a range for each axis


@frozen
class DPPolicy:
    """How a tensor spreads inside one SIP. `num_cubes` and `num_pes` take the first so many; None takes all."""

    cube: Split = "replicate"
    pe: Split = "replicate"
    num_pes: int | None = None
    num_cubes: int | None = None

    def __post_init__(self) -> None:
        for name in ("cube", "pe"):
            value = getattr(self, name)
            if value not in SPLITS:
                raise UsageError(f"DPPolicy.{name} is {value!r}", hint=f"use one of {', '.join(SPLITS)}")
        for name in ("num_pes", "num_cubes"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise UsageError(
                    f"DPPolicy.{name} is {count!r}", hint="give a whole number of 1 or more, or None for all"
                )

    def split_axes(self, rank: int) -> tuple[int, ...]:
        """The axes of a tensor of `rank` dimensions that are split at either level."""
        return tuple(sorted({axis for axis in self.split_by(rank) if axis is not None}))

    def split_by(self, rank: int) -> tuple[int | None, int | None]:
        """The axis of a tensor of `rank` dimensions that is split over cubes, and the one over PEs."""
        cube, pe = (None if split == "replicate" else _axis_of(split, rank) for split in (self.cube, self.pe))
        return cube, pe


@frozen
class ShardSpec:
    """One PE's part of a tensor: `nbytes` at `offset_bytes` of the tensor's address range.

    `box` is the part as index ranges of the whole tensor, one (first, end) for each axis.
    """

    sip: int
    cube: int
    pe: int
    offset_bytes: int
    nbytes: int
    box: Box = field(default=(), compare=False, repr=False)

    @property
    def local_shape(self) -> tuple[int, ...]:
        return tuple(end - first for first, end in self.box)

    @property
    def index(self) -> tuple[slice, ...]:
        """The index of this part in the whole tensor."""
        return tuple(slice(first, end) for first, end in self.box)


@lru_cache(maxsize=1024)  # kernels request the same parts on every PE
def parts_of(n: int, parts: int) -> tuple[Range, ...]:
    """n elements over `parts` parts, in order: the first n % parts get one more."""
    size, more = divmod(n, parts)
    bounds = [i * size + min(i, more) for i in range(parts + 1)]
    return tuple(pairwise(bounds))


def resolve_dp_policy(
    policy: DPPolicy,
    *,
    shape: Sequence[int],
    itemsize: int,
    num_pe: int,
    num_cubes: int = 1,
    target_sip: int,
) -> list[ShardSpec]:
    """The shards of a tensor on a SIP with `num_cubes` cubes of `num_pe` PEs, by cube and then by PE.

    Raises UsageError for a shape without or with too many dimensions, and for a policy that needs a larger machine.
    """
    dims = _checked_shape(shape)
    cubes = _at_most(policy.num_cubes, num_cubes, "cubes")
    pes = _at_most(policy.num_pes, num_pe, "PEs")
    whole: Box = tuple((0, n) for n in dims)
    shards: list[ShardSpec] = []
    cube_offset = 0
    for cube, cube_box in enumerate(_split(policy.cube, whole, cubes)):
        pe_offset = 0
        for pe, box in enumerate(_split(policy.pe, cube_box, pes)):
            nbytes = _elements(box) * itemsize
            if nbytes:
                shards.append(ShardSpec(target_sip, cube, pe, cube_offset + pe_offset, nbytes, box))
            if policy.pe != "replicate":
                pe_offset += nbytes
        if policy.cube != "replicate":
            cube_offset += _elements(cube_box) * itemsize
    return shards


def _split(split: Split, box: Box, parts: int) -> list[Box]:
    if split == "replicate":
        return [box] * parts
    axis = _axis_of(split, len(box))
    first, end = box[axis]
    return [(*box[:axis], (first + a, first + b), *box[axis + 1 :]) for a, b in parts_of(end - first, parts)]


def _axis_of(split: Split, rank: int) -> int:
    return 0 if split == "row_wise" else rank - 1


def _elements(box: Box) -> int:
    return prod(end - first for first, end in box)


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    dims = tuple(shape)
    if not 1 <= len(dims) <= MAX_DIMS or any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in dims):
        raise UsageError(
            f"a tensor of shape {dims!r} cannot be placed",
            hint=f"give 1 to {MAX_DIMS} dimensions of 1 or more elements",
        )
    return tuple(int(n) for n in dims)


def _at_most(wanted: int | None, there_are: int, what: str) -> int:
    if wanted is not None and wanted > there_are:
        raise UsageError(
            f"the policy wants {wanted} {what}, the machine has {there_are}", hint=f"ask for {there_are} or fewer"
        )
    return there_are if wanted is None else wanted
