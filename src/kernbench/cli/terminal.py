"""What is shown in addition to the output: colour where it is wanted, and one line of progress; lines on a pipe."""

from __future__ import annotations

import os
import sys
import time

import click

from kernbench.report.paint import Paint, plain

PATIENCE_S = 2.0  # a run longer than this shows how far it is
PIPE_S = 10.0  # between two lines where they stay: a log file, another program
LINE_WIDTH = 79


def painter() -> Paint:
    """What marks text by its role here: by colour on a terminal, unless the user wants none."""
    return paint if _in_colour() else plain


def _in_colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(text: str, role: str) -> str:
    """Text of a role: "title", "pass" or "fail"."""
    colours = {"pass": "green", "fail": "red"}
    return click.style(text, fg=colours.get(role), bold=role != "pass")


def indented(error: str) -> list[str]:
    """The lines of an error below the line that says whose it is."""
    return [f"     {line}" for line in error.splitlines()]


class ProgressLine:
    """One line on a terminal that says how far a long run is, and is wiped when it is over. Elsewhere nothing is shown,
    or with `on_pipe` a plain line now and then, for who reads a log.
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
