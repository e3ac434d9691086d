"""`tl`: ops along an axis. Each waits for the MATH engine, which processes x's elements once, whatever the op: a
sort, a scan or a softmax is one pass, too (see `kernbench fidelity`).

A reduced axis is kept with size 1, unless `keep_dims=False`: `x - tl.max(x, 1)` is every row less its largest. Without
an axis everything is reduced, to a tensor whose sizes are all 1, or with `keep_dims=False` to a single number.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.tl_math import TlMath


class TlAxis(TlMath):
    """Reductions, softmax, sorting, scans, and ops that move elements along an axis."""

    # ---- reductions

    def sum(self, x: TensorHandle, axis: int | None = None, keep_dims: bool = True) -> TensorHandle:
        """Sum along `axis`, or of all. Shape: 1 there, or without the axis if not keep_dims. dtype: float kept, integer
        gives i32 (unsigned u32, i64 itself). Engine: MATH, x's elements.
        """
        return self._math("sum", [x], axis=axis, keep_dims=keep_dims)

    def mean(self, x: TensorHandle, axis: int | None = None, keep_dims: bool = True) -> TensorHandle:
        """Mean along `axis`, or of all. Shape: as sum. dtype: float kept, integer gives f32. Engine: MATH, x's
        elements.
        """
        return self._math("mean", [x], axis=axis, keep_dims=keep_dims)

    def max(self, x: TensorHandle, axis: int | None = None, keep_dims: bool = True) -> TensorHandle:
        """Largest along `axis`, or of all. Shape: as sum. dtype: x's. Engine: MATH, x's elements."""
        return self._math("max", [x], axis=axis, keep_dims=keep_dims)

    def min(self, x: TensorHandle, axis: int | None = None, keep_dims: bool = True) -> TensorHandle:
        """Smallest along `axis`, or of all. Shape: as sum. dtype: x's. Engine: MATH, x's elements."""
        return self._math("min", [x], axis=axis, keep_dims=keep_dims)

    def argmax(self, x: TensorHandle, axis: int | None = None, keep_dims: bool = True) -> TensorHandle:
        """Where along `axis` the largest is, or in the whole of x, counted row by row; the first of equals, and the
        first NaN where there is one. Shape: as sum. dtype: i32. Engine: MATH, x's elements.
        """
        return self._math("argmax", [x], axis=axis, keep_dims=keep_dims)

    def argmin(self, x: TensorHandle, axis: int | None = None, keep_dims: bool = True) -> TensorHandle:
        """Where the smallest is, as argmax. Shape: as sum. dtype: i32. Engine: MATH, x's elements."""
        return self._math("argmin", [x], axis=axis, keep_dims=keep_dims)

    # ---- along an axis

    def softmax(self, x: TensorHandle, axis: int = -1) -> TensorHandle:
        """exp(x - max) over its sum along `axis`, charged as one op. Shape: x's. dtype: float kept, integer gives f32.
        Engine: MATH, x's elements."""
        return self._math("softmax", [x], axis=axis)

    def cumsum(self, x: TensorHandle, axis: int = 0) -> TensorHandle:
        """Cumulative sums along `axis`, accumulated in f32 in order and each rounded once. Shape: x's. dtype: as
        sum. Engine: MATH, x's elements.
        """
        return self._math("cumsum", [x], axis=axis)

    def sort(self, x: TensorHandle, axis: int = -1, descending: bool = False) -> TensorHandle:
        """Sorted along `axis`, NaN as the largest. Shape and dtype: x's. Engine: MATH, x's elements."""
        return self._math("sort", [x], axis=axis, descending=bool(descending))

    def argsort(self, x: TensorHandle, axis: int = -1, descending: bool = False) -> TensorHandle:
        """The indices along `axis` of the elements that `sort` gives, stable. Shape: x's. dtype: i32. Engine:
        MATH, x's elements.
        """
        return self._math("argsort", [x], axis=axis, descending=bool(descending))

    def gather(self, src: TensorHandle, index: TensorHandle, axis: int = 0) -> TensorHandle:
        """The elements of `src` that `index` names along `axis`, as numpy's take_along_axis; one outside the axis is an
        error when it is computed. Shape: index's, whose sizes are those of src along all other axes. dtype: src's, of
        any integer index. Engine: MATH, the larger of src and index.
        """
        self._local("gather", index, "index")
        return self._math("gather_along", [src, index], axis=axis)

    def topk(self, x: TensorHandle, k: int, axis: int = -1) -> tuple[TensorHandle, TensorHandle]:
        """The k largest along `axis`, largest first, and where they are, as in PyTorch (Triton gives the first alone).
        NaN counts as the largest; of equals the first comes first. Shape: k along the axis. dtype: x's, and i32.
        Engine: MATH, x's elements once for both.
        """
        largest = self._math("topk", [x], k=k, axis=axis)
        places = self._apply("topk_index", (self._known(x),), k=k, axis=axis)
        return largest, self._new(places, largest.records)

    # ---- moving elements

    def flip(self, x: TensorHandle, axis: int = -1) -> TensorHandle:
        """`axis` backwards, in TCM of its own. Shape and dtype: x's. Engine: MATH, x's elements."""
        return self._math("flip", [x], axis=axis)

    def cat(self, tensors: Sequence[TensorHandle], axis: int = 0) -> TensorHandle:
        """Tensors one after the other along `axis`, in TCM of their own. Shape: the sum of sizes there, all others
        equal. dtype: mixed. Engine: MATH, the result's elements.
        """
        if not isinstance(tensors, list | tuple) or not tensors:
            self._fail(f"cat: the tensors are {tensors!r}", "give a list of one or more: tl.cat([a, b], axis=0)")
        return self._math("concat", [self._local("cat", x) for x in tensors], axis=axis)
