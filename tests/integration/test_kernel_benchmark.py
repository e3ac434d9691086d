"""The kernel benchmark runs and has all its figures. Those in calls of functions are the same everywhere: they hold."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "kernels.py"
FIGURES = [
    ("pass 1, composite GEMM 64^3 f16 on one PE", 40),
    ("pass 1, the same on 16 PEs", 1),
    ("pass 1, simple commands in a loop on 8 PEs", None),
    ("pass 1, simple commands in a loop on 8 PEs, calls", 260),
    ("atomics on one word, 8 PEs", None),
    ("atomics on one word, 8 PEs, calls", 640),
    ("polls of one word, 7 PEs", None),
    ("polls of one word, 7 PEs, calls", 590),
    ("pass 2, 64^3 f16", 3),
    ("op log in memory", 500),
    ("op log streaming, growth", 10),
    ("empty kernel on 32 PEs, first on the machine", None),
    ("empty kernel on 32 PEs, first on an engine", None),
    ("empty kernel on 32 PEs, later", None),
    ("empty kernel on 32 PEs, later, calls", 230),
]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert report["schema"] == 1
    found: list[dict[str, Any]] = report["rows"]
    return found


def test_every_figure_has_its_bar_and_its_unit(rows: list[dict[str, Any]]) -> None:
    assert [(row["name"], row["bar"]) for row in rows] == FIGURES
    for row in rows:
        assert list(row) == ["name", "value", "unit", "bar", "ok"]
        assert row["value"] >= 0
        assert row["unit"]
        assert isinstance(row["ok"], bool)
        if row["unit"].startswith("calls "):
            assert row["ok"], row


def test_the_table_has_a_line_for_each_figure(rows: list[dict[str, Any]]) -> None:
    script = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
    _, *lines = script.table([script.Row(**row) for row in rows]).splitlines()
    assert len(lines) == len(FIGURES)
    for line, (name, _) in zip(lines, FIGURES, strict=True):
        assert line.startswith(name)
