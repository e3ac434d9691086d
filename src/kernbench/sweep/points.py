"""The points of a sweep: values of a bench's parameters and of the machine, and how axes are combined into points.

An axis is a name and its values. `m` is a parameter of the bench, `machine:system.sips.count` a value of the machine.
grid    every combination; the first axis changes slowest
zip     the first values of all axes together, then the second ones, and so on
list    the points as they are written
An axis may set several keys at once: `machine:a&machine:b` has a list of values for each of its points, or for each of
them one value for all keys. A key is set once.
A point that is written twice is one point.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import product
from math import isfinite, prod

from kernbench.common.errors import UsageError
from kernbench.common.units import counted

MACHINE = "machine:"  # begins the name of an axis over the machine
COUPLED = "&"
MAX_POINTS = 1_000_000

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
Axes = Mapping[str, Sequence[JsonValue]]


@dataclass(frozen=True)
class Point:
    """All parameters of one run, and its changes to the machine, in order."""

    params: Mapping[str, JsonValue]
    machine: Mapping[str, JsonValue]

    @cached_property
    def key(self) -> str:
        """Equal for equal points, whatever sweep they belong to."""
        return sha256(_canonical([dict(sorted(self.params.items())), self.machine_key]).encode()).hexdigest()[:24]

    @cached_property
    def machine_key(self) -> str:
        return _canonical([[key, value] for key, value in self.machine.items()])


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def point_of(settings: Mapping[str, JsonValue], params: Mapping[str, JsonValue]) -> Point:
    """The point that sets these axes, with `params` for the parameters that it does not set."""
    single = {key: value for name, given in settings.items() for key, value in uncoupled(name, given).items()}
    own = {name: value for name, value in single.items() if not name.startswith(MACHINE)}
    machine = {name.removeprefix(MACHINE): value for name, value in single.items() if name.startswith(MACHINE)}
    return Point({**params, **own}, machine)


def uncoupled(name: str, value: JsonValue) -> dict[str, JsonValue]:
    """What an axis sets: its key, or each of its keys to its own part of the value, or all to the same."""
    keys = keys_of(name)
    if len(keys) == 1:
        return {name: value}
    parts = value if isinstance(value, list) and len(value) == len(keys) else [value] * len(keys)
    return dict(zip(keys, parts, strict=True))


def keys_of(name: str) -> list[str]:
    """The keys that an axis sets."""
    return [key.strip() for key in name.split(COUPLED)]


def check_keys(names: Iterable[str], where: str | None = None) -> None:
    """Raise UsageError for a key that is set twice, by one axis or by two."""
    by_key: dict[str, str] = {}
    for name in names:
        for key in keys_of(name):
            if key in by_key:
                twice = f"axis '{name}'" if by_key[key] == name else f"axes '{by_key[key]}' and '{name}'"
                raise UsageError(f"'{key}' is set twice by {twice}", where=where, hint="leave it in one place")
            by_key[key] = name


def check_parts(name: str, counts: Sequence[int], where: str) -> None:
    """Raise UsageError where values of an axis have neither a part for each of its keys, nor all just one."""
    keys = len(keys_of(name))
    if keys > 1 and set(counts) not in ({1}, {keys}):
        wrong = next(count for count in counts if count != keys)
        raise UsageError(
            f"axis '{name}' sets {keys} keys, and has {counted(wrong, 'value')} for them in one of its points",
            where=where,
            hint=f"give one for each key: {COUPLED.join(map(str, range(1, keys + 1)))}",
        )


def checked_axes(over: Mapping[str, Iterable[object]]) -> dict[str, list[JsonValue]]:
    """Axes with values that JSON can hold; raises UsageError for one without values, or with others."""
    axes: dict[str, list[JsonValue]] = {}
    for name, values in over.items():
        if not isinstance(name, str) or not name.removeprefix(MACHINE).strip():
            raise UsageError(f"{name!r} is no axis", hint="use a parameter's name, or machine:KEY for the machine's")
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise UsageError(f"axis '{name}' has {values!r} for its values", hint="give a list of values")
        axes[name] = [plain_value(value, f"axis '{name}'") for value in values]
        check_parts(name, [len(value) if isinstance(value, list) else 1 for value in axes[name]], f"axis '{name}'")
        if not axes[name]:
            raise UsageError(f"axis '{name}' has no values", hint="give at least one")
    return axes


def plain_value(value: object, where: str) -> JsonValue:
    """A value as JSON has it; numpy's numbers become Python's. Raises UsageError for any other thing."""
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "shape", None) == ():
        value = item()
    if isinstance(value, Mapping):
        return {str(key): plain_value(part, where) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(part, where) for part in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    raise UsageError(f"{value!r} cannot be a value of a sweep", where=where, hint="use finite numbers and text")


def grid_size(axes: Axes) -> int:
    return prod(len(values) for values in axes.values())


def grid_point(axes: Axes, number: int, params: Mapping[str, JsonValue]) -> Point:
    """One point of the grid by its number, without making the others."""
    chosen: dict[str, JsonValue] = {}
    for name, values in reversed(list(axes.items())):
        number, at = divmod(number, len(values))
        chosen[name] = values[at]
    return point_of({name: chosen[name] for name in axes}, params)


def grid(axes: Axes, params: Mapping[str, JsonValue]) -> list[Point]:
    """Every combination; raises UsageError if there are more than MAX_POINTS."""
    _check_size(grid_size(axes))
    names = list(axes)
    return _once(point_of(dict(zip(names, values, strict=True)), params) for values in product(*axes.values()))


def zipped(axes: Axes, params: Mapping[str, JsonValue]) -> list[Point]:
    """The axes pairwise; raises UsageError if their lengths differ."""
    if len({len(values) for values in axes.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(values)}" for name, values in axes.items())
        raise UsageError(f"axes side by side are of one length: {lengths}", hint="or take the grid of them")
    names = list(axes)
    return _once(point_of(dict(zip(names, values, strict=True)), params) for values in zip(*axes.values(), strict=True))


def listed(settings: Sequence[Mapping[str, JsonValue]], params: Mapping[str, JsonValue]) -> list[Point]:
    """Points as they are written."""
    _check_size(len(settings))
    return _once(point_of(setting, params) for setting in settings)


def _once(points: Iterable[Point]) -> list[Point]:
    return list({point.key: point for point in _first_wins(points)}.values())


def _first_wins(points: Iterable[Point]) -> Iterator[Point]:
    seen: set[str] = set()
    for point in points:
        if point.key not in seen:
            seen.add(point.key)
            yield point


def _check_size(size: int) -> None:
    if size > MAX_POINTS:
        raise UsageError(f"the sweep has {size:,} points", hint=f"{MAX_POINTS:,} at most; search instead of a grid")
