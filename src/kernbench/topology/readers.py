"""Readers: each converts one value of a machine description to its type, or raises `InvalidValue` with what and hint.

The records of `spec.py` are annotated with readers and `attrs.py` calls them directly, so an invalid number has the
same message everywhere. Readers know nothing of files or lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from kernbench.common.nearest import nearest
from kernbench.common.units import is_power_of_two
from kernbench.topology.record import InvalidValue, ReadBy

Scalar = float | int | str | bool
_SHOWN = 60


def show(value: object) -> str:
    """A value as messages show it: short, and never a dump of a whole mapping."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**_SHOWN:
        return f"a number of over {_SHOWN} digits"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]}...{text[-1]}"


def closest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no known word is near."""
    found = nearest(word[:_SHOWN], known)
    return f" (did you mean '{found}'?)" if found else ""


def read_whole(value: object, low: int, high: int) -> int:
    hint = f"give a whole number from {low} to {high}"
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValue(f"expected a whole number, got {show(value)}", hint)
    if not low <= value <= high:
        raise InvalidValue(f"{show(value)} is out of range", hint)
    return value


def read_power_of_two(value: object, low: int, high: int) -> int:
    whole = read_whole(value, low, high)
    if not is_power_of_two(whole):
        below = 1 << (whole.bit_length() - 1)
        near = " or ".join(str(n) for n in (below, below * 2) if low <= n <= high)
        raise InvalidValue(f"{whole} is not a power of two", f"give a power of two, say {near}")
    return whole


def read_number(value: object, low: float, high: float, *, above: bool = False) -> float:
    """A finite number from `low` to `high`; with `above`, `low` itself is refused."""
    hint = f"give a number {'above' if above else 'from'} {low:g} {'and up to' if above else 'to'} {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValue(f"expected a number, got {show(value)}", hint)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValue(f"{value} is not a finite number", hint)
    if not low <= value <= high or (above and value == low):
        raise InvalidValue(f"{show(value)} is out of range", hint)
    return float(value)


def read_text(value: object, pattern: str, like: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"expected text, got {show(value)}", f"give {like}")
    if not re.fullmatch(pattern, value):
        raise InvalidValue(f"{show(value)} does not have the right form", f"give {like}")
    return value


def read_choice(value: object, choices: tuple[str, ...]) -> str:
    hint = f"use one of {', '.join(choices)}" if len(choices) > 1 else f"use {choices[0]}"
    if not isinstance(value, str) or value not in choices:
        suggestion = closest(value, choices) if isinstance(value, str) else ""
        raise InvalidValue(f"{show(value)} is not a choice here{suggestion}", hint)
    return value


def read_truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(f"{show(value)} is not true or false", "give true or false")
    return value


def read_scalar(value: object) -> Scalar:
    if not isinstance(value, str | bool | int | float):
        raise InvalidValue(f"expected a single value, got {show(value)}", "give a number, a text, true or false")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValue(f"{value} is not a finite number", "give a finite number")
    return value


def whole(low: int, high: int) -> ReadBy:
    return ReadBy(lambda value: read_whole(value, low, high))


def power_of_two(low: int, high: int) -> ReadBy:
    return ReadBy(lambda value: read_power_of_two(value, low, high))


def number(low: float, high: float, *, above: bool = False) -> ReadBy:
    return ReadBy(lambda value: read_number(value, low, high, above=above))


def text(pattern: str, like: str) -> ReadBy:
    return ReadBy(lambda value: read_text(value, pattern, like))


def choice(*choices: str) -> ReadBy:
    return ReadBy(lambda value: read_choice(value, choices))


def truth() -> ReadBy:
    return ReadBy(read_truth)


def further_part() -> ReadBy:
    """An entry with a name that the shipped machine does not have; without an `impl` it is taken for a misspelling."""

    def run(value: object) -> object:
        if isinstance(value, Mapping) and "impl" not in value:
            raise InvalidValue("no such part", "", "unknown_part")
        return value

    return ReadBy(run)
