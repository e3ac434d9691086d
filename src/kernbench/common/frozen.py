"""`@frozen`: what `@dataclass(frozen=True, slots=True)` makes, at a sixth of what that costs.

`dataclass` compiles six methods of every class when its module is imported: for the classes that a small run needs, a
sixth of all its time. Here only `__init__` is compiled; the others are closures over what the fields say, no slower to
call. It is a dataclass: `field`, `fields`, `replace`, `asdict`, `__post_init__` and inheritance work as usual, from one
such class to another. `eq=False`, `weakref_slot` and `InitVar` are not for it: take `dataclass`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from operator import attrgetter, ge, gt, le, lt
from reprlib import recursive_repr
from types import FunctionType
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")
FieldValues = Callable[[object], tuple[Any, ...]]

_set = object.__setattr__


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = False, order: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = False, order: bool = False) -> Any:
    """Make a class of annotated fields one whose objects are values: compared by what they hold, never changed."""

    def made(cls: type[T]) -> type[T]:
        return _made(cls, kw_only, order)

    return made if cls is None else made(cls)


def changed(value: T, **given: object) -> T:
    """A copy with other values of some fields. Nothing is checked again, so `__post_init__` must not look at these
    fields. A copy of a message takes less than half of what `dataclasses.replace` does.
    """
    cls: Any = type(value)
    copy: T = object.__new__(cls)
    for name in _names_of(cls):
        _set(copy, name, getattr(value, name))
    for name, field_value in given.items():
        _set(copy, name, field_value)
    return copy


@cache
def _names_of(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def _made(cls: type[T], kw_only: bool, order: bool) -> type[T]:
    own = cls.__dict__
    has_hash = own.get("__hash__") is not None  # Python sets it to None where only __eq__ is defined
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # or else `dataclass` would work out a signature
    cls = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    of_class: Any = cls
    found = fields(of_class)
    methods: dict[str, object] = {"__setattr__": _no_set, "__delattr__": _no_delete}
    methods |= {"__getstate__": _state, "__setstate__": _set_state}
    if "__init__" not in own:
        methods["__init__"] = _init_of(cls, found)
    if "__repr__" not in own:
        methods["__repr__"] = _repr
    key = _key([f.name for f in found if f.compare])
    if "__eq__" not in own:
        methods["__eq__"] = _eq_of(key)
    if not has_hash:
        methods["__hash__"] = _hash_of(_key([f.name for f in found if (f.compare if f.hash is None else f.hash)]))
    if order:
        methods |= {f"__{compare.__name__}__": _order_of(compare, key) for compare in (lt, le, gt, ge)}
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def _init_of(cls: type, found: tuple[Field[Any], ...]) -> Callable[..., None]:
    """The one method that is compiled: its arguments are the fields."""
    given: dict[str, object] = {"set_": _set, "MISSING": MISSING}
    plain: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for f in found:
        value, default = f.name, ""
        if f.default_factory is not MISSING:
            given[f"made_{f.name}"] = f.default_factory
            value = f"made_{f.name}() if {f.name} is MISSING else {f.name}" if f.init else f"made_{f.name}()"
            default = "=MISSING"
        elif f.default is not MISSING:
            given[f"default_{f.name}"] = f.default
            default = f"=default_{f.name}"
            value = f.name if f.init else f"default_{f.name}"
        if f.init:
            (named if f.kw_only else plain).append(f.name + default)
        if f.init or default:
            lines.append(f"  set_(self, {f.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("  self.__post_init__()")
    arguments = ", ".join(["self", *plain, *(["*"] if named else []), *named])
    exec(f"def __init__({arguments}):\n" + ("\n".join(lines) or "  pass"), given)
    init = given["__init__"]
    assert isinstance(init, FunctionType)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _key(names: list[str]) -> FieldValues:
    """The values of some fields, to compare and to hash."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda value: ()
    (only,) = names
    return lambda value: (getattr(value, only),)


def _eq_of(key: FieldValues) -> Callable[[object, object], object]:
    def __eq__(self: object, other: object) -> object:  # noqa: N807
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash_of(key: FieldValues) -> Callable[[object], int]:
    def __hash__(self: object) -> int:  # noqa: N807
        return hash(key(self))

    return __hash__


def _order_of(compare: Callable[[Any, Any], bool], key: FieldValues) -> Callable[[object, object], object]:
    def ordered(self: object, other: object) -> object:
        return compare(key(self), key(other)) if other.__class__ is self.__class__ else NotImplemented

    return ordered


@recursive_repr("...")
def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _no_set(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, f.name) for f in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for f, value in zip(fields(self), state, strict=True):
        _set(self, f.name, value)
