"""Parts of an op log besides its columns: rows, composites stored as one entry, and the ids of records."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from re import split
from typing import NamedTuple, Protocol

from kernbench.components.recording import Causes, OpDescriber

CompositeRow = tuple[object, Sequence[float], Causes, int]  # subject, times, causes, token
# A row as an op log stores it: describer, subject, times, dependency ids, token, causes, number of the first record.
LogRow = tuple[OpDescriber, object, Sequence[float], tuple[int, ...], int, Causes, int]


class CompositeRows(Protocol):
    """The rows of a whole composite, in the order in which its tiles end."""

    @property
    def records(self) -> int:
        """How many there are."""

    def __iter__(self) -> Iterator[CompositeRow]: ...

    def work(self) -> dict[tuple[str, str], tuple[int, float, int]]:
        """By part of the PE and unit: number of ops, busy time, amount of work."""


class FoldedRows(NamedTuple):
    """The rows of a composite, stored as one entry."""

    first: int  # number of the first record
    describer: OpDescriber
    dependency_ids: tuple[int, ...]
    composite: CompositeRows

    def unfolded(self) -> Iterator[LogRow]:
        """The rows one by one."""
        number = self.first
        for subject, times, causes, token in self.composite:
            yield self.describer, subject, times, self.dependency_ids, token, causes, number
            number += len(times) // 2


class RowSlice(NamedTuple):
    """Some rows of a log, a row for each call that recorded. `times` has start and end of every record."""

    describers: list[OpDescriber]
    subjects: list[object]
    firsts: array[int]  # number of each row's first record
    starts: array[int]  # where that record is in `times`
    times: array[float]
    folded: list[FoldedRows]


class RecordIds:
    """Maps the numbers under which records were written to their ids."""

    __slots__ = ("_base", "_moved", "given")

    def __init__(self) -> None:
        self.given = 0  # ids so far
        self._base = 0  # records before this one have their number as their id
        self._moved = array("q")  # ids of those from `_base` on; -1 while they have none

    def give(self, number: int, records: int) -> None:
        """Records from a number on get the next ids."""
        if number == self.given == self._base and not self._moved:
            self._base += records
        else:
            at, missing = number - self._base, number + records - self._base - len(self._moved)
            if missing > 0:
                self._moved.extend([-1] * missing)
            self._moved[at : at + records] = array("q", range(self.given, self.given + records))
        self.given += records

    def id_of(self, number: int) -> int:
        """The id of a record; its number while it has none."""
        at = number - self._base
        if not 0 <= at < len(self._moved) or self._moved[at] < 0:
            return number
        return self._moved[at]


@cache
def natural(name: str) -> tuple[str | int, ...]:
    """A key that puts pe2 before pe10."""
    return tuple(int(part) if part.isdigit() else part for part in split(r"(\d+)", name))
