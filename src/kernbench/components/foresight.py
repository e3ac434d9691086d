"""What a scheduler may be told beforehand: the course of a composite that has its PE and its ways to itself.

Such a composite always takes the same course. Whoever foresees it owns what it needs and tells its end; as soon as
somebody else comes, the PE is put into the state that it has at that instant, and goes on tile by tile.
"""

from __future__ import annotations

from typing import Protocol


class Foreseen(Protocol):
    """A composite under way whose course is known. Its PE's engines know nothing of it."""

    def settle(self) -> None:
        """Put the PE into the state that it has now; the composite goes on tile by tile."""


class Foresight(Protocol):
    """Whoever knows courses."""

    def foresee(self, scheduler: object, feed: object) -> Foreseen | None:
        """Take over a composite that begins now and is alone on its PE; None where it must go tile by tile."""
