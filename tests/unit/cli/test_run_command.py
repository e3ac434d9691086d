"""`kernbench run` and `kernbench list` on the command line: summary, JSON, exit codes, bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.package import SOURCE

from kernbench.cli import terminal
from kernbench.cli.main import main
from kernbench.values.backends import backend_named

ROOT = Path(__file__).parents[3]
SMALL = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1"]
GEMM = ["--bench", "gemm-single-pe", "--param", "m=32", "--param", "k=64", "--param", "n=32"]
JSON_KEYS = {"schema", "command", "bench", "ok", "total_ns", "launches", "data", "backend"}
LAUNCH_KEYS = {"name", "total_ns", "pe_exec_ns_max", "pe_exec_ns_min", "flops", "bytes_hbm", "engines"}

BENCHES = """
import numpy as np
from kernbench.benches.registry import bench
from kernbench.policy.placement.dp import DPPolicy

def copy(x, out, tl):
    tl.store(out, tl.load(x))

def too_far(x, n, tl):
    if tl.program_id(0) == 2:
        tl.load(x + 8, shape=(n,))

def stores(x, half, tl):
    if tl.program_id(0) % 2 == 0:
        tl.store(half.local, tl.load(x.local))

def uneven(tl):
    tl.cycles(100 * tl.program_id(0) + 1)

@bench(name="right-copy", description="A copy.")
def right(torch, times: int = 1):
    x, out = torch.full((8,), 3, name="x"), torch.empty(8, name="out")
    for _ in range(times):
        torch.launch("copy", copy, x, out)
    torch.check(out, np.full(8, 3))

@bench(name="whole-tray", description="All SIPs at once.", devices="whole")
def tray(torch):
    torch.launch("idle", lambda tl: tl.cycles(1), sips="all")

@bench(name="forgets", description="A copy that half of the PEs forget.")
def forgets(torch):
    dp = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)
    x, half = torch.zeros(4, 8, dp=dp, name="x"), torch.empty(4, 8, dp=dp, name="half")
    torch.launch("stores", stores, x, half)
    torch.check(x, np.zeros((4, 8)))
    torch.check(half, np.zeros((4, 8)))

@bench(name="uneven", description="Every PE takes a while longer.")
def takes_long(torch):
    torch.launch("uneven", uneven, target_cubes=0, target_pes=(0, 1, 2, 3))

@bench(name="wrong-copy", description="A copy that is thought to be something else.")
def wrong(torch):
    x, out = torch.full((8,), 3, name="x"), torch.empty(8, name="out")
    torch.launch("copy", copy, x, out)
    torch.check(out, np.arange(8))

@bench(name="too-far", description="A kernel with a mistake on one PE.")
def far(torch, n: int = 8):
    torch.launch("too_far", too_far, torch.zeros(8, name="x"), n, target_pes=(0, 1, 2, 3))

@bench(name="host-mistake", description="Host code with a mistake.")
def host(torch):
    return {}["missing"]

@bench(name="leaves", description="Host code that would end the program.")
def leaves(torch):
    raise SystemExit(0)

@bench(name="idle", description="Asks nothing of the device.")
def idle(torch):
    pass
"""

TALKS = """
print("on import")

def talk(tl):
    print("in the kernel")

def run(torch):
    print("in the bench")
    torch.launch("talk", talk, target_cubes=0, target_pes=0)
"""


ENDLESS = """
import numpy as np

def run(torch, *, most: float = float("inf")):
    x = torch.zeros(4)
    torch.check(x, np.zeros(4), rtol=0, atol=most)
    torch.check(x, np.zeros(4), rtol=np.float32(0.5), atol=0)
"""


def run(capsys, *args):
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return ended.value.code, out, err


def run_small(capsys, *args):
    return run(capsys, "run", *SMALL, *args)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(BENCHES)
    return tmp_path


# ---- JSON


def test_json_has_the_promised_keys_and_figures_worked_out_by_hand(capsys):
    code, out, err = run_small(capsys, *GEMM, "--verify-data", "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert set(data) >= JSON_KEYS
    assert (data["schema"], data["command"], data["bench"], data["ok"]) == (1, "run", "gemm-single-pe", True)
    (launch,) = data["launches"]
    assert set(launch) >= LAUNCH_KEYS
    assert launch["flops"] == 2 * 32 * 64 * 32
    assert launch["bytes_hbm"] == 2 * (32 * 64 + 64 * 32 + 32 * 32)
    assert launch["engines"]["pe_gemm"]["busy_ns"] == 32 * 64 * 32 / 4096
    assert launch["pe_exec_ns_max"] == launch["pe_exec_ns_min"] < launch["total_ns"] < data["total_ns"]
    (check,) = data["data"]
    assert (check["tensor"], check["ok"], check["rtol"], check["atol"]) == ("c", True, 1e-3, 1e-3)
    assert 0 <= check["max_abs_err"] < 1e-2
    assert data["backend"] == {"name": "numpy", "device": "cpu"}


def test_a_backend_that_is_not_there_is_exit_code_2(capsys, monkeypatch):
    backend_named.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "kernbench.values.on_torch.backend", raising=False)
    code, out, err = run_small(capsys, *GEMM, "--backend", "torch")
    assert (code, out) == (2, "")
    assert "the torch backend needs PyTorch" in err
    code, out, err = run_small(capsys, *GEMM, "--backend", "cuda")
    assert (code, out) == (2, "")
    assert "'numpy', 'torch'" in err


def test_verifying_changes_no_time_and_nothing_but_the_data(capsys):
    plain, verified, debugged = (
        json.loads(run_small(capsys, *GEMM, "--json", *flags)[1]) for flags in ([], ["--verify-data"], ["--debug-ops"])
    )
    assert plain["data"] == []
    assert verified["data"] == debugged["data"] != []
    assert debugged["ops"]["compared"] > 0
    for other in (verified, debugged):
        assert {**other, "data": None, "ops": None} == {**plain, "data": None, "ops": None}


def test_every_device_runs_the_bench_and_each_is_reported(capsys):
    two = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]
    data = json.loads(run(capsys, "run", *two, *GEMM, "--verify-data", "--json")[1])
    assert [launch["sips"] for launch in data["launches"]] == [[0], [1]]
    assert [check["tensor"] for check in data["data"]] == ["c@sip0", "c@sip1"]
    data = json.loads(run(capsys, "run", *two, *GEMM, "--device", "sip:1", "--json")[1])
    assert ([launch["sips"] for launch in data["launches"]], data["devices"]) == ([[1]], ["sip:1"])


@pytest.mark.parametrize("device", [[], ["--device", "all"], ["--device", "whole"]])
def test_a_bench_of_the_whole_tray_runs_once(capsys, mine, device):
    data = json.loads(run(capsys, "run", "--bench", f"{mine}/mine.py:whole-tray", *device, "--json", *SMALL[:4])[1])
    assert data["devices"] == ["sip:0", "sip:1"]
    assert [launch["sips"] for launch in data["launches"]] == [[0, 1]]
    plain = json.loads(
        run(capsys, "run", "--bench", f"{mine}/mine.py:right-copy", "--device", "whole", "--json", *SMALL[:4])[1]
    )
    assert (plain["devices"], len(plain["launches"])) == (["sip:0", "sip:1"], 1)


def test_a_bench_of_the_whole_tray_takes_no_single_device(capsys, mine):
    code, _, err = run(capsys, "run", "--bench", f"{mine}/mine.py:whole-tray", "--device", "sip:0", *SMALL)
    assert code == 2
    assert "drives the whole tray, not sip:0" in err


def test_list_says_which_benches_drive_the_whole_tray(capsys, mine):
    with pytest.raises(SystemExit):
        main(["list", f"{mine}/mine.py:whole-tray", "--json"])
    assert json.loads(capsys.readouterr().out)["benches"][0]["devices"] == "whole"
    with pytest.raises(SystemExit):
        main(["list", f"{mine}/mine.py:whole-tray"])
    assert capsys.readouterr().out.splitlines()[0] == "whole-tray: All SIPs at once. [whole tray]"


def test_output_is_the_same_bytes_for_any_hash_seed():
    command = [sys.executable, "-c", "from kernbench.cli.main import main; main()", "run", *SMALL]
    command += ["--bench", "flash-attention", "--param", "seq_k=64", "--param", "pes=0", "--verify-data", "--json"]
    outputs = []
    for seed in ("0", "4242"):
        env = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONHASHSEED": seed}
        outputs.append(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
    assert outputs[0] == outputs[1] != b""


# ---- the summary


def test_the_first_six_lines_say_time_bound_data_what_to_try_and_where_to_look(capsys, tmp_path):
    code, out, err = run_small(capsys, *GEMM, "--verify-data")
    assert (code, err) == (0, "")
    command = "kernbench run --bench gemm-single-pe"
    lines = out.splitlines()
    assert lines[0].startswith("bench gemm-single-pe on machine default, sip:0: ")
    assert ", kernels " in lines[0]
    assert [line[:12].strip() for line in lines[1:6]] == ["bound by", "data", "try", "look at", "then"]
    assert ", host " in lines[0]
    assert lines[1].startswith("  bound by  host writes, launching; in kernels: ")
    assert lines[1].endswith("% of the critical path")
    assert lines[2] == "  data      [v] PASS 1 compared"
    assert lines[4].startswith(f"  look at   {command} --set ")
    assert lines[4].endswith(" --verify-data --save gemm-single-pe-run")
    assert lines[5].startswith("  then      kernbench explain gemm-single-pe-run")
    assert "Critical path of the launch" in out
    assert len(lines) <= 35
    assert not any(word in out for word in ("Energy", "Roofline of", "Busiest links", "Engines during"))
    saved = tmp_path / "run"
    lines = run_small(capsys, *GEMM, "--save", str(saved))[1].splitlines()
    assert lines[4].startswith(f"  run       kernbench explain {saved}")
    assert lines[5] == f"  look at   kernbench web {saved}"


def test_a_faster_tile_is_tried_by_a_command_that_can_be_copied(capsys):
    _, out, _ = run_small(capsys, "--bench", "qkv-gemm")
    line = next(line for line in out.splitlines() if line.startswith("  run "))
    assert line.endswith(" --param tile=auto")
    words = line.split()[1:]
    faster = run(capsys, *words[1:], "--json")[1]
    assert (
        json.loads(faster)["total_ns"] < json.loads(run_small(capsys, "--bench", "qkv-gemm", "--json")[1])["total_ns"]
    )


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_the_full_summary_says_time_bound_busy_engines_links_and_data(capsys):
    code, out, err = run_small(capsys, *GEMM, "--verify-data", "--full")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    for text in (
        "bench gemm-single-pe on machine default, sip:0",
        "m=32, k=64, n=32, block_m=0, dtype=f16, seed=0",
        "latency bound; the largest term of the roofline is memory; ",
        "% of roofline",
        "slowest PE",
        "TFLOP/s (f16)",
        "peak of 1 PE",
        "pe_dma",
        "sip0.cube0.hbm_ctrl.pe0 -> sip0.cube0.noc.r0c0",
        "[v] PASS  c  f16",
    ):
        assert text in out
    # a command stands on one line, so that it can be copied
    assert max(len(line) for line in out.splitlines() if " kernbench run " not in line) <= 120


def test_without_verification_the_summary_says_how_to_ask_for_it(capsys):
    assert "--verify-data" in run_small(capsys, *GEMM)[1]


def test_progress_is_for_long_runs_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.0)
    monkeypatch.setattr("kernbench.sim_engine.engine.STEPS_PER_REPORT", 1)
    assert run_small(capsys, *GEMM)[2] == ""  # no progress without a terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, _, err = run_small(capsys, *GEMM)
    assert code == 0
    assert "run gemm-single-pe: " in err
    assert err.endswith("\r")


# ---- a user's own benches


def test_a_users_file_runs(capsys, mine):
    code, out, _ = run_small(capsys, "--bench", "mine.py:right-copy", "--verify-data")
    assert code == 0
    assert "[v] PASS  out  f16" in out


def test_wrong_data_is_exit_code_1(capsys, mine):
    code, out, _ = run_small(capsys, "--bench", "mine.py:wrong-copy", "--verify-data")
    assert code == 1
    assert "[x] FAIL  out  f16  max error 4" in out  # 3 against 7
    code, out, _ = run_small(capsys, "--bench", "mine.py:wrong-copy", "--verify-data", "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)
    assert run_small(capsys, "--bench", "mine.py:wrong-copy")[0] == 0  # without --verify-data


def test_a_kernels_mistake_is_one_message_with_its_pe_and_line(capsys, mine):
    code, out, err = run_small(capsys, "--bench", "mine.py:too-far")
    assert (code, out) == (2, "")
    assert err.startswith("error: kernel 'too_far' failed on sip 0, cube 0, pe 2: KernelError: load: 16 bytes")
    assert "mine.py:11  tl.load(x + 8, shape=(n,))" in err
    assert err.count("error:") == 1


def test_a_mistake_in_host_code_is_one_message_with_its_line(capsys, mine):
    code, out, err = run_small(capsys, "--bench", "mine.py:host-mistake")
    assert (code, out) == (2, "")
    assert "bench 'host-mistake' failed: KeyError: 'missing'" in err
    assert 'return {}["missing"]' in err


def test_a_bench_cannot_end_the_program(capsys, mine):
    code, out, err = run_small(capsys, "--bench", "mine.py:leaves")
    assert (code, out) == (2, "")
    assert "bench 'leaves' failed: SystemExit: 0" in err


def test_an_output_that_was_never_written_is_a_failed_row_beside_the_others(capsys, mine):
    args = ("--bench", "mine.py:forgets", "--verify-data")
    code, out, err = run_small(capsys, *args)
    assert "  data      [x] FAIL 1 of 2 compared: half" in out
    assert (code, err) == (1, "")
    assert "[v] PASS  x     f16   max error 0 " in out
    assert "[x] FAIL  half  f16  not compared  rtol 0.001" in out
    # 4 rows of 8 f16 over 4 PEs, of which PEs 1 and 3 forgot theirs
    assert (
        "half: 32 of 64 bytes were never written, the first of them element [1, 0], on sip0.cube0.pe1 and 1 more PE"
        in out
    )
    assert "  stores  sip:0 " in out
    data = json.loads(run_small(capsys, *args, "--json")[1])
    assert (data["ok"], data["launches"][0]["name"]) == (False, "stores")
    x, half = data["data"]
    assert (x["tensor"], x["ok"], "reason" in x) == ("x", True, False)
    assert (half["tensor"], half["ok"], half["max_abs_err"]) == ("half", False, None)
    assert half["reason"].startswith("32 of 64 bytes were never written")


@pytest.mark.parametrize("flag", ["--verify-data", "--debug-ops"])
def test_a_bench_that_states_nothing_cannot_be_verified(capsys, mine, flag):
    code, out, err = run_small(capsys, "--bench", "mine.py:too-far", "--param", "n=4", flag)
    assert code == 2
    assert "  too_far  sip:0 " in out
    assert "[x] FAIL the bench states no reference, so nothing was compared" in out
    assert err.startswith("error: the bench states no reference")
    assert "torch.check(tensor, array)" in err
    code, out, _ = run_small(capsys, "--bench", "mine.py:too-far", "--param", "n=4", flag, "--json")
    data = json.loads(out)
    assert (code, data["ok"], data["error"]["code"], data["data"]) == (2, False, "NO_REFERENCE", [])
    assert run_small(capsys, "--bench", "mine.py:too-far", "--param", "n=4")[0] == 0  # without the check


def test_infinity_is_null_in_json(capsys, tmp_path):
    file = tmp_path / "endless.py"
    file.write_text(ENDLESS)
    code, out, err = run_small(capsys, "--bench", str(file), "--verify-data", "--json")
    data = json.loads(out, parse_constant=pytest.fail)
    assert (code, err, data["params"]) == (0, "", {"most": None})
    assert [(check["rtol"], check["atol"]) for check in data["data"]] == [(0, None), (0.5, 0)]


def test_json_stands_alone_on_standard_output_whatever_a_bench_prints(capsys, mine):
    (mine / "talks.py").write_text(TALKS)
    code, out, err = run_small(capsys, "--bench", "talks.py", "--json")
    assert (code, json.loads(out)["bench"]) == (0, "talks:run")
    assert err.splitlines() == ["on import", "in the bench", "in the kernel"]
    _, out, err = run_small(capsys, "--bench", "talks.py")
    assert (out.splitlines()[:3], err) == (["on import", "in the bench", "in the kernel"], "")
    _, out, err = run(capsys, "list", "talks.py", "--json")
    assert (json.loads(out)["benches"][0]["name"], err) == ("talks:run", "on import\n")


def test_every_pe_is_reported_in_json_and_the_spread_in_words(capsys, mine):
    data = json.loads(run_small(capsys, "--bench", "mine.py:uneven", "--json")[1])
    launch = data["launches"][0]
    assert launch["pes"] == 4
    # PE n waits 100 * n ns, with a cycle a ns; 1 ns goes by for each command
    assert [pe["pe"] for pe in launch["per_pe"]] == [0, 1, 2, 3]
    took = [pe["pe_exec_ns"] for pe in launch["per_pe"]]
    assert [ns - took[0] for ns in took] == [0, 100, 200, 300]
    assert launch["per_pe"][1] == {
        "sip": 0, "cube": 0, "pe": 1, "pe_exec_ns": took[1], "dma_ns": 0.0, "compute_ns": 0.0,
        "tcm_peak_bytes": 0,
    }  # fmt: skip
    lines = run_small(capsys, "--bench", "mine.py:uneven", "--full")[1].splitlines()
    at = lines.index("PEs of uneven, the slowest launch")
    shown = [line.split() for line in lines[at + 2 : at + 5]]
    assert [(line[0], line[-1]) for line in shown] == [
        ("slowest", "sip0.cube0.pe3"),
        ("median", "sip0.cube0.pe1"),
        ("fastest", "sip0.cube0.pe0"),
    ]


def test_several_launches_are_added_up(capsys, mine):
    args = ("--bench", "mine.py:right-copy", "--param", "times=3")
    data = json.loads(run_small(capsys, *args, "--json")[1])
    # 16 bytes each way are a burst each way
    totals = {"flops": 0, "bytes_hbm": 3 * 2 * 256, "bytes_hbm_requested": 3 * 2 * 16, "bytes_sent": 0}
    assert data["totals"] == totals
    assert data["kernels_ns"] == pytest.approx(sum(launch["pe_exec_ns_max"] for launch in data["launches"]))
    _, out, _ = run_small(capsys, *args)
    (line,) = (line for line in out.splitlines() if line.startswith("  total of 3: "))
    assert line.endswith(", 0 flops, HBM: 96 B requested, 1.5 KiB moved in whole bursts")
    assert "total of" not in run_small(capsys, *args[:2])[1]


def test_a_bench_that_asks_nothing_of_the_device_is_a_failure(capsys, mine):
    code, out, _ = run_small(capsys, "--bench", "mine.py:idle")
    assert code == 1
    assert "[x] FAIL the bench asked nothing of the device" in out
    data = json.loads(run_small(capsys, "--bench", "mine.py:idle", "--json")[1])
    assert (data["ok"], data["error"]["code"]) == (False, "NO_REQUESTS")


# ---- bad input


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "give --bench BENCH, or --triton FILE.py"),
        (("--bench", "gem-single-pe"), "did you mean 'gemm-single-pe'?"),
        (("--bench", "77"), "no bench has number 77"),
        (("--bench", "nowhere.py"), "no file nowhere.py"),
        ((*GEMM, "--param", "q=1"), "parameters of this bench: m (int)"),
        ((*GEMM, "--param", "m=big"), "give a whole number"),
        ((*GEMM, "--param", "m=0"), "m is '0'\n  where: --param m=0\n  hint:  give a whole number, 1 or more"),
        ((*GEMM, "--param", "m=-1"), "m is '-1'"),
        (
            (*GEMM, "--param", "seed=-1"),
            "seed is '-1'\n  where: --param seed=-1\n  hint:  give a whole number, 0 or more",
        ),
        (("--bench", "layernorm", "--param", "eps=-0.5"), "hint:  give a number, 0 or more"),
        (("--bench", "flash-attention", "--param", "pes=-1"), "pes is '-1'"),
        ((*GEMM, "--param", "m=9999"), "TCM overflow"),
        ((*GEMM, "--device", "sip:1"), "no device 'sip:1'"),
        ((*GEMM, "--set", "sip.cube_mesh.w=0"), "sip.cube_mesh.w"),
        (("--bench", "va-offset-verify", "--set", "system.address_model=pa"), "needs virtual or logical addresses"),
        (("--bench", "softmax", "--param", "block_rows=0"), "block_rows is '0'"),
        (("--bench", "flash-attention", "--param", "pes=99"), "the machine has 8"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_message(capsys, tmp_path, monkeypatch, args, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_small(capsys, *args)
    assert (code, out) == (2, "")
    assert says in err
    assert list(tmp_path.iterdir()) == []


# ---- the op log as a file


def test_op_log_file_holds_every_op_and_changes_no_figure(capsys, tmp_path):
    pytest.importorskip("pyarrow")
    from kernbench.sim_engine.op_stream import read_op_stream

    file = tmp_path / "ops.parquet"
    plain = run_small(capsys, *GEMM, "--json")[1]
    assert run_small(capsys, *GEMM, "--json", "--oplog", str(file))[1] == plain
    kernels = [record.op_name for _, record in read_op_stream(file) if record.op_kind != "host"]
    assert kernels == ["dma_read", "dma_read", "gemm_f16", "dma_write"]
    code, _, err = run_small(capsys, *GEMM, "--oplog", str(tmp_path / "no" / "ops.parquet"))
    assert code == 2
    assert "cannot be written" in err
    assert run_small(capsys, *GEMM, "--oplog", str(tmp_path))[0] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ("--bench", "mine.py:right-copy", "--device", "sip:9"),
        ("--bench", "mine.py:right-copy", "--param", "times=often"),
        ("--bench", "mine.py:too-far"),
        ("--bench", "mine.py:host-mistake"),
    ],
)
def test_an_op_log_file_is_as_it_was_when_a_run_fails(capsys, mine, wrong):
    pytest.importorskip("pyarrow")
    (mine / "ops.parquet").write_text("PAR1 precious")
    files = sorted(mine.iterdir())
    assert run_small(capsys, *wrong, "--oplog", "ops.parquet")[0] == 2
    assert (mine / "ops.parquet").read_text() == "PAR1 precious"
    assert sorted(mine.iterdir()) == files


def test_an_op_log_file_is_replaced_when_a_run_is_over_right_or_wrong(capsys, mine):
    pytest.importorskip("pyarrow")
    from kernbench.sim_engine.op_stream import read_op_stream

    (mine / "link.parquet").symlink_to("ops.parquet")
    for bench, code in (("right-copy", 0), ("wrong-copy", 1)):
        (mine / "ops.parquet").write_text("PAR1 old")
        args = ("--bench", f"mine.py:{bench}", "--verify-data", "--oplog", "link.parquet")
        assert run_small(capsys, *args)[0] == code
        kernels = [record.op_name for _, record in read_op_stream(mine / "ops.parquet") if record.op_kind != "host"]
        assert kernels == ["dma_read", "dma_write"]
        assert (mine / "link.parquet").is_symlink()
        assert sorted(path.name for path in mine.iterdir()) == ["link.parquet", "mine.py", "ops.parquet"]


def test_a_bench_that_refuses_its_parameters_names_no_line_of_its_own(capsys):
    code, _, err = run_small(capsys, "--bench", "ccl-bench", "--param", "collective=broadcast", "--param", "root=9")
    assert code == 2
    assert err.endswith("error: root 9 of 1 rank\n  hint:  give 0 to 0\n")


def test_an_op_log_file_replaces_nothing_but_parquet(capsys, mine):
    """Also no machine that the run itself uses; nothing is simulated."""
    (mine / "machine.yaml").write_text("system: { name: mine }\n")
    args = ("--topology", "machine.yaml", "--oplog", "machine.yaml")
    code, out, err = run_small(capsys, "--bench", "mine.py:right-copy", *args)
    assert (code, out) == (2, "")
    assert "'machine.yaml' cannot be written: the file is there and is no Parquet file" in err
    assert "where: --oplog machine.yaml" in err
    assert (mine / "machine.yaml").read_text() == "system: { name: mine }\n"


def test_a_mapping_report_replaces_nothing_but_a_mapping(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layer = ("--bench", "llm-layer", "--param", "tokens=4", "--set", "cube.pe_layout.pe_per_corner=1")
    (tmp_path / "notes.txt").write_text("notes")
    for option in ("--mapping-report=notes.txt", "--param=mapping_report=notes.txt"):
        code, out, err = run_small(capsys, *layer, option)
        assert (code, out) == (2, "")
        assert "'notes.txt' cannot be written: the file is there and is no mapping" in err
        assert "where: parameter 'mapping_report'" in err
        assert (tmp_path / "notes.txt").read_text() == "notes"
    for _ in range(2):  # the second time, it replaces the first
        code, out, _ = run_small(capsys, *layer, "--mapping-report=choice.yaml")
        assert code == 0
        assert "wrote choice.yaml\n" in out


def test_an_op_log_file_is_as_it_was_when_a_run_is_interrupted(capsys, mine, monkeypatch):
    pytest.importorskip("pyarrow")

    def interrupt(*_):
        assert [path.suffix for path in mine.glob(".*")] == [".part"]
        raise KeyboardInterrupt

    (mine / "ops.parquet").write_text("PAR1 precious")
    monkeypatch.setattr("kernbench.sim_engine.engine.GraphEngine.run_until", interrupt)
    code, out, err = run_small(capsys, "--bench", "mine.py:right-copy", "--oplog", "ops.parquet")
    assert (code, out, err.lstrip()) == (130, "", "stopped\n")
    assert (mine / "ops.parquet").read_text() == "PAR1 precious"
    assert sorted(path.name for path in mine.iterdir()) == ["mine.py", "ops.parquet"]


# ---- list


def test_list_has_a_line_for_each_bench(capsys):
    code, out, _ = run(capsys, "list")
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines] == [str(number) for number in range(1, len(lines) + 1)]
    assert any(line.split()[1] == "gemm-single-pe" for line in lines)


def test_list_of_one_bench_shows_its_parameters(capsys):
    code, out, _ = run(capsys, "list", "matmul-composite")
    assert code == 0
    (variant,) = (line for line in out.splitlines() if line.startswith("variant"))
    shown = "variant load-ref load | load-ref | ref MATMUL_VARIANT operands in TCM: both, the left one, none"
    assert " ".join(variant.split()) == shown
    (m,) = (line for line in out.splitlines() if line.startswith("m "))
    assert " ".join(m.split()) == "m 128 int, 1 or more MATMUL_M rows of a and c"


def test_every_parameter_of_a_shipped_bench_says_what_it_means(capsys):
    for bench in json.loads(run(capsys, "list", "--json")[1])["benches"]:
        assert all(param["meaning"] for param in bench["params"])


def test_list_as_json(capsys):
    everything = json.loads(run(capsys, "list", "--json")[1])
    assert (everything["schema"], everything["command"]) == (1, "list")
    one = json.loads(run(capsys, "list", "softmax", "--json")[1])["benches"]
    assert one == [bench for bench in everything["benches"] if bench["name"] == "softmax"]
    fused = {"name": "fused", "type": "bool", "default": False, "choices": [], "env": None}
    more = {"least": None, "meaning": "one tl.softmax instead of its steps"}
    assert {**fused, **more} in one[0]["params"]


def test_list_of_what_is_not_there_is_exit_code_2(capsys):
    code, out, err = run(capsys, "list", "softmx")
    assert (code, out) == (2, "")
    assert "did you mean 'softmax'?" in err


def test_bins_without_a_saved_run_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--bench", "gemm-single-pe", "--bins", "512"])
    assert stopped.value.code == 2
    assert "--bins without --save" in capsys.readouterr().err


def test_an_evaluation_refuses_a_backend_that_it_would_not_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--bench", "pe-dma-perf", "--backend", "torch"])
    assert stopped.value.code == 2
    assert "--backend is for one run" in capsys.readouterr().err


# ---- fast paths

STEPS = """
from kernbench import repeatable

@repeatable
def add_one(x, tl):
    tl.store(x.local, tl.load(x.local, (8, 64)) + 1.0)

def waits(cycles, tl):
    tl.cycles(cycles)
    tl.dot(tl.zeros((16, 16)), tl.zeros((16, 16)))

def run(torch, faulty: bool = False):
    x = torch.zeros(8, 64)
    for _ in range(3):
        torch.launch("add_one", add_one, x)
    cycles = 100 + (faulty and torch.engine.fast_paths.compiled)
    torch.launch("waits", waits, cycles, target_pes=(1,), target_cubes=(0,))
"""


@pytest.fixture
def steps(tmp_path: Path) -> list[str]:
    (tmp_path / "steps.py").write_text(STEPS)
    return ["run", "--bench", str(tmp_path / "steps.py"), *SMALL]


def test_a_run_is_checked_and_json_gains_a_key_only_then(steps: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    plain = printed([*steps, "--json"], capsys)
    checked = printed([*steps, "--check-fast", "--json"], capsys)
    assert checked.pop("fast_check") == {"ok": True, "difference": None, "without": {}, "guilty": []}
    assert checked == plain
    assert "simulation" not in plain


def test_a_difference_ends_with_1_and_names_op_pe_and_line(
    steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*steps, "--param", "faulty=true", "--check-fast=each"])
    assert stopped.value.code == 1
    text = capsys.readouterr().out
    assert re.search(r"op log: op \d+, gemm_f16 on sip0.cube0.pe1.pe_gemm at", text)
    assert "steps.py:10" in text
    assert "the difference comes from: compiled" in text


def test_stats_say_what_was_reused(steps: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    plain = printed([*steps, "--json"], capsys)
    found = printed([*steps, "--stats", "--json"], capsys)
    simulation, verdict = found.pop("simulation"), found.pop("verdict")
    assert found == plain
    assert list(verdict) == ["cause", "share", "gain", "sentence", "command"]
    assert verdict["cause"] == "launch"  # one small kernel after the other
    assert " ".join(simulation) == "launches collectives composites compiled workers seconds"
    why = {"the kernel is not @repeatable": 1}
    assert simulation["launches"] == {"simulated": 2, "recorded": 1, "reused": 2, "given_up": why}
    assert list(simulation["seconds"]) == ["simulate", "verify", "report"]
    with pytest.raises(SystemExit):
        main([*steps, "--stats"])
    text = capsys.readouterr().out
    assert "launches     2 replayed, 2 simulated (1 recorded)\n  1 x the kernel is not @repeatable" in text


def test_the_first_run_is_what_is_saved(steps: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed([*steps, "--save", str(tmp_path / "saved"), "--check-fast", "--json"], capsys)["fast_check"]["ok"]
    assert (tmp_path / "saved" / "manifest.json").exists()
    assert printed([*steps, "--oplog", str(tmp_path / "ops"), "--check-fast", "--json"], capsys)["fast_check"]["ok"]
    assert (tmp_path / "ops").exists()


def printed(args: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with pytest.raises(SystemExit) as stopped:
        main(args)
    assert stopped.value.code == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found
