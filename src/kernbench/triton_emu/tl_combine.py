"""`tl`: reductions and scans with a user's function of two elements a and b, in this order.

They are trees of calls of that function, whose ops are charged as usual: a reduction of n elements combines neighbours
in log2(n) rounds, a total of n - 1 pairs; a scan takes log2(n) rounds over the rest of the axis, and moves the axis
once per round. The function must be associative. It is called with tensors and returns tensors of their shape and
dtype; for a tuple of k tensors it is called with 2 k and returns k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, overload

from kernbench.common.whole_numbers import is_whole
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.tl_axis import TlAxis
from kernbench.triton_emu.tl_memory import TlMemory

Tensors: TypeAlias = tuple[TensorHandle, ...]
Combine: TypeAlias = Callable[..., TensorHandle | Sequence[TensorHandle]]


class TlCombine(TlAxis, TlMemory):
    """`reduce`, `associative_scan`, and ops made of them."""

    @overload
    def reduce(
        self, x: TensorHandle, axis: int | None, combine_fn: Combine, keep_dims: bool = True
    ) -> TensorHandle: ...
    @overload
    def reduce(self, x: Tensors, axis: int | None, combine_fn: Combine, keep_dims: bool = True) -> Tensors: ...
    def reduce(
        self, x: TensorHandle | Tensors, axis: int | None, combine_fn: Combine, keep_dims: bool = True
    ) -> TensorHandle | Tensors:
        """Combine all elements along `axis`, or all of x, neighbours first: of four, f(f(a, b), f(c, d)). Shape: as
        sum. dtype: x's. Engine: those of the function's ops, in log2(n) rounds over n - 1 pairs.
        """
        tensors, several = self._group("reduce", x)
        shape = tensors[0].shape
        if axis is None:
            tensors, at = tuple(self.reshape(each, -1) for each in tensors), 0
        else:
            at = self._place("reduce", axis, tensors[0])
        if not tensors[0].shape[at]:
            self._fail(f"reduce over no elements: shape {shape}, axis {axis}", "reduce an axis of one or more")
        left = self._halved(tensors, at, combine_fn)
        kept = tuple(1 if axis is None or i == at else n for i, n in enumerate(shape))
        dropped = () if axis is None else tuple(n for i, n in enumerate(shape) if i != at)
        found = tuple(self.reshape(each, kept if keep_dims else dropped) for each in left)
        return found if several else found[0]

    @overload
    def associative_scan(
        self, x: TensorHandle, axis: int, combine_fn: Combine, reverse: bool = False
    ) -> TensorHandle: ...
    @overload
    def associative_scan(self, x: Tensors, axis: int, combine_fn: Combine, reverse: bool = False) -> Tensors: ...
    def associative_scan(
        self, x: TensorHandle | Tensors, axis: int, combine_fn: Combine, reverse: bool = False
    ) -> TensorHandle | Tensors:
        """All elements up to each one along `axis`, combined; with `reverse` from its end on. Shape and dtype: x's.
        Engine: those of the function's ops, in log2(n) rounds, and MATH, x's elements per round.
        """
        tensors, several = self._group("associative_scan", x)
        at = self._place("associative_scan", axis, tensors[0])
        size, step = tensors[0].shape[at], 1
        while step < size:
            ends = (size - step, size) if reverse else (0, step)  # these are complete already
            done = [self._cut_along(each, at, *ends) for each in tensors]
            first = tuple(self._cut_along(each, at, 0, size - step) for each in tensors)
            second = tuple(self._cut_along(each, at, step, size) for each in tensors)
            before, here = (second, first) if reverse else (first, second)
            more = self._combined("associative_scan", combine_fn, before, here)
            pairs = zip(more, done, strict=True) if reverse else zip(done, more, strict=True)
            tensors = tuple(self.cat(list(pair), axis=at) for pair in pairs)
            step *= 2
        return tensors if several else tensors[0]

    def cumprod(self, x: TensorHandle, axis: int = 0, reverse: bool = False) -> TensorHandle:
        """Cumulative products along `axis`, each rounded to x's type. Shape and dtype: x's. Engine: MATH, as
        associative_scan of a product.
        """
        return self.associative_scan(x, axis, self.mul, reverse)

    def xor_sum(self, x: TensorHandle, axis: int | None = None, keep_dims: bool = True) -> TensorHandle:
        """Bitwise exclusive or along `axis`, or of all. Shape: as sum. dtype: x's, of integers. Engine: MATH, as reduce
        of it.
        """
        return self.reduce(x, axis, lambda a, b: self.bitwise("bit_xor", a, b), keep_dims)

    # ---- inside

    def _group(self, op: str, x: TensorHandle | Tensors) -> tuple[Tensors, bool]:
        """Tensors of one shape, and whether they were given as several."""
        given = x if isinstance(x, list | tuple) else (x,)
        tensors = tuple(self._local(op, each) for each in given)
        if not tensors or any(each.shape != tensors[0].shape for each in tensors):
            shapes = ", ".join(str(each.shape) for each in tensors) or "none"
            self._fail(f"{op}: tensors of shapes {shapes}", "give one tensor, or several of one shape")
        return tensors, isinstance(x, list | tuple)

    def _place(self, op: str, axis: int, x: TensorHandle) -> int:
        if not is_whole(axis) or not -x.ndim <= axis < x.ndim:
            self._fail(f"{op}: axis {axis!r} of a tensor of {x.ndim} dimensions", "use one of its axes")
        return int(axis) % x.ndim

    def _cut_along(self, x: TensorHandle, axis: int, start: int, stop: int, step: int = 1) -> TensorHandle:
        return self.part(x, (*(slice(None),) * axis, slice(start, stop, step)))

    def _halved(self, tensors: Tensors, axis: int, combine: Combine) -> Tensors:
        """All along an axis combined, neighbours first; where a number is odd, the last one waits for the end."""
        waiting: list[Tensors] = []
        while (size := tensors[0].shape[axis]) > 1:
            if size % 2:
                waiting.append(tuple(self._cut_along(each, axis, size - 1, size) for each in tensors))
                size -= 1
            even = tuple(self._cut_along(each, axis, 0, size, 2) for each in tensors)
            odd = tuple(self._cut_along(each, axis, 1, size, 2) for each in tensors)
            tensors = self._combined("reduce", combine, even, odd)
        for last in reversed(waiting):
            tensors = self._combined("reduce", combine, tensors, last)
        return tensors

    def _combined(self, op: str, combine: Combine, a: Tensors, b: Tensors) -> Tensors:
        found = combine(*a, *b)
        results = tuple(found) if isinstance(found, list | tuple) else (found,)
        wanted = [(each.shape, each.dtype) for each in a]
        given = [
            (each.shape, each.dtype) if isinstance(each, TensorHandle) else type(each).__name__ for each in results
        ]
        if given != wanted:
            self._fail(
                f"{op}: the function gives {_listed(given)}, expected {_listed(wanted)}",
                "it must give tensors of the shape and dtype that it gets, in their order: cast with x.to(...)",
            )
        return results


def _listed(types: Sequence[object]) -> str:
    """`f16[4], i32[4]`."""
    return ", ".join(f"{t[1]}{list(t[0])}" if isinstance(t, tuple) else str(t) for t in types)
