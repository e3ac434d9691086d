"""The op log: what every engine did, when, and on which earlier ops it waited.

A record has seven fields. It is written when its command ends, or with those of a tile's other stages when the tile
does, so an op's dependencies always have smaller ids than it has. Readers get records in order of start, equal starts
in order of id. A long run has millions of records, so only their times are kept one by one, as columns; what else they
say is made from what they are about when somebody reads. A log in memory keeps everything; a streaming log
(`op_stream.py`) keeps one chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from kernbench.components.recording import OpHead, Param, Teller


class OpRecord(NamedTuple):
    """One op. Times are ns; `dependency_ids` are ids of records."""

    t_start: float
    t_end: float
    component_id: str
    op_kind: str
    op_name: str
    params: dict[str, Param]
    dependency_ids: tuple[int, ...]


class Rows(NamedTuple):
    """Some rows of a log, a row for each call that recorded. `times` has start and end of every record."""

    tellers: list[Teller]
    subjects: list[object]
    firsts: array[int]  # id of each row's first record
    times: array[float]


class OneOp:
    """Tells about single ops of one kind: the subject is the values of their params."""

    __slots__ = ("_factors", "head", "pe")

    def __init__(self, head: OpHead) -> None:
        component, kind, _, names = self.head = head
        self.pe = component.rpartition(".")[0]
        said = () if kind == "memory" else ("m", "k", "n", "batch") if "m" in names else ("elements",)
        self._factors = [names.index(name) for name in said if name in names]  # of flops, among the values

    def entries(self, subject: object) -> tuple[Sequence[OpHead], Sequence[Param]]:
        assert isinstance(subject, tuple)
        return (self.head,), subject

    def kind(self, subject: object) -> object:
        return self

    def flops(self, subjects: Sequence[object]) -> Sequence[int]:
        """Two a multiply-accumulate, one an element of anything else."""
        if not self._factors:
            return (0,)
        total = 0
        for values in subjects:
            assert isinstance(values, tuple)
            total += prod(values[factor] for factor in self._factors)
        return (total * (2 if len(self._factors) > 1 else 1),)


class OpLog:
    """Every record of a run, in memory."""

    def __init__(self) -> None:
        self._next = 0  # id of the next record
        self._tellers: list[Teller] = []
        self._subjects: list[object] = []
        self._firsts = array("q")
        self._times = array("d")
        self._waits = array("q")  # the one record that a row waited for, or which of `_several`, counted from -1 down
        self._several: list[tuple[int, ...]] = []
        self._single: dict[tuple[str, ...], OneOp] = {}  # by head of what came through `record`

    def __len__(self) -> int:
        """How many ops were recorded."""
        return self._next

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
        teller = self._single.get(key)
        if teller is None:
            teller = self._single[key] = OneOp((component_id, op_kind, op_name, tuple(params)))
        return self.record_chain(teller, tuple(params.values()), (t_start, t_end), dependency_ids)

    def record_chain(
        self, teller: Teller, subject: object, times: Sequence[float], dependency_ids: tuple[int, ...]
    ) -> int:
        """Note ops each of which waited for the one before it, the first for `dependency_ids`; returns the last's id.

        `times` has start and end of each, `teller` will say what they were.
        """
        self._tellers.append(teller)
        self._subjects.append(subject)
        self._times.extend(times)
        self._waits.append(dependency_ids[0] if len(dependency_ids) == 1 else self._keep(dependency_ids))
        following = self._next
        self._firsts.append(following)
        self._next = following = following + len(times) // 2
        return following - 1

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
        first = self._first
        records = [record for row in range(len(self._firsts)) for record in self._row(row)]
        for at in sorted(range(len(records)), key=lambda at: records[at].t_start):
            yield first + at, records[at]

    def rows_since(self, first: int) -> Rows:
        """The rows with records of ids `first` and up, as far as they are here; a row is never cut."""
        row = bisect_right(self._firsts, first - 1) if first > self._first else 0
        if row == len(self._firsts):
            return Rows([], [], array("q"), array("d"))
        times = self._times[2 * (self._firsts[row] - self._first) :]
        return Rows(self._tellers[row:], self._subjects[row:], self._firsts[row:], times)

    def __getitem__(self, record_id: int) -> OpRecord:
        """The record of an id; raises IndexError when it is not here."""
        if not self._first <= record_id < self._next:
            raise IndexError(f"no record {record_id} in this log")
        row = bisect_right(self._firsts, record_id) - 1
        return self._row(row)[record_id - self._firsts[row]]

    def close(self) -> None:
        """Nothing more will be recorded. A log in memory stays readable."""

    @property
    def _first(self) -> int:
        """Id of the first record that is still here."""
        return self._firsts[0] if self._firsts else self._next

    def _row(self, row: int) -> list[OpRecord]:
        """The records of a row, in order of id."""
        heads, values = self._tellers[row].entries(self._subjects[row])
        number, one = self._firsts[row], self._waits[row]
        waited = (one,) if one >= 0 else self._several[-one - 1]
        place, at = 2 * (number - self._first), 0
        records: list[OpRecord] = []
        for component_id, op_kind, op_name, names in heads:
            params = dict(zip(names, values[at : at + len(names)], strict=True))
            t_start, t_end = self._times[place : place + 2]
            records.append(OpRecord(t_start, t_end, component_id, op_kind, op_name, params, waited))
            waited = (number,)
            number, place, at = number + 1, place + 2, at + len(names)
        return records

    def _drop(self) -> None:
        """Forget all records; their ids stay taken."""
        for column in (self._tellers, self._subjects, self._firsts, self._times, self._waits, self._several):
            del column[:]
