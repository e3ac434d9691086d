"""How blocks write down what they did: records of ops, one by one or many that are told about later.

A tile goes through its stages thousands of times a kernel, so nothing is made of its records but their times until
somebody reads them: the log keeps the tile itself, and a `Teller` who can say what the records say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Param = int | float | str | bool | None | tuple["Param", ...]  # what an op's record may say about it
# What many records have in common: component_id, op_kind, op_name, names of params. A plain tuple of plain tuples and
# strings: the garbage collector stops looking at records that hold nothing else, however many there are.
OpHead = tuple[str, str, str, tuple[str, ...]]


class Teller(Protocol):
    """Says later what the records of a subject say: ops of one PE, each of which waited for the one before it."""

    @property
    def pe(self) -> str:
        """Whose engines did them."""

    def entries(self, subject: object) -> tuple[Sequence[OpHead], Sequence[Param]]:
        """The head of each record, and the params of all of them in the order of their heads' names."""

    def kind(self, subject: object) -> object:
        """The same object for subjects whose records have the same heads."""

    def flops(self, subjects: Sequence[object]) -> Sequence[int]:
        """Of each op, added up over subjects of one kind."""


class Recorder(Protocol):
    """Where an engine writes down what it did."""

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
        """Note an op that ends now; returns its id."""

    def record_chain(
        self, teller: Teller, subject: object, times: Sequence[float], dependency_ids: tuple[int, ...]
    ) -> int:
        """Note ops each of which waited for the one before it, the first for `dependency_ids`; returns the last's id.

        `times` has start and end of each, `teller` will say what they were.
        """
