"""`@frozen` makes what `@dataclass(frozen=True, slots=True)` makes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace

import pytest

from kernbench.common.frozen import changed, frozen


@frozen
class Point:
    """Where."""

    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)
    total: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.x + self.y)

    def moved(self, by: int) -> Point:
        return replace(self, x=self.x + by)


@dataclass(frozen=True, slots=True)
class Usual:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)
    total: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.x + self.y)


@frozen(kw_only=True)
class Named:
    name: str
    size: int = 1


@frozen
class Derived(Named):
    first: int


@frozen(order=True)
class Version:
    major: int
    minor: int = 0


@frozen
class Own:
    """Says itself what it is."""

    value: float

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 7


@pytest.mark.parametrize("given", [((1,), {}), ((1, 2), {}), ((1,), {"y": 3, "tags": ["a"]})])
def test_it_holds_and_shows_what_a_dataclass_does(given) -> None:
    arguments, named = given
    point, usual = Point(*arguments, **named), Usual(*arguments, **named)
    assert repr(point) == repr(usual).replace("Usual", "Point")
    assert asdict(point) == asdict(usual)
    assert hash(point) == hash(usual)
    assert [f.name for f in fields(point)] == [f.name for f in fields(usual)]
    assert Point.__match_args__ == Usual.__match_args__
    assert Point.__slots__ == Usual.__slots__
    assert is_dataclass(point)


def test_it_is_compared_by_what_it_holds() -> None:
    assert Point(1, 2, ["a"]) == Point(1, 2, ["b"])
    assert Point(1, 2) != Point(2, 1)
    assert Point(1, 2) != Usual(1, 2)
    assert Point(1).moved(4).total == 5
    assert Version(1, 9) < Version(2) <= Version(2, 0) < Version(2, 1)
    assert (repr(Own(1.0)), Own(1.0) == Own(2.0), hash(Own(1.0))) == ("own", True, 7)


def test_it_does_not_change() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2  # type: ignore[misc]  # the point: it cannot be changed
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    with pytest.raises(FrozenInstanceError):
        point.other = 2  # type: ignore[attr-defined]  # the mistake
    assert not hasattr(point, "__dict__")


def test_a_changed_copy_is_what_replace_makes_and_computes_nothing_again() -> None:
    named = Derived(3, name="n")
    assert changed(named, name="m", size=2) == replace(named, name="m", size=2)
    assert named.name == "n"
    assert changed(Point(1, 2), x=5).total == 3  # `replace` would make it 7
    with pytest.raises(AttributeError, match="other"):
        changed(named, other=1)


@pytest.mark.parametrize("value", [Point(1, 2, ["a"]), Derived(3, name="n"), Version(1, 2)])
def test_it_can_be_copied_and_sent(value) -> None:
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert again == value
        assert asdict(again) == asdict(value)


def test_arguments_by_name_follow_those_of_a_derived_class() -> None:
    assert repr(Derived(3, name="n")) == "Derived(name='n', size=1, first=3)"
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'name'"):
        Derived(3)  # type: ignore[call-arg]  # the mistake
    with pytest.raises(TypeError, match=r"Point.__init__\(\) missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]  # the mistake
