"""From host arrays to device and back: the one-instant start with real kernels, data, contention, and repeatability."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_stream import StreamingOpLog, read_op_stream
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

M, K, N = 16, 32, 64
RNG = np.random.default_rng(7)
LEFT = RNG.standard_normal((M, K)).astype(np.float16)
RIGHT = RNG.standard_normal((K, N)).astype(np.float16)
PRODUCT = (LEFT.astype(np.float32) @ RIGHT.astype(np.float32)).astype(np.float16)
COLUMNS = DPPolicy(pe="column_wise", num_cubes=1)


def product(a: Any, b: Any, c: Any, tl: Any) -> None:
    """Columns of b and c by PE; a whole."""
    columns = b.local_shape[1]
    if b.shape[1] != columns * tl.num_programs(0):
        raise ValueError("columns do not divide")
    at = tl.program_id(0) * columns
    x = tl.load(a, (M, K))
    y = tl.load(b + at * K * 2, (K, columns))
    tl.store(c + at * M * 2, tl.dot(x, y))


def bench(torch: Any) -> None:
    a = torch.from_numpy(LEFT, name="a", dp=DPPolicy(num_cubes=1))
    b = torch.from_numpy(RIGHT, name="b", dp=COLUMNS)
    c = torch.empty(M, N, name="c", dp=COLUMNS)
    torch.launch("product", product, a, b, c)
    torch.check(c, lambda: PRODUCT)


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_a_product_over_the_pes_of_a_cube_is_right() -> None:
    result = kernbench.run(bench, verify_data=True)
    assert result.ok
    assert [check.tensor for check in result.data] == ["c@sip0", "c@sip1"]
    assert len(result.launches[0].pes) == 8


@pytest.mark.parametrize("model", ["va", "pa"])
def test_numpy_agrees_with_a_kernel_in_either_address_model(model: str) -> None:
    def own_rows(x: Any, y: Any, z: Any, tl: Any) -> None:
        rows = x.local_shape[0]
        at = rows * N * 2 * tl.program_id(0) if tl_addresses_are_virtual else 0
        tl.store(z + at, tl.load(x + at, (rows, N)) * tl.load(y, (N,)))

    tl_addresses_are_virtual = model == "va"
    graph = load_topology(None, {"system.address_model": model})
    rows = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)
    with RuntimeContext(GraphEngine(graph)) as torch:
        x, y = torch.from_numpy(RIGHT, dp=rows), torch.from_numpy(RIGHT[0], dp=DPPolicy(num_cubes=1, num_pes=4))
        z = torch.empty(K, N, dp=rows)
        torch.launch("own_rows", own_rows, x, y, z)
        assert (z.numpy() == RIGHT * RIGHT[0]).all()


def test_kernels_of_every_pe_of_two_sips_start_at_one_instant() -> None:
    result = kernbench.run(lambda torch: torch.launch("idle", lambda tl: None, sips=(0, 1)), device=0)
    results = result.launches[0].pes
    assert len(results) == 2 * 16 * 8
    assert len({pe.start_ns for pe in results}) == 1


def test_devices_in_one_simulation_contend() -> None:
    graph = load_topology(None, {"system.address_model": "pa", "system.sips.count": 3})

    def read(x: Any, tl: Any) -> None:
        tl.load(x, (64, 1024))

    def slowest_ns(readers: tuple[int, ...]) -> float:
        with RuntimeContext(GraphEngine(graph)) as torch:
            shared = torch.zeros(64, 1024)  # 128 KiB on SIP 0
            start = torch.now_ns

            def rank(device: int) -> float:
                torch.ahbm.set_device(device)
                torch.launch(f"read{device}", read, shared, sips=device, target_cubes=0, target_pes=0)
                return torch.now_ns - start

            return max(float(str(ns)) for ns in torch.ranks.run([lambda device=d: rank(device) for d in readers]))

    one, two = slowest_ns((1,)), slowest_ns((1, 2))
    # SIP 0 sends to the switch at 128 GB/s: the second reader's 128 KiB take 1024 ns more.
    assert two - one == pytest.approx(1024, abs=3)


# ---- the same again


def log_digest(result: BenchResult) -> str:
    assert result.op_log is not None
    return hashlib.sha256(repr(result.op_log.records).encode()).hexdigest()


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_two_runs_write_the_same_log() -> None:
    first, second = kernbench.run(bench), kernbench.run(bench)
    assert log_digest(first) == log_digest(second)
    assert first.as_json() == second.as_json()


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_a_run_that_streams_its_log_has_the_same_records_and_sums(tmp_path: Path) -> None:
    kept = kernbench.run(bench)
    with StreamingOpLog(tmp_path / "ops.parquet", chunk_records=10) as log:
        streamed = kernbench.run(bench, op_log=log)
    assert streamed.as_json() == kept.as_json()
    assert kept.op_log is not None
    assert [record for _, record in read_op_stream(tmp_path / "ops.parquet")] == kept.op_log.records


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_an_op_follows_what_produced_its_inputs() -> None:
    log = OpLog()
    kernbench.run(bench, device=0, op_log=log)
    for number, record in log.items():
        for earlier in record.dependency_ids:
            assert earlier < number
            assert log[earlier].t_end <= record.t_start
    gemms = [record for record in log.records if record.op_kind == "gemm"]
    assert len(gemms) == 8
    assert all(len(gemm.dependency_ids) == 2 for gemm in gemms)


def test_a_load_follows_what_wrote_its_bytes_on_whichever_pe() -> None:
    def pass_on(x: Any, y: Any, z: Any, tl: Any) -> None:
        if tl.program_id(0) == 0:
            tl.store(y, tl.load(x))
            tl.wait(tl.composite("gemm", tl.ref(y, (32, 32)), tl.ref(x, (32, 32)), out_ptr=z))
            tl.load(z, (32, 32))
        else:
            tl.cycles(2000)
            tl.load(y, (32, 32))

    ones, log = np.ones((32, 32), np.float16), OpLog()
    run_kernel(pass_on, ones, 0 * ones, 0 * ones, grid=(2,), op_log=log)
    name_of = {number: record.op_name for number, record in log.items()}
    found = [(record.op_name, [name_of[number] for number in record.dependency_ids]) for record in log.records]
    assert [waited for name, waited in found if name == "dma_read"] == [
        ["host_write"],
        ["composite_gemm"],
        ["dma_write"],
    ]
    assert ("TileToken/DMA_READ", ["host_write", "dma_write"]) in found  # x, which the host wrote, and y: by id


def test_a_load_of_what_the_host_wrote_last_follows_that_write() -> None:
    log = OpLog()

    def bench(torch: Any) -> None:
        x = torch.zeros(32, 32)
        torch.launch("store", lambda p, tl: tl.store(p, tl.load(p) + 1), x)
        x.copy_(np.ones((32, 32), np.float16))
        torch.launch("load", lambda p, tl: tl.load(p), x)

    kernbench.run(bench, device=0, op_log=log)
    writes = [number for number, record in log.items() if record.op_name == "host_write"]
    loads = [record.dependency_ids for record in log.records if record.op_name == "dma_read"]
    assert loads == [(number,) for number in writes]
