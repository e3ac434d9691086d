"""The op log: what every engine did, when, and on which earlier ops it waited.

A record has seven fields. An engine writes it when the op ends, so ids ascend in the order in which ops end and an op's
dependencies always have smaller ids than it has; readers get records in order of start, equal starts in order of id.
Of the params only the values are kept with each record, and their names once for all that have the same, because a
long run has millions of records. A log in memory keeps everything; a streaming log (`op_stream.py`) keeps one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kernbench.components.base import Param

OP_KINDS = ("memory", "gemm", "math", "unknown")

# t_start, t_end, component_id, op_kind, op_name, names of params, values of params, dependency_ids
Row = tuple[float, float, str, str, str, tuple[str, ...], tuple[Param, ...], tuple[int, ...]]


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
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

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
        names = tuple(params)
        self._rows.append(
            (
                t_start,
                t_end,
                component_id,
                op_kind,
                op_name,
                self._names.setdefault(names, names),
                tuple(params.values()),
                dependency_ids,
            )
        )
        return self._first + len(self._rows) - 1

    @property
    def records(self) -> list[OpRecord]:
        """All records in order of start."""
        return [record for _, record in self.items()]

    def items(self) -> Iterator[tuple[int, OpRecord]]:
        """(id, record) in order of start; equal starts in order of id."""
        rows = self._rows
        for at in sorted(range(len(rows)), key=lambda at: rows[at][0]):
            yield self._first + at, _record(rows[at])

    def rows_since(self, first: int) -> list[Row]:
        """What is kept of the records with ids of `first` and up, as far as they are here, in order of id."""
        return self._rows[max(first - self._first, 0) :]

    def __getitem__(self, record_id: int) -> OpRecord:
        """The record of an id; raises IndexError when it is not here."""
        at = record_id - self._first
        if not 0 <= at < len(self._rows):
            raise IndexError(f"no record {record_id} in this log")
        return _record(self._rows[at])

    def close(self) -> None:
        """Nothing more will be recorded. A log in memory stays readable."""


def _record(row: Row) -> OpRecord:
    names, values = row[5], row[6]
    return OpRecord(row[0], row[1], row[2], row[3], row[4], dict(zip(names, values, strict=True)), row[7])
