"""Where the results of a product go: to the memory of who reads them next, in the order in which they are read.

A layout says for a block of results, rows by columns, which tensor and which place each piece of it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernbench.models.plans import ColumnsPlan
from kernbench.policy.placement.dp import Range, parts_of


class Piece(NamedTuple):
    """Some rows and columns of a block. They go to `tensor` number so, from element `at` on, rows `stride` apart."""

    rows: Range
    columns: Range
    tensor: int
    at: int
    stride: int


@dataclass(frozen=True)
class RowMajor:
    """The matrix as it is, of so many columns."""

    width: int

    def pieces(self, rows: Range, columns: Range) -> Iterator[Piece]:
        yield Piece(rows, columns, 0, rows[0] * self.width + columns[0], self.width)


@dataclass(frozen=True)
class KParts:
    """What a product that splits K reads: in each PE's own slice its part of K of its group's rows. Of other cubes'
    rows it gets a copy later.
    """

    plan: ColumnsPlan

    @property
    def room(self) -> int:
        """Elements of a PE."""
        return self.plan.most_rows * self.plan.most_k

    def place(self, cube: int, pe: int, row: int) -> int:
        """Where a row of a PE's part begins."""
        a, b = self.plan.k_of(pe)
        return (cube * self.plan.sip.pes + pe) * self.room + (row - self.plan.rows_of(cube)[0]) * (b - a)

    def pieces(self, rows: Range, columns: Range) -> Iterator[Piece]:
        for cube, (top, bottom) in enumerate(parts_of(self.plan.rows, self.plan.sip.cubes)):
            first, end = max(rows[0], top), min(rows[1], bottom)
            if first >= end:
                continue
            for pe in range(self.plan.sip.pes):
                a, b = self.plan.k_of(pe)
                left, right = max(columns[0], a), min(columns[1], b)
                if left < right:
                    yield Piece((first, end), (left, right), 0, self.place(cube, pe, first) + left - a, b - a)


@dataclass(frozen=True)
class ByHead:
    """Queries, keys and values as tensors 0, 1 and 2: by sequence and head, rows of all tokens. Columns are those of
    all query heads, then of key heads, then of value heads.
    """

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def shared(self) -> int:
        """Query heads of a key head."""
        return self.heads // self.kv_heads

    def pieces(self, rows: Range, columns: Range) -> Iterator[Piece]:
        row = rows[0]
        while row < rows[1]:
            sequence, token = divmod(row, self.tokens)
            end = min(rows[1], row - token + self.tokens)
            start, d = 0, self.head_dim
            for tensor, heads in enumerate((self.heads, self.kv_heads, self.kv_heads)):
                for head in range(heads):
                    left, right = max(columns[0], start), min(columns[1], start + d)
                    if left < right:
                        at = ((sequence * heads + head) * self.tokens + token) * d + left - start
                        yield Piece((row, end), (left, right), tensor, at, d)
                    start += d
            row = end


Layout = RowMajor | KParts | ByHead
