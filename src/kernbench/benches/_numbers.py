"""What benches share: seeded inputs, and the formulas that numpy judges results by, in f64."""

from __future__ import annotations

from math import erf
from typing import Annotated, Literal, cast

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array
from kernbench.common.dtypes import dtype_of
from kernbench.runtime_api.bench_params import AtLeast

Wide = NDArray[np.float64]
DTypeName = Annotated[Literal["f16", "bf16", "f32", "f8e4m3", "f8e5m2", "i8"], "element type of the inputs"]
FloatName = Annotated[Literal["f16", "bf16", "f32"], "element type of inputs and output"]
TileName = Annotated[Literal["native", "auto"], "tile of the composites: the PE's own, or the fastest by the model"]
Size = Annotated[int, AtLeast(1)]
Seed = Annotated[int, AtLeast(0), "which random inputs"]


def draw(rng: np.random.Generator, *shape: int, dtype: str = "f16", scale: float = 1.0) -> Array:
    """Normal numbers times `scale` as an array of `dtype`; whole numbers of -8 to 7 for integers."""
    element = dtype_of(dtype)
    if not element.is_float:
        return rng.integers(-8, 8, shape).astype(element.numpy)
    return cast(Array, (rng.standard_normal(shape) * scale).astype(element.numpy))


def weights(rng: np.random.Generator, inputs: int, outputs: int, dtype: str = "f16") -> Array:
    """A matrix whose products with normal numbers are normal again, so that sums do not grow with their length."""
    return draw(rng, inputs, outputs, dtype=dtype, scale=inputs**-0.5)


def product_dtype(dtype: str) -> str:
    """What a product of that type is stored as: one-byte types need more room."""
    element = dtype_of(dtype)
    return element.accumulate.name if element.itemsize == 1 else element.name


def tile_shape_of(auto_tile: bool) -> str | None:
    """The arguments of a composite."""
    return "auto" if auto_tile else None


def wide(array: Array) -> Wide:
    return array.astype(np.float64)


def product(a: Array, b: Array) -> Wide:
    return wide(a) @ wide(b)


def softmax(x: Wide) -> Wide:
    """Along the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return cast(Wide, powers / powers.sum(axis=-1, keepdims=True))


def gelu(x: Wide) -> Wide:
    """With the error function, not its tanh approximation."""
    return cast(Wide, x * 0.5 * (1.0 + np.vectorize(erf, otypes=[float])(x / np.sqrt(2.0))))
