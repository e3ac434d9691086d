"""The same input gives the same result, bit for bit: in one process, under any hash seed, with data and without.

A run's whole op log is compared, as bytes, and what the command prints as JSON.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import kernbench
from kernbench.benches.registry import resolve
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.sim_engine.op_stream import StreamingOpLog
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

SMALL = {"system.sips.count": 2, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1}
BENCHES: dict[str, dict[str, object]] = {
    "matmul-composite": {"m": 100, "k": 130, "n": 70, "variant": "ref"},
    "qkv-gemm-multi-pe": {"d_model": 128},
    "softmax": {"rows": 128},
    "gelu-mlp": {"d_model": 64, "d_hidden": 256},
    "flash-attention": {"seq_k": 128},
}


@cache
def machine() -> TopologyGraph:
    return load_topology(None, SMALL)


def run(bench: str, **options: object) -> BenchResult:
    """A bench on both devices of a small machine."""
    chosen = RunOptions(**options)  # type: ignore[arg-type]  # as the tests below name them
    return run_bench(resolve(bench).run, machine(), chosen, name=bench, params=BENCHES[bench])


@cache
def first(bench: str) -> BenchResult:
    return run(bench)


def digest(result: BenchResult) -> str:
    """Every record, with its id and in order, every PE's times and the JSON, as one hash."""
    assert result.op_log is not None
    pes = [launch.pes for launch in result.launches]
    text = repr((list(result.op_log.items()), pes)) + json.dumps(result.as_json())
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("bench", BENCHES)
def test_runs_in_one_process_are_the_same_and_data_changes_no_time(bench: str) -> None:
    """Not even where an op log, a verification or a debugged op looks at it."""
    with_data, without = first(bench), run(bench, data=False)
    assert with_data.total_ns > 0
    assert with_data.op_log is not None
    assert len(with_data.op_log) > 50
    assert digest(with_data) == digest(without)
    verified = run(bench, verify_data=True, debug_ops=True)
    assert verified.ok
    assert verified.op_log is not None
    assert list(verified.op_log.items()) == list(with_data.op_log.items())


@pytest.mark.parametrize("bench", ["matmul-composite", "flash-attention"])
def test_trains_and_flits_agree_on_every_op(bench: str) -> None:
    assert digest(first(bench)) == digest(run(bench, mode="flits"))


@pytest.mark.parametrize("algorithm", ["lrab_hierarchical_allreduce", "hierarchical_all_pes"])
def test_when_garbage_is_collected_changes_no_log(algorithm: str) -> None:
    """A block of TCM is free when its last holder drops it, also one that an engine wrote for a kernel."""
    logs = []
    before = gc.get_threshold()
    for threshold in (0, 50):  # never, all the time; what has outlived that is not looked through again
        gc.set_threshold(threshold, 10, 100_000)
        try:
            options = RunOptions(device="whole")
            params = {"n_elem": 6144, "algorithm": algorithm}
            result = run_bench(resolve("ccl-allreduce").run, machine(), options, name="ccl", params=params)
        finally:
            gc.set_threshold(*before)
        logs.append(digest(result))
    assert logs[0] == logs[1]


def test_two_log_files_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with StreamingOpLog(tmp_path / name, chunk_records=100) as log:
            run("softmax", op_log=log)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def under_hash_seed(seed: str, *command: str) -> str:
    source = str(Path(kernbench.__file__).parents[1])
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hash_seeds_change_no_log() -> None:
    program = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('these', sys.argv[1])\n"
        "these = importlib.util.module_from_spec(spec)\n"
        "sys.modules['these'] = these\n"
        "spec.loader.exec_module(these)\n"
        "print([these.digest(these.run(bench)) for bench in these.BENCHES])\n"
    )
    output = under_hash_seed("77", "-c", program, __file__)
    assert output == f"{[digest(first(bench)) for bench in BENCHES]}\n"  # by the hash seed of this process
