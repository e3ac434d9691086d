"""Functions compiled by numba, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32


def compiled(function: Callable[..., Any], *, sources: tuple[str, ...] = (), **options: Any) -> Any:
    """Compiled when first called; the outcome is kept on disk where there is a place for it.

    numba drops kept code when the file of the function has changed. What it calls may lie in other files: `sources`.
    """
    from numba import njit

    if sources:
        function.__qualname__ = f"{function.__name__}_{_version(sources)}"
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside its file nor among the user's files
        return njit(**options)(function)


@cache
def _version(sources: tuple[str, ...]) -> str:
    return f"{crc32(b''.join(Path(source).read_bytes() for source in sources)):08x}"
