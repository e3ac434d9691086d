"""`kernbench probe` and `kernbench fidelity` on the command line: exit codes, JSON, strictness, bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kernbench.cli import probe as command
from kernbench.cli.main import main
from kernbench.cli.probe import read_size
from kernbench.common.errors import UsageError
from kernbench.probes.findings import Check

SMALL = ["--set", "sip.cube_mesh.w=2", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1"]


def run(capsys, *args):
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def probe(capsys, *args):
    return run(capsys, "probe", *SMALL, *args)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_json_of_one_case(capsys):
    code, out, _ = probe(capsys, "--case", "pe-local-hbm", "--nbytes", "4KiB", "--json", "--strict")
    data = json.loads(out)
    assert code == 0
    assert (data["schema"], data["command"]) == (1, "probe")
    assert [case["total_ns"] for case in data["cases"]] == [29.0]  # 16 drain, 1 flit, 4 router, 8 burst
    assert len(data["routes"]) == 1
    assert all(check["ok"] for check in data["checks"])


def test_tables_of_all_cases_hold_every_category_and_no_escape_codes(capsys):
    code, out, err = probe(capsys, "--nbytes", "1k", "--no-sweep")
    assert code == 0
    assert "\x1b" not in out + err
    assert err == ""  # no progress without a terminal
    for text in ("H2D", "D2H", "PE DMA", "PE SRAM", "Contention", "where the time went", "[v] PASS"):
        assert text in out
    assert "Route of" not in out


def test_route_detail_is_for_one_case_or_when_asked(capsys):
    assert "Route of h2d-1hop" in probe(capsys, "--case", "h2d-1hop", "--no-sweep")[1]
    assert "Route of" not in probe(capsys, "--case", "h2d-1hop", "--no-sweep", "--no-detail")[1]


def test_a_failed_check_is_exit_code_1_only_when_strict(capsys, monkeypatch):
    measured = command.run_probe

    def broken(*args, **options):
        report = measured(*args, **options)
        return replace(report, checks=(*report.checks, Check("made to fail", False, "1 > 2")))

    monkeypatch.setattr(command, "run_probe", broken)
    options = ("--case", "pe-local-hbm", "--no-sweep")
    assert probe(capsys, *options)[0] == 0
    code, out, _ = probe(capsys, *options, "--strict")
    assert code == 1
    assert "[x] FAIL made to fail: 1 > 2" in out
    code, out, _ = probe(capsys, *options, "--strict", "--json")
    assert code == 1
    assert json.loads(out)["ok"] is False


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--case", "pe-locl-hbm"), "did you mean 'pe-local-hbm'?"),
        (("--case", "ALL"), "did you mean 'all'?"),
        (("--plot", " "), "--plot takes a folder"),
        (("--case", "contention-1-to-slice", "--plot", "a\0b"), "charts cannot be written"),
        (("--case", "pe-cross-sip-hbm"), "no probe case 'pe-cross-sip-hbm'"),
        (("--nbytes", "0"), "out of range"),
        (("--nbytes", "65MiB"), "out of range"),
        (("--nbytes", "-4"), "takes a size"),
        (("--nbytes", "4 parsecs"), "takes a size"),
        (("--set", "system.sips.count=0"), "system.sips.count"),
        (("--topology", "nowhere.yaml"), "nowhere.yaml"),
        (("--case", "pe-local-hbm", "--plot", "charts"), "no contention case to draw"),
        (("--bogus",), "No such option"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_message(capsys, tmp_path, monkeypatch, args, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = probe(capsys, *args)
    assert code == 2
    assert says in err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_plot_writes_charts_and_says_where(capsys, tmp_path):
    code, out, _ = probe(capsys, "--case", "contention-2-to-slice", "--nbytes", "1k", "--plot", str(tmp_path))
    assert code == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        f"contention-to-slice.{s}" for s in ("json", "png", "svg")
    ]
    assert f"wrote {tmp_path / 'contention-to-slice.png'}" in out


def test_plot_beside_json_leaves_standard_output_pure(capsys, tmp_path):
    _, out, _ = probe(capsys, "--case", "contention-2-to-slice", "--nbytes", "1k", "--plot", str(tmp_path), "--json")
    data = json.loads(out)
    assert data["command"] == "probe"
    assert data["files"] == [str(tmp_path / f"contention-to-slice.{s}") for s in ("png", "svg", "json")]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("32768", 32768), ("32KiB", 32768), ("4k", 4096), ("4 KB", 4096), ("1MiB", 1 << 20), ("64m", 1 << 26), ("7B", 7)],
)
def test_sizes_are_read_in_powers_of_two(text, nbytes):
    assert read_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "k", "1.5k", "1e3", "0x10", "9" * 13, "٤", "4Gi"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError):
        read_size(text)


def test_fidelity_prints_text_json_and_the_page(capsys):
    code, text, _ = run(capsys, "fidelity")
    assert code == 0
    assert "finite buffers  [optimistic]" in text
    assert json.loads(run(capsys, "fidelity", "--json")[1])["command"] == "fidelity"
    assert run(capsys, "fidelity", "--markdown")[1].startswith("# What the model gets right")
    assert run(capsys, "fidelity", "--json", "--markdown")[0] == 2


def test_a_case_given_twice_is_two_cases_in_the_order_given(capsys):
    names = ["pe-sram", "pe-local-hbm"]
    twice = [word for name in names for word in ("--case", name)]
    code, out, _ = probe(capsys, *twice, "--no-sweep", "--json")
    data = json.loads(out)
    assert code == 0
    assert [case["name"] for case in data["cases"]] == names
    assert len(data["routes"]) == 2
