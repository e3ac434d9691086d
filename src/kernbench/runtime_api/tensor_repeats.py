"""The part of a tensor that copies its elements to other places: repeated, rotated, or a triangle of them. Each copy is
a launch, or a few, on the device; the result is placed as the tensor is.
"""

from __future__ import annotations

from math import prod
from typing import Any, Self

import numpy as np

from kernbench.common.errors import TensorError
from kernbench.runtime_api.layout import axis_of
from kernbench.runtime_api.numpy_names import takes_numpy_names
from kernbench.runtime_api.tensor_math import TensorMath
from kernbench.runtime_api.tensor_views import SizeArguments, TensorViews, are_whole, sizes_of


@takes_numpy_names
class TensorRepeats(TensorMath):
    """Copies with elements in other places."""

    def repeat(self, *repeats: SizeArguments) -> Self:
        """A copy with so many repetitions along each axis; numbers before those of its axes make new ones."""
        times = sizes_of(repeats)
        if len(times) < self.ndim or not are_whole(times) or any(each < 0 for each in times):
            raise TensorError(
                f"repeat of {self.title} by {list(times)}",
                hint=f"give a number for each of its {self.ndim} axes, and more for new axes before them",
            )
        shape = (*[1] * (len(times) - self.ndim), *self.shape)
        source = self.view(shape)
        for axis in range(len(shape)):
            source = source.unsqueeze(2 * axis)
        return self._spread_over(
            source.expand([size for pair in zip(times, shape, strict=True) for size in pair]),
            tuple(n * size for n, size in zip(times, shape, strict=True)),
            "repeat",
        )

    def tile(self, *dims: SizeArguments) -> Self:
        """As `repeat`; axes that have no number are taken once."""
        times = sizes_of(dims)
        return self.repeat(*[1] * (self.ndim - len(times)), *times)

    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
        """A copy with every place along an axis so many times, one after the other; without an axis, every element."""
        if not are_whole((repeats,)) or repeats < 0:
            raise TensorError(
                f"repeat_interleave by {repeats!r}", hint="give a whole number; for one per place, use x[indices]"
            )
        source = self.reshape(-1) if dim is None else self
        axis = 0 if dim is None else axis_of(dim, self.ndim)
        shape = source.shape
        wide = source.unsqueeze(axis + 1).expand(*shape[: axis + 1], repeats, *shape[axis + 1 :])
        return self._spread_over(wide, (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]), "repeat_interleave")

    def _spread_over(self, source: Self, shape: tuple[int, ...], name: str) -> Self:
        """A new tensor of a shape, with the elements of a view that has as many."""
        out: Self = self._ops.new(self, shape, None, None)
        if prod(shape):
            self._ops.copy_into(out.view(source.shape), source, name)
        return out

    def roll(self, shifts: Any, dims: Any = None) -> Self:
        """A copy whose elements are moved along axes, around their ends; without axes, in row-major order."""
        if dims is None:
            return self.reshape(-1).roll(shifts, 0).view(self.shape)
        moves = tuple(zip(_as_list(shifts), _as_list(dims), strict=False))
        if len(_as_list(shifts)) != len(_as_list(dims)) or not are_whole(_as_list(shifts)):
            raise TensorError(f"roll by {shifts!r} along axes {dims!r}", hint="give a whole number for each axis")
        found: Self = self
        for shift, dim in moves:
            found = found._rolled(shift, axis_of(dim, self.ndim))
        return found if moves else self.clone()

    def _rolled(self, shift: int, axis: int) -> Self:
        out: Self = self._ops.new(self, self.shape, None, None)
        size = self.shape[axis]
        first = shift % size if size else 0
        for start, length, to in ((0, size - first, first), (size - first, first, 0)):
            if length:
                self._ops.copy_into(out.narrow(axis, to, length), self.narrow(axis, start, length), "roll")
        return out

    def tril(self, diagonal: int = 0) -> Self:
        """A matrix with zeros above a diagonal."""
        return self._ops.masked(self, ~self._below(diagonal))

    def triu(self, diagonal: int = 0) -> Self:
        """A matrix with zeros below a diagonal."""
        return self._ops.masked(self, self._below(diagonal - 1))

    def _below(self, diagonal: int) -> Any:
        if self.ndim < 2:
            raise TensorError(f"{self.title} is no matrix", hint="give two axes or more")
        return np.tri(self.shape[-2], self.shape[-1], k=diagonal, dtype=bool)

    def outer(self, vec2: TensorViews) -> Self:
        """Every product of an element of this vector and one of the other."""
        if self.ndim != 1 or vec2.ndim != 1:
            raise TensorError(f"outer of {self.title} and {vec2.title}", hint="give vectors")
        return self._ops.pointwise("mul", self.unsqueeze(1), vec2.unsqueeze(0))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]
