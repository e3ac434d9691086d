"""What a scheduler may be told beforehand: the course of a composite that has its PE and its ways to itself.

Such a composite always takes the same course. Whoever foresees it owns what it needs and tells its end; as soon as
somebody else comes, the PE is put into the state that it has at that instant, and goes on tile by tile.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Foreseen(Protocol):
    """A composite under way whose course is known. Its PE's engines know nothing of it."""

    def settle(self) -> None:
        """Put the PE into the state that it has now; the composite goes on tile by tile."""


class Foresight(Protocol):
    """Whoever knows courses."""

    def foresee(self, scheduler: object, feed: object, *, is_alone: bool) -> Foreseen | None:
        """Take over a composite that begins now, where it is the only command on its PE (`is_alone`); None where it
        must go tile by tile.
        """


class KnownLaunches(Protocol):
    """Whoever knows the course of launches."""

    def takes(self, cpu: object, turn: object, at_ns: float) -> bool:
        """Whether to take over what a PE does for a launch that begins at `at_ns`: if so, nothing starts there."""

    def settle(self, sips: Collection[int] | None = None) -> None:
        """Somebody comes to some SIPs, or to any: what is under way there goes on as if it were not known."""
