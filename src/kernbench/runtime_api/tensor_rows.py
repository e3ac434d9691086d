"""The part of a tensor that computes along axes: reductions, softmax, orders, indexed rows, products; and casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from kernbench.common.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType, dtype_of
from kernbench.common.errors import TensorError, UsageError
from kernbench.runtime_api.layout import axis_of
from kernbench.runtime_api.numpy_names import takes_numpy_names
from kernbench.runtime_api.tensor_base import T
from kernbench.runtime_api.tensor_math import TensorMath, named
from kernbench.runtime_api.tensor_repeats import TensorRepeats
from kernbench.runtime_api.tensor_views import SizeArguments, TensorViews, sizes_of


class MinMax(NamedTuple):
    """Values along an axis, and where they are."""

    values: Any
    indices: Any


def _reduced(name: str) -> Callable[..., Any]:
    def method(
        self: TensorMath, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: object = None
    ) -> Any:
        return self._ops.reduce(name, self, dim, keepdim, None if dtype is None else dtype_of(dtype))

    return named(method, name, f"{name} along axes, or of all elements.")


@takes_numpy_names
class TensorRows(TensorRepeats):
    """Along axes."""

    # ---- reductions

    sum, mean, amax, amin = map(_reduced, ("sum", "mean", "amax", "amin"))
    any, all = _reduced("any"), _reduced("all")

    def norm(self, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Self:
        """The Euclidean norm along axes, or of all elements."""
        if p not in (2, 2.0, "fro"):
            raise UsageError(f"norm: p is {p!r}", hint="2 is there; for others use abs, pow and sum")
        return self._ops.reduce("norm", self, dim, keepdim)

    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The largest element; along an axis, values and indices; with a tensor, the larger of both."""
        return self._best("max", dim, keepdim)

    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The smallest element; along an axis, values and indices; with a tensor, the smaller of both."""
        return self._best("min", dim, keepdim)

    def _best(self, name: str, dim: Any, keepdim: bool) -> Any:
        if isinstance(dim, TensorViews):
            return self._ops.pointwise(f"{name}imum", self, dim)
        if dim is None:
            return self._ops.reduce(f"a{name}", self, None, False)
        return MinMax(*self._ops.rows(name, self, dim, keepdim=keepdim))

    def argmax(self, dim: Any = None, keepdim: bool = False) -> Self:
        """Where the largest element is along an axis, or among all in row-major order; the first of equals."""
        return self._place("argmax", dim, keepdim)

    def argmin(self, dim: Any = None, keepdim: bool = False) -> Self:
        return self._place("argmin", dim, keepdim)

    def _place(self, name: str, dim: Any, keepdim: bool) -> Self:
        x = self.reshape(-1) if dim is None else self
        return self._ops.rows(name, x, 0 if dim is None else dim, keepdim=keepdim and dim is not None)[0]

    def var(self, dim: Any = None, *, correction: Any = 1, unbiased: Any = None, keepdim: bool = False) -> Self:
        return self._spread("var", dim, correction, unbiased, keepdim)

    def std(self, dim: Any = None, *, correction: Any = 1, unbiased: Any = None, keepdim: bool = False) -> Self:
        return self._spread("std", dim, correction, unbiased, keepdim)

    def _spread(self, name: str, dim: Any, correction: Any, unbiased: Any, keepdim: bool) -> Self:
        if unbiased is not None:
            correction = 1 if unbiased else 0
        x = self.reshape(-1) if dim is None else self
        axis = 0 if dim is None else dim
        return self._ops.rows(name, x, axis, keepdim=keepdim and dim is not None, correction=correction)[0]

    # ---- along an axis

    def softmax(self, dim: Any, dtype: object = None) -> Self:
        """exp(x - max) over its sum along an axis."""
        return self._row("softmax", dim, dtype)

    def log_softmax(self, dim: Any, dtype: object = None) -> Self:
        return self._row("log_softmax", dim, dtype)

    def _row(self, name: str, dim: Any, dtype: object) -> Self:
        return self._ops.rows(name, self if dtype is None else self.to(dtype), dim)[0]

    def logsumexp(self, dim: Any, keepdim: bool = False) -> Self:
        return self._ops.rows("logsumexp", self, dim, keepdim=keepdim)[0]

    def cumsum(self, dim: Any) -> Self:
        """The sums so far along an axis."""
        return self._ops.rows("cumsum", self, dim)[0]

    def flip(self, *dims: SizeArguments) -> Self:
        """A copy with axes backwards."""
        out: Self = self
        for dim in sizes_of(dims):
            out = out._ops.rows("flip", out, dim)[0]
        return out

    def sort(self, dim: Any = -1, descending: bool = False) -> MinMax:
        """In order along an axis, and where each element was."""
        return MinMax(*self._ops.rows("sort", self, dim, descending=descending))

    def argsort(self, dim: Any = -1, descending: bool = False) -> Self:
        places: Self = self.sort(dim, descending).indices
        return places

    def topk(self, k: Any, dim: Any = -1, largest: bool = True, sorted: bool = True) -> MinMax:
        """The k largest elements along an axis, largest first, and where they are."""
        size = self.shape[axis_of(dim, self.ndim)] if self.shape else 1
        if not 0 < k <= size:
            raise TensorError(f"topk of {k} along an axis of {size}", hint=f"use 1 to {size}")
        return MinMax(*self._ops.rows("topk", self, dim, k=k, largest=largest))

    def gather(self, dim: Any, index: TensorViews) -> Self:
        """The elements that an index tensor names along an axis."""
        axis = axis_of(dim, self.ndim)
        if index.ndim != self.ndim or any(
            other != axis and index.shape[other] != self.shape[other] for other in range(self.ndim)
        ):
            raise TensorError(
                f"gather from {self.title} by {index.title}",
                hint=f"let both have {self.ndim} axes, of equal sizes but along axis {axis}",
            )
        return self._ops.rows("gather", self, axis, index)[0]

    def index_select(self, dim: Any, index: TensorViews) -> Self:
        """The places along an axis that a vector of integers names."""
        axis = axis_of(dim, self.ndim)
        found = self._ops.take_rows(self.movedim(axis, 0), index, "index_select")
        return found.movedim(0, axis)

    def index_add_(self, dim: Any, index: TensorViews, source: TensorViews, *, alpha: Any = 1) -> Self:
        """Add rows of `source` to the rows that an index names, one after the other."""
        scaled: Any = source
        return self._put("index_add", dim, index, source if alpha == 1 else scaled * alpha)

    def index_copy_(self, dim: Any, index: TensorViews, source: TensorViews) -> Self:
        """Replace the rows that an index names by rows of `source`."""
        return self._put("put_rows", dim, index, source)

    def _put(self, name: str, dim: Any, index: TensorViews, source: TensorViews) -> Self:
        if (
            axis_of(dim, self.ndim)
            or source.shape != (index.numel(), *self.shape[1:])
            or source.element != self.element
        ):
            raise TensorError(
                f"{name}_ of {source.title} into {self.title} along axis {dim}",
                hint="use axis 0, an index for each row of the source, and one dtype",
            )
        if index.element.is_float or index.element is BOOL:
            raise TensorError(f"{name}_: the index is {index.title}", hint="give an integer tensor: index.long()")
        self._ops.put_rows(name, self, index, source)
        return self

    # ---- products

    def matmul(self, other: TensorViews) -> Self:
        """The matrix product."""
        return self._ops.matmul(self, other)

    def mm(self, mat2: TensorViews) -> Self:
        return self._product("mm", mat2, 2)

    def bmm(self, mat2: TensorViews) -> Self:
        return self._product("bmm", mat2, 3)

    def mv(self, vec: TensorViews) -> Self:
        return self._ops.matmul(self, vec, "mv")

    def dot(self, other: TensorViews) -> Self:
        return self._product("dot", other, 1)

    def _product(self, name: str, other: TensorViews, ndim: Any) -> Self:
        if self.ndim != ndim or other.ndim != ndim:
            raise TensorError(
                f"{name} of {self.title} and {other.title}", hint=f"give tensors of {ndim} axes, or matmul"
            )
        return self._ops.matmul(self, other, name)

    def addmm(self, mat1: TensorViews, mat2: TensorViews) -> Self:
        """This tensor plus a product."""
        return self._ops.pointwise("add", self, self._ops.matmul(mat1, mat2, "addmm"))


def _cast(dtype: DType) -> Callable[[T], T]:
    def method(self: Any) -> Any:
        return self.to(dtype)

    return method


class TensorCasts(TensorRows):
    """Methods with the names of types, apart: they would hide the types in annotations."""

    half, bfloat16, float, double = _cast(F16), _cast(BF16), _cast(F32), _cast(F64)
    long, int, short, char, byte, bool = _cast(I64), _cast(I32), _cast(I16), _cast(I8), _cast(U8), _cast(BOOL)
    type = TensorMath.to
