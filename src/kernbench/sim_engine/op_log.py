"""The op log: what every engine did, when, and on which earlier ops it waited.

A record has seven fields. An engine writes it when the op ends, so ids ascend in the order in which ops end and an op's
dependencies always have smaller ids than it has; readers get records in order of start, equal starts in order of id.
A long run has millions of records, so each is one flat tuple, and what many have in common is kept once, as their
head. A log in memory keeps everything; a streaming log (`op_stream.py`) keeps one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kernbench.components.base import OpHead, Param

OP_KINDS = ("memory", "gemm", "math", "unknown")

# t_start, t_end, what it has in common with others, dependency_ids (one by itself, as most have one), values of params
Row = tuple[float, float, OpHead, int | tuple[int, ...], *tuple[Param, ...]]


class OpRecord(NamedTuple):
    """One op. Times are ns; `dependency_ids` are ids of records."""

    t_start: float
    t_end: float
    component_id: str
    op_kind: str
    op_name: str
    params: dict[str, Param]
    dependency_ids: tuple[int, ...]


class OpLog:
    """Every record of a run, in memory."""

    def __init__(self) -> None:
        self._first = 0  # id of the first record that is still here
        self._rows: list[Row] = []
        self._heads: dict[tuple[object, ...], OpHead] = {}  # of what came through `record`

    def __len__(self) -> int:
        """How many ops were recorded."""
        return self._first + len(self._rows)

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
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = (component_id, op_kind, op_name, tuple(params))
        return self.note(t_start, t_end, head, tuple(params.values()), dependency_ids)

    def note(
        self,
        t_start: float,
        t_end: float,
        head: OpHead,
        values: tuple[Param, ...],
        dependency_ids: tuple[int, ...],
    ) -> int:
        """`record` for who keeps a head and has many of its kind: `values` are the params in the order of its names."""
        rows = self._rows
        waited_for = dependency_ids[0] if len(dependency_ids) == 1 else dependency_ids
        row = (t_start, t_end, head, waited_for) + values  # noqa: RUF005  # unpacking takes twice as long
        rows.append(row)  # type: ignore[arg-type]  # of a sum of tuples mypy knows no places
        return self._first + len(rows) - 1

    @property
    def records(self) -> list[OpRecord]:
        """All records in order of start."""
        return [record for _, record in self.items()]

    def items(self) -> Iterator[tuple[int, OpRecord]]:
        """(id, record) in order of start; equal starts in order of id."""
        rows = self._rows
        for at in sorted(range(len(rows)), key=lambda at: rows[at][0]):
            yield self._first + at, record_of(rows[at])

    def rows_since(self, first: int) -> list[Row]:
        """What is kept of the records with ids of `first` and up, as far as they are here, in order of id."""
        return self._rows[max(first - self._first, 0) :]

    def __getitem__(self, record_id: int) -> OpRecord:
        """The record of an id; raises IndexError when it is not here."""
        at = record_id - self._first
        if not 0 <= at < len(self._rows):
            raise IndexError(f"no record {record_id} in this log")
        return record_of(self._rows[at])

    def close(self) -> None:
        """Nothing more will be recorded. A log in memory stays readable."""


def record_of(row: Row) -> OpRecord:
    """The record that a row stands for."""
    t_start, t_end, (component_id, op_kind, op_name, names), waited_for, *values = row
    params = dict(zip(names, values, strict=True))
    dependency_ids = waited_for if isinstance(waited_for, tuple) else (waited_for,)
    return OpRecord(t_start, t_end, component_id, op_kind, op_name, params, dependency_ids)
