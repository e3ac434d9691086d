"""`kernbench run --triton`: options that a program does not take, programs that launch nothing, and how a run ends."""

from __future__ import annotations

import json

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


NOTHING = """
import argparse
argparse.ArgumentParser(prog="nothing").parse_args()
print("done")
"""


@pytest.mark.parametrize(("words", "said"), [((), "done"), (("--", "--help"), "usage: nothing")])
def test_a_program_that_launches_nothing_ends_well(run, words, said):
    code, out, _ = run(NOTHING, *words)
    assert code == 0
    assert said in out
    assert "note: the program launched no kernel" in out
    assert "FAIL" not in out


def test_a_run_without_launches_is_saved_and_explained(run, capsys):
    code, out, _ = run(NOTHING, "--save", "saved", "--json")
    data = json.loads(out[out.index("{") :])
    assert (code, data["ok"], data["launches"]) == (0, True, [])
    with pytest.raises(SystemExit) as ended:
        main(["explain", "saved"])
    assert ended.value.code == 0
    assert "Traceback" not in "".join(capsys.readouterr())


def test_an_empty_grid_has_no_roofline(run):
    code, out, _ = run(ADD.replace("GRID", "0"))
    assert code == 0
    assert "neither roofline" not in out
    assert "no flops and no bytes" in out


def test_a_time_limit_before_the_first_kernel_says_what_the_host_does(run):
    code, _, err = run(ADD.replace("GRID", "2"), "--max-time", "50ns")
    assert code == 2
    assert "no PE runs a kernel then: the host allocates, launches or copies" in err


def test_an_error_of_syntax_is_shown_where_it_is(run):
    code, _, err = run("import torch\n\ndef f(:\n")
    assert code == 2
    assert "program.py:3  def f(:" in err
