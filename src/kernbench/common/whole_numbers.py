"""Which numbers count as whole ones where a user may give either Python's or numpy's."""

from __future__ import annotations

from numbers import Integral
from typing import TypeGuard


def is_whole(x: object) -> TypeGuard[int]:
    """A whole number, Python's, which most are, or numpy's; True and False are none."""
    return type(x) is int or (isinstance(x, int | Integral) and not isinstance(x, bool))
