"""What a terminal is shown in addition to the output: colour where it is wanted, and one line of progress."""

from __future__ import annotations

import os
import sys
import time

import click

from kernbench.report.paint import Paint, plain

PATIENCE_S = 2.0  # a run longer than this shows how far it is
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


class ProgressLine:
    """One line on a terminal that says how far a long run is, and is wiped when it is over."""

    def __init__(self) -> None:
        self.wanted = sys.stderr.isatty()
        self._since_s = time.monotonic()
        self._width = 0

    def show(self, text: str) -> None:
        if time.monotonic() - self._since_s < PATIENCE_S:
            return
        line = text[:LINE_WIDTH]
        click.echo("\r" + line.ljust(self._width), err=True, nl=False)
        self._width = max(self._width, len(line))

    def clear(self) -> None:
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)
            self._width = 0
