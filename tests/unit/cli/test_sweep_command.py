"""`kernbench sweep` on the command line: table, JSON, files, exit codes, bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kernbench.cli import terminal
from kernbench.cli.main import main
from kernbench.sweep.points import Point

pytestmark = pytest.mark.usefixtures("points_in_this_process")

SMALL = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1"]
GEMM = ["--bench", "gemm-single-pe", "--over", "m=32,64", "--param", "k=64", "--param", "n=32", "--workers", "1"]
JSON_KEYS = [
    "schema", "command", "bench", "function", "source", "modules", "simulator", "ccl", "machine", "device",
    "verify_data", "cost", "version", "made_with", "points", "failed", "objectives", "best", "front", "does_not_fit",
    "infeasible", "ran", "notes", "files", "rows",
]  # fmt: skip
ROW_KEYS = [
    "point", "key", "params", "machine", "machine_hash", "ok", "total_ns", "kernels_ns", "launches", "flops",
    "bytes_hbm", "bytes_hbm_requested", "bound", "roofline_share", "energy_j", "energy_low_j", "energy_high_j",
    "area_mm2", "area_low_mm2", "area_high_mm2", "sip_w", "sip_low_w", "sip_high_w", "static_w", "cost_usd",
    "cost_low_usd", "cost_high_usd", "cost", "returned", "wrong", "fits", "infeasible", "warnings", "made_with",
    "error", "table", "derived",
]  # fmt: skip


def sweep(capsys, *args: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *args])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return ended.value.code, out, err


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a bench's folder is put on it


def test_a_sweep_prints_its_best_points_and_writes_its_files(capsys, tmp_path: Path) -> None:
    over = ["--over", "machine:cube.pe_template.components.pe_gemm.attrs.macs_per_ns=1024,4096"]
    code, out, _ = sweep(capsys, *SMALL, *GEMM, *over, "--out", "s")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "gemm-single-pe: 4 points, 4 run now, 0 kept"
    assert "Best by total_ns:min" in lines
    assert "Pareto front over total_ns:min, cost:min" in lines
    assert lines[3].split() == [
        "point",
        "m",
        "attrs.macs_per_ns",
        "total_ns",
        "cost",
        "limited",
        "by",
        "%",
        "of",
        "roofline",
    ]
    assert lines[-1] == "wrote s: results.json, results.csv, results.parquet, sweep.png, sweep.svg"
    header, *rows = (tmp_path / "s" / "results.csv").read_text().splitlines()
    assert len(rows) == 4
    assert header.startswith("point,")
    code, out, _ = sweep(capsys, *SMALL, *GEMM, *over, "--out", "s")
    assert (code, out.splitlines()[0]) == (0, "gemm-single-pe: 4 points, 0 run now, 4 kept")


def test_rows_that_a_bench_returns_are_kept(capsys, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from kernbench.benches.registry import bench\n"
        "import numpy as np\n"
        "@bench(name='by-size', description='Two rows each.')\n"
        "def by_size(torch, *, n: int = 1):\n"
        "    torch.zeros(n)\n"
        "    return [{'size': np.int64(n * at), 'share': float('nan'), 'by': 'ring'} for at in (1, 2)]\n"
    )
    args = [*SMALL, "--bench", "mine.py", "--over", "n=3,5", "--workers", "1", "--out", "s", "--no-plot"]
    code, out, _ = sweep(capsys, *args)
    assert code == 0
    at = out.splitlines().index("Rows that the bench returned")
    table = [line.split() for line in out.splitlines()[at + 1 : at + 6]]
    assert table == [["point", "n", "size", "share", "by"], ["0", "3", "3", "ring"], ["0", "3", "6", "ring"],
                     ["1", "5", "5", "ring"], ["1", "5", "10", "ring"]]  # fmt: skip
    assert out.splitlines()[-1] == ("wrote s: results.json, results.csv, results.parquet, tables.csv, tables.parquet")
    rows = json.loads(Path("s/results.json").read_text())["rows"]
    assert rows[1]["table"][0] == {"size": 5, "share": None, "by": "ring"}
    assert sweep(capsys, *args, "--json")[1].count('"ring"') == 4  # kept, and read again


def test_json_keys_are_a_contract(capsys) -> None:
    code, out, err = sweep(capsys, *SMALL, *GEMM, "--out", "s", "--json")
    assert code == 0
    assert all(line.startswith("sweep gemm-single-pe: ") for line in err.splitlines())  # a slow machine shows progress
    report = json.loads(out)
    assert list(report) == JSON_KEYS
    assert [list(row) for row in report["rows"]] == [ROW_KEYS, ROW_KEYS]
    assert (report["schema"], report["command"], report["points"], report["ran"]) == (1, "sweep", 2, 2)
    assert report["objectives"] == ["total_ns:min"]  # one machine: its cost is no objective
    assert report["best"] == [0, 1]
    assert report["front"] == [0]
    assert report["rows"][0]["params"]["m"] == 32
    results = json.loads(Path("s/results.json").read_text())
    assert list(results) == [key for key in JSON_KEYS if key not in ("ran", "notes", "files")]


def test_a_file_says_the_same_as_options(capsys) -> None:
    Path("study.yaml").write_text(
        "bench: gemm-single-pe\n"
        "over:\n  m: [32, 64]\n  machine:cube.links.router_bw_gbs: 128..256*2\n"
        "param: { k: 64, n: 32 }\n"
        "set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1 }\n"
        "objective: [total_ns:min, roofline_share:max]\n"
        "workers: 1\n"
    )
    code, out, _ = sweep(capsys, "study.yaml", "--json", "--no-plot")
    assert code == 0
    report = json.loads(out)
    assert report["objectives"] == ["total_ns:min", "roofline_share:max"]
    assert [(row["params"]["m"], row["machine"]) for row in report["rows"]] == [
        (m, {"cube.links.router_bw_gbs": bw}) for m in (32, 64) for bw in (128, 256)
    ]
    assert sorted(file.name for file in Path("study.sweep").glob("[!.]*")) == [
        "results.csv", "results.json", "results.parquet", "rows.jsonl", "sweep.json",
    ]  # fmt: skip
    code, out, _ = sweep(capsys, "study.yaml", "--over", "m=32", "--out", "study.sweep", "--json")
    assert (json.loads(out)["points"], json.loads(out)["ran"]) == (2, 0)  # options go over the file


def test_a_file_may_list_points(capsys) -> None:
    Path("study.yaml").write_text(
        "bench: gemm-single-pe\npoints: [{m: 32}, {m: 64, machine:system.sips.count: 2}]\nparam: {k: 64, n: 32}\n"
        "set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1 }\nout: here\nsearch: {}\n"
    )
    code, out, _ = sweep(capsys, "study.yaml", "--json", "--workers", "1")
    assert code == 0
    assert [len(row["machine"]) for row in json.loads(out)["rows"]] == [0, 1]
    assert Path("here/results.csv").exists()


def test_a_failed_point_is_listed_whole_and_the_exit_code_is_1_unless_failures_are_allowed(capsys) -> None:
    args = ["--bench", "gemm-single-pe", *SMALL, "--param", "k=64", "--param", "n=32", "--workers", "1", "--out", "s"]
    code, out, _ = sweep(capsys, *args, "--over", "m=0,32")
    assert code == 1
    key = Point({"m": 0, "k": 64, "n": 32, "block_m": 0, "dtype": "f16", "seed": 0}, {}).key  # defaults too
    at = out.splitlines().index("1 failed")
    assert out.splitlines()[at + 1 : at + 5] == [
        f"  0  key {key}  m=0",
        "     m is 0",
        "       where: params['m']",
        "       hint:  give 1 or more",
    ]
    assert sweep(capsys, *args, "--over", "m=0,32", "--allow-failures")[0] == 0
    code, out, _ = sweep(capsys, *args, "--over", "m=0", "--allow-failures")
    assert code == 1  # not one of its points was right
    assert "Best" not in out


def test_machines_that_cannot_be_loaded_are_named_before_anything_runs_each_reason_with_its_count(capsys) -> None:
    grid = ["--over", "machine:system.sips.count=1,0", "--over", "machine:sip.cube_mesh.w=1,0", "--out", "s"]
    _, out, err = sweep(capsys, *SMALL, *GEMM[:2], *grid, "--param", "m=32", "--workers", "1")
    notes = err.splitlines()[:2]
    assert "cannot be loaded" not in out
    lines = out[out.index("3 failed") :].splitlines()  # points with the same error have it once
    assert [line[:3] for line in lines[1:] if line[2:3].isdigit()] == ["  1", "  2", "  3"]
    assert notes == [
        "note: 1 of 4 points have a machine that cannot be loaded: 0 is out of range (sip.cube_mesh.w)",
        "note: 2 of 4 points have a machine that cannot be loaded: 0 is out of range (system.sips.count)",
    ]


def test_a_machine_whose_memory_is_too_small_to_be_loaded_is_counted_once(capsys) -> None:
    grid = ["--over", "machine:cube.memory_map.tcm_mb_per_pe=2,1", "--out", "s"]  # the scheduler has 1
    _, out, _ = sweep(capsys, *SMALL, *GEMM[:2], *grid, "--param", "m=32", "--workers", "1")
    notes = [line for line in out.splitlines() if line.startswith("note:")]
    assert notes == ["note: 1 of 2 points do not fit the memory of their machine, and are not ranked"]


def test_wrong_data_is_exit_code_1(capsys) -> None:
    Path("swept.py").write_text(
        "import numpy as np\ndef run(torch, n: int = 1):\n"
        "    print('talk')\n    torch.check(torch.full((4,), n, name='x'), np.full(4, 1))\n"
    )
    args = ["--bench", "swept.py", *SMALL, "--over", "n=1,2", "--workers", "1", "--verify-data", "--out", "s", "--json"]
    code, out, _ = sweep(capsys, *args)
    assert code == 1
    assert [row["wrong"] for row in json.loads(out)["rows"]] == [False, True]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no bench"),
        (["--bench", "no-such"], "no bench 'no-such'"),
        ([*GEMM, "--over", "x=1"], "no parameter 'x'"),
        ([*GEMM, "--over", "m=1,2"], "given twice"),
        ([*GEMM, "--over", "m"], "--over takes NAME=VALUES"),
        ([*GEMM, "--over", "k=64"], "an axis and a fixed value"),
        (["--bench", "gemm-single-pe", "--over", "m=abc"], "m is 'abc'"),
        ([*GEMM, "--over", "machine:system.sips.cuont=1"], "unknown key 'cuont'"),
        ([*GEMM, "--set", "system.sips.count=0"], "out of range"),
        ([*GEMM, "--set", "x"], "--set takes KEY=VALUE"),
        ([*GEMM, "--topology", "none.yaml"], "there is no file"),
        ([*GEMM, "--search", "hope"], "no search 'hope'"),
        ([*GEMM, "--trials", "5"], "without a search"),
        ([*GEMM, "--search", "random", "--storage", "x"], "no storage"),
        ([*GEMM, "--search", "random", "--zip"], "zipped"),
        ([*GEMM, "--zip", "--over", "seed=1"], "of one length"),
        ([*GEMM, "--objective", ","], "names no objective"),
        ([*GEMM, "--cost", "none.py:price"], "no file none.py"),
        ([*GEMM, "--cost", "price"], "names no function"),
        ([*GEMM, "--workers", "0"], "workers"),
        ([*GEMM, "--out", ""], "empty name"),
        ([*GEMM, "--cluster", "tcp://127.0.0.1:1"], "no scheduler answers"),
        (["none.yaml"], "cannot be read"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(capsys, monkeypatch, args: list[str], message: str) -> None:
    monkeypatch.setattr("kernbench.sweep.cluster_pool.CONNECT_S", 0.5)
    code, out, err = sweep(capsys, *SMALL, *args)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert "--cluster" in args or [*Path.cwd().iterdir()] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bench: gemm-single-pe\novre: {m: [1]}\n", "f.yaml:2  ovre"),
        ("bench: [a]\n", "f.yaml:1  bench"),
        ("bench: gemm-single-pe\nover: 5\n", "f.yaml:2  over"),
        ("bench: gemm-single-pe\nover:\n  m: {a: 1}\n", "f.yaml:3  over.m"),
        ("bench: gemm-single-pe\nover:\n  m: [x]\n", "f.yaml:3  over.m"),
        ("bench: gemm-single-pe\nover:\n  m: []\n", "f.yaml:3  over.m"),
        (
            "bench: gemm-single-pe\nover:\n  seeds: [1]\n",
            "no parameter 'seeds'; did you mean 'seed'?\n  where: f.yaml:3  over.seeds",
        ),
        (
            "bench: gemm-single-pe\npoints: [{seeds: 1}]\n",
            "no parameter 'seeds'; did you mean 'seed'?\n  where: f.yaml:2  points",
        ),
        ("bench: gemm-single-pe\npoint_timeout: soon\n", "f.yaml:2  point_timeout"),
        ("bench: gemm-single-pe\npoints: [{m: 1}]\nover: {m: [1]}\n", "a list of points, or axes"),
        ("bench: gemm-single-pe\npoints: 5\n", "f.yaml:2  points"),
        ("bench: gemm-single-pe\npoints: []\n", "f.yaml:2  points"),
        ("bench: gemm-single-pe\npoints: [5]\n", "points[0]"),
        ("bench: gemm-single-pe\nsearch: {how: random}\n", "f.yaml:2  search"),
        ("bench: gemm-single-pe\nworkers: many\n", "f.yaml:2  workers"),
        ("bench: gemm-single-pe\nverify_data: maybe\n", "f.yaml:2  verify_data"),
        ("bench: gemm-single-pe\nobjective: 5\n", "f.yaml:2  objective"),
        ("bench: gemm-single-pe\nmode: star\n", "no mode 'star'"),
        ("a: [\n", "not valid YAML"),
        ("- a\n", "f.yaml:1"),
        ("", "there is nothing in it"),
    ],
)
def test_faults_of_a_file_are_named_with_their_line(capsys, text: str, message: str) -> None:
    Path("f.yaml").write_text(text)
    code, _, err = sweep(capsys, "f.yaml", "--param", "k=64", "--param", "n=32")
    assert code == 2
    assert message in err
    assert [file.name for file in Path.cwd().iterdir()] == ["f.yaml"]


@pytest.mark.parametrize("objective", ["totl_ns", "bound", "ok:max", "machine:system.sips.count", "variant"])
def test_an_objective_that_no_row_can_have_is_refused_before_the_first_point(capsys, objective: str) -> None:
    code, _, err = sweep(capsys, *SMALL, *GEMM, "--objective", objective, "--out", "s")
    assert code == 2
    assert "no row can have a number for the objective" in err
    assert objective != "totl_ns" or "did you mean 'total_ns'" in err
    assert not Path("s").exists()


def test_time_to_the_first_token_is_no_objective_where_all_work_is_decode(capsys) -> None:
    Path("mix.yaml").write_text("name: mix\nworkloads: [{ name: answers, model: tiny-llama, phase: decode }]\n")
    axis = ["--over", "machine:system.flit_bytes=128,256", "--objective", "ttft_ms", "--out", "s"]
    for work in (["--scenario", "mix.yaml"], ["--bench", "llm-layer", "--param", "phase=decode"]):
        code, _, err = sweep(capsys, *SMALL, *work, *axis)
        assert code == 2
        assert "no row can have a number for the objective 'ttft_ms'" in err
        assert not Path("s").exists()


def test_an_objective_that_the_bench_does_not_return_leaves_the_rows(capsys) -> None:
    code, _, err = sweep(capsys, *SMALL, *GEMM, "--objective", "returned:token", "--out", "s")
    assert code == 2
    assert "no row has a number for the objective 'returned:token'" in err
    code, out, _ = sweep(capsys, *SMALL, *GEMM, "--out", "s")
    assert out.splitlines()[0] == "gemm-single-pe: 2 points, 0 run now, 2 kept"


def test_damaged_rows_are_said_and_run_again(capsys) -> None:
    sweep(capsys, *SMALL, *GEMM, "--out", "s")
    rows = Path("s/rows.jsonl")
    rows.write_bytes(rows.read_bytes()[:-9])
    code, out, _ = sweep(capsys, *SMALL, *GEMM, "--out", "s")
    assert code == 0
    assert out.splitlines()[:2] == [
        "gemm-single-pe: 2 points, 1 run now, 1 kept",
        "note: 1 damaged of 2 rows: their points run again (rows.damaged-1.jsonl)",
    ]


# ---------------------------------------------------------------------------------------- time limits, progress, memory

SLOW = """
import time

def run(torch, *, n: int = 1):
    torch.zeros(4)
    if n == 2:
        time.sleep(600)
"""


def test_a_point_that_runs_past_its_time_limit_is_a_failed_row_and_the_others_are_run(capsys) -> None:
    Path("slow.py").write_text(SLOW)
    args = [*SMALL, "--bench", "slow.py", "--over", "n=1,2,3", "--workers", "1", "--out", "s", "--no-plot", "--json"]
    code, out, _ = sweep(capsys, *args, "--point-timeout", "3")
    assert code == 1
    assert [row["error"] for row in json.loads(out)["rows"]] == [
        None, "it ran longer than the time limit of 3 s (--point-timeout)", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--point-timeout", "0"], "the time limit of a point is 0"),
        (["--point-timeout", "-1"], "the time limit of a point is -1"),
        (["--point-timeout", "nan"], "the time limit of a point is nan"),
        (["--point-timeout", "5", "--cluster", "tcp://127.0.0.1:1"], "points that run on a cluster have no time limit"),
    ],
)
def test_a_time_limit_that_cannot_be_is_refused(capsys, args: list[str], message: str) -> None:
    code, _, err = sweep(capsys, *SMALL, *GEMM, *args)
    assert code == 2
    assert message in err
    assert [*Path.cwd().iterdir()] == []


def test_progress_on_a_pipe_is_plain_lines_now_and_then(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "PIPE_S", 0.0)
    _, out, err = sweep(capsys, *SMALL, *GEMM, "--out", "s", "--no-plot", "--json")
    assert json.loads(out)["ran"] == 2
    assert [line.rpartition(", ")[0] for line in err.splitlines()] == [
        "sweep gemm-single-pe: 1 of 2 points", "sweep gemm-single-pe: 2 of 2 points",
    ]  # fmt: skip
    assert "\r" not in err


def test_progress_on_a_pipe_leaves_time_between_its_lines(capsys) -> None:
    line = terminal.ProgressLine(on_pipe=True)
    line.show("too early")
    assert capsys.readouterr().err == ""


def test_a_point_with_too_little_tcm_is_infeasible_and_has_not_failed(capsys) -> None:
    """The operand of 64 KiB does not fit the 32 KiB beside the scheduler's, and 0.5 MB leave nothing at all."""
    over = ["--over", "machine:cube.memory_map.tcm_mb_per_pe=0.5,1.03125,2", "--workers", "1", "--no-plot"]
    args = ["--bench", "gemm-single-pe", *SMALL, *over, "--out", "s"]
    code, out, _ = sweep(capsys, *args, "--json")
    report = json.loads(out)
    assert (code, report["failed"]) == (0, 0)
    assert (report["best"], report["does_not_fit"], report["infeasible"]) == ([2], [0, 1], [0, 1])
    assert [row["ok"] for row in report["rows"]] == [False, False, True]
    assert report["rows"][0]["infeasible"] == "memory: 1 MB kept of a TCM of 0.5 MB leaves nothing"
    assert report["rows"][1]["infeasible"].startswith("memory: TCM overflow: 65536 bytes")
    lines = sweep(capsys, *args)[1].splitlines()
    at = lines.index("2 infeasible")
    assert lines[at + 2].startswith("  1  memory_map.tcm_mb_per_pe=1.03125: memory: TCM overflow")
    assert sweep(capsys, *args, "--retry-failed", "--json")[1].count('"ran": 0') == 1


TOO_LARGE = """
def run(torch, *, n: int = 1):
    torch.zeros(4)
    return [{"part": "layer", "time_us": 9.0 - n}, {"figure": "memory", "value": 1.0 * n, "fits": n < 3}]
"""


def test_what_does_not_fit_its_memory_is_never_best(capsys) -> None:
    Path("layer.py").write_text(TOO_LARGE)
    args = [*SMALL, "--bench", "layer.py", "--over", "n=1,2,3", "--workers", "1", "--out", "s", "--no-plot"]
    code, out, _ = sweep(capsys, *args, "--objective", "table:time_us[layer]:min", "--json")
    report = json.loads(out)
    assert code == 0
    assert [row["fits"] for row in report["rows"]] == [True, True, False]
    assert (report["best"], report["front"], report["does_not_fit"]) == ([1, 0], [1], [2])
    message = "note: 1 of 3 points do not fit the memory of their machine, and are not ranked"
    assert message in sweep(capsys, *args, "--objective", "table:time_us[layer]")[1].splitlines()
