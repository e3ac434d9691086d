"""The place of an element in a tensor's address range, for splits along other axes than the rows.

The range holds one shard after the other, each a row-major tensor of its own. Splits of rows, of columns and into
tiles, over cubes and over PEs, cut the tensor into a grid of blocks of rows and blocks of columns, one shard each.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from kernbench.common.array_types import Ints
from kernbench.common.frozen import frozen
from kernbench.common.launch import SplitBy
from kernbench.policy.placement.dp import cut


@frozen
class ShardGrid:
    """`rows` and `columns` are the first indices of each block; `offsets` are the starts, in elements of the range, of
    the shard of a block of rows and a block of columns.
    """

    shape: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]

    def places(self, elements: Ints) -> Ints:
        """The offsets of elements in the range, in elements; `elements` are row-major indices."""
        width, depth = self.shape[-1], prod(self.shape[1:-1])
        lines, column = np.divmod(elements, width)
        row, inner = np.divmod(lines, depth)
        rows, columns = np.array(self.rows, np.int64), np.array([*self.columns, width], np.int64)
        i = np.searchsorted(rows, row, side="right") - 1
        j = np.searchsorted(columns, column, side="right") - 1
        widths = np.diff(columns)
        shard = np.array(self.offsets, np.int64)[i, j]
        places: Ints = shard + ((row - rows[i]) * depth + inner) * widths[j] + column - columns[j]
        return places

    def shard_at(self, place: int) -> tuple[int, tuple[int, ...]]:
        """The shard that holds the element at a place in the range: where it begins, and its shape."""
        row_ends, column_ends = (*self.rows[1:], self.shape[0]), (*self.columns[1:], self.shape[-1])
        first, i, j = max(
            (offset, i, j) for i, line in enumerate(self.offsets) for j, offset in enumerate(line) if offset <= place
        )
        return first, (row_ends[i] - self.rows[i], *self.shape[1:-1], column_ends[j] - self.columns[j])


@lru_cache(maxsize=256)
def grid_of(
    shape: tuple[int, ...], split_by: tuple[SplitBy, SplitBy], pes_by_cube: tuple[int, ...]
) -> ShardGrid | None:
    """The grid of a tensor that is split so over cubes and over PEs; None if its rows are contiguous.
    `pes_by_cube` is the number of PEs of each cube that hold a shard.
    """
    if not any(split_by):
        return None
    by_cube, by_pe = split_by
    shards: dict[tuple[int, int], int] = {}
    offset = 0
    of_cubes = cut(by_cube, (0, shape[0]), (0, shape[-1]), len(pes_by_cube))
    for pes, of_cube in zip(pes_by_cube, of_cubes, strict=False):
        for rows, columns in cut(by_pe, *of_cube, pes):
            shards[rows[0], columns[0]] = offset
            offset += (rows[1] - rows[0]) * prod(shape[1:-1]) * (columns[1] - columns[0])
    firsts = tuple(sorted({row for row, _ in shards})), tuple(sorted({column for _, column in shards}))
    return ShardGrid(shape, *firsts, tuple(tuple(shards[row, column] for column in firsts[1]) for row in firsts[0]))
