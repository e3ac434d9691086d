"""Figures, tables, charts and pictures, made from results."""

from kernbench.report.runs.saved_run import open_run

__all__ = ["open_run"]
