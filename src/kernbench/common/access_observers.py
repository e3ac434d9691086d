"""Observers of accesses: functions that are called before a block, bytes or a record of them are used.

A replay that is under way is interrupted by them, so that an access finds the state of that instant.
"""

from __future__ import annotations

from collections.abc import Callable


class AccessObservers(list[Callable[..., object]]):
    """The observers of one object, in the order in which they were added; where there is none, its owner asks none."""

    __slots__ = ()

    def add(self, observer: Callable[..., object]) -> None:
        """Call `observer` before every access from now on."""
        self.append(observer)

    def notify(self, *access: object) -> None:
        """An access is about to happen. An observer may remove itself, or others."""
        for observer in tuple(self):
            if observer in self:
                observer(*access)
