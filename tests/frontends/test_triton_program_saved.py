"""A Triton program from the command line: saved, explained, queried, drawn, run again; lines are those of its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.frontends.triton_programs import SMALL, simulated, torch, triton

from kernbench.cli.main import main

PROGRAM = """import sys
import torch, triton, triton.language as tl

@triton.jit
def scale(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(out + at, value * 2)

n = int(sys.argv[1])
x = torch.rand(n, device="cuda")
out = torch.empty_like(x)
scale[(n // 256,)](x, out, BLOCK=256)
assert torch.equal(out, x * 2)
"""
MACHINE = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([*words])
    found = capsys.readouterr()
    assert stopped.value.code == 0, found.err
    return found.out


def test_a_saved_run_is_explained_queried_drawn_and_run_again(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scale.py").write_text(PROGRAM)
    run = ["run", "--triton", "scale.py", "1024", *MACHINE, "--placement", "interleave", "--save", "run", "--json"]
    data = json.loads(printed(capsys, *run))
    (launch,) = data["launches"]
    assert (launch["kernel"], launch["grid"], launch["config"]) == ("scale", [4, 1, 1], {"BLOCK": 256})
    assert data["energy"]["total_j"] >= launch["energy"]["total_j"] > 0
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["program"] == {
        "file": "scale.py", "args": ["1024"], "schedule": "static", "placement": "interleave", "benchmarks": None,
    }  # fmt: skip

    monkeypatch.chdir("/")  # the file is found from anywhere
    explained = json.loads(printed(capsys, "explain", str(tmp_path / "run"), "--what-if", "hbm", "--json"))
    lines = {row["name"] for row in explained["path"]["line"]}
    assert {"scale.py:7", "scale.py:8"} <= lines  # the load, and the product with its store
    (free,) = explained["what_if"]
    assert free["measured_ns"] < free["total_ns"]

    rows = json.loads(
        printed(capsys, "query", str(tmp_path / "run"), "SELECT name, count(*) AS n FROM ops GROUP BY 1", "--json")
    )
    counts = {row["name"]: row["n"] for row in rows["rows"]}
    assert counts["dma_read"] == counts["dma_write"] == counts["fmul"] == 4
    page = tmp_path / "run.html"
    printed(capsys, "web", str(tmp_path / "run"), "--export", str(page))
    assert "tl.store(out + at, value * 2)" in page.read_text()
    printed(capsys, "trace", str(tmp_path / "run"), "--output", str(tmp_path / "run.json.gz"))


def test_a_run_that_was_saved_from_python_says_how_to_run_it_again(tmp_path: Path, capsys):
    @triton.jit
    def nothing(x):
        pass

    with simulated(save=str(tmp_path / "run")):
        nothing[(1,)](torch.zeros(4))
    with pytest.raises(SystemExit) as stopped:
        main(["explain", str(tmp_path / "run"), "--what-if", "hbm"])
    assert stopped.value.code == 2
    assert "a program that calls kernbench.triton.simulate" in capsys.readouterr().err
