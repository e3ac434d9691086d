"""`kernbench run` of an evaluation, and `kernbench report`: options, exit codes, JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernbench.cli.evaluate import duration_text
from kernbench.cli.main import main

pytestmark = pytest.mark.usefixtures("points_in_this_process")

SMALL = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1"]
MINE = """
from kernbench.benches.registry import evaluation_bench
from kernbench.evaluation.contract import Evaluation, curve
from kernbench.report.charts import Chart, Line, LinePanel

def kernel(n, tl):
    tl.cycles(n)

def points(machine, *, most: int = 2):
    return [{"n": n} for n in range(1, most + 1)]

def point(torch, *, n):
    return {"exec_ns": torch.launch("wait", kernel, n, target_cubes=0, target_pes=0).exec_ns}

def figures(rows, machine):
    panel = LinePanel("cycles", "time (ns)", (Line("measured", curve(rows, "n", "exec_ns")),))
    return [Chart("time", "Cycles", "One PE waits.", (panel,))]

evaluation_bench(name="mine", description="Mine.", evaluation=Evaluation(points, point, figures, lambda setting: 1.0))
"""


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([*args])
    out, err = capsys.readouterr()
    return int(str(stopped.value.code)), out, err


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def test_an_evaluation_of_ones_own_says_how_long_runs_and_is_drawn_again(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "run", "--bench", "mine.py", "--workers", "1", *SMALL)
    assert code == 0
    assert err.startswith("mine: 2 points; about 2 s in 1 processes; into kernbench-out/mine\n")
    assert "drew  kernbench-out/mine/01-time.png" in out
    code, out, err = call(capsys, "run", "--bench", "mine.py", "--redraw")
    assert (code, err) == (0, "")
    assert call(capsys, "run", "--bench", "mine.py", "--fast") == (
        0, out, "--fast is deprecated: it is called --redraw now\n"
    )  # fmt: skip
    assert "2 points, 0 run now" in out
    code, out, _ = call(capsys, "run", "--bench", "mine.py", "--json", "--workers", "1", *SMALL)
    report = json.loads(out)
    assert (code, report["ran"], report["ok"], report["command"]) == (0, 0, True, "evaluation")
    assert set(report) == {
        "schema", "command", "bench", "description", "version", "topology", "topology_hash", "parameters", "facts",
        "machine", "ok", "ran", "notes", "files", "rows",
    }  # fmt: skip
    assert [row["exec_ns"] > 0 for row in report["rows"]] == [True, True]
    code, out, _ = call(capsys, "report", "kernbench-out/mine", "--json")
    assert (code, json.loads(out)["file"]) == (0, "kernbench-out/mine/report.html")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["run", "--bench", "softmax", "--out", "x"],
            "and bench 'softmax' has no evaluation",
        ),
        (["run", "--bench", "pe2pe", "--workers", "2"], "--workers is for the evaluation of 'pe2pe'"),
        (["run", "--bench", "pe-dma-perf", "--verify-data"], "--verify-data is for one run"),
        (["run", "--bench", "pe-dma-perf", "--oplog", "x"], "--oplog is for one run"),
        (["run", "--bench", "pe-dma-perf", "--device", "sip:0"], "drives the whole tray"),
        (["run", "--bench", "pe-dma-perf", "--param", "m=1"], "no parameter 'm'"),
        (["run", "--bench", "pe-dma-perf", "--out", " "], "--out takes a folder"),
        (["run", "--bench", "pe-dma-perf", "--out", "nowhere", "--redraw"], "no results.json in this folder"),
        (["run", "--bench", "pe-dma-perf", "--redraw", "--param", "factor=2"], "--param with --redraw"),
        (["sweep", "--bench", "pe-dma-perf", "--over", "factor=2,4"], "is an evaluation: a sweep already"),
        (["report", "nowhere"], "no such folder"),
    ],
)
def test_what_does_not_go_together_is_refused(
    args: list[str], message: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert message in err
    assert [file.name for file in mine.iterdir()] == ["mine.py"]


def test_a_list_shows_the_parameters_of_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list", "pe-dma-perf")
    assert code == 0
    assert "max_bytes" in out


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (40, "40 s"), (200, "3 min")])
def test_durations_are_for_a_user_who_waits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.fixture
def evaluated(mine: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert call(capsys, "run", "--bench", "mine.py", "--workers", "1", *SMALL)[0] == 0
    return mine / "kernbench-out/mine"


def test_a_report_holds_only_regular_files_of_its_folder(evaluated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither what a link leads to, nor what a pipe may say one day."""
    secret = evaluated.parent / "secret"
    for name in ("results.json", "01-time.svg", "01-time.md"):
        file = evaluated / name
        file.rename(secret)
        for kind, make in (("symlink", lambda at: at.symlink_to(secret)), ("FIFO", os.mkfifo)):
            make(file)
            code, out, err = call(capsys, "report", str(evaluated))
            assert (code, out) == (2, "")
            assert f"{name} is a {kind}: only regular files of a folder are read" in err
            file.unlink()
        secret.rename(file)
    assert not (evaluated / "report.html").exists()
    assert call(capsys, "report", str(evaluated))[0] == 0


def test_a_report_replaces_nothing_but_a_report(
    evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("name: serve\n")
    code, out, err = call(capsys, "report", str(evaluated), "--out", str(file))
    assert (code, out) == (2, "")
    assert f"'{file}' cannot be written: the file is there and is no report\n  where: --out {file}\n" in err
    assert file.read_text() == "name: serve\n"
    for _ in range(2):  # the second time, it replaces the first
        assert call(capsys, "report", str(evaluated), "--out", str(tmp_path / "page.html"))[0] == 0


def test_results_that_are_none_are_refused_in_one_message(evaluated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = evaluated / "results.json"
    whole = json.loads(file.read_text())
    for text, message in (
        (json.dumps({**whole, "rows": [[]]}), "a row is no object"),
        (json.dumps({**whole, "description": None}), "description is NoneType, not str"),
        (json.dumps({**whole, "machine": "default"}), "machine is str, not dict"),
        (json.dumps({**whole, "parameters": []}), "parameters is list, not dict"),
        ('{"command":' + "[" * 100_000, "nested more than 64 levels deep"),
    ):
        file.write_text(text)
        code, _, err = call(capsys, "report", str(evaluated))
        assert (code, err.count("error:")) == (2, 1)
        assert message in err


def test_variables_of_other_evaluations_are_answered_with_what_replaces_them(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILESTONE_FAST", "1")
    monkeypatch.setenv("GQA_VALIDATION", "1")
    code, _, err = call(capsys, "run", "--bench", "mine.py", "--workers", "1", "--param", "most=1", *SMALL)
    assert code == 0
    assert err.splitlines()[:2] == [
        "note: MILESTONE_FAST in the environment is not read: `--redraw` draws the results in --out again; without it, "
        "points that are in --out are kept",
        "note: GQA_VALIDATION in the environment is not read: points of the part 'validated' are compared with numpy "
        "in every evaluation",
    ]
