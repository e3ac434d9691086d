"""What a free component is expected to gain is what it gains when it is measured, to 10 points of the time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.explain.test_verdict import SLOW, SLOW_FOR

from kernbench.cli.explain import measured
from kernbench.cli.main import kernbench
from kernbench.report import open_run
from kernbench.report.explain.headline import main_scope
from kernbench.report.explain.what_if import TARGETS, what_ifs

SMALL = [
    "--device",
    "sip:0",
    "--set",
    "system.sips.count=1",
    "--set",
    "sip.cube_mesh.w=2",
    "--set",
    "sip.cube_mesh.h=2",
]


@pytest.mark.parametrize("cause", SLOW_FOR)
def test_a_forecast_is_within_ten_points_of_its_measurement(cause: str, tmp_path: Path) -> None:
    """For the three components with the largest forecasts, and for the DMA engine, whose latency others cause."""
    bench = f"{SLOW}:{cause.replace('_', '-')}"
    done = CliRunner().invoke(kernbench, ["run", "--bench", bench, *SMALL, "--save", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    run = open_run(tmp_path / "run")
    explanation = main_scope(run)
    forecasts = {one.name: one for one in what_ifs(run, explanation, list(TARGETS))}
    chosen = sorted(forecasts, key=lambda name: -forecasts[name].gain_ns)[:3]
    for name in dict.fromkeys((*chosen, "pe_dma")):
        found = measured(run, explanation, forecasts[name], None)
        assert forecasts[name].share == pytest.approx(found.gained_ns / forecasts[name].total_ns, abs=0.10), name


def test_a_bench_file_is_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "slow.py").write_text(SLOW.read_text())
    monkeypatch.chdir(tmp_path / "mine")
    CliRunner().invoke(kernbench, ["run", "--bench", "slow.py:launch", *SMALL, "--save", "run"], catch_exceptions=False)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    done = CliRunner().invoke(kernbench, ["explain", "../mine/run", "--what-if", "launch"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "launch free: " in done.output
