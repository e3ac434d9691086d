"""How blocks record their ops: single records, or chains of ops that are described when the log is read.

A kernel has thousands of tiles of several stages each, so only their times are stored at first: the log keeps the tile
itself, and an `OpDescriber` that makes the records when the log is read.

A record also has the last cause of its op's start (`Release`), as the engine observed it at that moment. Most stages
start when the stage before them ends; only the others cost an entry. The holder of a lane is often not recorded yet
when it releases the next op, so entries name it by its token (`stage_ref`) and the log resolves it when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from kernbench.common.messages import LaunchStream
from kernbench.common.work_units import BYTES

FieldValue = int | float | str | bool | None | tuple["FieldValue", ...]  # the value of a record's parameter
# What many records have in common: component_id, op_kind, op_name, names of params. A plain tuple of plain tuples and
# strings: the garbage collector stops looking at records that hold nothing else, however many there are.
OpHead = tuple[str, str, str, tuple[str, ...]]

NO_REF = -1  # no op or stage: the start of an op has no cause among other ops
STAGE_BITS = 8


class Release(IntEnum):
    """The last cause of an op's start. The latest counts; of several at one instant, the first in this order."""

    DATA = 0  # the result of an op
    MESSAGE = 1
    CREDIT = 2
    BARRIER = 3  # all tiles of the pass before
    SLOT = 4  # room in a register file or in tile buffers
    LANE = 5  # the engine, port or channel became free
    PROGRAM = 6  # the kernel issued it only then
    LAUNCH = 7  # the kernel began
    HOST = 8


# As plain numbers, for what happens to every tile.
DATA, SLOT, LANE = int(Release.DATA), int(Release.SLOT), int(Release.LANE)


def stage_ref(token: int, stage: int) -> int:
    """A stage of a token that may not be recorded yet, as `Causes` name it."""
    return token << STAGE_BITS | stage


def op_ref(record_id: int) -> int:
    """An op that is recorded, as `Causes` name it."""
    return -2 - record_id


# Of stages that did not simply follow the stage before: stage, Release, ready_ns, reference; four numbers each. Of
# several for one stage the last counts. The first entry is the first stage's, and its ready_ns is the time of issue.
Causes = Sequence[float]


class OpDescriber(Protocol):
    """Makes the records of a subject when the log is read: ops of one PE, each of which waited for the one before."""

    @property
    def pe(self) -> str:
        """The PE whose engines did them."""

    @property
    def stream(self) -> LaunchStream:
        """The stream of its PE that they belong to."""

    def entries(self, subject: object) -> tuple[Sequence[OpHead], Sequence[FieldValue]]:
        """The head of each record, and the params of all of them in the order of their heads' names."""

    def kind(self, subject: object) -> object:
        """The same object for subjects whose records have the same heads."""

    def amounts(self, subjects: Sequence[object]) -> Sequence[tuple[str, int]]:
        """How much each op did, added up over subjects of one kind: unit (`work_units.py`) and amount."""


class OneOp:
    """Describes single ops of one kind: the subject is how much one did and the values of its params."""

    __slots__ = ("head", "pe", "stream", "unit")

    def __init__(self, head: OpHead, stream: LaunchStream, unit: str) -> None:
        self.head = head
        self.unit = unit
        self.pe = head[0].rpartition(".")[0]
        self.stream = stream

    def entries(self, subject: object) -> tuple[Sequence[OpHead], Sequence[FieldValue]]:
        assert isinstance(subject, tuple)
        return (self.head,), subject[1:]

    def kind(self, subject: object) -> object:
        return self

    def amounts(self, subjects: Sequence[object]) -> Sequence[tuple[str, int]]:
        total = 0
        for subject in subjects:
            assert isinstance(subject, tuple)
            total += subject[0]
        return ((self.unit, total),)


class Recorder(Protocol):
    """The op log, as engines use it."""

    @property
    def lines(self) -> bool:
        """Whether records hold the kernel's line that issued the op (`line` in their params)."""

    @property
    def new_token(self) -> Callable[[], int]:
        """Gives a number for a token whose stages will be recorded."""

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
        """Record a single op that ends now; returns its id. Without `causes` its kernel issued it when it started."""

    def record_chain(
        self,
        describer: OpDescriber,
        subject: object,
        times: Sequence[float],
        dependency_ids: tuple[int, ...],
        token: int,
        causes: Causes,
    ) -> int:
        """Record ops each of which waited for the one before, the first for `dependency_ids`; returns the last's id.

        `times` has start and end of each; `describer` makes their records later. Each but the first was issued when
        the one before it ended. One that started before the one before it ended was issued with it and waited for the
        same ops; the next waited for both.
        """
