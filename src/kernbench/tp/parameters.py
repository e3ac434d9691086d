"""Weights: the contents of a full weight, and the part of it that a rank holds.

An `init` gives the contents of the FULL weight, independent of the number of ranks: "zeros" (the default), "ones",
"pattern" (a fixed pattern of small numbers, different in every row and column), an array, or a function of the full
shape that returns one. Each rank takes its part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernbench.common.array_types import Shape
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor

Init: TypeAlias = Literal["zeros", "ones", "pattern"] | ArrayLike | Callable[[Shape], ArrayLike]
WeightIndex: TypeAlias = tuple[slice | NDArray[np.int64], ...]  # what to index the full weight with
NAMES = ("zeros", "ones", "pattern")


def pattern(shape: Shape) -> NDArray[np.float32]:
    """Numbers from -1 to 1, different in every row and column, over the square root of the number of rows: so outputs
    are of the magnitude of inputs.
    """
    places = np.indices(shape, dtype=np.int64)
    mixed = sum(place * factor for place, factor in zip(places, (7919, 104729, 1299709), strict=False))
    spread = (mixed * 2654435761 >> 7) % 4096 / 2048 - 1
    return cast(NDArray[np.float32], (spread / np.sqrt(shape[0] if len(shape) > 1 else 1)).astype(np.float32))


def full_weight(init: Init, shape: Shape, what: str) -> NDArray[np.generic]:
    """All of a weight; raises UsageError for an array of another shape and for a name that does not exist."""
    if isinstance(init, str):
        if init not in NAMES:
            raise UsageError(
                f"{what}: no init {init!r}", hint=f"use one of {', '.join(NAMES)}, an array, or a function of the shape"
            )
        return pattern(shape) if init == "pattern" else np.full(shape, NAMES.index(init), np.float32)
    array = np.asarray(init(shape) if callable(init) else init)
    if array.shape != shape:
        raise UsageError(f"{what}: init has shape {array.shape}", hint=f"give the full weight, which has shape {shape}")
    return array


def make_parameter(
    torch: RuntimeContext, init: Init, shape: Shape, part: WeightIndex, dtype: str, dp: DPPolicy, name: str
) -> Tensor:
    """A rank's part of a weight of a full `shape`, on its device."""
    if isinstance(init, str) and init in ("zeros", "ones"):
        local = np.broadcast_to(np.int8(0), shape)[part].shape
        return torch.full(local, NAMES.index(init), dtype=dtype, dp=dp, name=name)
    held = full_weight(init, shape, name)[part]
    return torch.from_numpy(cast(ArrayLike, held), dtype=dtype, dp=dp, name=name)
