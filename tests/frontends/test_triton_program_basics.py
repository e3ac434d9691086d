"""Triton programs on the machine: right numbers, times by hand, errors at the kernel's line."""

from __future__ import annotations

import pytest
from tests.frontends.triton_programs import simulated, tl, torch, triton

from kernbench.common.errors import LaunchError


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def load_only(x, BLOCK: tl.constexpr):
    tl.load(x + tl.arange(0, BLOCK))


@triton.jit
def store_only(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32))


@triton.jit
def one_dot(out, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    product = tl.dot(tl.zeros((M, K), tl.float16), tl.zeros((K, N), tl.float16))
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, product)


def test_a_program_runs_unmodified_with_right_numbers_and_simulated_time():
    n = 5000
    x, y, out = torch.rand(n), torch.rand(n), torch.empty(n)
    with simulated() as sim:
        add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
        assert torch.equal(out, x + y)
    (launch,) = sim.launches
    assert (launch.kernel, launch.grid, launch.config) == ("add", (5, 1, 1), {"BLOCK": 1024})
    assert sim.total_ns > launch.ns > 0
    row = sim.as_json()["launches"][0]
    assert row["ns"] == launch.ns >= row["roofline"]["bound_ns"] > 0
    assert "add" in sim.table()


def test_one_load_takes_latency_and_bytes_over_bandwidth():
    # As `tl.load` of a dense block next to its PE (tests/unit/triton_emu/test_access.py): PE_SCHEDULER 1 ns, the router
    # 2 ns each way, two links of 256 bytes per ns with the first flit 1 ns behind, bursts of 8 ns on 8 channels.
    # 4 KiB are 16 flits: 1 + 2 + 8 + 2 + 16 + 1 = 30; twice as many bytes take 16 ns more.
    with simulated() as sim:
        for size in (1024, 2048):
            load_only[(1,)](torch.zeros(size), BLOCK=size)
    short, long = (launch.ns for launch in sim.launches)
    assert short == pytest.approx(30.0, abs=2.5)
    assert long - short == 16.0


def test_one_store_takes_bytes_over_bandwidth():
    with simulated() as sim:
        for size in (1024, 2048):
            store_only[(1,)](torch.zeros(size), BLOCK=size)
    short, long = (launch.ns for launch in sim.launches)
    assert long - short == 16.0


def test_one_dot_takes_its_tiles():
    # A tile of 32 x 64 x 32 takes 16 ns: (64 x 64 x 64) is 4 tiles, (64 x 128 x 64) 8, and so 64 ns more.
    with simulated() as sim:
        for k in (64, 128):
            one_dot[(1,)](torch.empty(64, 64), M=64, K=k, N=64)
    short, long = (launch.ns for launch in sim.launches)
    assert long - short == 64.0


def test_blocks_that_leave_pes_without_work_take_longer():
    n = 8192
    x, y = torch.rand(n), torch.rand(n)
    with simulated() as sim:
        for block in (1024, 4096):  # 8 programs on 8 PEs, 2 programs on 2 of them
            add[(n // block,)](x, y, torch.empty(n), n, BLOCK=block)
    spread, narrow = (launch.ns for launch in sim.launches)
    assert spread < narrow


def test_an_access_out_of_bounds_names_line_program_tensor_and_offset():
    x, y, out = torch.rand(1000), torch.rand(1000), torch.empty(1000)
    with pytest.raises(LaunchError) as caught, simulated():
        add[(2,)](x, y, out, 1024, BLOCK=512)
    text = str(caught.value)
    assert "out of bounds in program (1, 0, 0): element 1000 of 'x', which has 1000" in text
    assert "test_triton_program_basics.py" in text
    assert "tl.load(x + at" in text


def test_tensors_say_that_they_are_on_the_accelerator_and_stay_where_they_are():
    with simulated():
        x = torch.rand(256, device="cuda")
        out = torch.empty_like(x)
        assert x.is_cuda
        assert x.device == out.device == triton.runtime.driver.active.get_active_torch_device()
        assert torch.cuda.get_device_properties(0).multi_processor_count == 8
        add[(1,)](x, x.to("cuda:0"), out, 256, BLOCK=256)
        torch.cuda.synchronize()
        assert torch.equal(out.cpu(), 2 * x.cpu())
    assert not x.is_cuda
