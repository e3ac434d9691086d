"""The sweep benchmark runs and has its figure; how good it is, is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "sweeps.py"


def test_the_figure_has_its_bar_and_its_unit() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    (row,) = json.loads(done.stdout)["rows"]
    assert list(row) == ["name", "value", "unit", "bar", "ok"]
    assert (row["name"], row["unit"], row["bar"]) == ("sweep of 8 points on 2 workers, over its runs", "x", 1.15)
    assert row["value"] > 0
