"""The context of the calling program: the open one that it made last, or that runs it as a rank."""

from __future__ import annotations

from typing import TypeVar
from weakref import ReferenceType, WeakKeyDictionary, ref

from greenlet import getcurrent, greenlet

ContextT = TypeVar("ContextT")
_of: WeakKeyDictionary[greenlet, list[ReferenceType[object]]] = WeakKeyDictionary()


def bind_context(context: object) -> None:
    """Make a context that of the calling program."""
    _of.setdefault(getcurrent(), []).append(ref(context))


def release_context(context: object) -> None:
    """A context is closed: it is no program's any more."""
    for program, made in list(_of.items()):
        _of[program] = [each for each in made if each() not in (None, context)]


def current_context(kind: type[ContextT]) -> ContextT | None:
    """The context of the calling program, if there is one and it is of that kind."""
    made = [found for each in _of.get(getcurrent(), []) if (found := each()) is not None]
    return made[-1] if made and isinstance(made[-1], kind) else None
