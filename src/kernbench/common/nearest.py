"""The name that was meant by one that does not exist: a slip of the keys, not any name that shares a few letters."""

from __future__ import annotations

from collections.abc import Iterable

LIKENESS = 0.65  # of 1.0: `gem-singel` is near `gemm-single`, `cumprod` is not near `mod`
_LONGEST = 80  # characters of a word that are looked at


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name nearest to a word; None when none is near."""
    from difflib import get_close_matches

    found = get_close_matches(word[:_LONGEST], list(known), 1, LIKENESS)
    return found[0] if found else None
