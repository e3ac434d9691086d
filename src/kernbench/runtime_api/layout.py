"""Layouts: which elements of a storage a tensor consists of, as PyTorch defines it: offset, shape and strides.

Element (i, j, ...) of a tensor is element `offset + i * strides[0] + j * strides[1] + ...` of its storage, all counted
in elements of the storage's row-major order. Views (slices, transposes, reshapes) are new layouts of the same storage.
Pure: no memory, no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from numbers import Integral

from kernbench.common.array_types import Shape
from kernbench.common.errors import TensorError, TensorIndexError
from kernbench.common.frozen import frozen


def dense_strides(shape: Sequence[int]) -> Shape:
    """The strides of a row-major tensor."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def axis_of(dim: object, ndim: int) -> int:
    """An axis counted from 0; raises TensorIndexError for one that is not there."""
    least = max(ndim, 1)
    if isinstance(dim, bool) or not isinstance(dim, Integral) or not -least <= int(dim) < least:
        raise TensorIndexError(f"there is no axis {dim!r} of {ndim}", hint=f"use {-least} to {least - 1}")
    return int(dim) % least


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape by broadcasting; raises TensorError if there is none."""
    out: list[int] = []
    for at in range(1, max((len(shape) for shape in shapes), default=0) + 1):
        sizes = {shape[-at] for shape in shapes if len(shape) >= at} - {1}
        if len(sizes) > 1:
            listed = " and ".join(str(list(shape)) for shape in shapes)
            raise TensorError(
                f"shapes {listed} do not broadcast: sizes {sorted(sizes)} of axis -{at}", hint="make sizes equal, or 1"
            )
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def resolve_shape(sizes: Sequence[int], numel: int) -> Shape:
    """A shape of which one size may be -1; raises TensorError unless it has `numel` elements."""
    if not all(isinstance(n, Integral) and not isinstance(n, bool) and n >= -1 for n in sizes):
        raise TensorError(f"shape {list(sizes)!r}", hint="give whole numbers; one of them may be -1")
    shape = [int(n) for n in sizes]
    known = prod(n for n in shape if n >= 0)
    if shape.count(-1) == 1 and known and numel % known == 0:
        shape[shape.index(-1)] = numel // known
    if -1 in shape or prod(shape) != numel:
        raise TensorError(f"shape {list(sizes)} is invalid for {numel} elements", hint="let the sizes multiply to that")
    return tuple(shape)


@frozen
class Layout:
    """A view of a storage."""

    shape: Shape
    strides: Shape
    offset: int = 0

    @classmethod
    def dense(cls, shape: Sequence[int], offset: int = 0) -> Layout:
        return cls(tuple(shape), dense_strides(shape), offset)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements follow one another in row-major order; strides of sizes of 1 do not matter."""
        if 0 in self.shape:
            return True
        steps = zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        return all(size == 1 or stride == dense for size, stride, dense in steps)

    @property
    def repeats(self) -> bool:
        """Whether several elements of it are one element of the storage, as in an expanded tensor."""
        return any(size > 1 and stride == 0 for size, stride in zip(self.shape, self.strides, strict=True))

    # ---- views

    def permuted(self, dims: Sequence[int]) -> Layout:
        axes = [axis_of(dim, len(self.shape)) for dim in dims]
        if sorted(axes) != list(range(len(self.shape))):
            raise TensorError(f"permute to axes {list(dims)} of {len(self.shape)}", hint="name each axis once")
        return Layout(tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes), self.offset)

    def narrowed(self, axis: int, start: int, length: int, step: int = 1) -> Layout:
        shape, strides = list(self.shape), list(self.strides)
        shape[axis], strides[axis] = length, strides[axis] * step
        return Layout(tuple(shape), tuple(strides), self.offset + start * self.strides[axis])

    def without(self, axis: int) -> Layout:
        return Layout(
            self.shape[:axis] + self.shape[axis + 1 :], self.strides[:axis] + self.strides[axis + 1 :], self.offset
        )

    def inserted(self, axis: int) -> Layout:
        """With an axis of size 1 before `axis`."""
        stride = self.shape[axis] * self.strides[axis] if axis < len(self.shape) else 1
        return Layout(
            (*self.shape[:axis], 1, *self.shape[axis:]),
            (*self.strides[:axis], stride, *self.strides[axis:]),
            self.offset,
        )

    def expanded(self, sizes: Sequence[int]) -> Layout:
        """Repeated along axes of size 1, and along new leading axes; -1 keeps a size."""
        more = len(sizes) - len(self.shape)
        if more < 0:
            raise TensorError(f"shape {list(self.shape)} expanded to {list(sizes)}", hint="give as many sizes, or more")
        if not all(isinstance(n, Integral) and n >= -1 for n in sizes):
            raise TensorError(
                f"shape {list(self.shape)} expanded to {list(sizes)!r}", hint="give whole numbers; -1 keeps a size"
            )
        own = (1,) * more + self.shape
        shape = tuple(have if want == -1 else int(want) for want, have in zip(sizes, own, strict=True))
        if any(want != have != 1 for want, have in zip(shape, own, strict=True)):
            raise TensorError(
                f"shape {list(self.shape)} cannot be expanded to {list(sizes)}", hint="only sizes of 1 are repeated"
            )
        strides = (0,) * more + self.strides
        steps = tuple(
            stride if want == have else 0 for want, have, stride in zip(shape, own, strides, strict=True)
        )  # fmt: skip
        return Layout(shape, steps, self.offset)

    def viewed(self, shape: Shape) -> Layout | None:
        """The same elements in another shape; None if strides cannot express it, so that a copy is needed."""
        if self.is_contiguous:
            return Layout.dense(shape, self.offset)
        runs = _runs(self.shape, self.strides)  # maximal groups of axes that act as one
        strides: list[int] = []
        sizes = list(reversed(shape))
        for count, step in reversed(runs):
            taken = 1
            while sizes and taken < count:
                size = sizes.pop(0)
                strides.append(step * taken)
                taken *= size
            if taken != count:
                return None
        strides += [1] * len(sizes)  # sizes of 1 in front
        return Layout(shape, tuple(reversed(strides)), self.offset) if prod(sizes) == 1 else None

    def indexed(self, index: object) -> Layout | None:
        """The elements that integers, slices, None and an ellipsis select; None for any other index."""
        items = index if isinstance(index, tuple) else (index,)
        if not all(_is_basic(item) for item in items):
            return None
        layout, axis = self, 0
        for item in self._full_index(items):
            if item is None:
                layout = layout.inserted(axis)
                axis += 1
                continue
            size = layout.shape[axis]
            if isinstance(item, slice):
                start, length, step = _slice(item, size)
                layout = layout.narrowed(axis, start, length, step)
                axis += 1
            else:
                assert isinstance(item, Integral)
                if not -size <= int(item) < size:
                    raise TensorIndexError(
                        f"index {item} is out of bounds for an axis of {size}", hint=f"use {-size} to {size - 1}"
                    )
                layout = layout.narrowed(axis, int(item) % size, 1).without(axis)
        return layout

    def _full_index(self, items: Sequence[object]) -> Iterator[object]:
        """The items with the ellipsis, or a missing one at the end, replaced by whole slices."""
        named = sum(1 for item in items if item is not None and item is not Ellipsis)
        if named > len(self.shape) or sum(1 for item in items if item is Ellipsis) > 1:
            raise TensorIndexError(
                f"too many indices for a tensor of {len(self.shape)} axes: {named}", hint="give one per axis, or fewer"
            )
        at = next((n for n, item in enumerate(items) if item is Ellipsis), len(items))
        yield from items[:at]
        yield from [slice(None)] * (len(self.shape) - named)
        yield from items[at + 1 :]

    def moved(self, offset: int) -> Layout:
        return replace(self, offset=self.offset + offset)


def _is_basic(item: object) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice) or (
        isinstance(item, Integral) and not isinstance(item, bool)
    )  # fmt: skip


def _slice(item: slice, size: int) -> tuple[int, int, int]:
    """Start, length and step."""
    try:
        start, stop, step = item.indices(size)
    except (TypeError, ValueError) as error:
        raise TensorIndexError(f"{item}: {error}", hint="use whole numbers") from None
    if step < 1:
        raise TensorError(f"a slice with step {step}: step must be greater than zero", hint="use x.flip(dim)")
    return start, len(range(start, max(start, stop), step)), step


def _runs(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """Axes that act as one merged: (elements, step) each, without sizes of 1."""
    runs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return runs
