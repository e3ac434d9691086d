"""Data as JSON may hold it: no infinity, no NaN, no numbers of numpy; and the one reader of JSON files of others."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, Final, NoReturn

MOST_LEVELS: Final = 64  # lists and objects inside each other; what KernBench writes has at most 12


def plain_json(data: Any) -> Any:
    """The same with null for what is not finite; keys are texts, tuples are lists."""
    if isinstance(data, dict):
        return {str(key): plain_json(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain_json(value) for value in data]
    if type(data).__module__ == "numpy":  # a number; not imported here, for commands that need no arrays
        data = data.item()
    return None if isinstance(data, float) and not isfinite(data) else data


def printable(data: Any) -> Any:
    """The same with each half character, as names of files that are not UTF-8 have them, written as an escape."""
    if isinstance(data, dict):
        return {printable(key): printable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [printable(value) for value in data]
    return data.encode("utf-8", "backslashreplace").decode() if isinstance(data, str) else data


def parse_json(text: bytes | str) -> Any:
    """The data of a JSON text, at most `MOST_LEVELS` deep, so that code that follows it down never runs out of stack.

    Raises ValueError, which says what is wrong, for what is no JSON, for bytes that are not UTF-8, for a number that is
    not finite, for an escape that is half a character, and for data that is deeper.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    level = [data]
    for _ in range(MOST_LEVELS):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            break
    else:
        raise _too_deep()
    if "\\ud" in text or "\\uD" in text:
        json.dumps(data, ensure_ascii=False).encode()  # half a character cannot be printed; UnicodeEncodeError says so
    return data


def _too_deep() -> ValueError:
    return ValueError(f"lists and objects are nested more than {MOST_LEVELS} levels deep")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def json_number(number: float) -> float | str:
    """A number as JSON may hold it without losing what it is: infinity and NaN as "inf", "-inf" and "nan"."""
    return number if isfinite(number) else str(float(number))
