"""The order of the host's operations on the device. A PE runs its launches one after the other; different PEs do not
wait for one another, so an operation waits on the host for an earlier one if they share memory that different PEs
touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor_base import TensorBase
from kernbench.sim_engine.engine import GraphEngine


class OpWaiter(Protocol):
    """The part of the context that operations on tensors wait by."""

    engine: GraphEngine

    def wait(self, what: Launch) -> object:
        """Return when a launch is done; raises LaunchError for one that failed."""

    def launches_on(self, tensors: Sequence[TensorBase]) -> list[Launch]:
        """Running launches of this program, operations among them, that use one of these tensors."""


OccupiedPes = tuple[int, tuple[int, ...], tuple[int, ...]]  # SIP, cubes, PEs


@dataclass(eq=False, slots=True)
class _Running:
    """An operation that was launched. `is_local`: its PEs touch only what they hold."""

    launch: Launch
    written: frozenset[int]  # numbers of storages
    touched: frozenset[int]
    where: OccupiedPes
    is_local: bool


class OpOrder:
    """The operations of a context that may still be running."""

    def __init__(self, torch: OpWaiter) -> None:
        self._torch = torch
        self._running: list[_Running] = []

    def before(
        self, outputs: Sequence[TensorBase], tensors: Sequence[TensorBase], where: OccupiedPes, *, is_local: bool
    ) -> None:
        """Return when an operation on these tensors may be launched."""
        written, touched = _numbers(outputs), _numbers(tensors)
        operations = [each.launch for each in self._running]
        for launch in self._torch.launches_on(tensors):
            if launch not in operations and not launch.is_waited:  # a user's kernel: what it writes is unknown
                self._torch.wait(launch)
        for each in self._current():
            if not (each.written & touched or written & each.touched):
                continue
            one_pe = len(where[1]) == len(where[2]) == 1
            if each.where != where or not (one_pe or (is_local and each.is_local)):
                self._torch.wait(each.launch)

    def before_launch(self, tensors: Sequence[TensorBase], where: OccupiedPes | None) -> bool:
        """Return when a user's kernel on these tensors may be launched, and whether that had to be waited for; `where`
        it runs, if that is one SIP.
        """
        touched, has_waited = _numbers(tensors), False
        for each in self._current():
            one_pe = where is not None and len(where[1]) == len(where[2]) == 1 and each.where == where
            if each.touched & touched and not one_pe:
                self._torch.wait(each.launch)
                has_waited = True
        return has_waited

    def launched(
        self,
        launch: Launch,
        outputs: Sequence[TensorBase],
        tensors: Sequence[TensorBase],
        where: OccupiedPes,
        *,
        is_local: bool,
    ) -> None:
        """Record an operation that was launched."""
        self._running.append(_Running(launch, _numbers(outputs), _numbers(tensors), where, is_local))

    def check(self) -> None:
        """Raise LaunchError for an operation that has failed."""
        self._current()

    def _current(self) -> list[_Running]:
        """Operations that others may have to wait for. Where races are looked for, one that has ended counts until the
        host has waited for it: only then does what follows happen after it.
        """
        failed = [each.launch for each in self._running if each.launch.is_done and each.launch.failures]
        failed = [launch for launch in failed if not launch.is_waited]  # others were reported
        is_strict = self._torch.engine.races is not None
        self._running = [
            each
            for each in self._running
            if not each.launch.is_done or (is_strict and not each.launch.is_waited and not each.launch.failures)
        ]
        for launch in failed:
            self._torch.wait(launch)
        return list(self._running)


def _numbers(tensors: Sequence[TensorBase]) -> frozenset[int]:
    return frozenset(tensor.storage.number for tensor in tensors)
