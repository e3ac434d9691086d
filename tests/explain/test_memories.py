"""How full memories are over time, and launches on the roofline: by hand, and equal to what the run itself reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernbench.cli.main import main
from kernbench.report.explain.launch_rooflines import launch_rooflines
from kernbench.report.explain.occupancy import _peaks, occupancy
from kernbench.report.explain.tensor_use import tensor_uses
from kernbench.report.runs.saved_run import open_run


def test_a_bin_has_the_largest_value_in_it() -> None:
    # 8 bytes from 0 to 10, 4 bytes from 10 to 20, 2 more from 12 to 13: never 12 at once.
    steps = [(0.0, 8), (10.0, -8), (10.0, 4), (20.0, -4), (12.0, 2), (13.0, -2)]
    assert _peaks(steps, 0.0, 40.0, 4) == [8.0, 6.0, 0.0, 0.0]


ONE = ["--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]
NO_HBM = ["--set", "cube.memory_map.hbm_total_gb_per_cube=0", "--set", "cube.memory_map.sram_mb_per_cube=256"]

AT_HOME_IN_TCM = ["--set", "cube.memory_map.tcm_home_mb_per_pe=2", "--set", "cube.memory_map.tcm_mb_per_pe=4"]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    return run_and_report(tmp_path_factory.mktemp("memories"), ONE)


def run_and_report(folder: Path, machine: list[str]) -> tuple[Path, dict]:
    run, printed = folder / "run", folder / "stats.json"
    with pytest.MonkeyPatch.context() as patch, printed.open("w") as out:
        patch.setattr("sys.stdout", out)
        with pytest.raises(SystemExit):
            main(["run", "--bench", "gelu-mlp", *machine, "--save", str(run), "--json", "--stats"])
    return run, json.loads(printed.read_text())


@pytest.mark.parametrize("memory", ["HBM", "SRAM", "TCM"])
def test_the_roofline_of_a_saved_launch_is_that_of_the_run(
    memory: str, reported: tuple[Path, dict], tmp_path: Path
) -> None:
    without = {"HBM": [], "SRAM": NO_HBM, "TCM": [*NO_HBM, *AT_HOME_IN_TCM]}[memory]
    run, stats = run_and_report(tmp_path, ONE + without) if without else reported
    expected = [launch["roofline"] for launch in stats["launches"]]
    found = launch_rooflines(open_run(run))
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.share == pytest.approx(other["share"])
        assert (one.intensity, one.gflops) == pytest.approx((other["intensity"], other["gflops"]))
        assert (one.peak_gflops, one.peak_gbs) == pytest.approx((other["peak"]["gflops_f16"], other["peak"]["hbm_gbs"]))


def test_tcm_holds_at_most_what_the_kernel_allocated_and_hbm_what_tensors_span(reported: tuple[Path, dict]) -> None:
    folder, stats = reported
    run = open_run(folder)
    full = occupancy(run, 0.0, run.total_ns, 64)
    assert full is not None
    allocated = max(launch["tcm_peak_bytes"] for launch in stats["launches"])
    held = max(max(values) for values in full.tcm.values())
    assert 0.25 * allocated < held <= allocated
    (values,) = full.hbm.values()
    assert values == sorted(values)  # it only grows
    assert 0 < values[-1] <= sum(use.moved for use in tensor_uses(run))


def test_hbm_counts_a_tensor_once_however_often_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--bench", "qkv-gemm", "--device", "sip:0", "--param", "seq=32", "--save", str(tmp_path / "run")])
    run = open_run(tmp_path / "run")
    full = occupancy(run, 0.0, run.total_ns, 8)
    assert full is not None
    # f16: x is 32 x 256; wq, wk, wv are 256 x 128 and read once; q, k, v are 32 x 128.
    assert list(full.hbm) == ["sip0.cube0"]
    assert full.hbm["sip0.cube0"][-1] == 2 * (32 * 256 + 3 * 256 * 128 + 3 * 32 * 128)
