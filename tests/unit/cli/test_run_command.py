"""`kernbench run` and `kernbench list` on the command line: summary, JSON, exit codes, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.cli import terminal
from kernbench.cli.main import main

ROOT = Path(__file__).parents[3]
SMALL = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1"]
GEMM = ["--bench", "gemm-single-pe", "--param", "m=32", "--param", "k=64", "--param", "n=32"]
JSON_KEYS = {"schema", "command", "bench", "ok", "total_ns", "launches", "data"}
LAUNCH_KEYS = {"name", "total_ns", "pe_exec_ns_max", "pe_exec_ns_min", "flops", "bytes_hbm", "engines"}

BENCHES = """
import numpy as np
from kernbench.benches.registry import bench

def copy(x, out, tl):
    tl.store(out, tl.load(x))

def too_far(x, tl):
    if tl.program_id(0) == 2:
        tl.load(x + 8, shape=(8,))

@bench(name="right-copy", description="A copy.")
def right(torch):
    x, out = torch.full((8,), 3, name="x"), torch.empty(8, name="out")
    torch.launch("copy", copy, x, out)
    torch.check(out, np.full(8, 3))

@bench(name="wrong-copy", description="A copy that is thought to be something else.")
def wrong(torch):
    x, out = torch.full((8,), 3, name="x"), torch.empty(8, name="out")
    torch.launch("copy", copy, x, out)
    torch.check(out, np.arange(8))

@bench(name="too-far", description="A kernel with a mistake on one PE.")
def far(torch):
    torch.launch("too_far", too_far, torch.zeros(8, name="x"), target_pes=(0, 1, 2, 3))

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


def test_output_is_the_same_bytes_for_any_hash_seed():
    command = [sys.executable, "-c", "from kernbench.cli.main import main; main()", "run", *SMALL]
    command += ["--bench", "flash-attention", "--param", "seq_k=64", "--param", "pes=0", "--verify-data", "--json"]
    outputs = []
    for seed in ("0", "4242"):
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": seed}
        outputs.append(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
    assert outputs[0] == outputs[1] != b""


# ---- the summary


def test_summary_says_time_bound_busy_engines_links_and_data(capsys):
    code, out, err = run_small(capsys, *GEMM, "--verify-data")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    for text in (
        "bench gemm-single-pe on machine default, sip:0",
        "m=32, k=64, n=32, dtype=f16, seed=0",
        "bound by memory (HBM)",
        "TFLOP/s (f16)",
        "peak of 1 PE",
        "pe_dma",
        "sip0.cube0.hbm_ctrl.pe0 -> sip0.cube0.noc.r0c0",
        "[v] PASS  c  f16",
    ):
        assert text in out
    assert max(map(len, out.splitlines())) <= 120


def test_without_verification_the_summary_says_how_to_ask_for_it(capsys):
    assert "--verify-data" in run_small(capsys, *GEMM)[1]


def test_progress_is_for_long_runs_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.0)
    monkeypatch.setattr("kernbench.sim_engine.engine.STEPS_PER_REPORT", 1)
    assert run_small(capsys, *GEMM)[2] == ""  # nobody watches
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
    assert run_small(capsys, "--bench", "mine.py:wrong-copy")[0] == 0  # nobody looked


def test_a_kernels_mistake_is_one_message_with_its_pe_and_line(capsys, mine):
    code, out, err = run_small(capsys, "--bench", "mine.py:too-far")
    assert (code, out) == (2, "")
    assert err.startswith("error: kernel 'too_far' failed on sip 0, cube 0, pe 2: KernelError: load: 16 bytes")
    assert "mine.py:10  tl.load(x + 8, shape=(8,))" in err
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
        ((), "Missing option '--bench'"),
        (("--bench", "gem-single-pe"), "did you mean 'gemm-single-pe'?"),
        (("--bench", "77"), "no bench has number 77"),
        (("--bench", "nowhere.py"), "no file nowhere.py"),
        ((*GEMM, "--param", "q=1"), "parameters of this bench: m (int)"),
        ((*GEMM, "--param", "m=big"), "give a whole number"),
        ((*GEMM, "--param", "m=0"), "cannot be placed"),
        ((*GEMM, "--param", "seed=-1"), "gemm-single-pe' failed: ValueError"),
        ((*GEMM, "--param", "m=9999"), "TCM overflow"),
        ((*GEMM, "--device", "sip:1"), "no device 'sip:1'"),
        ((*GEMM, "--set", "sip.cube_mesh.w=0"), "sip.cube_mesh.w"),
        (("--bench", "va-offset-verify", "--set", "system.address_model=pa"), "needs virtual addresses"),
        (("--bench", "softmax", "--param", "block_rows=0"), "blocks of 0 rows"),
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
    assert [record.op_name for _, record in read_op_stream(file)] == ["dma_read", "dma_read", "gemm_f16", "dma_write"]
    code, _, err = run_small(capsys, *GEMM, "--oplog", str(tmp_path / "no" / "ops.parquet"))
    assert code == 2
    assert "cannot be written" in err


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
    assert variant.split() == ["variant", "load-ref", "load", "|", "load-ref", "|", "ref", "MATMUL_VARIANT"]


def test_list_as_json(capsys):
    everything = json.loads(run(capsys, "list", "--json")[1])
    assert (everything["schema"], everything["command"]) == (1, "list")
    one = json.loads(run(capsys, "list", "softmax", "--json")[1])["benches"]
    assert one == [bench for bench in everything["benches"] if bench["name"] == "softmax"]
    fused = {"name": "fused", "type": "bool", "default": False, "choices": [], "env": None}
    assert fused in one[0]["params"]


def test_list_of_what_is_not_there_is_exit_code_2(capsys):
    code, out, err = run(capsys, "list", "softmx")
    assert (code, out) == (2, "")
    assert "did you mean 'softmax'?" in err
