"""The op log: what every engine did, when, and on which earlier ops it waited.

A record has seven fields. It is written when its command ends, or with those of a tile's other stages when the tile
does, so an op's dependencies always have smaller ids than it has. Readers get records in order of start, equal starts
in order of id. A long run has millions of records, so they are kept as columns, and what many have in common once, as
their head: nothing is made for a record that the garbage collector would have to look at. A log in memory keeps
everything; a streaming log (`op_stream.py`) keeps one chunk.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kernbench.components.base import OpHead, Param

OP_KINDS = ("memory", "gemm", "math", "unknown")


class OpRecord(NamedTuple):
    """One op. Times are ns; `dependency_ids` are ids of records."""

    t_start: float
    t_end: float
    component_id: str
    op_kind: str
    op_name: str
    params: dict[str, Param]
    dependency_ids: tuple[int, ...]


class Columns(NamedTuple):
    """Some records in order of id. `values` has the params of all of them, one record after the other."""

    heads: list[OpHead]
    t_start: array[float]
    t_end: array[float]
    values: list[Param]


class OpLog:
    """Every record of a run, in memory."""

    def __init__(self) -> None:
        self._first = 0  # id of the first record that is still here
        self._starts, self._ends = array("d"), array("d")
        self._heads: list[OpHead] = []
        self._values: list[Param] = []  # of all records, one after the other
        self._waits = array("q")  # the one record that was waited for, or which of `_several`, counted from -1 down
        self._several: list[tuple[int, ...]] = []
        self._offsets = array("q", [0])  # of a record's values, as far as somebody has asked
        self._known_heads: dict[tuple[str, ...], OpHead] = {}  # of what came through `record`

    def __len__(self) -> int:
        """How many ops were recorded."""
        return self._first + len(self._heads)

    def record(
        self,
        t_start: float,
        t_end: float,
        component_id: str,
        op_kind: str,
        op_name: str,
        params: Mapping[str, Param],
        dependency_ids: tuple[int, ...] = (),
    ) -> int:
        """Note an op that ends now; returns its id. `params` holds scalars and tuples, no arrays."""
        key = (component_id, op_kind, op_name, *params)
        head = self._known_heads.get(key)
        if head is None:
            head = self._known_heads[key] = (component_id, op_kind, op_name, tuple(params))
        return self.record_chain((head,), (t_start, t_end), tuple(params.values()), dependency_ids)

    def record_chain(
        self,
        heads: Sequence[OpHead],
        times: Sequence[float],
        values: Sequence[Param],
        dependency_ids: tuple[int, ...],
    ) -> int:
        """Note ops each of which waited for the one before it, the first for `dependency_ids`; returns the last's id.

        `times` has start and end of each, `values` the params of all of them in the order of their heads' names.
        """
        self._starts.extend(times[::2])
        self._ends.extend(times[1::2])
        self._values.extend(values)
        self._waits.append(dependency_ids[0] if len(dependency_ids) == 1 else self._keep(dependency_ids))
        first = self._first + len(self._heads)
        self._heads.extend(heads)
        last = first + len(heads) - 1
        self._waits.extend(range(first, last))
        return last

    def _keep(self, dependency_ids: tuple[int, ...]) -> int:
        """Where several dependencies, or none, are kept. Tiles of one command have the same."""
        several = self._several
        if not several or several[-1] is not dependency_ids:
            several.append(dependency_ids)
        return -len(several)

    @property
    def records(self) -> list[OpRecord]:
        """All records in order of start."""
        return [record for _, record in self.items()]

    def items(self) -> Iterator[tuple[int, OpRecord]]:
        """(id, record) in order of start; equal starts in order of id."""
        for at in sorted(range(len(self._heads)), key=self._starts.__getitem__):
            yield self._first + at, self._record(at)

    def columns_since(self, first: int) -> Columns:
        """The records with ids of `first` and up, as far as they are here."""
        at = max(first - self._first, 0)
        return Columns(self._heads[at:], self._starts[at:], self._ends[at:], self._values[self._offset(at) :])

    def __getitem__(self, record_id: int) -> OpRecord:
        """The record of an id; raises IndexError when it is not here."""
        at = record_id - self._first
        if not 0 <= at < len(self._heads):
            raise IndexError(f"no record {record_id} in this log")
        return self._record(at)

    def close(self) -> None:
        """Nothing more will be recorded. A log in memory stays readable."""

    def _record(self, at: int) -> OpRecord:
        component_id, op_kind, op_name, names = self._heads[at]
        first = self._offset(at)
        params = dict(zip(names, self._values[first : first + len(names)], strict=True))
        one = self._waits[at]
        waited = (one,) if one >= 0 else self._several[-one - 1]
        return OpRecord(self._starts[at], self._ends[at], component_id, op_kind, op_name, params, waited)

    def _offset(self, at: int) -> int:
        """Where the values of a record begin."""
        offsets = self._offsets
        while len(offsets) <= at:
            offsets.append(offsets[-1] + len(self._heads[len(offsets) - 1][3]))
        return offsets[at]

    def _drop(self) -> None:
        """Forget all records; their ids stay taken."""
        self._first += len(self._heads)
        for column in (self._starts, self._ends, self._waits, self._heads, self._values, self._several):
            del column[:]
        del self._offsets[1:]
