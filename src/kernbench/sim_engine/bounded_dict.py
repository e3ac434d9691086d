"""Values that are kept as long as there is room for them: bounded by bytes, and the oldest are dropped first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Values by key, of at most `most_bytes` together; beside them one that is larger by itself, the last such: it
    drops no others, and they do not drop it.
    """

    __slots__ = ("_items", "_large", "_most_bytes", "nbytes")

    def __init__(self, most_bytes: int) -> None:
        self._items: dict[K, tuple[V, int]] = {}
        self._large: K | None = None  # the key of the one that is too large
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
        self.nbytes += nbytes - self._bytes_of(key)
        self._items[key] = value, nbytes
        large = None if self._large == key else self._large
        dropped: list[V] = []
        if nbytes > self._most_bytes:
            self._large = key
            return dropped if large is None else [self._dropped(large)]
        self._large = large
        while self.nbytes - self._bytes_of(large) > self._most_bytes:
            dropped.append(self._dropped(next(oldest for oldest in self._items if oldest != large)))
        return dropped

    def _bytes_of(self, key: K | None) -> int:
        return 0 if key is None or key not in self._items else self._items[key][1]

    def _dropped(self, key: K) -> V:
        value = self._items[key][0]
        self.discard(key)
        return value

    def discard(self, key: K) -> None:
        """Drop a value, if it is there."""
        if key in self._items:
            self.nbytes -= self._items.pop(key)[1]
            if self._large == key:
                self._large = None
