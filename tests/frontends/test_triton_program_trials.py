"""Launches that are only timed, to compare configurations: what they leave, what they know, how near they are."""

import pytest
import torch
import triton
import triton.language as tl

import kernbench.triton
from kernbench.common.errors import LaunchError

ONE_CUBE = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "system.sips.count": 1}


def simulate(**options):
    return kernbench.triton.simulate(overrides=ONE_CUBE, **options)


def configs(*blocks):
    return [triton.Config({"B": block}) for block in blocks]


@triton.jit
def copy(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def tuned(kernel, *blocks):
    return triton.autotune(configs(*blocks), key=["n"])(kernel)


def launched(kernel, x, out, **keywords):
    n = x.numel()
    kernel[lambda meta: (triton.cdiv(n, meta["B"]),)](x, out, n, **keywords)


def test_a_trial_of_the_first_waves_is_near_the_whole_launch():
    """64 and 8 waves on 8 PEs: the stores of a wave are under way while the next one begins."""
    x = torch.arange(1 << 18, dtype=torch.float32)
    with simulate() as sim:
        launched(tuned(copy, 512, 4096), x, torch.empty_like(x))
        for block in (512, 4096):
            launched(copy, x, torch.empty_like(x), B=block)
    _, *whole = (launch.ns for launch in sim.launches)
    trials = {trial.config["B"]: trial.ns for trial in sim.autotuned[0].trials}
    for block, ns in zip((512, 4096), whole, strict=True):
        assert trials[block] == pytest.approx(ns, rel=0.1)


@triton.jit
def add_one(x, count, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    if tl.program_id(0) == 2:
        tl.atomic_add(count, 1)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@pytest.mark.parametrize("placement", ["auto", "interleave", "slabs"])
def test_trials_leave_all_numbers_as_they_were(placement):
    x, count = torch.zeros(1024), torch.zeros(1, dtype=torch.int32)
    with simulate(placement=placement) as sim:
        tuned(add_one, 64, 128, 256)[lambda meta: (1024 // meta["B"],)](x, count, 1024)
    assert len(sim.autotuned[0].trials) == 3
    assert (x == 1).all()
    assert count.item() == 1


def test_trials_begin_where_tensors_lie():
    """A launch of one program before has put all of them into one PE's memory."""
    x, out = torch.arange(1 << 14, dtype=torch.float32), torch.empty(1 << 14)
    with simulate() as sim:
        launched(copy, x, out, B=1 << 14)
        launched(tuned(copy, 256, 2048), x, out)
    (table,) = sim.autotuned
    assert sim.launches[-1].ns == pytest.approx(table.best.ns)


@triton.jit
def through_scratch(x, scratch, out, n, B: tl.constexpr):
    """How often it reads follows from what it has stored before."""
    me = tl.program_id(0)
    tl.store(scratch + me, n // B)
    total = tl.zeros((B,), tl.float32)
    for step in range(tl.load(scratch + me)):
        total += tl.load(x + step * B + tl.arange(0, B))
    tl.store(out + me, tl.sum(total))


def test_a_trial_of_a_program_that_reads_what_it_has_stored_does_all_of_it():
    x, scratch, out = torch.ones(512), torch.zeros(4, dtype=torch.int32), torch.zeros(4)
    with simulate() as sim:
        triton.autotune(configs(16, 128), key=["n"])(through_scratch)[(4,)](x, scratch, out, 512)
    (table,) = sim.autotuned
    assert table.best.config["B"] == 128
    assert sim.launches[-1].ns == pytest.approx(table.best.ns)
    assert (out == 512).all()


def test_each_machine_is_tuned_for():
    kernel = tuned(copy, 256, 2048)
    for _ in range(2):
        with simulate() as sim:
            for _ in range(2):
                launched(kernel, torch.ones(4096), torch.empty(4096))
        assert len(sim.autotuned) == 1  # once for both launches


@triton.jit
def uneven(x, out, B: tl.constexpr):
    """Program 0 takes many times as long as the others."""
    me = tl.program_id(0)
    total = tl.zeros((B,), tl.float32)
    for step in range(tl.where(me == 0, 64, 1)):
        total += tl.load(x + step * B + tl.arange(0, B))
    tl.store(out + me * B + tl.arange(0, B), total)


def test_a_pe_takes_a_program_of_the_queue_when_it_has_done_the_one_before():
    """9 programs on 8 PEs, the first of which is as long as all others: the ninth is not behind it."""
    times = {}
    for schedule in ("static", "dynamic"):
        x, out = torch.ones(64 * 64), torch.empty(9 * 64)
        with simulate(schedule=schedule) as sim:
            uneven[(8,)](x, out, B=64)
            uneven[(9,)](x, out, B=64)
        times[schedule] = [launch.ns for launch in sim.launches]
        assert ("schedule=dynamic" in sim.table()) == (schedule == "dynamic")
    assert times["dynamic"][1] - times["dynamic"][0] < times["static"][1] - times["static"][0]


@triton.jit
def count_up(counter, x, B: tl.constexpr):
    tl.atomic_add(counter, tl.sum(tl.load(x + tl.arange(0, B))).to(tl.int32))


def test_what_is_written_has_no_copies(capsys):
    times = []
    for placement in ("auto", "replicate"):
        counter = torch.zeros(1, dtype=torch.int32)
        with simulate(placement=placement) as sim:
            count_up[(16,)](counter, torch.ones(64), B=64)
        assert counter.item() == 16 * 64
        times.append(sim.total_ns)
    assert times[1] > 0.5 * times[0]  # with a counter for each PE it would be a tenth
    assert "'counter' is written, so it has no copy in every PE's memory" in capsys.readouterr().err


@triton.jit
def late_store(x, flag, B: tl.constexpr):
    if tl.load(flag + tl.program_id(0)) == 3:
        tl.store(x + tl.arange(0, B), 0.0)


def test_a_store_to_a_tensor_with_copies_is_refused():
    """Only program 3 of 8 stores, which is not one of those that are looked at before."""
    with pytest.raises(LaunchError, match="store to 'x', of which every PE has a copy"), simulate():
        late_store[(8,)](torch.ones(64), torch.arange(8), B=64, placement="replicate")
