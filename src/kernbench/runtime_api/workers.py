"""Ranks of host programs: programs that were started together as a team are its ranks, numbered from 0.

A program that belongs to no team is a main program: it starts teams, and is not a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from kernbench.common.errors import UsageError
from kernbench.triton_emu.kernel_runner import KernelThread


@dataclass(eq=False)
class Team:
    """Ranks that were started together. `ended` are those whose program has returned."""

    size: int
    ended: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Worker:
    """One rank of a team."""

    team: Team
    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank}"


class Workers:
    """The ranks among a context's host programs."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[greenlet, Worker] = WeakKeyDictionary()

    def bind(self, worker: Worker) -> None:
        """Make the calling program a rank."""
        self._of[getcurrent()] = worker

    def current(self) -> Worker | None:
        """The calling rank; None for a main program. Raises UsageError in a kernel."""
        if isinstance(getcurrent(), KernelThread):
            raise UsageError(
                "a kernel asks the host which rank it is", hint="pass the rank to the kernel as an argument"
            )
        return self._of.get(getcurrent())


def spawns_ranks(program: object) -> bool:
    """Whether a host program calls `torch.multiprocessing.spawn`, by the names in its own code."""
    while isinstance(program, partial):
        program = program.func
    code = getattr(program, "__code__", None)
    return isinstance(code, CodeType) and {"multiprocessing", "spawn"} <= set(_names_in(code))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)
