"""Products by columns: which PE has which rows, columns and part of K. Pure functions of sizes.

Cubes form `groups` of neighbours. The rows of a product are split over groups, its columns over the cubes of a group.
Within a cube, PEs split K into `k_parts`, and the cube's columns over the PEs that have the same part of K:

1         Every PE has a copy of all the group's rows, and its own columns of the weights.
all       Every PE has its part of K of the group's rows, and of all the cube's columns of the weights.
between   Neighbouring PEs have the same columns and different parts of K.

Partial sums are reduced: each PE reads its share of the rows from the memories of the PEs with the same columns. In all
cases a PE multiplies matrices in its own HBM slice, without interference from other PEs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from kernbench.ccl.algorithms.rings import mesh_cycle
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import Range, parts_of

F32_BYTES = 4
PINNED_ROWS = 64  # of x in TCM while weights are streamed: enough to be bound by the GEMM engine


@dataclass(frozen=True, slots=True)
class SipShape:
    """What a mapping may use: the cube mesh, PEs per cube, and the TCM of a kernel on each PE."""

    mesh_w: int
    mesh_h: int
    pes: int
    tcm_bytes: int

    @property
    def cubes(self) -> int:
        return self.mesh_w * self.mesh_h

    @property
    def size(self) -> int:
        return self.cubes * self.pes

    def rows_at(self, rows: int, cube: int, pe: int) -> Range:
        """A PE's rows of a matrix that is split by rows over cubes and PEs."""
        first, end = parts_of(rows, self.cubes)[cube]
        a, b = parts_of(end - first, self.pes)[pe]
        return first + a, first + b


class Job(NamedTuple):
    """Rows of a product that use the weights of one expert."""

    expert: int
    first: int
    rows: int


@dataclass(frozen=True)
class ColumnsPlan:
    """A product by columns. `block_rows` of x are in TCM while the weights are streamed; 0 if they do not fit, and x is
    streamed too.
    """

    sip: SipShape
    rows: int
    k: int
    n: int
    groups: int
    k_parts: int
    block_rows: int

    @property
    def splits_k(self) -> bool:
        """Whether there are partial sums."""
        return self.k_parts > 1

    @property
    def column_parts(self) -> int:
        """Parts of a cube's columns."""
        return self.sip.pes // self.k_parts

    def sharing(self, pe: int) -> range:
        """The PEs of a cube with the same columns as this one."""
        first = pe - pe % self.k_parts
        return range(first, first + self.k_parts)

    @property
    def cubes_per_group(self) -> int:
        return self.sip.cubes // self.groups

    @property
    def copies(self) -> int:
        """Copies of each weight on a SIP."""
        return self.groups

    @property
    def first_cubes(self) -> range:
        """The first cube of each group."""
        return range(0, self.sip.cubes, self.cubes_per_group)

    def cubes_of(self, cube: int) -> range:
        """The cubes of a cube's group."""
        first = cube - cube % self.cubes_per_group
        return range(first, first + self.cubes_per_group)

    def ring_of(self, cube: int) -> list[int]:
        """The cubes of its group, each a neighbour of the previous one if the group is whole rows of the mesh."""
        first, count, w = self.cubes_of(cube)[0], self.cubes_per_group, self.sip.mesh_w
        order = mesh_cycle(w, count // w) if count % w == 0 else list(range(count))
        return [first + at for at in order]

    def rows_of(self, cube: int) -> Range:
        """The rows of a cube's group: those that lie in its cubes."""
        cubes, parts = self.cubes_of(cube), parts_of(self.rows, self.sip.cubes)
        return parts[cubes[0]][0], parts[cubes[-1]][1]

    @property
    def group_rows(self) -> list[Range]:
        """The rows of each group."""
        return [self.rows_of(first) for first in self.first_cubes]

    @cached_property
    def most_rows(self) -> int:
        """The most rows of a group."""
        return max(b - a for a, b in self.group_rows)

    def k_of(self, pe: int) -> Range:
        return parts_of(self.k, self.k_parts)[pe % self.k_parts]

    @cached_property
    def most_k(self) -> int:
        """The largest K part of a PE."""
        return max(b - a for a, b in map(self.k_of, range(self.sip.pes)))

    def columns_of(self, cube: int, pe: int) -> Range:
        """The columns whose weights a PE has."""
        cubes = self.cubes_per_group
        first, end = parts_of(self.n, cubes)[cube % cubes]
        a, b = parts_of(end - first, self.column_parts)[pe // self.k_parts]
        return first + a, first + b

    @cached_property
    def most_columns(self) -> int:
        """The most columns of a PE."""
        columns = (self.columns_of(cube, pe) for cube in range(self.cubes_per_group) for pe in range(self.sip.pes))
        return max(b - a for a, b in columns)

    def share_of(self, cube: int, pe: int) -> Range:
        """The rows that a PE reduces and stores."""
        top, bottom = self.rows_of(cube)
        a, b = parts_of(bottom - top, self.k_parts)[pe % self.k_parts]
        return top + a, top + b

    def blocks_of(self, cube: int, pe: int) -> list[tuple[Range, Range]]:
        """The blocks of a weight that a PE has, in order: rows and columns of each."""
        return [(self.k_of(pe), self.columns_of(cube, pe))]


def columns_plan(
    sip: SipShape,
    rows: int,
    k: int,
    n: int,
    itemsize: int,
    groups: int,
    *,
    k_parts: int | None = None,
    block_rows: int = PINNED_ROWS,
) -> ColumnsPlan:
    """At most `block_rows` at a time, as TCM allows. By default every PE has a part of K, unless a group is one cube
    and its copies of x are smaller than the sums.
    """
    if groups < 1 or sip.cubes % groups:
        raise UsageError(f"{groups} groups of {sip.cubes} cubes", hint="use a divisor of the number of cubes")
    if k_parts is None:
        k_parts = sip.pes if groups < sip.cubes or k > 2 * n else 1
    if k_parts < 1 or sip.pes % k_parts:
        raise UsageError(f"{k_parts} parts of K for {sip.pes} PEs", hint="use a divisor of the number of PEs of a cube")
    fitting = sip.tcm_bytes // (-(-k // k_parts) * itemsize)
    pinned = block_rows if fitting >= block_rows else fitting // 32 * 32
    return ColumnsPlan(sip, rows, k, n, groups, k_parts, pinned)


@cache
def exchange_rounds(pes: int) -> tuple[tuple[int, ...], ...]:
    """Rounds in which every PE of a cube reads from one PE and is read by one: the source by round and reader. After
    all rounds every PE has read from every PE, itself included.

    Two of eight PEs are in each corner, and routes go along x first: two PEs of a corner that both send across share a
    link. So in every round one PE of each corner sends across, while the other one sends to its own side.
    """
    if pes & (pes - 1):
        return tuple(tuple((pe + step) % pes for pe in range(pes)) for step in (*range(1, pes), 0))
    if pes != 8:
        return tuple(tuple(pe ^ mask for pe in range(pes)) for mask in (*range(1, pes), 0))
    across, rounds = 2, list[tuple[int, ...]]()
    for sender in (0, 1):
        for beside in (1, 4, 5, 0):
            readers = [pe ^ (beside | (across if pe % 2 == sender else 0)) for pe in range(pes)]
            rounds.append(tuple(readers.index(pe) for pe in range(pes)))
    return tuple(rounds)
