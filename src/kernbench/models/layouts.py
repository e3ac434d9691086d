"""Layouts of a product's results: in the memory of the PE that reads them next, in the order in which they are read.

A layout gives for a block of results, rows by columns, the tensor and the address of each piece of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kernbench.models.plans import ColumnsPlan
from kernbench.models.query_blocks import PrefillAttention
from kernbench.policy.placement.dp import Range, parts_of


class Destination(NamedTuple):
    """Some rows and columns of a block, stored in tensor number `tensor` from element `at` on, rows `stride` apart."""

    rows: Range
    columns: Range
    tensor: int
    at: int
    stride: int


@dataclass(frozen=True)
class RowMajor:
    """A row-major matrix of `width` columns."""

    width: int

    def pieces(self, rows: Range, columns: Range) -> Iterator[Destination]:
        yield Destination(rows, columns, 0, rows[0] * self.width + columns[0], self.width)


@dataclass(frozen=True)
class KParts:
    """The input of a product that splits K: in each PE's own slice its part of K of its group's rows. Rows of other
    cubes are copied later.
    """

    plan: ColumnsPlan

    @property
    def room(self) -> int:
        """Elements per PE."""
        return self.plan.most_rows * self.plan.most_k

    def place(self, cube: int, pe: int, row: int) -> int:
        """Where a row of a PE's part begins."""
        a, b = self.plan.k_of(pe)
        return (cube * self.plan.sip.pes + pe) * self.room + (row - self.plan.rows_of(cube)[0]) * (b - a)

    def pieces(self, rows: Range, columns: Range) -> Iterator[Destination]:
        for cube, (top, bottom) in enumerate(parts_of(self.plan.rows, self.plan.sip.cubes)):
            first, end = max(rows[0], top), min(rows[1], bottom)
            if first >= end:
                continue
            for pe in range(self.plan.sip.pes):
                a, b = self.plan.k_of(pe)
                left, right = max(columns[0], a), min(columns[1], b)
                if left < right:
                    yield Destination((first, end), (left, right), 0, self.place(cube, pe, first) + left - a, b - a)


@dataclass(frozen=True)
class ByHead:
    """Queries, keys and values as tensors 0, 1 and 2. Queries lie with the PE that has their block, of all heads that
    share a key head side by side; keys and values by sequence and head, rows of all tokens. Columns are those of the
    first key head's query heads, of itself, of its values; then of the next one.
    """

    plan: PrefillAttention
    shared: int  # query heads of a key head
    head_dim: int

    @property
    def width(self) -> int:
        """Columns of the query heads of a key head."""
        return self.shared * self.head_dim

    def pieces(self, rows: Range, columns: Range) -> Iterator[Destination]:
        row, tokens, heads = rows[0], self.plan.tokens, self.plan.kv_heads
        while row < rows[1]:
            sequence, token = divmod(row, tokens)
            end = min(rows[1], row - token + tokens)
            for head in range(heads):
                yield from self._of_head((row, end), columns, sequence * heads + head, head)
            row = end

    def _of_head(self, rows: Range, columns: Range, pair: int, head: int) -> Iterator[Destination]:
        """The destinations of one (sequence, key head) pair."""
        start, w, d, tokens = head * (self.width + 2 * self.head_dim), self.width, self.head_dim, self.plan.tokens
        token = rows[0] % tokens
        left, right = max(columns[0], start), min(columns[1], start + w)
        for block, at in self.plan.places[pair] if left < right else ():
            first, end = max(token, block.first), min(token + rows[1] - rows[0], block.first + block.queries)
            if first < end:
                some = rows[0] + first - token, rows[0] + end - token
                yield Destination(some, (left, right), 0, (at + first - block.first) * w + left - start, w)
        for tensor, begin in ((1, start + w), (2, start + w + d)):
            left, right = max(columns[0], begin), min(columns[1], begin + d)
            if left < right:
                yield Destination(rows, (left, right), tensor, (pair * tokens + token) * d + left - begin, d)


class ResultLayout(Protocol):
    """Where results go."""

    def pieces(self, rows: Range, columns: Range) -> Iterator[Destination]:
        """The destinations of a block of results, piece by piece."""
