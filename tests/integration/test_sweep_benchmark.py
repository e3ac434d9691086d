"""The sweep benchmark runs and has its figures; how good they are, is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "sweeps.py"


def test_every_figure_has_its_bar_and_its_unit() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    rows = json.loads(done.stdout)["rows"]
    assert [(row["name"], row["unit"], row["bar"]) for row in rows] == [
        ("sweep of 8 points on 2 workers, over its runs", "x", 1.15),
        ("decode layers of tiny-llama on 1 dies of 64 PEs, 2 workers", "min", 10.0),
        ("decode layers of tiny-llama on 1 trays of two SIPs, 2 workers", "min", None),
    ]
    assert all(row["value"] > 0 for row in rows)
