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


# On the default PE and its own slice of HBM: a command takes 1 ns of PE_SCHEDULER; the router 2 ns each way; the two
# links between DMA and memory carry 256 bytes per ns, the second one a flit behind the first; a burst of 256 bytes
# takes 8 ns on its channel, and 8 channels work at once.


def transfer_ns(nbytes: int) -> float:
    """To the memory and back once, with the bytes on one of the two ways."""
    return 2 + 8 + 2 + nbytes / 256 + 1


def test_one_load_takes_latency_and_bytes_over_bandwidth():
    # 256 bytes: 1 + 2 + 8 + 2 + 1 + 1 = 15 ns; 4 KiB are 16 flits: 30 ns; 8 KiB: 46 ns
    assert [1 + transfer_ns(nbytes) for nbytes in (256, 4096, 8192)] == [15, 30, 46]
    with simulated() as sim:
        for size in (64, 1024, 2048):
            load_only[(1,)](torch.zeros(size), BLOCK=size)
    assert [launch.ns for launch in sim.launches] == [15, 30, 46]


def test_one_store_takes_bytes_over_bandwidth_and_its_acknowledgement():
    with simulated() as sim:
        for size in (64, 1024, 2048):
            store_only[(1,)](torch.zeros(size), BLOCK=size)
    assert [launch.ns for launch in sim.launches] == [15, 30, 46]


def test_one_dot_takes_its_tiles():
    # A tile of 32 x 64 x 32 takes 16 ns: (64 x 64 x 64) is 4 tiles, (64 x 128 x 64) 8. Then 64 x 64 f32 are stored.
    with simulated() as sim:
        for k in (64, 128):
            one_dot[(1,)](torch.empty(64, 64), M=64, K=k, N=64)
    assert [launch.ns for launch in sim.launches] == [1 + tiles * 16 + 1 + transfer_ns(16384) for tiles in (4, 8)]


def test_blocks_that_leave_pes_without_work_take_longer():
    n = 8192
    x, y = torch.rand(n), torch.rand(n)
    with simulated() as sim:
        for block in (1024, 4096):  # 8 programs on 8 PEs, 2 programs on 2 of them
            add[(n // block,)](x, y, torch.empty(n), n, BLOCK=block)
    spread, narrow = (launch.ns for launch in sim.launches)
    # Both loads and the store of a program move a block of f32 each: 3 * 3 * 1024 * 4 / 256 ns more for the larger one.
    assert narrow - spread >= 3 * 3 * 1024 * 4 / 256


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
