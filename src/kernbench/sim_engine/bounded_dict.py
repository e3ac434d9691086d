"""Values that are kept as long as there is room for them: bounded by bytes, and the oldest are dropped first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Values by key, of at most `most_bytes` together; the last one is kept, however large it is."""

    __slots__ = ("_items", "_most_bytes", "nbytes")

    def __init__(self, most_bytes: int) -> None:
        self._items: dict[K, tuple[V, int]] = {}
        self._most_bytes = most_bytes
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def values(self) -> list[V]:
        """From the oldest to the newest."""
        return [value for value, _ in self._items.values()]

    def get(self, key: K) -> V | None:
        found = self._items.get(key)
        return None if found is None else found[0]

    def put(self, key: K, value: V, nbytes: int) -> list[V]:
        """Keep a value that takes so many bytes; returns those that are dropped for it. One that replaces another of
        its key is as old as that.
        """
        self.nbytes += nbytes - self._items.get(key, (None, 0))[1]
        self._items[key] = value, nbytes
        dropped: list[V] = []
        while self.nbytes > self._most_bytes and len(self._items) > 1:
            oldest = next(iter(self._items))
            dropped.append(self._items[oldest][0])
            self.discard(oldest)
        return dropped

    def discard(self, key: K) -> None:
        """Drop a value, if it is there."""
        if key in self._items:
            self.nbytes -= self._items.pop(key)[1]
