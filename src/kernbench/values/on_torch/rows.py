"""Reductions, softmax, and ops that order or run along an axis, on tensors (rules: values/reduce.py, values/along.py).

Sums may be added in another order than numpy's, in f32 all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernbench.common.dtypes import F32
from kernbench.values.along import check_places
from kernbench.values.casts import work_type
from kernbench.values.on_torch.elementwise import Compute
from kernbench.values.on_torch.storage import from_work, to_work
from kernbench.values.op import Params, TensorType, as_axis


def _rows(args: Sequence[Tensor], types: Sequence[TensorType], axis: int | None, real: bool) -> Tensor:
    """The stack with the axis last, or all of an item as one row, in the type it is computed in."""
    dtype = types[0].dtype
    x = to_work(args[0], dtype, work_type([dtype], real))
    return x.reshape(x.shape[0], -1) if axis is None else x.movedim(axis + 1, -1)


def _reduction(fn: Callable[[Tensor], Tensor], real: bool = False) -> Compute:
    def compute(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
        axis = None if params[0] is None else as_axis("axis", params[0], len(types[0].shape))
        rows = _rows(args, types, axis, real)
        return from_work(fn(rows), out.dtype).reshape(rows.shape[0], *out.shape)

    return compute


def _sum(rows: Tensor) -> Tensor:
    return rows.sum(-1, dtype=rows.dtype)


def _softmax(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    axis = as_axis("softmax", params[0], len(types[0].shape))
    rows = to_work(args[0], types[0].dtype, F32)
    grown = torch.exp(rows - rows.amax(axis + 1, keepdim=True))
    return from_work(grown / grown.sum(axis + 1, keepdim=True), out.dtype)


def _order(args: Sequence[Tensor], types: Sequence[TensorType], axis: int, descending: bool) -> Tensor:
    """The places of the elements of each row in order, equals by place; the axis is last. A GPU orders NaNs by their
    sign, so all are given the same one.
    """
    rows = _rows(args, types, axis, False)
    if rows.is_floating_point():
        rows = rows.masked_fill(rows.isnan(), float("nan"))
    return torch.sort(rows, dim=-1, descending=descending, stable=True).indices


def _taken(args: Sequence[Tensor], order: Tensor, axis: int) -> Tensor:
    return torch.gather(args[0].movedim(axis + 1, -1), -1, order).movedim(-1, axis + 1)


def _sort(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    axis = as_axis("sort", params[0], len(out.shape))
    return _taken(args, _order(args, types, axis, bool(params[1])), axis)


def _argsort(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    axis = as_axis("argsort", params[0], len(out.shape))
    return _order(args, types, axis, bool(params[1])).movedim(-1, axis + 1).to(torch.int32)


def _gather(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    axis, places = as_axis("gather", params[0], len(out.shape)), args[1].to(torch.int64)
    if places.numel():
        check_places(int(places.min()), int(places.max()), types[0].shape[axis])
    return args[0].take_along_dim(places, axis + 1)


def _topk(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    axis = as_axis("topk", params[1], len(out.shape))
    return _taken(args, _order(args, types, axis, True)[..., : out.shape[axis]], axis)


def _topk_index(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    axis = as_axis("topk", params[1], len(out.shape))
    return _order(args, types, axis, True)[..., : out.shape[axis]].movedim(-1, axis + 1).to(torch.int32)


def _cumsum(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    """Added in f64 and rounded to f32: on a GPU the order of additions may change from run to run."""
    axis = as_axis("cumsum", params[0], len(out.shape))
    rows = _rows(args, types, axis, False)
    wide = torch.float64 if rows.is_floating_point() else torch.int64
    return from_work(rows.cumsum(-1, dtype=wide).to(rows.dtype).movedim(-1, axis + 1), out.dtype)


ROWS: dict[str, Compute] = {
    "sum": _reduction(_sum),
    "mean": _reduction(lambda rows: _sum(rows) / rows.shape[-1], real=True),
    "max": _reduction(lambda rows: rows.amax(-1)),
    "min": _reduction(lambda rows: rows.amin(-1)),
    "argmax": _reduction(lambda rows: rows.argmax(-1)),
    "argmin": _reduction(lambda rows: rows.argmin(-1)),
    "softmax": _softmax,
    "sort": _sort,
    "argsort": _argsort,
    "gather_along": _gather,
    "topk": _topk,
    "topk_index": _topk_index,
    "cumsum": _cumsum,
}
