"""Triton as a judge: its own language, run by its own interpreter on the CPU, on the arrays that `tl` gets.

    ours, theirs = both(lambda tl, x: tl.cumsum(x, 0), x)

The same Python expression is computed inside a kernel of KernBench and inside a `@triton.jit` kernel. Triton chooses
between compiler and interpreter when it is imported, so this module imports it, and what uses it asks here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from kernbench.common.dtypes import dtype_of
from kernbench.testing import run_kernel

os.environ["TRITON_INTERPRET"] = "1"
WHY = "Triton is not installed (it has wheels for Linux alone): the numpy oracles judge the same kernels"
torch = pytest.importorskip("torch", reason=WHY)
triton = pytest.importorskip("triton", reason=WHY, exc_type=ImportError)
tl = pytest.importorskip("triton.language", reason=WHY, exc_type=ImportError)

assert type(tl.sort).__name__ == "InterpretedFunction", "triton.language was imported before it was to be interpreted"

Compute = Callable[..., Any]
NAMES = {"fp32": "f32", "fp16": "f16", "int1": "bool"}  # Triton's, where int8 is not i8 and uint8 not u8


@triton.jit
def of_one(x, out, compute: tl.constexpr, shapes: tl.constexpr, size: tl.constexpr):
    a = tl.reshape(tl.load(x + tl.arange(0, prod(shapes[0]))), shapes[0])
    tl.store(out + tl.arange(0, size), tl.reshape(compute(a), (size,)))


@triton.jit
def of_two(x, y, out, compute: tl.constexpr, shapes: tl.constexpr, size: tl.constexpr):
    a = tl.reshape(tl.load(x + tl.arange(0, prod(shapes[0]))), shapes[0])
    b = tl.reshape(tl.load(y + tl.arange(0, prod(shapes[1]))), shapes[1])
    tl.store(out + tl.arange(0, size), tl.reshape(compute(a, b), (size,)))


@triton.jit
def of_three(x, y, z, out, compute: tl.constexpr, shapes: tl.constexpr, size: tl.constexpr):
    a = tl.reshape(tl.load(x + tl.arange(0, prod(shapes[0]))), shapes[0])
    b = tl.reshape(tl.load(y + tl.arange(0, prod(shapes[1]))), shapes[1])
    c = tl.reshape(tl.load(z + tl.arange(0, prod(shapes[2]))), shapes[2])
    tl.store(out + tl.arange(0, size), tl.reshape(compute(a, b, c), (size,)))


def to_torch(array: np.ndarray) -> Any:
    """A copy in Triton's memory; bf16 and fp8 are unknown to numpy and travel as integers."""
    element = dtype_of(array.dtype)
    if array.dtype.kind in "fiub":
        return torch.from_numpy(array.copy())
    bits = array.view(np.int16 if element.itemsize == 2 else np.uint8).copy()
    return torch.from_numpy(bits).view(getattr(torch, element.numpy_name))


def to_numpy(tensor: Any, like: np.ndarray) -> np.ndarray:
    if like.dtype.kind in "fiub":
        return tensor.numpy()
    return tensor.view(torch.int16 if like.itemsize == 2 else torch.uint8).numpy().view(like.dtype)


def on_triton(kernel: Any, *args: object, grid: tuple[int, ...] = (1,), **sizes: object) -> list[np.ndarray]:
    """What a `@triton.jit` kernel leaves in its arrays."""
    passed = [to_torch(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    with np.errstate(all="ignore"):  # the interpreter computes with numpy
        kernel[grid](*passed, **sizes)
    return [to_numpy(t, arg) for t, arg in zip(passed, args, strict=True) if isinstance(arg, np.ndarray)]


def both(compute: Compute, *arrays: np.ndarray, theirs: Compute | None = None) -> tuple[np.ndarray, np.ndarray]:
    """`compute(tl, *blocks)` here and in Triton, or `theirs` there, where the two spell a thing differently. Shape and
    dtype of the result agree.
    """
    found: list[np.ndarray] = []

    def kernel(*pointers, tl):
        found.append(compute(tl, *(tl.load(pointer) for pointer in pointers)).numpy())

    run_kernel(kernel, *arrays)
    ours = found[0]

    def noted(*blocks):
        result = (theirs or compute)(tl, *blocks)
        name = str(result.dtype)
        assert dtype_of(NAMES.get(name, name)) == dtype_of(ours.dtype)
        assert tuple(result.shape) == ours.shape
        return result if result.shape else tl.full((1,), 0, result.dtype) + result

    run = {1: of_one, 2: of_two, 3: of_three}[len(arrays)]
    out = np.zeros(ours.size, ours.dtype)
    shapes = tuple(array.shape for array in arrays)
    left = on_triton(run, *arrays, out, compute=noted, shapes=shapes, size=ours.size)
    return ours, left[-1].reshape(ours.shape)


def same(found: tuple[np.ndarray, np.ndarray]) -> None:
    """Bit for bit."""
    ours, theirs = found
    assert ours.tobytes() == theirs.tobytes(), (ours, theirs)


def near(found: tuple[np.ndarray, np.ndarray], slack: float = 1.0) -> None:
    """Within the tolerance of the result's dtype."""
    ours, theirs = found
    element = dtype_of(ours.dtype)
    np.testing.assert_allclose(
        ours.astype(np.float64), theirs.astype(np.float64), rtol=element.rtol * slack, atol=element.atol * slack
    )
