"""A bench file as record 0045 has it: a decorated function, its surface of `torch`, sizes from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.cli.main import kernbench as command

BENCH = """\
import os

import numpy as np

from kernbench.benches.registry import bench
from kernbench.policy.placement.dp import DPPolicy

ROWS = int(os.environ.get("DOUBLED_ROWS", "16"))


def _kernel(x_ptr, y_ptr, n, *, tl):
    tl.store(y_ptr, tl.load(x_ptr, shape=(n, n), dtype="f16") * 2.0)


@bench(name="doubled", description="Twice a matrix, on one PE.")
def run(torch):
    one = DPPolicy(cube="replicate", pe="replicate", num_cubes=1, num_pes=1)
    x = torch.empty((ROWS, ROWS), dtype="f16", dp=one, name="x")
    x.copy_(torch.from_numpy(np.ones((ROWS, ROWS), np.float16)))
    y = torch.zeros((ROWS, ROWS), dtype="f16", dp=one, name="y")
    handle = torch.launch("doubled", _kernel, x, y, ROWS, wait=False)
    torch.wait(handle)
    torch.wait_all()
    assert torch.spec.system.sips.count >= 1
    assert np.all(y.numpy() == 2)
"""


def test_a_bench_file_runs_and_takes_its_size_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "doubled.py"
    file.write_text(BENCH)
    monkeypatch.setenv("DOUBLED_ROWS", "32")
    small = ["--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]
    done = CliRunner().invoke(command, ["run", "--bench", str(file), *small])
    assert done.exit_code == 0, done.output
    assert "doubled" in done.output
