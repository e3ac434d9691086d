"""The benchmark of collectives runs and has all its figures; how good they are, is not judged here."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "collectives.py"
FIGURES = [
    ("all-reduce of 1 KiB per cube on 4 SIPs x 2 cubes, one PE each", 2),
    ("all-reduce of 1 KiB per PE on 4 SIPs x 2 cubes, all PEs", 2),
    ("the first, twice the bytes of 0.5 KiB", 1),
    ("1 KiB per cube over all PEs, 3 SIPs after 2", 1),
    ("1 KiB per cube over all PEs, 4 SIPs after 2", 1),
    ("all-reduce of 8 bytes per cube on 4 SIPs x 2 cubes, after one before", 1),
    ("all-reduce of 4 KiB on 3 SIPs x 2 cubes", 600),
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
        assert row["value"] > 0
        assert row["unit"]
        assert isinstance(row["ok"], bool)


def test_the_table_has_a_line_for_each_figure(rows: list[dict[str, Any]]) -> None:
    script = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
    _, *lines = script.table([script.Row(**row) for row in rows]).splitlines()
    assert len(lines) == len(FIGURES)
    for line, (name, _) in zip(lines, FIGURES, strict=True):
        assert line.startswith(name)
