"""`tl`: further views of the same bytes of TCM. A view moves no data and uses no engine; `tl.flip` and `tl.cat` move
data and use MATH.
"""

from __future__ import annotations

from kernbench.common.whole_numbers import is_whole
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.tl_core import TlCore


class TlViews(TlCore):
    """Axes permuted, added and split."""

    def permute(self, x: TensorHandle, *axes: object) -> TensorHandle:
        """Axis i of the result is axis axes[i] of x; the axes as numbers or as one tuple. dtype: kept. Engine: none."""
        tensor = self._local("permute", x)
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], list | tuple) else axes
        return self._alias(tensor, self._apply("permute", (self._known(tensor),), axes=order))

    def expand_dims(self, x: TensorHandle, axis: int | tuple[int, ...]) -> TensorHandle:
        """An axis of size 1 put in so that it is axis `axis` of the result; several for a tuple. dtype: kept. Engine:
        none.
        """
        tensor = self._local("expand_dims", x)
        wanted = axis if isinstance(axis, list | tuple) else (axis,)
        rank = tensor.ndim + len(wanted)
        if not all(is_whole(at) and -rank <= at < rank for at in wanted):
            self._fail(f"expand_dims: axis {axis!r} of a result of {rank} dimensions", f"use {-rank} to {rank - 1}")
        new = [int(at) % rank for at in wanted]
        if len(set(new)) != len(new):
            self._fail(f"expand_dims: axis {axis!r} names one axis twice", "name each new axis once")
        sizes = iter(tensor.shape)
        shape = tuple(1 if at in new else next(sizes) for at in range(rank))
        return self._alias(tensor, self._apply("reshape", (self._known(tensor),), shape=shape))

    def split(self, x: TensorHandle, parts: int | tuple[int, ...], axis: int = 0) -> tuple[TensorHandle, ...]:
        """Parts of x along `axis`: that many equal ones, or of these sizes. Shape: the part's size there. dtype: kept.
        Engine: none.
        """
        tensor = self._local("split", x)
        if not is_whole(axis) or not -tensor.ndim <= axis < tensor.ndim:
            self._fail(f"split: axis {axis!r} of a tensor of {tensor.ndim} dimensions", "use one of its axes")
        at = int(axis) % tensor.ndim
        size, stop, found = tensor.shape[at], 0, []
        for length in self._lengths(parts, size):
            start, stop = stop, stop + length
            starts = tuple(start if i == at else 0 for i in range(tensor.ndim))
            stops = tuple(stop if i == at else n for i, n in enumerate(tensor.shape))
            value = self._apply("slice", (self._known(tensor),), starts=starts, stops=stops)
            found.append(self._alias(tensor, value))
        return tuple(found)

    def _lengths(self, parts: int | tuple[int, ...], size: int) -> tuple[int, ...]:
        if not isinstance(parts, list | tuple):
            if not is_whole(parts) or parts < 1 or size % parts:
                self._fail(
                    f"split: an axis of {size} in {parts!r} parts", "give a number that divides it, or a tuple of sizes"
                )
            return (size // int(parts),) * int(parts)
        lengths = self._shape("split", parts)
        if sum(lengths) != size:
            self._fail(f"split: sizes {lengths} of an axis of {size}", f"give sizes that add up to {size}")
        return lengths
