"""What a command is cut into before any of it moves: tiles with their stages, in order.

A plan is the same for every PE and every time, since it names no place; tiles are made as they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kernbench.components.builtin.stages import Stage

MOST_KEPT_TILES = 1 << 16


class TilePlan(NamedTuple):
    """One tile: its stages, and the tile buffers it needs in the scheduler's part of the TCM."""

    tile_id: int
    stages: tuple[Stage, ...]
    in_bytes: int = 0  # until it is fetched
    out_bytes: int = 0  # until it is done
    kind: tuple[int, ...] = ()  # the very same for tiles that differ only in where their bytes lie


class OperandGrid(NamedTuple):
    """Where the parts of an operand begin that tiles move: at the sum of what row, column and depth of a tile say."""

    operand: int
    rows: tuple[int, ...]  # offsets in bytes
    cols: tuple[int, ...]
    depths: tuple[int, ...]


class Outline(NamedTuple):
    """The tiles of a first pass, M first, then N, then K, without making them: their sizes and where operands lie."""

    rows: tuple[int, ...]  # sizes
    cols: tuple[int, ...]
    operands: tuple[OperandGrid, ...]


class PipelinePlan:
    """All tiles of a command, the same every time. Tiles from `barrier` on wait for those before.

    A plan names no place, so PEs share it. Its tiles are made when they are first needed, and kept unless they are very
    many.
    """

    def __init__(
        self,
        total_tiles: int,
        barrier: int,
        make: Callable[[int], Iterator[TilePlan]],
        tile: tuple[int, ...] = (),
        loop: int = 1,
        outline: Callable[[], Outline] | None = None,
        by_rows: tuple[int, ...] = (),
    ) -> None:
        self.total_tiles = total_tiles
        self.tile = tile  # (m, k, n) of a product, (m, n) of a math op
        self.barrier = barrier
        self.loop = loop  # tiles per output tile
        self.outline = outline
        self.by_rows = by_rows  # operands of whose tiles each row is a run of its own
        self._make = make  # the tiles from one on
        self._made: list[TilePlan] = []
        self._making: Iterator[TilePlan] | None = None
        self.source: tuple[Callable[..., PipelinePlan], tuple[object, ...]] | None = None  # what makes it again

    def __reduce__(self) -> tuple[Callable[..., PipelinePlan], tuple[object, ...]]:
        """Another process makes it again."""
        assert self.source is not None
        return self.source

    def tiles(self, first: int = 0) -> Iterator[TilePlan]:
        """The tiles in order, from one on."""
        return self._kept() if not first and self.total_tiles <= MOST_KEPT_TILES else self._make(first)

    def _kept(self) -> Iterator[TilePlan]:
        """All tiles; what is made is kept for others."""
        made = self._made
        for at in range(self.total_tiles):
            if at == len(made):
                if self._making is None:
                    self._making = self._make(0)
                made.append(next(self._making))
            yield made[at]
