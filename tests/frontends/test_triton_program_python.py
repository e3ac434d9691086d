"""Python inside of kernels means what Triton's compiler takes it for; where it refuses, the kernel's line is named."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import pytest
from tests.frontends.triton_programs import simulated, tl, torch, triton

from kernbench.common.errors import LaunchError
from kernbench.triton import builder
from kernbench.triton.program import PeProgram

exp = pytest.importorskip("triton.language").exp  # names that kernels below use for variables of their own
rsqrt = tl.rsqrt

# `min` and `max` of blocks, and `and` and `or`, compile with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:builtin m:UserWarning")


# ---- min, max, and, or, not


@triton.jit
def clamped(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, max(tl.load(x + min(at, n - 1)), 0.0, min(-1.0, 2.0)))


def test_min_and_max_of_blocks_are_of_each_element():
    x, out = torch.randn(64), torch.zeros(64)
    with simulated():
        clamped[(1,)](x, out, 10, BLOCK=64)
    assert torch.equal(out, x[torch.arange(64).clamp(max=9)].relu())


@triton.jit
def in_band(x, out, low, high, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = (at >= low) and (at < high)
    is_two = at == 2
    outside = at < 4 or at >= high or BLOCK == 1
    tl.store(out + at, tl.load(x + at, mask=inside, other=-1.0))
    tl.store(out + at, 7.0, mask=outside and not is_two)


def test_and_or_and_not_of_blocks_are_of_each_element():
    x, at = torch.randn(64), torch.arange(64)
    out = torch.zeros(64)
    with simulated():
        in_band[(1,)](x, out, 8, 16, BLOCK=64)
    expected = torch.where((at >= 8) & (at < 16), x, -1.0)
    assert torch.equal(out, torch.where(((at < 4) | (at >= 16)) & (at != 2), 7.0, expected))


@triton.jit
def on_scalars(x, out, n, flag, SCALE: tl.constexpr):
    here = tl.program_id(0)
    value = tl.load(x + here)
    if here < n and value > 0 and SCALE:
        value *= 2
    if not flag and (n or here):
        value = -value
    if SCALE is None or SCALE < 0:  # constants end it as in Python: None is not compared
        value = 0.0
    tl.store(out + here, value)


@pytest.mark.parametrize("flag", [True, False])
def test_and_or_and_not_of_scalars_and_arguments(flag):
    x, out = torch.randn(8), torch.zeros(8)
    with simulated():
        on_scalars[(8,)](x, out, 5, flag, SCALE=2)
    expected = torch.where((torch.arange(8) < 5) & (x > 0), 2 * x, x)
    assert torch.equal(out, expected if flag else -expected)
    with simulated():
        on_scalars[(8,)](x, out, 5, flag, SCALE=None)
    assert not out.any()


@triton.jit
def with_assert(x, limit, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    assert value < limit, "too large"
    tl.store(x + tl.arange(0, BLOCK), value + 1)


def test_assert_of_a_block_is_taken_by_each_element():
    x = torch.zeros(8)
    with simulated():
        with_assert[(1,)](x, 1.0, BLOCK=8)
    assert torch.equal(x, torch.ones(8))


@triton.jit
def if_block(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if at < 4:
        tl.store(x + at, 1.0)


@triton.jit
def chosen_by_block(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, 1.0 if tl.load(x + at) > 0 else 2.0)


@pytest.mark.parametrize(("kernel", "line"), [(if_block, "if at < 4:"), (chosen_by_block, "1.0 if tl.load")])
def test_the_truth_of_a_block_is_refused(kernel, line):
    with pytest.raises(LaunchError) as caught, simulated():
        kernel[(1,)](torch.zeros(8), BLOCK=8)
    assert "the truth of a block of shape (8,)" in str(caught.value)
    assert line in str(caught.value)


@triton.jit
def several_targets(x):
    a = b = tl.load(x)
    tl.store(x, a + b)


def test_an_assignment_to_several_targets_is_refused():
    with pytest.raises(LaunchError) as caught, simulated():
        several_targets[(1,)](torch.zeros(8))
    assert "an assignment to several targets" in str(caught.value)
    assert "a = b = tl.load(x)" in str(caught.value)


@triton.jit
def with_print(x):
    print("value", tl.load(x))


def test_print_is_that_of_the_device(capsys):
    with simulated():
        with_print[(1,)](torch.full((1,), 42.0))
    assert "(0, 0, 0)" in capsys.readouterr().out


# ---- names


@triton.jit
def own_names(x, out, rsqrt, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    exp = tl.load(x + at)
    max = exp * rsqrt
    tl.store(out + at, max)


def test_variables_and_parameters_may_have_names_of_functions():
    x, out = torch.rand(8), torch.zeros(8)
    with simulated():
        own_names[(1,)](x, out, 2.0, BLOCK=8)
    assert torch.equal(out, 2 * x)


def kernel_with(scale, function):
    step = tl.constexpr(scale)

    @triton.jit
    def add_scaled(value, by: tl.constexpr = step):
        return function(value) * by

    @triton.jit
    def kernel(x, out, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, add_scaled(tl.load(x + at)) + step)

    return kernel


def test_kernels_use_variables_of_the_function_around_them():
    x = torch.rand(8)
    for scale, function in ((3, tl.exp), (4, tl.sqrt)):
        out = torch.zeros(8)
        with simulated():
            kernel_with(scale, function)[(1,)](x, out, BLOCK=8)
        expected = {3: torch.exp, 4: torch.sqrt}[scale](x) * scale + scale
        torch.testing.assert_close(out, expected)


def test_rewriting_adds_nothing_to_the_users_module():
    before = set(globals())
    test_min_and_max_of_blocks_are_of_each_element()
    assert set(globals()) == before


# ---- loops


@triton.jit
def counted(a, b, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for i in range(n):
        total = tl.dot(tl.load(a + at + i * BLOCK * BLOCK), tl.load(b + at + i * BLOCK * BLOCK), total)
    tl.store(out + at, total)


@triton.jit
def conditional(a, b, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    i = 0
    while i < n:
        total = tl.dot(tl.load(a + at + i * BLOCK * BLOCK), tl.load(b + at + i * BLOCK * BLOCK), total)
        i += 1
    tl.store(out + at, total)


@pytest.mark.parametrize("grid", [1, 4])  # four programs are replayed from a recording
def test_a_while_loop_is_not_pipelined(grid):
    a, b, out = torch.rand(8, 32, 32).half(), torch.rand(8, 32, 32).half(), torch.zeros(32, 32)
    found = {}
    for kernel, stages in ((counted, 1), (counted, 3), (conditional, 1), (conditional, 3)):
        with simulated() as sim:
            kernel[(grid,)](a, b, out, 8, BLOCK=32, num_stages=stages)
        torch.testing.assert_close(out, (a.float() @ b.float()).sum(0))
        found[kernel.fn.__name__, stages] = sim.launches[0].ns
    assert found["conditional", 1] == found["conditional", 3] == found["counted", 1] > found["counted", 3]


# ---- operations that belong to others


@triton.jit
def joined(a, b):
    return tl.maximum((a + b) * 1.0 + 0.0, -1e30)


@triton.jit
def summed(x, out, BLOCK: tl.constexpr, OWN: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out, tl.reduce(value, 0, joined) if OWN else tl.sum(value, 0))


def test_the_functions_of_a_reduction_are_no_index_operations():
    found = []
    for own in (False, True):
        out = torch.zeros(1)
        with simulated(cycles_per_op=1) as sim:
            summed[(1,)](torch.ones(1024), out, BLOCK=1024, OWN=own)
        assert out.item() == 1024
        found.append((sim.launches[0].ns, sim.launches[0].index_ops))
    assert found[0] == found[1]
    assert found[0][1] == 2  # the range, and the addresses


@triton.jit
def running_products(a, b, out, n, BLOCK: tl.constexpr, KEEP: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x, y = tl.load(a + at), tl.load(b + at)
    total = tl.dot(x, y)
    for i in range(n):
        if KEEP:
            tl.store(out + i * BLOCK * BLOCK + at, total)
        total = tl.dot(x, y, total)
    tl.store(out + n * BLOCK * BLOCK + at, total)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_product_does_not_overwrite_an_accumulator_that_is_being_stored(monkeypatch, is_stored):
    used = []
    plain = PeProgram.dot

    def dot(self, *args):
        found = plain(self, *args)
        used.append(found.buffer.address)
        return found

    monkeypatch.setattr(PeProgram, "dot", dot)
    a, b, out = torch.rand(64, 64).half(), torch.rand(64, 64).half(), torch.zeros(4, 64, 64)
    with simulated():
        running_products[(1,)](a, b, out, 3, BLOCK=64, KEEP=is_stored)
    torch.testing.assert_close(out[3], 4 * (a.float() @ b.float()), rtol=1e-3, atol=1e-3)
    assert [one == other for one, other in pairwise(used)] == [not is_stored] * 3


# ---- failures of what a command does at its end


@triton.jit
def add_atomic(total, x, found, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(found + at, tl.atomic_add(total + at % 4, tl.load(x + at), mask=at < 14))


def test_atomics_add_bf16_one_after_the_other():
    x = torch.arange(16).bfloat16()
    total, found = torch.zeros(4, dtype=torch.bfloat16), torch.zeros(16, dtype=torch.bfloat16)
    with simulated():
        add_atomic[(1,)](total, x, found, BLOCK=16)
    assert total.tolist() == [24, 28, 18, 21]
    assert found[:14].tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 4, 6, 8, 10, 12, 15]


@triton.jit
def plus_one(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + 1)


@triton.jit
def only_atomic(x, out, BLOCK: tl.constexpr):
    tl.atomic_add(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 1.0)


@pytest.mark.parametrize(("kernel", "called"), [(plus_one, "load"), (only_atomic, "atomic_rmw")])
def test_what_fails_at_the_end_of_a_command_fails_its_launch_and_no_other(kernel, called):
    x, out = torch.rand(64), torch.zeros(64)
    with simulated():
        broken = mock.patch.object(builder.native, called, side_effect=ValueError("no such type"))
        with broken, pytest.raises(LaunchError) as caught:
            kernel[(4,)](x, out, BLOCK=16)
        assert "ValueError: no such type" in str(caught.value)
        assert {plus_one: "tl.load(x + at) + 1", only_atomic: "tl.atomic_add"}[kernel] in str(caught.value)
        plus_one[(4,)](x, out, BLOCK=16)
    assert torch.equal(out, x + 1)
