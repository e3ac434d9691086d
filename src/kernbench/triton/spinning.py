"""Finds programs that wait for ever: all that run poll memory that none of them changes.

A program that waits for another one reads words, with loads or atomics, until they change. Programs of one PE run one
after the other, so a program that waits for a later one of its PE never sees that change. A read of addresses that were
read before, with equal numbers and nothing else in between, is a poll; an iteration of a loop with a known number of
iterations ends a series of polls. When one program polls, all others that run do, and no store is under way, and
that is so again many polls later with no change between, nothing is left that could end the wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.triton.refusals import refuse

_POLLS = 500  # of one program between two looks at the others
_POLLS_OF_OTHERS = 100
MOST_POLLED = 64  # words of one load that may be a poll
_MOST_WORDS = 8  # places that one wait reads


class Polls:
    """The polls of the program that runs on a PE."""

    def __init__(self, pes: list[Polls], has_stored: Callable[[], bool]) -> None:
        self.count = self.changes = 0
        self.has_ended = False
        self._all_changes: list[int] | None = None  # of all PEs, at the latest look, if none had anything to do
        self.next_id: tuple[int, int, int] | None = None  # of the program that begins after this one, where it is known
        self._seen: dict[bytes, Any] = {}  # numbers by addresses
        self._pes, self._has_stored = pes, has_stored
        pes.append(self)

    def reset(self) -> None:
        """The program does something else."""
        self.count = 0
        self.changes += 1
        self._seen.clear()

    def end(self) -> None:
        """The PE has no more programs."""
        self.has_ended = True
        self.changes += 1

    def read(self, addresses: Any, numbers: Any, program_id: tuple[int, int, int]) -> None:
        """Numbers were read. Raises KernelError where this program and all that run wait for ever."""
        key = addresses.tobytes()
        before = self._seen.get(key)
        if before is None or not np.array_equal(before, numbers):
            if before is not None or len(self._seen) >= _MOST_WORDS:
                self._seen.clear()
            self._seen[key] = numbers
            self.count = 0
            self.changes += 1
            return
        self.count += 1
        if self.count % _POLLS == 0:
            before = self._all_changes
            self._all_changes = None
            if all(each._changes_nothing for each in self._pes):
                self._all_changes = [each.changes for each in self._pes]
                if self._all_changes == before:
                    self._refuse(program_id)

    @property
    def _changes_nothing(self) -> bool:
        return (self.has_ended or self.count >= _POLLS_OF_OTHERS) and self._has_stored()

    def _refuse(self, program_id: tuple[int, int, int]) -> None:
        later = "" if self.next_id is None else f"; program {self.next_id} runs after it on this PE"
        refuse(
            f"program {program_id} waits for ever: it has read the same numbers {self.count:,} times, and all programs "
            f"that run do so{later}",
            "programs of one PE run one after the other: let none wait for a later one, or launch at most one for each "
            "PE",
        )
