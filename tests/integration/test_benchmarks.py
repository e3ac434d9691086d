"""The fabric benchmark runs and finds the same times in every engine; how fast it is, is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "fabric.py"


def run(*arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), "--quick", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_benchmark_finds_identical_times_everywhere() -> None:
    report = json.loads(run("--json"))
    assert report["schema"] == 1
    assert len(report["rows"]) == 6
    for row in report["rows"]:
        assert row["identical"], row["workload"]
        assert row["flit_hops"] > 0
        assert row["ratio"] > 0


def test_the_benchmark_prints_an_aligned_table() -> None:
    head, *rows = run().splitlines()
    assert head.split()[0] == "workload"
    assert len(rows) == 6
    assert len({len(row) for row in [head, *rows]}) == 1
