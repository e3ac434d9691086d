"""Placement: a tensor over the cubes of one SIP, and each cube's part over its PEs.

At each level a policy either replicates (every cube, or every PE, holds the whole) or splits one axis: `row_wise` the
first, `column_wise` the last; the one axis of a 1-D tensor is both. Of n elements over p parts, each part gets n // p
and the first n % p parts one more, so that parts differ by at most one; an empty part is no shard. `tiled_row_major`
and `tiled_column_major` split both axes: p parts are tiles of a grid as square as p allows, with at least as many
columns as rows (8: 2 x 4), handed out row by row or column by column.

Two more placements deal rows to the PEs of all cubes as one list, cube by cube. `interleave`, at both levels, gives
each PE in turn as many whole rows as fill a page: for operands that many PEs read. `starts` says at which row the part
of each PE begins, for parts that follow the programs that use them.

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
from math import isqrt, prod
from numbers import Integral
from typing import Literal, get_args

from kernbench.common.errors import UsageError
from kernbench.common.frozen import frozen
from kernbench.common.launch import SplitBy

Split = Literal["replicate", "column_wise", "row_wise", "tiled_column_major", "tiled_row_major", "interleave"]
SPLITS: tuple[Split, ...] = get_args(Split)[:-1]  # of one level
INTERLEAVE = "interleave"
PAGE_BYTES = 4096
TILED = ("tiled_column_major", "tiled_row_major")
MAX_DIMS = 4
Range = tuple[int, int]  # first index and end
Box = tuple[Range, ...]  # a range for each axis


@frozen
class DPPolicy:
    """How a tensor spreads inside one SIP. `num_cubes` and `num_pes` take the first so many; None takes all.

    "interleave" is for both levels at once: pages of whole rows, dealt to the PEs of all cubes in turn. `starts`, with
    "row_wise" at both levels, are the first rows of the PEs' parts, in ascending order; PEs beyond them hold nothing.
    """

    cube: Split = "replicate"
    pe: Split = "replicate"
    num_pes: int | None = None
    num_cubes: int | None = None
    starts: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("cube", "pe"):
            value = getattr(self, name)
            if value not in (*SPLITS, INTERLEAVE):
                listed = ", ".join((*SPLITS, INTERLEAVE))
                raise UsageError(f"DPPolicy.{name} is {value!r}", hint=f"use one of {listed}")
        for name in ("num_pes", "num_cubes"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise UsageError(
                    f"DPPolicy.{name} is {count!r}", hint="give a whole number of 1 or more, or None for all"
                )

        if (self.cube == "interleave") != (self.pe == "interleave"):
            raise UsageError("DPPolicy interleaves at one level", hint='use cube="interleave", pe="interleave"')
        if self.starts is not None:
            ascending = self.starts[:1] == (0,) and all(a <= b for a, b in pairwise(self.starts))
            if not ascending or (self.cube, self.pe) != ("row_wise", "row_wise"):
                raise UsageError(
                    f"DPPolicy.starts is {self.starts!r} with cube={self.cube!r}, pe={self.pe!r}",
                    hint='give rows in ascending order from 0 on, with "row_wise" for cubes and PEs',
                )

    def split_axes(self, rank: int) -> tuple[int, ...]:
        """The axes of a tensor of `rank` dimensions that are split at either level."""
        found: set[int] = set()
        for cut in self.split_by(rank):
            found |= {0, rank - 1} if isinstance(cut, str) else set() if cut is None else {cut}
        return tuple(sorted(found))

    def split_by(self, rank: int) -> tuple[SplitBy, SplitBy]:
        """How a tensor of `rank` dimensions is split over cubes, and over PEs: the axis, or the kind of tiles."""
        return _cut_of(self.cube, rank), _cut_of(self.pe, rank)


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
    page_bytes: int = PAGE_BYTES,
) -> list[ShardSpec]:
    """The shards of a tensor on a SIP with `num_cubes` cubes of `num_pe` PEs, by cube and then by PE.

    Raises UsageError for a shape without or with too many dimensions, and for a policy that needs a larger machine.
    """
    dims = _checked_shape(shape)
    cubes = _at_most(policy.num_cubes, num_cubes, "cubes")
    pes = _at_most(policy.num_pes, num_pe, "PEs")
    whole: Box = tuple((0, n) for n in dims)
    if policy.cube == "interleave" or policy.starts is not None:
        row_bytes = prod(dims[1:]) * itemsize
        ranges = _ranges_of_rows(policy.starts, dims[0], max(page_bytes // max(row_bytes, 1), 1))
        return _dealt(ranges, whole, row_bytes, cubes, pes, target_sip)
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


def _ranges_of_rows(starts: tuple[int, ...] | None, rows: int, page_rows: int) -> list[Range]:
    """The parts of a tensor whose rows are dealt to PEs in turn: from these rows on, or pages."""
    firsts = list(range(0, rows, page_rows)) if starts is None else [min(first, rows) for first in starts]
    return list(pairwise([*firsts, rows]))


def _dealt(ranges: list[Range], whole: Box, row_bytes: int, cubes: int, pes: int, sip: int) -> list[ShardSpec]:
    """Part i goes to PE i, counted over all cubes and from the first on again."""
    shards = []
    for at, (first, end) in enumerate(ranges):
        cube, pe = divmod(at % (cubes * pes), pes)
        if (end - first) * row_bytes:
            box = ((first, end), *whole[1:])
            shards.append(ShardSpec(sip, cube, pe, first * row_bytes, (end - first) * row_bytes, box))
    return shards


def _split(split: Split, box: Box, parts: int) -> list[Box]:
    if split == "replicate":
        return [box] * parts
    if len(box) == 1:
        return [(part,) for part in _ranges(box[0], parts)]
    return [(rows, *box[1:-1], columns) for rows, columns in cut(_cut_of(split, len(box)), box[0], box[-1], parts)]


def cut(by: SplitBy, rows: Range, columns: Range, parts: int) -> list[tuple[Range, Range]]:
    """A block of rows and columns, cut along one axis (0: its rows) or into tiles; a replica is not cut. Raises
    UsageError for tiles of which some would be empty.
    """
    if by is None:
        return [(rows, columns)]
    if by == 0:
        return [(part, columns) for part in _ranges(rows, parts)]
    if not isinstance(by, str):
        return [(rows, part) for part in _ranges(columns, parts)]
    n_rows = max(n for n in range(1, isqrt(parts) + 1) if parts % n == 0)
    n_columns = parts // n_rows
    if rows[1] - rows[0] < n_rows or columns[1] - columns[0] < n_columns:
        raise UsageError(
            f"{rows[1] - rows[0]} x {columns[1] - columns[0]} elements in {n_rows} x {n_columns} tiles",
            hint="use row_wise or column_wise, or fewer cubes or PEs",
        )
    tiles = [(row, column) for row in _ranges(rows, n_rows) for column in _ranges(columns, n_columns)]
    if by == "tiled_row_major":
        return tiles
    return [tiles[row * n_columns + column] for column in range(n_columns) for row in range(n_rows)]


def _ranges(whole: Range, parts: int) -> list[Range]:
    first, end = whole
    return [(first + a, first + b) for a, b in parts_of(end - first, parts)]


def _cut_of(split: Split, rank: int) -> SplitBy:
    if split == "replicate" or not rank:  # a tensor of no axes has one element
        return None
    if split in TILED and rank > 1:
        return split
    return rank - 1 if split == "column_wise" else 0


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
