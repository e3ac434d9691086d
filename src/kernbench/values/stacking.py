"""Stacks the arrays of several values contiguously."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array
from kernbench.values.bytes_of import ViewParams, compute_view, windows
from kernbench.values.graph import Value

CHUNK_BYTES = 1 << 20  # approximate size of a stack, so that it stays in the cache


def array_of(value: Value) -> Array:
    """The array of an evaluated value, or of a view whose parent is evaluated."""
    array = value.array()
    if array is not None:
        return array
    parent = value.inputs[0]
    held = parent.array()
    assert held is not None  # planned: levels put the parent of a view first
    return compute_view(held, parent.type, value.type, cast(ViewParams, value.params))


def stack_of(values: Sequence[Value]) -> Array:
    """A contiguous stack: a strided argument could take another path through numpy, with other bits."""
    if len(values) == 1:
        return np.ascontiguousarray(array_of(values[0])).reshape(1, *values[0].shape)
    return np.stack([array_of(value) for value in values])


class Tiles:
    """Values of one type to be stacked repeatedly. Views of one parent are cut from it without computing each."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = values
        self._view = cast(ViewParams, values[0].params)
        self.offsets = self._offsets(values)  # in bytes of the common parent, if there is one

    @staticmethod
    def _offsets(values: Sequence[Value]) -> NDArray[np.int64] | None:
        first = values[0]
        if first.data is not None or first.op != "view":
            return None
        parent, (_, stride, rows) = first.inputs[0], cast(ViewParams, first.params)
        offsets: list[int] = []
        for value in values:
            if value.data is not None or value.op != "view" or value.inputs[0] is not parent:
                return None
            offset, its_stride, its_rows = value.params
            if its_stride != stride or its_rows != rows:
                return None
            offsets.append(offset)  # type: ignore[arg-type]  # a cast would cost as much as the loop
        return np.array(offsets, np.int64)

    def stack(self, which: NDArray[np.int64]) -> Array:
        """The stack of the tiles that `which` (of any shape) names by position: its shape, then the tile's."""
        first = self._values[0]
        cut: Array | None = None
        if self.offsets is not None:
            parent = first.inputs[0]
            held = parent.array()
            assert held is not None  # planned: levels put the parent first
            cut = windows(held, parent.type, first.type, *self._view[1:], self.offsets[which.ravel()])
        if cut is None:
            cut = stack_of([self._values[at] for at in which.ravel().tolist()])
        return cut.reshape(*which.shape, *first.shape)
