"""Figures, tables, charts and pictures, made from results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.report.runs.saved_run import open_run

__all__ = ["open_run"]


def __getattr__(name: str) -> object:
    """`open_run`, imported when first used: a run that is not saved does without it."""
    if name == "open_run":
        from kernbench.report.runs import saved_run

        return saved_run.open_run
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
