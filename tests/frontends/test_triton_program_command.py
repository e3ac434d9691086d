"""`kernbench run --triton`: options that a program does not take, programs that launch nothing, and how a run ends."""

from __future__ import annotations

import pytest
from tests.frontends.triton_programs import torch, triton

from kernbench.cli.main import main

assert torch, triton  # both are needed
SMALL = ["--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]
ADD = """
import torch, triton, triton.language as tl

@triton.jit
def add(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

x = torch.zeros(64, device="cuda")
add[(GRID,)](x, x, 64, BLOCK=32)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a program on a small machine: exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def run(text, *words, file="program.py"):
        (tmp_path / file).write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["run", *SMALL, "--triton", file, *words])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.mark.parametrize("device", ["all", "whole", "ALL"])
def test_a_program_runs_on_one_device(run, device):
    code, _, err = run(ADD.replace("GRID", "2"), "--device", device)
    assert code == 2
    assert "a Triton program runs on one device" in err
    assert len(err.splitlines()) == 2  # and a hint


def test_a_mapping_report_is_for_benches(run):
    code, _, err = run(ADD.replace("GRID", "2"), "--mapping-report")
    assert code == 2
    assert err.startswith("error: --mapping-report with --triton")
