"""Functions of libdevice: results against PyTorch and exact arithmetic, at the edges of their domains too."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
from tests.frontends.triton_programs import simulated, tl, torch, triton

from kernbench.common.errors import LaunchError
from kernbench.triton.libdevice import FUNCTIONS

libdevice = pytest.importorskip("triton.language.extra.libdevice")


@triton.jit
def applied(x, out, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    if NAME == "round":
        result = libdevice.round(value)
    elif NAME == "llround":
        result = libdevice.llround(value)
    elif NAME == "lgamma":
        result = libdevice.lgamma(value)
    else:
        result = libdevice.tgamma(value)
    tl.store(out + at, result)


def results(name, numbers, dtype=torch.float32):
    x = torch.tensor(numbers, dtype=torch.float32)
    out = torch.zeros(len(numbers), dtype=dtype)
    with simulated():
        applied[(1,)](x, out, NAME=name, BLOCK=len(numbers))
    return out


HALVES = [0.49999997, 8388609.0, 2.5, -2.5, 0.5, 1.5, -0.49999997, 3.5]


def test_round_takes_halves_away_from_zero():
    rounded = results("round", HALVES)
    assert rounded.tolist() == [0, 8388609, 3, -3, 1, 2, 0, 4]
    assert torch.signbit(rounded).tolist() == [value < 0 for value in HALVES]
    assert results("llround", HALVES, torch.int64).tolist() == [0, 8388609, 3, -3, 1, 2, 0, 4]


def test_gamma_functions_at_their_poles_and_limits():
    numbers = [1.5, 0.0, -1.0, 200.0, 1e38, inf, -2.5, nan]
    expected = torch.lgamma(torch.tensor(numbers))
    torch.testing.assert_close(results("lgamma", numbers), expected, equal_nan=True)
    found = results("tgamma", [5.0, 0.0, -0.0, -1.0, 200.0, -0.5, inf, nan])
    expected = torch.tensor([24.0, inf, -inf, nan, inf, -3.5449077, inf, nan])
    torch.testing.assert_close(found, expected, equal_nan=True)


@triton.jit
def filtered(x, a, b, c, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(a + at, tl.where(~libdevice.isnan(value), value, 0.0))
    tl.store(b + at, tl.where(not libdevice.isinf(value), value, 0.0))
    tl.store(c + at, tl.where(libdevice.finitef(value) & (value > 2), value, 0.0))


def test_tests_of_libdevice_are_masks():
    x = torch.tensor([1.0, nan, 3.0, -inf, 5.0, inf, 7.0, nan])
    a, b, c = torch.zeros(8), torch.zeros(8), torch.zeros(8)
    with simulated():
        filtered[(1,)](x, a, b, c, BLOCK=8)
    assert torch.equal(a, x.nan_to_num(0.0, inf, -inf))
    torch.testing.assert_close(b, torch.where(x.isinf(), 0.0, x), equal_nan=True)
    assert torch.equal(c, torch.where(x.isfinite() & (x > 2), x, 0.0))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_quotient_is_rounded_towards_zero(kind):
    drawn = np.random.default_rng(1)
    x, y = (drawn.standard_normal(200).astype(kind) for _ in range(2))
    found = FUNCTIONS["div_rz"](x, y)
    assert found.dtype == kind
    for a, b, quotient in zip(x, y, found, strict=True):
        exact = abs(Fraction(float(a)) / Fraction(float(b)))
        beyond = np.nextafter(abs(quotient), kind(inf))
        assert Fraction(float(abs(quotient))) <= exact < Fraction(float(beyond))
    with np.errstate(all="ignore"):
        edges = FUNCTIONS["div_rz"](np.array([1, -1, 0, inf, 1], kind), np.array([0, 0, 0, 2, inf], kind))
    assert edges.tolist()[:2] == [inf, -inf]
    assert np.isnan(edges[2])
    assert edges.tolist()[3:] == [inf, 0]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_fma_is_rounded_once(kind):
    drawn = np.random.default_rng(2)
    x, y = (drawn.standard_normal(300).astype(kind) for _ in range(2))
    z = (-x * y * drawn.choice([1, 1 + 2**-20, 1e8], 300)).astype(kind)  # most digits cancel
    found = FUNCTIONS["fma"](x, y, z)
    for a, b, c, result in zip(x, y, z, found, strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        error = abs(Fraction(float(result)) - exact)
        for neighbour in (np.nextafter(result, kind(inf)), np.nextafter(result, kind(-inf))):
            assert error <= abs(Fraction(float(neighbour)) - exact)


def test_bf16_is_refused_as_libdevice_has_none():
    x = torch.ones(8, dtype=torch.bfloat16)
    with pytest.raises(LaunchError) as caught, simulated():
        applied[(1,)](x, torch.zeros(8), NAME="round", BLOCK=8)
    assert "the library function 'round' of bf16" in str(caught.value)
    assert "result = libdevice.round(value)" in str(caught.value)
