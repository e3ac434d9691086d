"""The benchmark of collectives runs and has all its figures; how good they are, is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


def run(*arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), "--quick", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_every_figure_has_its_bar_and_its_unit() -> None:
    report = json.loads(run("--json"))
    assert report["schema"] == 1
    assert [(row["name"], row["bar"]) for row in report["rows"]] == FIGURES
    for row in report["rows"]:
        assert list(row) == ["name", "value", "unit", "bar", "ok"]
        assert row["value"] > 0
        assert row["unit"]
        assert isinstance(row["ok"], bool)


def test_the_table_has_a_line_for_each_figure() -> None:
    _, *lines = run().splitlines()
    assert len(lines) == len(FIGURES)
    for line, (name, _) in zip(lines, FIGURES, strict=True):
        assert line.startswith(name)
