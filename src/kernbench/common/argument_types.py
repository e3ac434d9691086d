"""Arguments of calls that users make: an error names the one that is of the wrong kind, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kernbench.common.errors import UsageError

Test = Callable[[Any], bool]


def is_switch(value: object) -> bool:
    """True or False, Python's or numpy's, or 1 or 0 for them."""
    return type(value).__name__ in ("bool", "bool_") or (isinstance(value, int) and value in (0, 1))


def is_named(value: object) -> bool:
    """Values by name."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


SWITCH: Final[tuple[Test, str]] = (is_switch, "True or False")
NAMED: Final[tuple[Test, str]] = (is_named, "values by name: {'m': 128}")
CALLED: Final[tuple[Test, str]] = (callable, "a function")
TEXT: Final[tuple[Test, str]] = (lambda value: isinstance(value, str), "a text")


def instance_of(kind: type, words: str) -> tuple[Test, str]:
    return lambda value: isinstance(value, kind), words


def one_of(*choices: str) -> tuple[Test, str]:
    return lambda value: isinstance(value, str) and value in choices, "one of " + ", ".join(choices)


def check_arguments(call: str, kinds: Mapping[str, tuple[Test, str]], given: Mapping[str, object]) -> None:
    """Raise UsageError for the first argument that is not of its kind; None counts as left out."""
    for name, (fits, words) in kinds.items():
        value = given[name]
        if value is not None and not fits(value):
            raise UsageError(f"{call}: {name} is {_shown(value)}", hint=f"{name} takes {words}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
