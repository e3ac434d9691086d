"""`kernbench validate`: the table, the JSON and the errors of a user."""

import json

import pytest

from kernbench.cli.main import main
from kernbench.validation.data import DataFolder

TRACE = "1x4_BLOCK_TO_8x4_BLOCK"


@pytest.fixture
def data(tmp_path):
    """One trace in the layout that --data takes."""
    shipped, folder = DataFolder("1_noc_traces"), tmp_path / "1_noc_traces"
    (folder / "traces").mkdir(parents=True)
    (folder / "traces" / f"{TRACE}.json").write_text(shipped.text(f"traces/{TRACE}.json"))
    (folder / "measured.csv").write_text(shipped.text("measured.csv"))
    return tmp_path


def called(*args):
    with pytest.raises(SystemExit) as ended:
        main(["validate", *args])
    return ended.value.code


def test_json_has_sets_regimes_and_rows(data, capsys):
    assert called("noc_traces", "--data", str(data), "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["sets"]
    assert found["name"] == "noc_traces"
    assert [set(regime) for regime in found["regimes"]] == [
        {"name", "unit", "n", "mean", "bias", "median", "worst"}
    ] * 2
    assert [(regime["name"], regime["unit"], regime["n"]) for regime in found["regimes"]] == [
        ("open", "pct", 1), ("closed", "pct", 1)
    ]  # fmt: skip
    assert found["rows"][0] == {
        "regime": "open", "case": TRACE, "measured": 2945.0, "simulated": pytest.approx(2967.852, abs=1e-3),
        "error": pytest.approx(0.776, abs=1e-3),
    }  # fmt: skip
    assert len(found["fitted"]) <= 5


def test_the_table_names_cases_errors_what_is_fitted_and_peers(data, capsys):
    assert called("--data", str(data)) == 0
    shown = capsys.readouterr().out
    assert TRACE in shown
    assert "open: 1 cases, mean error 0.78 %, bias +0.78 %" in shown
    assert "fitted: injection from L1" in shown
    assert "tt-npe 3.2 % open" in shown


def test_figures_are_drawn_beside_the_table(data, capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert called("noc_traces", "--data", str(data), "--figures") == 0
    drawn = [line.removeprefix("drew  ") for line in capsys.readouterr().out.splitlines() if line.startswith("drew  ")]
    assert drawn == [f"kernbench-out/validation/noc_traces.{kind}" for kind in ("png", "svg")]
    assert (tmp_path / drawn[0]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "what"),
    [(["noc_trace"], "did you mean 'noc_traces'"), (["--data", "/nowhere"], "there is no folder")],
)
def test_what_cannot_be_is_refused(args, what, capsys):
    assert called(*args) == 2
    assert what in capsys.readouterr().err
