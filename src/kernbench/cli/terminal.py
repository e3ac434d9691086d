"""Terminal output: colour if it is wanted, and a progress line, or progress lines on a pipe."""

from __future__ import annotations

import os
import sys
import time

import click

from kernbench.report.paint import Paint, plain

PATIENCE_S = 2.0  # a run longer than this shows its progress
PIPE_S = 10.0  # between two lines on a pipe or in a log file
LINE_WIDTH = 79


def painter() -> Paint:
    """The function that marks text by its role: by colour on a terminal, unless the user disables it."""
    return paint if _in_colour() else plain


def _in_colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(text: str, role: str) -> str:
    """Text of a role: "title", "pass" or "fail"."""
    colours = {"pass": "green", "fail": "red"}
    return click.style(text, fg=colours.get(role), bold=role != "pass")


def indented(error: str) -> list[str]:
    """The indented lines of an error, below the line that names its source."""
    return [f"     {line}" for line in error.splitlines()]


class ProgressLine:
    """A progress line on a terminal, erased at the end. Elsewhere nothing is shown, or with `on_pipe` a plain line
    every few seconds, for logs.
    """

    def __init__(self, *, on_pipe: bool = False) -> None:
        self._in_place = sys.stderr.isatty()
        self.wanted = self._in_place or on_pipe
        self._next_s = time.monotonic() + (PATIENCE_S if self._in_place else PIPE_S)
        self._width = 0

    def show(self, text: str) -> None:
        if not self.wanted or time.monotonic() < self._next_s:
            return
        if not self._in_place:
            self._next_s = time.monotonic() + PIPE_S
            click.echo(text, err=True)
            return
        line = text[:LINE_WIDTH]
        click.echo("\r" + line.ljust(self._width), err=True, nl=False)
        self._width = max(self._width, len(line))

    def clear(self) -> None:
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)
            self._width = 0
