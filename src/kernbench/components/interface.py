"""What a block needs of another one: methods and fields, not a class. Whatever has them will do."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

P = TypeVar("P")


class Interface(Generic[P]):
    """The members of a protocol, and what a block that lacks one of them cannot do, for the error: `lacks`."""

    def __init__(self, protocol: type, lacks: str) -> None:
        self.name = f"{protocol.__module__}.{protocol.__qualname__}"
        self.lacks = lacks
        self.members = tuple(dict.fromkeys(_members(protocol)))
        self._complete: dict[type, None] = {}  # classes that have them all, whatever their objects have

    def missing(self, found: object) -> list[str]:
        """The members that an object does not have."""
        cls = type(found)
        if cls in self._complete:
            return []
        if all(hasattr(cls, name) for name in self.members):
            self._complete[cls] = None
        return [name for name in self.members if not hasattr(found, name)]


def _members(protocol: type) -> list[str]:
    skipped: tuple[Any, ...] = (object, Protocol, Generic)
    return [
        name
        for cls in protocol.__mro__
        if cls not in skipped
        for name in (*vars(cls).get("__annotations__", {}), *vars(cls))
        if not name.startswith("_")
    ]
