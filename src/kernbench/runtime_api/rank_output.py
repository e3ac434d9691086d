"""What ranks print: whole lines, however often a rank is interrupted while it prints one.

`print("loss", x)` writes its parts one after the other, and another rank may run between two of them, while `x` is read
from the device. So each program's text is kept until its line ends, or until the program asks for a flush.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from greenlet import getcurrent, greenlet


class _WholeLines:
    """A text stream that several programs write to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun: dict[greenlet, str] = {}  # what has been written of a line, by program

    def write(self, text: str) -> int:
        lines, end, begun = (self._begun.pop(getcurrent(), "") + text).rpartition("\n")
        if end:
            self._stream.write(lines + end)
        if begun:
            self._begun[getcurrent()] = begun
        return len(text)

    def flush(self) -> None:
        self._stream.write(self._begun.pop(getcurrent(), ""))
        self._stream.flush()

    def end(self) -> None:
        """Write what is left of lines that were not ended."""
        for text in self._begun.values():
            self._stream.write(text)
        self._begun.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def whole_lines() -> Iterator[None]:
    """While programs run concurrently, standard output has whole lines of each."""
    before = sys.stdout
    lines: Any = _WholeLines(before)
    sys.stdout = lines
    try:
        yield
    finally:
        if sys.stdout is lines:  # a program may have redirected it, and not ended that
            sys.stdout = before
        lines.end()
