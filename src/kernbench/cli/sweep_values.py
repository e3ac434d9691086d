"""Values of an axis from text: `128,256,512`, ranges `16..64+16` and `128..1024*2`, text, `[1, 2],[3, 4]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from kernbench.common.errors import UsageError

MAX_VALUES = 100_000
MOST_UNSTEPPED = 1_000  # of a range without a step, unless a search samples it
_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:([+*])({_NUMBER}))?")


def split_values(text: str, where: str, *, is_sampled: bool = False) -> list[str]:
    """The texts between commas, ranges written out; commas within brackets and quotes do not count. Raises UsageError,
    also for a long range without a step unless it `is_sampled` by a search.
    """
    found: list[str] = []
    for part in _parts(text):
        word = part.strip()
        if not word:
            raise UsageError("a value is missing", where=where, hint="write values with commas between: m=128,256")
        span = _RANGE.fullmatch(word)
        found += [word] if span is None else _range(span, where, is_sampled=is_sampled)
    return found


def _parts(text: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _range(span: re.Match[str], where: str, *, is_sampled: bool) -> list[str]:
    """From the first number to the last at most, by adding or by multiplying."""
    first, last = Decimal(span[1]), Decimal(span[2])
    step, by = span[3] or "+", Decimal(span[4] or 1)
    grows = by > 1 and first > 0 if step == "*" else by > 0
    if not grows or first > last:
        raise UsageError(
            f"'{span[0]}' is no range that grows", where=where, hint="write 16..64+16 or 128..1024*2, the least first"
        )
    if span[3] is None and last - first >= MOST_UNSTEPPED and not is_sampled:
        raise UsageError(
            f"'{span[0]}' has {int(last - first) + 1:,} values in steps of 1",
            where=where,
            hint=f"give a step, {span[0]}*2 or {span[0]}+{max(1, int(last - first) // 8)}, or write values with commas",
        )
    values: list[str] = []
    while first <= last:
        values.append(f"{first.normalize():f}")
        first = first * by if step == "*" else first + by
        if len(values) > MAX_VALUES:
            raise UsageError(f"'{span[0]}' has over {MAX_VALUES:,} values", where=where, hint="give a larger step")
    return values
