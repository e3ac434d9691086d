"""Which numbers count as whole ones where a user may give either Python's or numpy's, or writes them as text."""

from __future__ import annotations

from numbers import Integral
from typing import TypeGuard


def is_whole(x: object) -> TypeGuard[int]:
    """A whole number, Python's, which most are, or numpy's; True and False are none."""
    return type(x) is int or (isinstance(x, int | Integral) and not isinstance(x, bool))


def whole_number(text: str) -> int | None:
    """The number that a text of digits is; None for any other text and for more than 15 digits: all of ours have fewer,
    and Python refuses to convert thousands of them.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None
