"""Key, within a composite: which tiles are still to come. Each loop of tiles has a number, equal for loops that look
the same.

A loop is the tiles of one output tile. Loops look the same when their tiles have the same sizes and their operands
begin at the same channels.

The tiles of a plan are passed in *steps*, from one *place* to another. Where loops are short, a step is a few of them.
A long loop has several steps: within it all tiles but the first and the last are alike, so it mostly repeats a step,
and only that from loop to loop is another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from kernbench.components.builtin.pe_state import ChannelPlacement
from kernbench.components.builtin.tile_plan import Outline

Kinds = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

MOST_KINDS = 1 << 62  # as numbers before they are counted
TILES_BETWEEN = 32  # of a step over short loops, at least
PART_TILES = 16  # of a step in a long loop, at least
PART_BEGIN = 7  # where the first one begins: what the loop before has to write is over, as a rule
MOST_OVER = 3  # tiles that may have been fed beyond the begin of a step in a long loop


def loop_kinds(outline: Outline, placements: Mapping[int, ChannelPlacement]) -> Kinds:
    """The kind of every loop, in order; without placements only sizes count."""
    rows, cols = len(outline.rows), len(outline.cols)
    heights, widths = _numbered(outline.rows), _numbered(outline.cols)
    kinds = heights[:, None] * (widths.max() + 1) + widths[None, :]
    most = int(kinds.max()) + 1
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
        values = (mask + 1) << shift
        if most * values > MOST_KINDS:
            kinds, most = _numbered(kinds.ravel()).reshape(rows, cols), rows * cols
        kinds, most = kinds * values + at, most * values
    return np.broadcast_to(kinds, (rows, cols)).ravel()


def _numbered(values: object) -> Kinds:
    """Equal values get the same number."""
    _, numbers = np.unique(np.asarray(values), return_inverse=True)
    return np.asarray(numbers, np.int64)


class TileSteps:
    """The steps of a plan whose loops have `loop` tiles, by number of the place where they begin."""

    def __init__(self, loop: int, outline: Outline, placements: Mapping[int, ChannelPlacement]) -> None:
        kinds, sizes = loop_kinds(outline, placements), loop_kinds(outline, {})
        self._loop = loop
        self._kinds = {True: kinds, False: sizes}  # by whether channels count
        self._listed: dict[bool, list[int]] = {True: kinds.tolist(), False: sizes.tolist()}
        self._loops = len(kinds)
        self._loops_per_step = -(-TILES_BETWEEN // loop)
        # Of a long loop; the last step within it ends before the last tile, also when some more tiles were fed.
        inside = loop - 2 - MOST_OVER - PART_BEGIN
        self._is_long = loop >= TILES_BETWEEN
        self._parts = inside // PART_TILES + 1 if self._is_long else 1
        self._part = inside // (self._parts - 1) if self._is_long else 0  # tiles of a step
        self.places_per_step = 1 if self._is_long else self._loops_per_step

    def place_of(self, fed: int) -> tuple[int, int] | None:
        """Which place it is when so many tiles were fed, and how many beyond it; None where it is too far beyond."""
        loop, tile = divmod(fed, self._loop)
        if not self._is_long:
            return loop, tile
        part = min((tile - PART_BEGIN) // self._part, self._parts - 1)
        over = tile - PART_BEGIN - part * self._part
        return (loop * self._parts + part, over) if part >= 0 and over <= MOST_OVER else None

    def following(self, fed: int) -> int | None:
        """How many tiles are fed at the next place where a state is to be written down; None for the end."""
        loop, tile = divmod(fed, self._loop)
        if not self._is_long:
            # In the middle of a loop: what the loop before has to write is over, as a rule.
            loop, tile = (loop // self._loops_per_step + 1) * self._loops_per_step, self._loop // 2
        else:
            part = (tile - PART_BEGIN) // self._part + 1
            loop, part = (loop, part) if part < self._parts else (loop + 1, 0)
            tile = PART_BEGIN + part * self._part
        return loop * self._loop + tile if loop < self._loops else None

    def key(self, place: int, channels: bool) -> Hashable | None:
        """All that a step depends on besides the state at its begin; None where there is no such step.

        With `channels`, also all that the steps after it in the same loop depend on.
        """
        kinds = self._listed[channels]
        if not self._is_long:
            past = place + self._loops_per_step + 1
            return tuple(kinds[place:past]) if past <= self._loops else None
        loop, part = divmod(place, self._parts)
        if part == self._parts - 1:  # to the next loop
            return (-1, kinds[loop], kinds[loop + 1]) if loop + 1 < self._loops else None
        return (part, kinds[loop]) if channels else (kinds[loop],)

    def is_in_one_loop(self, place: int, other: int) -> bool:
        """Whether two places of long loops are in the same one."""
        return self._is_long and place // self._parts == other // self._parts

    def repeats(self, place: int, other: int, channels: bool) -> int:
        """How often the steps from a place to another one are followed by the same again."""
        if (other - place) % self._parts:
            return 0
        first, by, kinds = place // self._parts, (other - place) // self._parts, self._kinds[channels]
        if first + by >= self._loops or kinds[first] != kinds[first + by]:
            return 0
        differ = kinds[first + by :] != kinds[first : self._loops - by]
        equal = int(differ.argmax()) if differ.any() else len(differ)
        return (equal - 1) // by  # a step looks at the loop that it leads to, too
