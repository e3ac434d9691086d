"""Rows that one op log recorded and others copy: the same ops, done by other PEs at another time.

What groups of PEs do at the same places relative to each group is recorded once, in a log of its own, and taken out of
it (`OpLog.take_rows`). Another log notes a copy as one entry (`OpLog.record_copy`); its rows are made when the log
is read. A recorded op that waited for ops of the log that copies names a placeholder, and each copy says which ops that
stands for. Times are on the grid, so moving them is exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernbench.components.builtin.command_log import TileDescriber
from kernbench.components.recording import NO_REF, STAGE_BITS, Causes, FieldValue, OneOp, OpDescriber, op_ref
from kernbench.sim_engine.op_rows import FoldedRows, LogRow

ROW_BYTES = 256  # of memory, beside its numbers
PLACEHOLDER = 1 << 40  # from this number on, numbers stand for ops of the log that copies; no log has so many records


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RecordedRows:
    """All that a log recorded from record `first` and token `first_token` on: the columns of the log."""

    first: int
    records: int  # how many, with rows of folded composites
    first_token: int
    tokens: int  # how many were handed out
    describers: list[OpDescriber]
    subjects: list[object]
    firsts: array[int]  # number of each row's first record
    starts: array[int]  # where that record is in `times`
    times: array[float]  # start and end of every record
    causes: array[float]  # of all rows, see `Causes`
    cause_ends: array[int]  # of each row: where its causes end there
    depends: array[int]  # as the log has them: of each row one record, or which of `several`, counted from -1 down
    several: list[tuple[int, ...]]
    row_tokens: array[int]
    folded: list[FoldedRows]  # recordings of composites

    @property
    def nbytes(self) -> int:
        """About how much memory they take."""
        columns = (self.firsts, self.starts, self.times, self.causes, self.cause_ends, self.depends, self.row_tokens)
        return ROW_BYTES * len(self.subjects) + sum(column.itemsize * len(column) for column in columns)

    def unfolded(self) -> Iterator[LogRow]:
        """The rows one by one, as they were recorded; rows of folded composites last."""
        ends, cause = [*self.starts[1:], len(self.times) // 2], 0
        for row, describer in enumerate(self.describers):
            one, cause_end = self.depends[row], self.cause_ends[row]
            yield (
                describer,
                self.subjects[row],
                self.times[2 * self.starts[row] : 2 * ends[row]],
                (one,) if one >= 0 else self.several[-one - 1],
                self.row_tokens[row],
                self.causes[cause:cause_end],
                self.firsts[row],
            )
            cause = cause_end
        for recording in self.folded:
            yield from recording.unfolded()


class RowsCopy(NamedTuple):
    """Recorded rows, as other PEs took them at another time."""

    rows: RecordedRows
    later_ns: float
    pes: Mapping[str, str]  # from PEs that are recorded to those of the copy, as `OpDescriber.pe` names them
    address_of: Callable[[str, int], int]  # from an address that a recorded PE names to that of the copy
    known: Sequence[tuple[int, ...]]  # the ops of the log that copies that `PLACEHOLDER` + k stands for, by k
    communicator: str = ""  # of the copy's messages


def copied_rows(copy: RowsCopy, first: int, first_token: int) -> Iterator[LogRow]:
    """The rows of a copy whose records and tokens have numbers from these on."""
    move = _Move(copy, first, first_token)
    for describer, subject, times, dependency_ids, token, causes, number in copy.rows.unfolded():
        described = move.described(describer)
        yield (
            described.describer,
            move.subject(subject, described),
            [t + copy.later_ns for t in times],
            move.waited(dependency_ids),
            token if token == NO_REF else token + move.tokens_on,
            move.causes(causes),
            number + move.numbers_on,
        )


class _Described(NamedTuple):
    """Who says what a copied row says, and which values of a single op are others than the recorded."""

    describer: OpDescriber
    pe: str  # the recorded
    others: tuple[tuple[int, str], ...]  # place in the subject, name of the param


class _Move:
    """From what was recorded to what a copy says."""

    def __init__(self, copy: RowsCopy, first: int, first_token: int) -> None:
        self._copy = copy
        self.numbers_on = first - copy.rows.first
        self.tokens_on = first_token - copy.rows.first_token
        self._described: dict[OpDescriber, _Described] = {}
        self._describers: dict[tuple[object, ...], OpDescriber] = {}  # by what they say: equal ones are kept once
        self._waited: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of the last row: recorded, copied

    # ---- numbers

    def waited(self, dependency_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of other ops, each once. Tiles of one command have the very same tuple, as they had."""
        recorded, copied = self._waited
        if dependency_ids is not recorded:
            found = dict.fromkeys(number for one in dependency_ids for number in self._numbers(one))
            copied = tuple(found)
            self._waited = dependency_ids, copied
        return copied

    def causes(self, causes: Causes) -> Causes:
        moved = list(causes)
        for at in range(2, len(moved), 4):
            moved[at] += self._copy.later_ns
            moved[at + 1] = self._reference(int(moved[at + 1]))
        return moved

    def _reference(self, reference: int) -> int:
        """The reference of a cause, copied. Of several ops that a placeholder stands for, the last is named."""
        if reference == NO_REF:
            return NO_REF
        if reference < NO_REF:
            numbers = self._numbers(-2 - reference)
            return op_ref(numbers[-1]) if numbers else NO_REF
        rows = self._copy.rows
        assert 0 <= (reference >> STAGE_BITS) - rows.first_token < rows.tokens, "the token belongs to no recorded op"
        return reference + (self.tokens_on << STAGE_BITS)

    def _numbers(self, recorded: int) -> tuple[int, ...]:
        if recorded >= PLACEHOLDER:
            return self._copy.known[recorded - PLACEHOLDER]
        rows = self._copy.rows
        assert 0 <= recorded - rows.first < rows.records, "neither recorded here nor a placeholder"
        return (recorded + self.numbers_on,)

    # ---- what rows say

    def described(self, recorded: OpDescriber) -> _Described:
        found = self._described.get(recorded)
        if found is None:
            found = self._described[recorded] = self._describe(recorded)
        return found

    def _describe(self, recorded: OpDescriber) -> _Described:
        was, pe, made = recorded.pe, self._copy.pes[recorded.pe], self._describers
        if isinstance(recorded, OneOp):
            component_id, op_kind, op_name, names = recorded.head
            one = ((pe + component_id[len(was) :], op_kind, op_name, names), recorded.stream, recorded.unit)
            others = tuple((at, name) for at, name in enumerate(names, 1) if _names_a_place(name))
            return _Described(made.setdefault(one, OneOp(*one)), was, others)
        assert isinstance(recorded, TileDescriber)
        addresses = tuple(self._copy.address_of(was, address) for address in recorded.addresses)
        tiles = (pe, addresses, recorded.stream, recorded.line)
        return _Described(made.setdefault(tiles, TileDescriber(*tiles)), was, ())

    def subject(self, recorded: object, described: _Described) -> object:
        """Of a single op how much it did and its params; tiles name no place."""
        if not described.others:
            return recorded
        assert isinstance(recorded, tuple)
        values = list(recorded)
        for at, name in described.others:
            values[at] = self._param(described.pe, name, values[at])
        return tuple(values)

    def _param(self, pe: str, name: str, value: FieldValue) -> FieldValue:
        if name == "communicator":
            return self._copy.communicator
        if name == "peer":
            assert isinstance(value, str)
            return self._copy.pes[value]
        if isinstance(value, tuple):
            return tuple(self._param(pe, name, one) for one in value)
        return self._copy.address_of(pe, value) if isinstance(value, int) else value


def _names_a_place(param: str) -> bool:
    """Whether an op's param depends on which PE it is: an address, several, the other end of a message, or whose."""
    return param.endswith(("_addr", "_addrs")) or param in ("peer", "communicator")
