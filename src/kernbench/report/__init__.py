"""Reports made from results: figures, tables, charts and diagrams."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.report.runs.saved_run import open_run

__all__ = ["open_run"]


def __getattr__(name: str) -> object:
    """`open_run`, imported on first use, so that runs that are not saved need not load it."""
    if name == "open_run":
        from kernbench.report.runs import saved_run

        return saved_run.open_run
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
