"""Programs of a grid that make the calls of a recorded one: same times, same log, same numbers, same reports."""

from __future__ import annotations

import numpy as np
import pytest
from tests.frontends.triton_programs import NEEDS_BLOCK_POINTERS, simulated, tl, torch, triton

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import LaunchError
from kernbench.triton.addresses import Patterns
from kernbench.triton.benchmarks import TuningTable
from kernbench.triton.look_ahead import LookAhead
from kernbench.triton.recording import Recording


@pytest.fixture
def replayed(monkeypatch):
    """How often a program was replayed, and how often one was run ahead."""
    counts = {"replayed": 0, "ahead": 0}
    replay, run = Recording.replay, LookAhead.run

    def counted_replay(self, *args):
        counts["replayed"] += 1
        return replay(self, *args)

    def counted_run(self, *args):
        counts["ahead"] += 1
        return run(self, *args)

    monkeypatch.setattr(Recording, "replay", counted_replay)
    monkeypatch.setattr(LookAhead, "run", counted_run)
    return counts


@triton.jit
def triangle(x, out, n, B: tl.constexpr):
    """Program i adds up the blocks 0 to i: loops, and so calls, differ from row to row of the grid."""
    row, column = tl.program_id(1), tl.program_id(0)
    at = column * B + tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for step in tl.range(0, row + 1, num_stages=2):
        total += tl.load(x + step * n + at, mask=at < n, other=0.0)
    if column == 0:
        total = tl.exp(total)
    tl.store(out + row * n + at, tl.cumsum(total), mask=at < n)


def summed_triangle(x):
    total = torch.cumsum(x, 0)
    total[:, :64] = torch.exp(total[:, :64])
    return torch.cumsum(total.view(x.shape[0], -1, 64), 2).view(x.shape)


@triton.jit
def blocks(a, b, index, out, M, N, K, B: tl.constexpr):
    """Block pointers, a gather by loaded rows, a descriptor, a device function and index arithmetic that wraps."""
    pid = tl.program_id(0)
    across = tl.cdiv(N, B)
    row, column = pid // across, pid % across
    left = tl.make_block_ptr(a, (M, K), (K, 1), (row * B, 0), (B, B), (1, 0))
    rows = tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for k in range(tl.cdiv(K, B)):
        picked = tl.load(index + k * B + rows)
        right = tl.load(b + picked[:, None] * N + ((column * B + rows) % N)[None, :])
        total = tl.dot(tl.load(left, boundary_check=(0, 1)), right, total)
        left = tl.advance(left, (0, B))
    desc = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[B, B])
    desc.store([row * B, column * B], relu(total))


@triton.jit
def relu(x):
    return tl.where(x > 0, x, 0.0)


def in_both_ways(monkeypatch, launch):
    """Simulations with and without replayed programs, and what they are to have in common."""
    seen = []
    for exact in ("", "programs"):
        monkeypatch.setenv("KERNBENCH_EXACT", exact)
        with simulated(cycles_per_op=1) as sim:
            launch()
        log = [(record.t_start, record.t_end, str(record)) for record in sim.result.op_log.records]
        seen.append((sim.total_ns, [(each.ns, each.index_ops) for each in sim.launches], log))
    return seen


def test_loops_that_follow_from_the_program_id_are_replayed_where_they_are_alike(monkeypatch, replayed):
    x, out = torch.rand(4, 512), torch.zeros(4, 512)
    fast, slow = in_both_ways(monkeypatch, lambda: triangle[(8, 4)](x, out, 512, B=64))
    assert fast == slow
    assert torch.allclose(out, summed_triangle(x), rtol=1e-5)
    assert replayed["replayed"] == 8 * 4
    # Rows of the grid have loops of 1 to 4 steps, and the first program of each an exponential: 8 kinds of programs. Of
    # the three samples, two are of one row and one of another.
    assert replayed["ahead"] <= 8 + 3 + 3  # the second simulation looks ahead for placement only


@NEEDS_BLOCK_POINTERS
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers_gathers_and_descriptors_are_replayed(monkeypatch, replayed):
    a, b, index = torch.rand(96, 64) - 0.5, torch.rand(64, 128) - 0.5, torch.randperm(64, dtype=torch.int32)
    out = torch.zeros(96, 128)
    fast, slow = in_both_ways(monkeypatch, lambda: blocks[(12,)](a, b, index, out, 96, 128, 64, B=32))
    assert fast == slow
    assert torch.allclose(out, torch.relu(a @ b[index.long()]), atol=1e-5)
    assert replayed == {"replayed": 12, "ahead": 6}


@triton.jit
def until_zero(x, out, B: tl.constexpr):
    """A loop that ends where loaded numbers say so."""
    at = tl.program_id(0) * B
    count = 0
    while tl.load(x + at + count) > 0:
        count += 1
    tl.store(out + tl.program_id(0), count)


def test_programs_that_look_at_loaded_numbers_are_not_replayed(replayed):
    x, out = (
        torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]] * 2),
        torch.zeros(8, dtype=torch.int32),
    )
    with simulated():
        until_zero[(8,)](x, out, B=4)
    assert out.tolist() == [2, 0, 1, 3] * 2
    assert replayed["replayed"] == 0


@triton.jit
def print_id(x):
    tl.device_print("program", tl.program_id(0))
    tl.store(x + tl.program_id(0), tl.program_id(0))


def test_programs_that_print_all_print(capsys, replayed):
    with simulated():
        print_id[(6,)](torch.zeros(6, dtype=torch.int32))
    printed = [line.split("program")[0].strip() for line in capsys.readouterr().out.splitlines() if "program" in line]
    assert sorted(printed) == [f"({number}, 0, 0)" for number in range(6)]
    assert replayed["replayed"] == 0


@triton.jit
def shift(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, moved(x, at))


@triton.jit
def moved(x, at):
    return tl.load(x + at + 8)


def test_an_error_of_a_replayed_program_names_its_lines(replayed):
    x, out = torch.rand(512), torch.zeros(512)
    with pytest.raises(LaunchError) as caught, simulated():
        shift[(8,)](x, out, 512, B=64)
    text = str(caught.value)
    assert "out of bounds in program (7, 0, 0): element 512 of 'x', which has 512" in text
    assert "return tl.load(x + at + 8)" in text
    assert "tl.store(out + at, moved(x, at))" in text  # the call that led there


@triton.jit
def overlap(out, B: tl.constexpr):
    tl.store(out + tl.program_id(0) * 4 + tl.arange(0, B), tl.program_id(0))


def test_races_of_replayed_programs_name_the_line(replayed):
    with simulated(check_races=True) as sim:
        overlap[(4,)](torch.zeros(64, dtype=torch.int32), B=8)
    assert replayed["replayed"] == 4
    assert "test_triton_program_replay.py" in str(sim.result.races[0])


@triton.autotune(configs=[triton.Config({"B": 16}), triton.Config({"B": 128})], key=["N"])
@triton.jit
def tuned(a, b, out, M, N, K, B: tl.constexpr):
    rows, columns = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, K, 128):
        at = k + tl.arange(0, 128)
        left, right = tl.load(a + rows[:, None] * K + at[None, :]), tl.load(b + at[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + rows[:, None] * N + columns[None, :], total)


def test_a_configuration_that_cannot_win_is_not_simulated(monkeypatch, replayed):
    """In blocks of 16 a product of 512 x 512 x 512 reads 8 times the bytes that it does in blocks of 128: each of 8 PEs
    1,024 / 8 programs * 2 blocks * 16 * 512 * 2 bytes, which take 16,384 ns at 256 GB/s. Larger blocks are less
    work and tried first.
    """
    a, b, out = torch.rand(512, 512).half(), torch.rand(512, 512).half(), torch.zeros(512, 512)
    with simulated() as sim:
        tuned[lambda meta: (512 // meta["B"], 512 // meta["B"])](a, b, out, 512, 512, 512)
    (table,) = sim.autotuned
    assert isinstance(table, TuningTable)
    large, small = table.trials
    assert (large.config["B"], small.config["B"]) == (128, 16)
    assert large.ns < 16_384 / 1.1
    assert small.error == "16.38 us at least"
    assert replayed["replayed"] == 16 + 16  # a trial and the launch itself
    assert torch.allclose(out, a.float() @ b.float(), rtol=1e-3)


def test_patterns_of_lanes_are_kept_within_their_bytes():
    patterns, f32 = Patterns(100_000), dtype_of("f32")
    first = patterns.lanes_of(np.arange(1024) * 4, None, f32)
    assert patterns.lanes_of(np.arange(1024) * 4, None, f32) is first
    for step in range(8, 200, 4):
        patterns.lanes_of(np.arange(64) * step, None, f32)
        assert patterns.nbytes <= 100_000
    assert patterns.lanes_of(np.arange(1024) * 4, None, f32) is not first
