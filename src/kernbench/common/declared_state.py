"""Declared state: which attributes of a block decide future timing, and their form relative to an instant.

A class that takes part in the simulation declares all of its mutable attributes, in one of three tables:

    STATE      decides future timing: fields with the attribute's form relative to an instant (`quantity`, `instant`)
    DERIVED    decides none: caches, statistics, what follows from state, references to other blocks: names
    SET_ASIDE  belongs to the present instant: a rewind replaces it while it simulates the past, and restores it at its
               end: fields made by `aside`. Such an attribute may be in STATE, too.

An attribute in no table is set in `__init__`, holds an immutable value and never changes. A subclass adds to the
tables of its base classes, and may declare a name again. `timing_state` is built from the tables: two instants with
equal states have the same future. What a rewind replaces and restores (`set_aside`) is built from them, too.
tests/contract/test_declared_state.py fails for a mutable attribute in no table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, Protocol

_unique = count()


class View(Protocol):
    """An instant from which state is seen, with times relative to it."""

    @property
    def now(self) -> float: ...


class TileView(View, Protocol):
    """The same of a PE, with tiles and their stages relative to the tiles fed."""

    def tile(self, number: int) -> int:
        """A tile's number, relative to the tile fed next."""

    def ref(self, reference: float) -> float:
        """A reference to a stage of a tile, relative to the tile fed next."""


RelativeForm = Callable[[Any, Any], object]  # of an owner, from a view: numbers, strings and tuples of them


class StateField(NamedTuple):
    """An attribute that decides future timing, and its form relative to an instant."""

    name: str
    relative: RelativeForm


State = tuple[StateField, ...]
Derived = tuple[str, ...]


def quantity(name: str) -> StateField:
    """A number, a name or a flag: the same relative to every instant."""
    return StateField(name, lambda owner, view: getattr(owner, name))


def quantities(name: str) -> StateField:
    """Several of them."""
    return StateField(name, lambda owner, view: tuple(getattr(owner, name)))


def instant(name: str) -> StateField:
    """The time until which something is busy; a time in the past is over."""
    return StateField(name, lambda owner, view: max(getattr(owner, name) - view.now, 0.0))


def instants(name: str) -> StateField:
    """Several of them."""

    def relative(owner: Any, view: View) -> tuple[float, ...]:
        now = view.now
        return tuple([time - now if time > now else 0.0 for time in getattr(owner, name)])

    return StateField(name, relative)


def times(name: str) -> StateField:
    """Times of the past that will be recorded."""

    def relative(owner: Any, view: View) -> tuple[float, ...]:
        now = view.now
        return tuple([time - now for time in getattr(owner, name)])

    return StateField(name, relative)


def tile_number(name: str) -> StateField:
    """The number of a tile, or how many there were."""
    return StateField(name, lambda owner, view: view.tile(getattr(owner, name)))


def holder(name: str, until: str) -> StateField:
    """A reference to the stage that holds something `until` an instant; it means nothing after that."""

    def relative(owner: Any, view: TileView) -> object:
        return view.ref(getattr(owner, name)) if getattr(owner, until) > view.now else ()

    return StateField(name, relative)


def is_set(name: str) -> StateField:
    """An object of which it only matters whether it is there."""
    return StateField(name, lambda owner, view: getattr(owner, name) is not None)


def size(name: str) -> StateField:
    """A collection of which only the size matters: its members are declared elsewhere."""
    return StateField(name, lambda owner, view: len(getattr(owner, name)))


def part(name: str) -> StateField:
    """An object with declared state."""
    return StateField(name, lambda owner, view: timing_state(getattr(owner, name), view))


def parts(name: str) -> StateField:
    """Several of them."""
    return StateField(name, lambda owner, view: tuple([timing_state(each, view) for each in getattr(owner, name)]))


def idle(name: str) -> StateField:
    """Work under way that is not compared in detail: two states are equal only where there is none."""
    return StateField(name, lambda owner, view: differs() if getattr(owner, name) else ())


def incomparable(*names: str) -> State:
    """State of work under way that is not compared: two states with any of it differ."""
    return tuple(StateField(name, lambda owner, view: differs()) for name in names)


def differs() -> tuple[object, ...]:
    """A state that is equal to no other."""
    return "differs", next(_unique)


_fields: dict[type[object], tuple[RelativeForm, ...]] = {}  # of each class


def timing_state(owner: object, view: View) -> tuple[object, ...]:
    """All that decides the future timing of an object, as seen from an instant."""
    fields = _fields.get(type(owner))
    if fields is None:
        fields = tuple(form for form in declared(type(owner)).values() if form is not None)
        _fields[type(owner)] = fields
    return tuple([relative(owner, view) for relative in fields])


def declared(cls: type[object]) -> dict[str, RelativeForm | None]:
    """The declared attributes of a class and its base classes: fields of its state, and None for what is derived."""
    found: dict[str, RelativeForm | None] = {}
    for base in reversed(cls.__mro__):
        found.update({field.name: field.relative for field in vars(base).get("STATE", ())})
        found.update(dict.fromkeys(vars(base).get("DERIVED", ())))
        for field in vars(base).get("SET_ASIDE", ()):
            found.setdefault(field.name)
    return found


class AsideField(NamedTuple):
    """An attribute of the present instant, which a rewind replaces and restores."""

    name: str
    begin: Callable[[Any], object] | None  # from an owner, the value that a rewind begins with; None: the present one
    join: Callable[[Any, Any], object] | None  # adds the rewind's last value to an owner whose own is restored


Aside = tuple[AsideField, ...]


def aside(
    name: str, begin: Callable[[Any], object] | None = None, join: Callable[[Any, Any], object] | None = None
) -> AsideField:
    """A field of SET_ASIDE. A rewind begins with the present value, or with that of `begin`. When the present value is
    restored, the rewind's last one is dropped, or added to it by `join`.
    """
    return AsideField(name, begin, join)


_aside: dict[type[object], Aside] = {}  # of each class


def _aside_of(cls: type[object]) -> Aside:
    fields = _aside.get(cls)
    if fields is None:
        bases = reversed(cls.__mro__)
        fields = _aside[cls] = tuple([field for base in bases for field in vars(base).get("SET_ASIDE", ())])
    return fields


@contextmanager
def set_aside(*owners: object) -> Iterator[None]:
    """Replace the SET_ASIDE attributes of objects within the block, and restore them after it."""
    held = [(owner, *field, getattr(owner, field[0])) for owner in owners for field in _aside_of(type(owner))]
    for owner, name, begin, _, _ in held:
        if begin is not None:
            setattr(owner, name, begin(owner))
    try:
        yield
    finally:
        left = [(join, owner, getattr(owner, name)) for owner, name, _, join, _ in held if join is not None]
        for owner, name, _, _, value in held:
            setattr(owner, name, value)
        for join, owner, value in left:
            join(owner, value)
