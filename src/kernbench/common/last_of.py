"""A call that counts: what several parts do one by one happens for the last of them."""

from __future__ import annotations

from collections.abc import Callable


class LastOf:
    """Called for each of `parts`; calls `then` for the last."""

    __slots__ = ("_missing", "_then")

    def __init__(self, parts: int, then: Callable[[], object]) -> None:
        self._missing = parts
        self._then = then

    def __call__(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._then()
