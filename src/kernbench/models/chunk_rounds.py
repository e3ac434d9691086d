"""Rounds in which the PEs of a cube pass chunks of K around, as in Cannon's algorithm.

A round has as many chunks as the longer side of the cube's grid of PEs, in groups as long as the shorter side. Along
the longer side PEs begin with different chunks and go on in the same order; along the shorter side they have different
chunks of one group. So a chunk of x moves on by one PE of its row, and one of the weights by one PE of its column, at
each step, and PEs take turns at reading: each reads what no neighbour has used the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GridPlace = tuple[int, int]  # row and column
Link = tuple[GridPlace, GridPlace]  # of routers, each by row and column of the mesh


@dataclass(frozen=True)
class ChunkRound:
    """`count` chunks from `first` on, for a grid of `rows` x `columns` PEs."""

    rows: int
    columns: int
    first: int
    count: int

    def chunk_at(self, place: GridPlace, step: int) -> int:
        """The chunk that a PE multiplies in a step."""
        along, across = self._sides(place)
        turn = (along + step) % self.count
        begin, size = self._group(turn)
        return self.first + begin + (across + turn) % size

    def order_of(self, place: GridPlace) -> list[int]:
        """All chunks, as a PE uses them."""
        return [self.chunk_at(place, step) for step in range(self.count)]

    def sources(self, place: GridPlace, step: int) -> tuple[GridPlace | None, GridPlace | None]:
        """The PEs from which a PE receives its chunk of x and that of the weights: None for one that it reads."""
        return self._neighbours(place, step, 1, -1)

    def targets(self, place: GridPlace, step: int) -> tuple[GridPlace | None, GridPlace | None]:
        """The PEs to which a PE passes on its chunk of x and that of the weights, if any."""
        return self._neighbours(place, step, -1, 1)

    def _neighbours(
        self, place: GridPlace, step: int, distance: int, later: int
    ) -> tuple[GridPlace | None, GridPlace | None]:
        """Neighbours of a PE along its row and along its column, if they use its chunk a step before or later."""
        (row, column), chunk, other = place, self.chunk_at(place, step), step + later
        x, weights = (
            each if 0 <= other < self.count and each != place and self.chunk_at(each, other) == chunk else None
            for each in ((row, (column + distance) % self.columns), ((row + distance) % self.rows, column))
        )
        return x, weights

    def x_reader(self, row: int, chunk: int) -> int:
        """The column of the PE that reads a chunk of x for its row."""
        reader = self._along if self.columns >= self.rows else self._across
        return reader(row, chunk)

    def weights_reader(self, column: int, chunk: int) -> int:
        """The row of the PE that reads a chunk of the weights for its column."""
        reader = self._across if self.columns >= self.rows else self._along
        return reader(column, chunk)

    def _along(self, across: int, chunk: int) -> int:
        """Along the longer side the PE that begins with a chunk, for one number of the shorter side."""
        begin, size = self._group(chunk - self.first)
        return begin + (chunk - self.first - 2 * begin - across) % size

    def _across(self, along: int, chunk: int) -> int:
        """Along the shorter side the PE that uses a chunk before the others, for one number of the longer side: it
        begins within the chunk's group, or comes to the group's first turn.
        """
        begin, size = self._group(chunk - self.first)
        turn = along % self.count
        if not begin <= turn < begin + size:
            turn = begin
        return (chunk - self.first - begin - turn) % size

    def _sides(self, place: GridPlace) -> tuple[int, int]:
        """The numbers of a PE along the longer side, and along the shorter side."""
        row, column = place
        return (column, row) if self.columns >= self.rows else (row, column)

    def _group(self, number: int) -> tuple[int, int]:
        """The begin and the size of the group that a chunk of the round is in."""
        most = min(self.rows, self.columns)
        begin = number // most * most
        return begin, min(most, self.count - begin)


def crowded_links(pes: Sequence[GridPlace], rows: int) -> tuple[tuple[int, int], ...]:
    """Of the chunks that PEs of a cube, in `rows` grid rows, pass on in a step: how many of x and of the weights one
    link between routers carries, for the links with most. `pes`: the routers of the PEs; routes go along x first.
    """
    columns = len(pes) // rows
    counts: dict[Link, list[int]] = {}
    for at, source in enumerate(pes):
        row, column = divmod(at, columns)
        for kind, target in enumerate((row * columns + (column - 1) % columns, (row - 1) % rows * columns + column)):
            for link in _links(source, pes[target]):
                counts.setdefault(link, [0, 0])[kind] += 1
    pairs = sorted({(x, weights) for x, weights in counts.values()}, reverse=True)
    most = -1
    found = list[tuple[int, int]]()
    for x, weights in pairs:  # those that no other pair exceeds in both
        if weights > most:
            found.append((x, weights))
            most = weights
    return tuple(found)


def _links(source: GridPlace, target: GridPlace) -> list[Link]:
    (row, column), (last_row, last_column) = source, target
    along_x = [(row, at) for at in _between(column, last_column)]
    along_y = [(at, last_column) for at in _between(row, last_row)]
    return [*pairwise(along_x), *pairwise(along_y)]


def _between(first: int, last: int) -> range:
    step = 1 if last >= first else -1
    return range(first, last + step, step)
