"""The op log: what every engine did, when, what let it start, and on which earlier ops it waited.

A record is written when its command ends, or with those of a tile's other stages when the tile does, so an op's
dependencies always have smaller ids than it has. Readers get records in order of start, equal starts in order of id. A
long run has millions of records, so only their times are kept one by one, as columns; what else they say is made from
what they are about when somebody reads. A log in memory keeps everything; a streaming log (`op_stream.py`) keeps one
chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from kernbench.common.messages import LaunchStream
from kernbench.components.recording import NOBODY, STAGE_BITS, Causes, FieldValue, OpDescriber, OpHead, Release

_RELEASES = tuple(release.name.lower() for release in Release)
_CAUSE = 4  # numbers per entry of `Causes`


class OpRecord(NamedTuple):
    """One op. Times are ns; `dependency_ids` and `released_by` are ids of records.

    It was asked for at `t_asked`, had all it needs but its engine at `t_ready`, started at `t_start`. `release` is what
    let it start last, `released_by` the op that did, if one did.
    """

    t_start: float
    t_end: float
    component_id: str
    op_kind: str
    op_name: str
    params: dict[str, FieldValue]
    dependency_ids: tuple[int, ...]
    t_asked: float
    t_ready: float
    release: str
    released_by: int | None


class Rows(NamedTuple):
    """Some rows of a log, a row for each call that recorded. `times` has start and end of every record."""

    describers: list[OpDescriber]
    subjects: list[object]
    firsts: array[int]  # id of each row's first record
    times: array[float]


class OneOp:
    """Describes single ops of one kind: the subject is the flops of one and the values of its params."""

    __slots__ = ("head", "pe", "stream")

    def __init__(self, head: OpHead, stream: LaunchStream) -> None:
        self.head = head
        self.pe = head[0].rpartition(".")[0]
        self.stream = stream

    def entries(self, subject: object) -> tuple[Sequence[OpHead], Sequence[FieldValue]]:
        assert isinstance(subject, tuple)
        return (self.head,), subject[1:]

    def kind(self, subject: object) -> object:
        return self

    def flops(self, subjects: Sequence[object]) -> Sequence[int]:
        total = 0
        for subject in subjects:
            assert isinstance(subject, tuple)
            total += subject[0]
        return (total,)


class OpLog:
    """Every record of a run, in memory."""

    def __init__(self) -> None:
        self._next = 0  # id of the next record
        self._describers: list[OpDescriber] = []
        self._subjects: list[object] = []
        self._firsts = array("q")
        self._times = array("d")
        self._causes = array("d")  # of all rows, see `Causes`
        self._cause_ends = array("q")  # of each row: where its causes end there
        self._depends = array("q")  # the one record that a row waited for, or which of `_several`, counted from -1 down
        self._several: list[tuple[int, ...]] = []
        self._token_firsts = array("q")  # id of each token's first record; -1, or none yet, while it is not recorded
        self.new_token: Callable[[], int] = count().__next__
        self._single: dict[tuple[str, ...], OneOp] = {}  # by stream and head of what came through `record`

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
        params: Mapping[str, FieldValue],
        dependency_ids: tuple[int, ...] = (),
        *,
        flops: int = 0,
        token: int = NOBODY,
        causes: Causes | None = None,
        stream: LaunchStream = "compute",
    ) -> int:
        """Note a single op that ends now; returns its id. `params` holds scalars and tuples, no arrays.

        Without `causes` its kernel issued it when it started.
        """
        key = (stream, component_id, op_kind, op_name, *params)
        describer = self._single.get(key)
        if describer is None:
            describer = self._single[key] = OneOp((component_id, op_kind, op_name, tuple(params)), stream)
        return self.record_chain(
            describer,
            (flops, *params.values()),
            (t_start, t_end),
            dependency_ids,
            token,
            (0, Release.PROGRAM, t_start, NOBODY) if causes is None else causes,
        )

    def record_chain(
        self,
        describer: OpDescriber,
        subject: object,
        times: Sequence[float],
        dependency_ids: tuple[int, ...],
        token: int,
        causes: Causes,
    ) -> int:
        """Note ops each of which waited for the one before it, the first for `dependency_ids`; returns the last's id.

        `times` has start and end of each, `describer` will say what they were. Each but the first was asked for when
        the one before it ended. One that started before the one before it ended was asked for with it and waited for
        what that waited for; the next waited for both.
        """
        self._describers.append(describer)
        self._subjects.append(subject)
        self._times.extend(times)
        self._causes.extend(causes)
        self._cause_ends.append(len(self._causes))
        if len(dependency_ids) == 1:
            self._depends.append(dependency_ids[0])
        else:
            several = self._several  # tiles of one command have the same
            if not several or several[-1] is not dependency_ids:
                several.append(dependency_ids)
            self._depends.append(-len(several))
        following = self._next
        if token >= 0:
            known = self._token_firsts
            if token >= len(known):
                known.extend([NOBODY] * (token + 1 - len(known)))
            known[token] = following
        self._firsts.append(following)
        self._next = following = following + len(times) // 2
        return following - 1

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
        return Rows(self._describers[row:], self._subjects[row:], self._firsts[row:], times)

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
        heads, values = self._describers[row].entries(self._subjects[row])
        number, one = self._firsts[row], self._depends[row]
        waited = (one,) if one >= 0 else self._several[-one - 1]
        causes = self._causes_of(row)
        place, at, asked = 2 * (number - self._first), 0, self._causes[(self._cause_ends[row - 1] if row else 0) + 2]
        together: tuple[int, ...] = ()  # records that ran at the same time, and
        ended = float("-inf")  # when the last of them ended
        records: list[OpRecord] = []
        for stage, (component_id, op_kind, op_name, names) in enumerate(heads):
            params = dict(zip(names, values[at : at + len(names)], strict=True))
            start, end = self._times[place : place + 2]
            if together and start >= ended:
                waited, asked, together = together, ended, ()
            # Without an entry, a stage started when the stage before it had ended, or when that let it.
            release, ready, by = causes.get(stage, (Release.DATA, start, number - 1 if stage else None))
            record = OpRecord(
                start, end, component_id, op_kind, op_name, params, waited, asked, ready, _RELEASES[release], by
            )
            records.append(record)
            together, ended = (*together, number), max(ended, end)
            number, place, at = number + 1, place + 2, at + len(names)
        return records

    def _causes_of(self, row: int) -> dict[int, tuple[int, float, int | None]]:
        """Of the stages of a row that have an entry: the release, when it was ready, who let it start."""
        start, end = self._cause_ends[row - 1] if row else 0, self._cause_ends[row]
        found: dict[int, tuple[int, float, int | None]] = {}
        for at in range(start, end, _CAUSE):
            stage, release, ready, who = self._causes[at : at + _CAUSE]
            found[int(stage)] = (int(release), ready, self._id_of(int(who)))
        return found

    def _id_of(self, who: int) -> int | None:
        """The record that a cause names; None for nobody, and for a token that is not recorded."""
        if who <= NOBODY:
            return None if who == NOBODY else -2 - who
        token, known = who >> STAGE_BITS, self._token_firsts
        if token >= len(known) or known[token] < 0:
            return None
        return known[token] + (who & (1 << STAGE_BITS) - 1)

    def _drop(self, rows: int) -> None:
        """Forget the records of the first `rows` rows; their ids stay taken."""
        records = (self._firsts[rows] if rows < len(self._firsts) else self._next) - self._first
        causes = self._cause_ends[rows - 1]
        kept = [self._several[-one - 1] if one < 0 else None for one in self._depends[rows:]]
        del self._times[: 2 * records], self._causes[:causes], self._several[:]
        for column in (self._describers, self._subjects, self._firsts, self._cause_ends, self._depends):
            del column[:rows]
        for row, several in enumerate(kept):
            self._cause_ends[row] -= causes
            if several is not None:
                self._several.append(several)
                self._depends[row] = -len(self._several)
