"""Sweeps end to end: same rows on any number of workers, and nothing lost when a point, a worker or the sweep dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.package import SOURCE

import kernbench
from kernbench.cli.main import main
from kernbench.common.errors import TopologyError, UsageError
from kernbench.report.run_figures import figures_of, run_as_json
from kernbench.runtime_api.user_module import load_user_module
from kernbench.sweep import SweepRow, sweep
from kernbench.sweep.driver import SweepProgress

ROOT = Path(__file__).parents[2]
SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}

BENCH = """
import os, signal, time
import numpy as np


def spin(n, tl):
    tl.cycles(n)


def run(torch, *, n: int = 1, wait_s: float = 0.0):
    time.sleep(wait_s)
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} {n}\\n")
    torch.launch("spin", spin, n, target_cubes=0, target_pes=0)
    return {"double": 2 * n, "text": "no number"}


def fails(torch, *, n: int = 1):
    if n == 2:
        raise ValueError("two is bad")
    if n == 3:
        raise SystemExit(3)
    if n == 4:
        torch.launch("spin", spin, target_cubes=0)
    else:
        run(torch, n=n)


def dies(torch, *, n: int = 1, always: bool = False):
    if n == 2 and (always or not os.path.exists("died")):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    run(torch, n=n)


def stumbles(torch, *, n: int = 1):
    run(torch, n=n)
    if n == 2:
        raise ValueError("two is bad")


def wrong(torch, *, n: int = 1):
    x = torch.full((4,), n, name="x")
    torch.check(x, np.full(4, 1))


def price(spec):
    return spec.n_pes + 0.5
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a bench's folder is put on it
    file = tmp_path / "swept.py"
    file.write_text(BENCH)
    return file


def function(bench: Path, name: str = "run"):
    return getattr(load_user_module(str(bench)), name)


def ran(folder: Path) -> list[int]:
    """Which values of n were run, in order of size."""
    file = folder / "pids"
    return sorted(int(line.split()[1]) for line in file.read_text().splitlines()) if file.exists() else []


# -------------------------------------------------------------------------------------------------------------- rows


def test_rows_come_in_order_of_their_points_with_what_was_set_and_what_came_of_it(bench: Path) -> None:
    over = {"n": [3, 1], "machine:cube.pe_template.components.pe_cpu.attrs.clock_ghz": [1, 2]}
    rows = sweep(function(bench), over, overrides=SMALL, workers=0)
    assert [(row.point, row.params["n"], list(row.machine.values())) for row in rows] == [
        (0, 3, [1]), (1, 3, [2]), (2, 1, [1]), (3, 1, [2]),
    ]  # fmt: skip
    assert all(row.ok and row.launches == 1 and row.error is None for row in rows)
    assert rows[0].total_ns - rows[2].total_ns == 2  # three cycles of 1 ns against one
    assert rows[1].total_ns - rows[3].total_ns == 1  # the same at 2 GHz
    assert [row.returned for row in rows] == [{"double": 6}, {"double": 6}, {"double": 2}, {"double": 2}]
    assert rows[0].machine_hash == rows[2].machine_hash != rows[1].machine_hash


def test_rows_say_the_same_as_a_run(bench: Path) -> None:
    (row,) = sweep(function(bench), {"n": [5]}, overrides=SMALL, workers=0)
    result = kernbench.run(function(bench), None, SMALL, params={"n": 5})
    assert row.total_ns == result.total_ns
    assert row.kernels_ns == run_as_json(figures_of(result))["kernels_ns"] == result.launches[0].exec_ns
    assert (row.flops, row.bytes_hbm) == (0, 0)


def test_time_in_kernels_is_the_same_in_a_sweep_and_a_run_and_counts_sips_that_work_together_once(bench: Path) -> None:
    """Both SIPs run the kernel at the same time: it takes as long as on one, and less than the run."""
    both = {**SMALL, "system.sips.count": 2}
    (row,) = sweep(function(bench), {"n": [5]}, overrides=both, workers=0)
    result = kernbench.run(function(bench), None, both, params={"n": 5})
    assert len(result.launches) == 2
    assert row.kernels_ns == run_as_json(figures_of(result))["kernels_ns"] == result.launches[0].exec_ns
    assert row.kernels_ns < row.total_ns


def test_rows_and_files_are_the_same_whatever_the_number_of_workers(bench: Path, tmp_path: Path) -> None:
    over = {"n": [4, 2, 3, 1, 5], "machine:system.sips.count": [1, 2]}
    seen: list[tuple[list[SweepRow], dict[str, bytes]]] = []
    for workers in (0, 2):
        out = tmp_path / f"out{workers}"
        rows = sweep(function(bench, "fails"), over, overrides=SMALL, workers=workers, out=out)
        files = {file.name: file.read_bytes() for file in out.iterdir() if file.name.startswith(("results", "sweep"))}
        seen.append((rows, files))
    assert sorted(seen[0][1]) == [
        "results.csv", "results.json", "results.parquet", "sweep.json", "sweep.png", "sweep.svg",
    ]  # fmt: skip
    assert seen[0] == seen[1]


def test_the_package_can_be_called(bench: Path) -> None:
    rows = kernbench.sweep(lambda torch, n: function(bench)(torch, n=n), over={"n": [1, 2]}, overrides=SMALL)
    assert [row.ok for row in rows] == [True, True]


def test_points_may_be_a_list_or_axes_side_by_side(bench: Path) -> None:
    run = function(bench)
    points = [{"n": 2}, {"machine:system.sips.count": 2, "n": 1}]
    assert [(r.params["n"], dict(r.machine)) for r in sweep(run, points=points, overrides=SMALL, workers=0)] == [
        (2, {}), (1, {"system.sips.count": 2}),
    ]  # fmt: skip
    rows = sweep(run, {"n": [1, 2], "wait_s": [0.0, 0.001]}, mode="zip", overrides=SMALL, workers=0)
    assert [dict(row.params) for row in rows] == [{"n": 1, "wait_s": 0.0}, {"n": 2, "wait_s": 0.001}]


def test_the_cost_model_can_be_replaced(bench: Path) -> None:
    counts = {"machine:system.sips.count": [1, 2]}
    rows = sweep(function(bench), counts, overrides=SMALL, cost=function(bench, "price"), workers=1)
    assert [row.cost for row in rows] == [8.5, 16.5]
    (row,) = sweep(function(bench), {"n": [1]}, overrides=SMALL, cost=lambda spec: "much")
    assert "the cost model returned 'much'" in str(row.error)


def test_wrong_data_is_found_where_it_is_looked_for(bench: Path) -> None:
    rows = sweep(function(bench, "wrong"), {"n": [1, 2]}, overrides=SMALL, verify_data=True, workers=0)
    assert [(row.ok, row.wrong) for row in rows] == [(True, False), (False, True)]
    assert rows[1].error == "tensor 'x' is wrong: largest error 1"
    rows = sweep(function(bench, "wrong"), {"n": [2]}, overrides=SMALL, workers=0)
    assert [(row.ok, row.wrong) for row in rows] == [(True, False)]


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_a_bad_point_is_a_row_with_its_error(bench: Path) -> None:
    rows = sweep(function(bench, "fails"), {"n": [1, 2, 3, 4]}, overrides=SMALL, workers=0)
    assert [row.ok for row in rows] == [True, False, False, False]
    assert "ValueError: two is bad" in str(rows[1].error)
    assert "swept.py:" in str(rows[1].error)
    assert "SystemExit: 3" in str(rows[2].error)
    assert "spin" in str(rows[3].error)
    assert rows[1].total_ns is None
    assert rows[1].machine_hash == rows[0].machine_hash


def test_a_machine_that_cannot_be_is_a_row_too(bench: Path) -> None:
    rows = sweep(function(bench), {"machine:system.sips.count": [1, -1]}, overrides=SMALL, workers=0)
    assert [row.ok for row in rows] == [True, False]
    assert "out of range" in str(rows[1].error)


def test_a_point_over_a_limit_is_kept_with_the_reason_and_is_not_simulated(bench: Path, tmp_path: Path) -> None:
    macs = "machine:cube.pe_template.components.pe_gemm.attrs.macs_per_ns"
    limits = {**SMALL, "limits.die_mm2": 250.0}
    rows = sweep(function(bench), {macs: [4096.0, 65536.0]}, overrides=limits, workers=0, out=tmp_path / "out")
    assert [(row.ok, row.has_failed) for row in rows] == [(True, False), (False, False)]
    assert rows[0].infeasible is None
    assert rows[1].total_ns is None
    assert str(rows[1].error).startswith("not simulated: a die of kind cube has ")
    assert str(rows[1].infeasible).startswith("a die of kind cube has ")
    assert str(rows[1].infeasible).endswith("more than 250 (limits.die_mm2)")
    assert rows[0].area_low_mm2 < rows[0].area_mm2 < rows[0].area_high_mm2
    assert rows[0].cost_usd < rows[1].cost_usd
    assert rows[0].static_w < rows[1].static_w
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["best"], results["front"], results["infeasible"]) == ([0], [0], [1])
    (huge,) = sweep(function(bench), {macs: [8 * 65536.0]}, overrides=SMALL, workers=0)
    assert (rows[0].warnings, huge.infeasible) == (None, None)
    assert "more than 858 (26 x 33 mm, the field of a scanner)" in str(huge.warnings)


@pytest.mark.needs("addresses", reason="an empty tensor asks something of the device where it is mapped")
def test_a_point_that_does_not_fit_memory_is_infeasible(bench: Path) -> None:
    def large(torch, n):
        torch.empty((n, 1 << 30), dtype="f16")

    fits, fails = sweep(large, {"n": [1, 64]}, overrides=SMALL, workers=0)
    assert (fits.ok, fits.infeasible) == (True, None)
    assert not fails.ok
    assert str(fails.infeasible).startswith("memory: ")


@pytest.mark.parametrize(
    ("over", "error"),
    [
        ({"m": [1]}, UsageError),
        ({"machine:system.sips.cuont": [1]}, TopologyError),
        ({"machine:system.sips.count.x": [1]}, TopologyError),
    ],
)
def test_what_is_wrong_with_every_point_is_said_at_once(bench: Path, tmp_path: Path, over, error) -> None:
    with pytest.raises(error):
        sweep(function(bench), over, overrides=SMALL, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_worker_that_dies_is_replaced_and_its_point_tried_again(bench: Path) -> None:
    rows = sweep(function(bench, "dies"), {"n": [1, 2, 3]}, overrides=SMALL, workers=1)
    assert [row.ok for row in rows] == [True] * 3


def test_a_point_that_kills_every_worker_is_a_row_with_its_error(bench: Path) -> None:
    over = {"n": [1, 2, 3, 4, 5]}
    rows = sweep(function(bench, "dies"), over, params={"always": True}, overrides=SMALL, workers=2)
    assert [row.ok for row in rows] == [True, False, True, True, True]
    assert rows[1].error == "the process that ran this point ended 2 times (signal 9); out of memory, or killed"


def test_a_function_that_no_worker_can_find_is_refused_when_workers_are_asked_for(bench: Path) -> None:
    with pytest.raises(UsageError, match="cannot find the function"):
        sweep(lambda torch: None, {}, workers=2)


def test_a_script_without_a_guard_ends_in_a_message(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import kernbench\n\ndef run(torch, n):\n    pass\n\n"
        "rows = kernbench.sweep(run, {'n': [1, 2]}, workers=1)\nprint(rows)\n"
    )
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "hint:  in a script, call kernbench.sweep under `if __name__ == '__main__':`" in done.stderr
    assert done.stderr.count("Traceback") == 1  # its own, not that of every worker


def test_a_function_of_the_script_itself_is_found_by_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import kernbench\n\ndef idle(tl):\n    tl.cycles(1)\n\n"
        "def run(torch, n):\n    torch.launch('idle', idle, target_cubes=0)\n\n"
        "if __name__ == '__main__':\n"
        "    print([row.ok for row in kernbench.sweep(run, {'n': [1, 2]}, workers=1)])\n"
    )
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[True, True]\n", "")


# ------------------------------------------------------------------------------------------------------------- resume


def test_a_second_call_runs_only_what_is_missing(bench: Path, tmp_path: Path) -> None:
    run, out = function(bench), tmp_path / "out"
    first = sweep(run, {"n": [1, 2]}, overrides=SMALL, workers=0, out=out)
    assert ran(tmp_path) == [1, 2]
    again = sweep(run, {"n": [1, 2]}, overrides=SMALL, workers=0, out=out)
    assert again == first
    assert ran(tmp_path) == [1, 2]
    more = sweep(run, {"n": [0, 1, 2]}, overrides=SMALL, workers=0, out=out)
    assert ran(tmp_path) == [0, 1, 2]
    assert [row.point for row in more] == [0, 1, 2]
    assert [row.total_ns for row in more[1:]] == [row.total_ns for row in first]


def test_failed_points_are_run_again_only_when_that_is_asked_for(bench: Path, tmp_path: Path) -> None:
    run, out = function(bench, "stumbles"), tmp_path / "out"
    how = {"overrides": SMALL, "workers": 0, "out": out}
    assert [row.ok for row in sweep(run, {"n": [1, 2]}, **how)] == [True, False]
    assert ran(tmp_path) == [1, 2]
    assert [row.ok for row in sweep(run, {"n": [1, 2]}, **how)] == [True, False]
    assert ran(tmp_path) == [1, 2]
    assert [row.ok for row in sweep(run, {"n": [1, 2]}, retry_failed=True, **how)] == [True, False]
    assert ran(tmp_path) == [1, 2, 2]


def test_another_machine_or_another_text_of_the_bench_is_refused(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep(function(bench), {"n": [1]}, overrides=SMALL, workers=0, out=out)
    with pytest.raises(UsageError, match="another sweep: machine "):
        sweep(function(bench), {"n": [1]}, overrides={**SMALL, "system.sips.count": 2}, workers=0, out=out)
    bench.write_text(BENCH + "\n# edited\n")
    with pytest.raises(UsageError, match="another sweep: source "):
        sweep(function(bench), {"n": [1]}, overrides=SMALL, workers=0, out=out)


def test_damaged_result_files_are_written_again(bench: Path, tmp_path: Path) -> None:
    run, out = function(bench), tmp_path / "out"
    names = ("results.json", "results.csv", "results.parquet", "sweep.json")
    sweep(run, {"n": [1, 2]}, overrides=SMALL, workers=0, out=out)
    before = {name: (out / name).read_bytes() for name in names}
    for name, damage in zip(names, (b"", b"garbage", b"", b"garbage"), strict=True):
        (out / name).write_bytes(damage)
    sweep(run, {"n": [1, 2]}, overrides=SMALL, workers=0, out=out)
    assert {name: (out / name).read_bytes() for name in names} == before
    assert ran(tmp_path) == [1, 2]


def test_progress_says_how_far_it_is_and_how_long_it_takes(bench: Path) -> None:
    seen: list[SweepProgress] = []
    sweep(function(bench, "fails"), {"n": [1, 2, 5]}, overrides=SMALL, workers=0, progress=seen.append)
    assert [(p.done, p.total, p.failed) for p in seen] == [(1, 3, 0), (2, 3, 1), (3, 3, 1)]
    assert seen[0].left_s > 0
    assert seen[-1].left_s == 0


# -------------------------------------------------------------------------------------------------------- being killed

PROGRAM = ["-c", "from kernbench.cli.main import main; main()"]
SMALL_OPTIONS = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]


def as_in_a_terminal() -> None:
    """A shell starts what runs in the background deaf to Ctrl-C, and so the tests that run there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def command(count: int, wait_s: float, workers: int = 2) -> list[str]:
    over = ["--over", f"n=1..{count}", "--param", f"wait_s={wait_s}", "--out", "out"]
    return ["sweep", "--bench", "swept.py", "--workers", str(workers), *over, *SMALL_OPTIONS]


def start(folder: Path, command: list[str], *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *PROGRAM, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*more, SOURCE])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_in_a_terminal,
    )


def rows_written(folder: Path) -> int:
    file = folder / "out" / "rows.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_until(what, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


INTERRUPTS = """\
import os, pathlib, signal, sys
if "--multiprocessing-fork" in sys.orig_argv:  # a worker, before it runs any code of KernBench
    os.kill(os.getpid(), signal.SIGINT)
    try:
        pathlib.Path("interrupted").touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        os.kill(os.getppid(), signal.SIGINT)
"""


def test_an_interrupt_while_workers_start_is_one_line(bench: Path, tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "sitecustomize.py").write_text(INTERRUPTS)
    stopped = start(tmp_path, command(8, 0.0), str(tmp_path / "early"))
    out, err = stopped.communicate(timeout=60)
    assert (stopped.returncode, out) == (130, "")
    assert err == "stopped; rows are in out, the same command goes on\n"


@pytest.mark.parametrize(("how", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGKILL, 1)])
def test_a_sweep_that_is_stopped_goes_on_where_it_was(
    bench: Path,
    tmp_path: Path,
    how: signal.Signals,
    workers: int,
    points_in_this_process: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = start(tmp_path, command(8, 0.3, workers))
    wait_until(lambda: rows_written(tmp_path) >= 2)
    stopped.send_signal(how)
    out, err = stopped.communicate(timeout=30)
    assert "Traceback" not in out + err
    if how == signal.SIGINT:
        assert stopped.returncode == 130
        assert "the same command goes on" in err
    pids = {int(line.split()[0]) for line in (tmp_path / "pids").read_text().splitlines()}
    wait_until(lambda: not any(is_alive(pid) for pid in sorted(pids)))
    done = rows_written(tmp_path)
    assert 2 <= done < 8
    (tmp_path / "pids").unlink()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(SystemExit) as again:  # the same command, in this process, whose points wait for nothing
        main(command(8, 0.3, workers))
    assert again.value.code == 0
    assert f"8 points, {8 - done} run now, {done} kept" in capsys.readouterr().out
    assert len(ran(tmp_path)) == 8 - done
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [row["params"]["n"] for row in rows] == list(range(1, 9))
    assert all(row["ok"] for row in rows)
