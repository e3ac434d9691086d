"""The benchmark of large machines works and has its figures; how good they are, is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "large.py"


def test_the_figures_have_their_bars_and_their_units() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json", "--only", "all_reduce"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    rows = json.loads(done.stdout)["rows"]
    assert [(row["unit"], row["bar"]) for row in rows] == [
        ("s on two cores", 40),
        ("CPU s of all processes", None),
        ("GB", None),
    ]
    assert all(row["value"] > 0 for row in rows)
