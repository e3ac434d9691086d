"""The op log: the ops of every engine, their times, the causes of their starts, and the earlier ops they waited for.

A record is written when its command ends, or with those of a tile's other stages when the tile ends: a *row* of
records. Ids are assigned in the order in which rows end, those that end at one instant in the order of their blocks in
the machine; so an op's dependencies have smaller ids than it has. While time passes an op is identified by the number
under which it was written; its id is determined when the log is read, and does not depend on the order of simulation
within one instant. Readers get records in order of start, equal starts in order of id. A long run has millions of
records, so only their times are stored one by one, as columns; the other fields are made from their subjects when the
log is read. A replayed composite is one entry for all its tiles, and rows copied from another log (`op_copies.py`) are
one entry. A log in memory keeps everything; a streaming log (`op_stream.py`) keeps one chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kernbench.common.messages import LaunchStream
from kernbench.common.work_units import BYTES
from kernbench.components.recording import NO_REF, STAGE_BITS, Causes, FieldValue, OneOp, OpDescriber, Release
from kernbench.sim_engine.op_columns import OpColumns
from kernbench.sim_engine.op_copies import RecordedRows, RowsCopy, copied_rows
from kernbench.sim_engine.op_rows import CompositeRows, FoldedRows, RowSlice

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


class OpLog(OpColumns):
    """Every record of a run, in memory. With `lines`, params say which line of the kernel asked for the op."""

    def __init__(self, *, lines: bool = False) -> None:
        super().__init__()
        self.lines = lines
        self._next = 0  # number of the next record
        self._tokens = 0
        self._single: dict[tuple[str, ...], OneOp] = {}  # by stream, unit and head of what came through `record`
        self._folded: list[FoldedRows] = []
        self._copies: list[tuple[RowsCopy, int, int]] = []  # and the numbers of their first record and first token
        self._taken = self._taken_tokens = 0  # records and tokens that have left with `take_rows`
        self.before_read: list[Callable[[], None]] = []  # each records ops that have ended and are not recorded yet
        self.not_before: list[Callable[[], float]] = []  # each gives the earliest end of ops yet to be recorded

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
        unit: str = BYTES,
        amount: int = 0,
        token: int = NO_REF,
        causes: Causes | None = None,
        stream: LaunchStream = "compute",
    ) -> int:
        """Note a single op that ends now; returns its id. `params` holds scalars and tuples, no arrays.

        Without `causes` its kernel issued it when it started.
        """
        key = (stream, unit, component_id, op_kind, op_name, *params)
        describer = self._single.get(key)
        if describer is None:
            describer = self._single[key] = OneOp((component_id, op_kind, op_name, tuple(params)), stream, unit)
        return self.record_chain(
            describer,
            (amount, *params.values()),
            (t_start, t_end),
            dependency_ids,
            token,
            (0, Release.PROGRAM, t_start, NO_REF) if causes is None else causes,
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
        first = self._next
        self._next += len(times) // 2
        self._append(describer, subject, times, dependency_ids, token, causes, first)
        return self._next - 1

    def new_token(self) -> int:
        """A number for a token whose stages will be recorded."""
        self._tokens = following = self._tokens + 1
        return following - 1

    def new_tokens(self, tokens: int) -> int:
        """Numbers for several tokens; returns the first."""
        first = self._tokens
        self._tokens += tokens
        return first

    def record_composite(
        self, describer: OpDescriber, dependency_ids: tuple[int, ...], composite: CompositeRows
    ) -> int:
        """Record all tiles of a composite that ends now; returns the number of the last record."""
        self._folded.append(FoldedRows(self._next, describer, dependency_ids, composite))
        self._next += composite.records
        return self._next - 1

    def record_copy(self, copy: RowsCopy) -> int:
        """Record the rows of another log as ops of other PEs at another time; returns the number of the first record.

        Any number of rows is one entry until the log is read. Sums (`OpTally`) do not include it.
        """
        first = self._next
        self._copies.append((copy, first, self.new_tokens(copy.rows.tokens)))
        self._next += copy.rows.records
        return first

    def take_rows(self) -> RecordedRows:
        """Remove and return everything recorded since the last call; numbers continue. For logs that are not read."""
        assert not self._ordered, "rows are taken as they came"
        assert not self._copies, "what is taken was recorded here"
        for notify in self.before_order:
            notify()
        first, first_token = self._taken, self._taken_tokens
        token_of = {number: first_token + at for at, number in enumerate(self._token_firsts[first_token:])}
        rows = RecordedRows(
            first,
            self._next - first,
            first_token,
            self._tokens - first_token,
            self._describers,
            self._subjects,
            self._firsts,
            self._starts,
            self._times,
            self._causes,
            self._cause_ends,
            self._depends,
            self._several,
            array("q", [token_of.get(number, NO_REF) for number in self._firsts]),
            self._folded,
        )
        self._ids.give(first, rows.records)
        self._taken, self._taken_tokens = self._next, self._tokens
        self._describers, self._subjects, self._several, self._folded = [], [], [], []
        self._firsts, self._starts, self._depends, self._cause_ends = (array("q") for _ in range(4))
        self._times, self._causes = array("d"), array("d")
        return rows

    @property
    def records(self) -> list[OpRecord]:
        """All records in order of start."""
        return [record for _, record in self.items()]

    def items(self) -> Iterator[tuple[int, OpRecord]]:
        """(id, record) in order of start; equal starts in order of id."""
        self._prepare_to_read()
        first = self._first
        records = [record for row in range(len(self._firsts)) for record in self._row(row)]
        for at in sorted(range(len(records)), key=lambda at: records[at].t_start):
            yield first + at, records[at]

    def entries(self) -> Iterator[tuple[OpRecord, LaunchStream]]:
        """Records in order of id, and for which of its PE's two launches each was done."""
        self._prepare_to_read()
        for row in range(len(self._firsts)):
            stream = self._describers[row].stream
            for record in self._row(row):
                yield record, stream

    def rows_since(self, first: int) -> RowSlice:
        """The rows with records of numbers `first` and up, as far as they are here and not in order yet; a row is never
        cut.
        """
        row = self._ordered + bisect_right(self._firsts[self._ordered :], first - 1)
        folded = self._folded[bisect_right(self._folded, first - 1, key=lambda rows: rows.first) :]
        start = self._starts[row] if row < len(self._starts) else len(self._times) // 2
        return RowSlice(
            self._describers[row:],
            self._subjects[row:],
            self._firsts[row:],
            array("q", [at - start for at in self._starts[row:]]),
            self._times[2 * start :],
            folded,
        )

    def __getitem__(self, record_id: int) -> OpRecord:
        """The record of an id; raises IndexError when it is not here."""
        self._prepare_to_read()
        if not self._first <= record_id < self._next:
            raise IndexError(f"no record {record_id} in this log")
        row = bisect_right(self._firsts, record_id) - 1
        return self._row(row)[record_id - self._firsts[row]]

    def close(self) -> None:
        """Nothing more will be recorded. A log in memory stays readable."""

    @property
    def _first(self) -> int:
        """Id of the first record that is still here, if it is in order."""
        return self._firsts[0] if self._firsts else self._next

    # ---- order

    def _prepare_to_read(self) -> None:
        for record_ended in self.before_read:
            record_ended()
        self._unfold()
        self._put_in_order(float("inf"))

    def _unfold(self) -> None:
        """Make rows of all composites and copies."""
        if not self._folded and not self._copies:
            return
        for notify in self.before_order:
            notify()
        folded, self._folded = self._folded, []
        for rows in folded:
            for row in rows.unfolded():
                self._append(*row)
        copies, self._copies = self._copies, []
        for copy, first, first_token in copies:
            for row in copied_rows(copy, first, first_token):
                self._append(*row)

    # ---- what records say

    def _row(self, row: int) -> list[OpRecord]:
        """The records of a row, in order of id."""
        heads, values = self._describers[row].entries(self._subjects[row])
        number, one = self._firsts[row], self._depends[row]
        id_of = self._ids.id_of
        # By id, so that it does not matter whose records were written down first.
        waited = (id_of(one),) if one >= 0 else tuple(sorted(map(id_of, self._several[-one - 1])))
        causes = self._causes_of(row)
        place, at, asked = 2 * self._starts[row], 0, self._causes[(self._cause_ends[row - 1] if row else 0) + 2]
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
        """Of the stages of a row that have an entry: the release, when it was ready, and the op that let it start."""
        start, end = self._cause_ends[row - 1] if row else 0, self._cause_ends[row]
        found: dict[int, tuple[int, float, int | None]] = {}
        for at in range(start, end, _CAUSE):
            stage, release, ready, reference = self._causes[at : at + _CAUSE]
            found[int(stage)] = (int(release), ready, self._id_of(int(reference)))
        return found

    def id_of_stage(self, ref: int) -> int | None:
        """The id of a token's stage (`recording.stage_ref`); None where it is not recorded."""
        return self._id_of(ref)

    def id_of_number(self, number: int) -> int:
        """The id of the record that was written under a number."""
        return self._ids.id_of(number)

    def _id_of(self, reference: int) -> int | None:
        """The id of the record that a cause refers to; None for `NO_REF`, and for a token that is not recorded."""
        if reference <= NO_REF:
            return None if reference == NO_REF else self._ids.id_of(-2 - reference)
        token, known = reference >> STAGE_BITS, self._token_firsts
        if token >= len(known) or known[token] < 0:
            return None
        return self._ids.id_of(known[token] + (reference & (1 << STAGE_BITS) - 1))
