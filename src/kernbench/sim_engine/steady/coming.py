"""What is to come of a plan, in short: of each loop of tiles a number, the same for loops that look the same.

A loop is the tiles of one output tile. Loops look the same when their tiles have the same sizes and their operands
begin at the same channels.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernbench.components.builtin.pe_state import Placement
from kernbench.components.builtin.pipeline import Outline


def loop_kinds(outline: Outline, placements: Mapping[int, Placement]) -> list[int]:
    """The kind of every loop, in order; without placements only sizes count."""
    rows, cols = len(outline.rows), len(outline.cols)
    heights, widths = _numbered(outline.rows), _numbered(outline.cols)
    kinds = heights[:, None] * (widths.max() + 1) + widths[None, :]
    for operand, row_offsets, col_offsets, depths in outline.operands:
        placement = placements.get(operand)
        if placement is None:  # not behind channels
            continue
        address, shift, mask = placement
        starts = address + np.asarray(row_offsets)[:, None] + np.asarray(col_offsets)[None, :]
        if all(depth % (1 << shift) == 0 for depth in depths):
            at = starts >> shift & mask
        else:
            at = starts & ((mask + 1 << shift) - 1)
        kinds = kinds * ((mask + 1) << shift) + np.broadcast_to(at, (rows, cols))
        kinds = _numbered(kinds.ravel()).reshape(rows, cols)
    kinds = np.broadcast_to(kinds, (rows, cols))
    found: list[int] = kinds.ravel().tolist()
    return found


def _numbered(values: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Equal values get the same number."""
    _, numbers = np.unique(np.asarray(values), return_inverse=True)
    return np.asarray(numbers, np.int64)
