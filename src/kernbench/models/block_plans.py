"""Products by blocks: which PE computes which block of the result, and where operands lie. Pure functions of sizes.

Cubes form `groups`; the rows of a product are split over groups, and each group has a copy of the weights. The PEs of a
group form a grid: its rows of PEs split the rows of the group, its columns of PEs the columns of the weights. A PE
computes blocks of `block_rows` x `block_columns`: their sums stay in TCM while K passes in chunks of `block_k`, of
which the next ones (`ahead`) are loaded meanwhile. So a weight is read once for every block of rows, a row once for
every block of columns, and no partial sum leaves TCM.

Chunks of x and of the weights are contiguous in memory. Those of x are dealt over the PEs of a grid row, those of the
weights over the PEs of a grid column, and PEs begin with different chunks: so at any time each memory serves one PE of
its row and one of its column.

With `passes`, PEs of a cube share what they read (`chunk_rounds.py`): a PE receives most of its chunks of x from the
next PE of its grid row and of the weights from the next PE of its grid column, and passes them on. All PEs proceed at
the same pace, and take turns at reading from memory, each mostly from its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from kernbench.models.chunk_rounds import ChunkRound
from kernbench.models.layouts import Destination
from kernbench.models.plans import F32_BYTES, SipShape
from kernbench.policy.placement.dp import Range, parts_of

PASSING_STRIPS = 4  # of blocks whose chunks are passed on: they need not be large, but there are more chunks
PASSING_AHEAD = 2  # chunks, so that their latency is hidden
PASSING_RINGS = 2  # of a PE: for x, and for weights
PASSING_SLOTS = 4  # of a ring
UNEVEN_SHARE = 0.75  # of TCM for blocks or chunks of several sizes, which leave gaps


@dataclass(frozen=True)
class BlocksPlan:
    """A product by blocks. A group's PEs form a grid of `row_parts` rows."""

    sip: SipShape
    rows: int
    k: int
    n: int
    groups: int
    row_parts: int
    block_rows: int
    block_columns: int
    block_k: int
    strips: int = 2  # of the sums of a block: one at a time is replaced by a new one
    passes: int = 0  # 1: PEs of a cube pass chunks on by messages
    ahead: int = 1  # chunks that are under way while one is multiplied

    @property
    def copies(self) -> int:
        """Copies of each weight on a SIP."""
        return self.groups

    @property
    def cubes_per_group(self) -> int:
        return self.sip.cubes // self.groups

    @property
    def group_size(self) -> int:
        """PEs of a group."""
        return self.cubes_per_group * self.sip.pes

    @property
    def column_parts(self) -> int:
        return self.group_size // self.row_parts

    def place_of(self, cube: int, pe: int) -> tuple[int, int, int]:
        """Group of a PE, and its row and column in the group's grid: PEs of a column are neighbours, or where chunks
        are passed on, those of a row in a cube.
        """
        group, inside = divmod(cube, self.cubes_per_group)
        if not self.passes:
            column, row = divmod(inside * self.sip.pes + pe, self.row_parts)
            return group, row, column
        row, column = divmod(pe, self.columns_in_cube)
        across, down = divmod(inside, self.row_parts // self.rows_in_cube)
        return group, down * self.rows_in_cube + row, across * self.columns_in_cube + column

    def number_of(self, group: int, row: int, column: int) -> int:
        """The number on the SIP of a PE in a group's grid."""
        if not self.passes:
            return group * self.group_size + column * self.row_parts + row
        (down, row), (across, column) = divmod(row, self.rows_in_cube), divmod(column, self.columns_in_cube)
        cube = across * (self.row_parts // self.rows_in_cube) + down
        return group * self.group_size + cube * self.sip.pes + self.pe_at(row, column)

    # ---- passing on

    @property
    def rows_in_cube(self) -> int:
        """PEs of a grid column in one cube."""
        return min(self.row_parts, self.sip.pes)

    @property
    def columns_in_cube(self) -> int:
        """PEs of a grid row in one cube."""
        return max(1, self.sip.pes // self.row_parts)

    def can_pass(self) -> bool:
        """Whether neighbours of a cube use the same chunks in the same order: grid columns are in one cube or fill
        cubes, and all PEs have as many blocks.
        """
        pes, parts = self.sip.pes, self.row_parts
        if max(parts, pes) % min(parts, pes):
            return False
        least, most = self.rows // self.groups // parts, -(-self.rows // (self.groups * parts))
        narrow, wide = self.n // self.column_parts, -(-self.n // self.column_parts)
        pairs = (least, most, self.block_rows), (narrow, wide, self.block_columns)
        return all(few > 0 and -(-few // block) == -(-many // block) for few, many, block in pairs)

    @property
    def round(self) -> int:
        """Chunks of a round: so many steps until each PE of a row or column of a cube's grid has had one."""
        return round_of(self.sip, self.row_parts)

    @property
    def round_count(self) -> int:
        return -(-self.chunk_count // self.round)

    @cached_property
    def rounds(self) -> list[ChunkRound]:
        """The rounds of a plan that passes chunks on; the last may be shorter."""
        shape, count = (self.rows_in_cube, self.columns_in_cube), self.chunk_count
        return [ChunkRound(*shape, at, min(self.round, count - at)) for at in range(0, count, self.round)]

    def rounds_of(self, row: int, column: int) -> list[ChunkRound]:
        """The rounds of a PE, in its order: cubes begin with different ones, so that they read different memories."""
        first = (row // self.rows_in_cube + column // self.columns_in_cube) % self.round_count
        return self.rounds[first:] + self.rounds[:first]

    def place_in_cube(self, row: int, column: int) -> tuple[int, int]:
        """Row and column of a PE in the part of the grid that its cube has."""
        return row % self.rows_in_cube, column % self.columns_in_cube

    def pe_at(self, row: int, column: int) -> int:
        """The PE of a cube in a row and a column of its part of the grid."""
        return row * self.columns_in_cube + column

    # ---- blocks

    @property
    def group_rows(self) -> tuple[Range, ...]:
        """The rows of each group."""
        return parts_of(self.rows, self.groups)

    def row_blocks(self, group: int, row: int) -> list[Range]:
        """The blocks of rows of a grid row."""
        top, bottom = self.group_rows[group]
        first, end = parts_of(bottom - top, self.row_parts)[row]
        return evenly(top + first, top + end, self.block_rows)

    def column_blocks(self, column: int) -> list[Range]:
        """The blocks of columns of a grid column."""
        return evenly(*parts_of(self.n, self.column_parts)[column], self.block_columns)

    @property
    def chunk_count(self) -> int:
        """Chunks of K: whole rounds, if they are passed on and K has as many rows."""
        of_round = self.round if self.passes else 1
        return min(self.k, -(-self.k // (self.block_k * of_round)) * of_round)

    @cached_property
    def chunks(self) -> tuple[Range, ...]:
        return parts_of(self.k, self.chunk_count)

    def order_of(self, row: int, column: int) -> list[int]:
        """The order in which a PE uses chunks: PEs of a grid row, and of a grid column, begin with different ones."""
        if self.passes:
            place = self.place_in_cube(row, column)
            return [chunk for each in self.rounds_of(row, column) for chunk in each.order_of(place)]
        count = self.chunk_count
        return [(step + row + column) % count for step in range(count)]

    # ---- weights

    def weight_at(self, column: int, block: int, chunk: int) -> tuple[int, int]:
        """The grid row of the PE that has a chunk of a block of columns, and its place among what that PE has."""
        return self._weights[column][block, chunk]

    @cached_property
    def _weights(self) -> list[dict[tuple[int, int], tuple[int, int]]]:
        found: list[dict[tuple[int, int], tuple[int, int]]] = []
        for column in range(self.column_parts):
            used, places = [0] * self.row_parts, dict[tuple[int, int], tuple[int, int]]()
            for block, (left, right) in enumerate(self.column_blocks(column)):
                for chunk, (a, b) in enumerate(self.chunks):
                    owner = self._owner(column, block, chunk)
                    places[block, chunk] = owner, used[owner]
                    used[owner] += (right - left) * (b - a)
            found.append(places)
        return found

    def blocks_of(self, cube: int, pe: int) -> list[tuple[Range, Range]]:
        """The blocks of a weight that a PE has, in order: rows and columns of each."""
        _, row, column = self.place_of(cube, pe)
        return [
            (self.chunks[chunk], columns)
            for block, columns in enumerate(self.column_blocks(column))
            for chunk in range(self.chunk_count)
            if self._owner(column, block, chunk) == row
        ]

    def _owner(self, column: int, block: int, chunk: int) -> int:
        """The grid row that has a chunk of weights: where chunks are passed on, that of the PE which reads it first, in
        one of the cubes that read it.
        """
        if not self.passes:
            return (block + chunk) % self.row_parts
        reader = self.rounds[chunk // self.round].weights_reader(column % self.columns_in_cube, chunk)
        return self._cube_of(block, chunk, self.rows_in_cube, self.row_parts) * self.rows_in_cube + reader

    def x_owner(self, row: int, block: int, chunk: int) -> int:
        """The grid column that has a chunk of x, as `_owner` for weights."""
        if self.passes:
            reader = self.rounds[chunk // self.round].x_reader(row % self.rows_in_cube, chunk)
            return self._cube_of(block, chunk, self.columns_in_cube, self.column_parts) * self.columns_in_cube + reader
        apart = max(1, self.column_parts // self.chunk_count)  # few chunks are on PEs far apart: their links differ
        return (block + chunk) * apart % self.column_parts

    def _cube_of(self, block: int, chunk: int, in_cube: int, parts: int) -> int:
        """Which of the cubes of a grid row or column has a chunk: they have different rounds at a time."""
        number, inside = divmod(chunk, self.round)
        return (block + number + inside // in_cube) % (parts // in_cube)

    def for_weights(self, count: int, itemsize: int) -> BlocksPlan:
        """A copy for `count` weights of a gated product: blocks of all of them together have as many columns."""
        del itemsize
        found = self if count == 1 else replace(self, block_columns=max(1, self.block_columns // count))
        return found if not found.passes or found.can_pass() else replace(found, passes=0)


def round_of(sip: SipShape, row_parts: int) -> int:
    """The longer side of the part of a grid of `row_parts` rows that a cube has."""
    return max(min(row_parts, sip.pes), sip.pes // row_parts)


def most_columns(
    sip: SipShape, rows: int, k: int, itemsize: int, strips: int = 2, ahead: int = 1, *, is_even: bool = True
) -> int:
    """The most columns of a block of `rows` rows and chunks of `k` that fit TCM: its sums, one strip more, the results
    of the block before, which are being stored, the chunk in use and those ahead. A sixteenth is left for gaps, and a
    quarter more where blocks or chunks are not all of one size.
    """
    chunks = ahead + 1
    tcm_bytes = sip.tcm_bytes if is_even else int(UNEVEN_SHARE * sip.tcm_bytes)
    room = tcm_bytes * 15 // 16 - chunks * rows * k * itemsize
    strip = -(-rows // strips)
    per_column = (strips + 1) * strip * F32_BYTES + strips * strip * itemsize + chunks * k * itemsize
    return max(0, room // per_column)


def evenly(first: int, end: int, most: int) -> list[Range]:
    """A range in the fewest pieces of at most `most`, of about one size; none if it is empty."""
    if first == end:
        return []
    return [(first + a, first + b) for a, b in parts_of(end - first, -(-(end - first) // most))]


@dataclass(frozen=True)
class Chunks:
    """The layout of a product's input: chunks of blocks of rows, each contiguous, dealt over the memories of the PEs of
    the grid row that reads them.
    """

    plan: BlocksPlan

    @cached_property
    def _dealt(self) -> tuple[dict[tuple[int, int, int, int], tuple[int, int]], int]:
        """By group, grid row, block and chunk: the PE that has it, and where it begins among what that PE has; and the
        elements of the PE that has most.
        """
        plan, found, most = self.plan, dict[tuple[int, int, int, int], tuple[int, int]](), 1
        for group in range(plan.groups):
            for row in range(plan.row_parts):
                used = [0] * plan.column_parts
                for block, (first, end) in enumerate(plan.row_blocks(group, row)):
                    for chunk, (a, b) in enumerate(plan.chunks):
                        column = plan.x_owner(row, block, chunk)
                        found[group, row, block, chunk] = plan.number_of(group, row, column), used[column]
                        used[column] += (end - first) * (b - a)
                most = max(most, *used)
        return found, most

    @property
    def room(self) -> int:
        """Elements of the PE that has most."""
        return self._dealt[1]

    def place(self, group: int, row: int, block: int, chunk: int) -> int:
        """Where a chunk of a block of rows begins."""
        number, at = self._dealt[0][group, row, block, chunk]
        return number * self.room + at

    @cached_property
    def _blocks(self) -> list[tuple[Range, int, int, int]]:
        """All blocks of rows, with their group, grid row and number in that row."""
        plan = self.plan
        return [
            (rows, group, row, number)
            for group in range(plan.groups)
            for row in range(plan.row_parts)
            for number, rows in enumerate(plan.row_blocks(group, row))
        ]

    def pieces(self, rows: Range, columns: Range) -> Iterator[Destination]:
        """The destinations of a block of results, chunk by chunk."""
        for (top, bottom), group, row, block in self._blocks:
            first, end = max(rows[0], top), min(rows[1], bottom)
            if first >= end:
                continue
            for chunk, (a, b) in enumerate(self.plan.chunks):
                left, right = max(columns[0], a), min(columns[1], b)
                if left < right:
                    at = self.place(group, row, block, chunk) + (first - top) * (b - a) + left - a
                    yield Destination((first, end), (left, right), 0, at, b - a)
