"""Operations of the host along axes: reductions, row ops, products, rows by index."""

from __future__ import annotations

from math import prod

from kernbench.common.array_types import Shape
from kernbench.common.dtypes import BOOL, DType
from kernbench.common.errors import TensorError
from kernbench.policy.placement.dp import Box, DPPolicy
from kernbench.runtime_api import op_kernels as kernels
from kernbench.runtime_api.layout import Layout, axis_of, broadcast_shapes
from kernbench.runtime_api.op_kernels import OperandLayout, OpPlan, Share
from kernbench.runtime_api.op_launcher import ONE_PE, WIDE_BYTES, OpLauncher, site_of
from kernbench.runtime_api.op_table import REDUCTIONS, ROW_OPS, accumulator_of, sum_type
from kernbench.runtime_api.tensor import Index, Tensor
from kernbench.runtime_api.tensor_base import TensorBase
from kernbench.runtime_api.tensor_index import selection
from kernbench.runtime_api.tensor_views import TensorViews

NEAR_FROM_BYTES = 32 * 1024  # of a product's right operand: the launch that copies less takes longer than it saves
STEPS = 8  # of a product along K at least: PEs that begin with different ones read from different places
MOST_COLUMNS = 2048  # of a product at a time: whole rows of the right operand are one run of bytes


class AxisOps(OpLauncher):
    """Along axes."""

    def reduce(self, name: str, x: TensorViews, dim: object, keepdim: bool, dtype: DType | None = None) -> Tensor:
        """A reduction of the table along axes, or of all elements."""
        op, axes = REDUCTIONS[name], axes_of(dim, x.ndim)
        kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
        count = prod(x.shape[axis] for axis in axes)
        result = dtype or {"sum": sum_type(x.element), "truth": BOOL}.get(op.result, x.element)
        if op.result == "real" and not result.is_float:
            raise TensorError(f"{name} of {x.title}: its result is no integer", hint="x.float() first, or dtype=")
        sizes = tuple(x.shape[axis] for axis in kept)
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape)) if keepdim else sizes
        if not count:
            if op.of_nothing is None:
                raise TensorError(f"{name} of {x.title} over no elements", hint="give it some")
            return self._torch.full(shape, op.of_nothing, dtype=result, dp=ONE_PE)
        split = x.dp.split_axes(x.ndim)
        crosses = x.storage.is_split and x.layout == x.storage.layout and all(axis in axes for axis in split)
        out = self._like([x], shape, result, name, x.allocation.sip, ONE_PE if crosses else None)
        if prod(sizes):
            target = out.over(Layout.dense(sizes or (1,), out.layout.offset))
            rows = x.permute(*kept, *axes) if kept else x.unsqueeze(0)
            order = (*kept, *axes)
            self._reduce_rows(name, target, rows, count, order if crosses else None)
        return out

    def _reduce_rows(
        self, name: str, out: TensorViews, x: TensorViews, count: int, order: tuple[int, ...] | None
    ) -> None:
        """out = x reduced along the axes that out does not have. With `order`, the order of the storage's axes in x,
        every PE reduces its own part first.
        """
        kept = out.ndim
        inner: Box = tuple((0, n) for n in x.shape[kept:])
        if order is None:
            shares = tuple((cube, pe, (*box, *inner)) for cube, pe, box in self._shares(out))
            self._reduction(name, out, x, shares, count)
            return
        distinct = {part.offset_bytes: part for part in reversed(x.storage.whole.placement)}  # the first of replicas
        parts = [distinct[offset] for offset in sorted(distinct)]
        boxes: list[Box] = [tuple(part.box[axis] for axis in order) for part in parts]
        if len(boxes[0]) < x.ndim:  # x has a row that its storage has not
            boxes = [((0, 1), *box) for box in boxes]
        acc = accumulator_of(name, x.element)
        partial = self._empty((len(parts), *out.shape), acc, ONE_PE, f"{name}.parts", x.allocation.sip)
        shares = tuple((part.cube, part.pe, box) for part, box in zip(parts, boxes, strict=True))
        self._reduction(name, partial, x, shares, count, ends=False)
        joined = partial.permute(*range(1, kept + 1), 0)
        outer = tuple((cube, pe, (*box, (0, len(parts)))) for cube, pe, box in self._shares(out))
        self._reduction(name, out, joined, outer, count, begins=False)

    def _reduction(
        self,
        name: str,
        out: TensorViews,
        x: TensorViews,
        shares: tuple[Share, ...],
        count: int,
        *,
        begins: bool = True,
        ends: bool = True,
    ) -> None:
        """One launch. Unless it `ends` the reduction, share i is written to row i of out."""
        kept = out.ndim if ends else out.ndim - 1
        target = OperandLayout(out.layout.offset, out.layout.strides[-kept:])
        row = 0 if ends else out.layout.strides[0]
        params = (("count", count), ("starts", begins), ("ends", ends), ("row", row))
        dtype = accumulator_of(name, x.element)
        site = OperandLayout(x.layout.offset, x.layout.strides)
        block = self._block(x.allocation.sip, 6)
        plan = OpPlan(name, shares, (target, site), 1, dtype, block, params=params, inner=x.shape[kept:])
        self._launch(name, kernels.reduction, plan, [out], [x])

    def rows(
        self, name: str, x: TensorViews, dim: int, *others: TensorViews, keepdim: bool = True, **params: object
    ) -> tuple[Tensor, ...]:
        """A row op of the table along one axis: its outputs."""
        op, axis = ROW_OPS[name], axis_of(dim, x.ndim)
        sip = self._same_device(name, [x, *others])
        if op.in_f32 and not x.element.is_float:
            raise TensorError(f"{name} of {x.title}", hint="make it a float tensor: x.float()")
        if not x.shape:
            found = self.rows(name, x.view(1), 0, *others, keepdim=keepdim, **params)
            return tuple(each.view(()) for each in found)
        moved = [each.movedim(axis, -1) if each.ndim == x.ndim else each for each in (x, *others)]
        length = moved[0].shape[-1]
        sizes = op.sizes(length, tuple(params.values())) if name != "gather" else (moved[1].shape[-1],)
        if not length and name in ("max", "min", "argmax", "argmin"):
            raise TensorError(f"{name} of {x.title} along axis {axis}, which has no elements", hint="give it some")
        budget = self._tcm(sip) // (WIDE_BYTES // 2 * op.copies)
        if length > budget:
            raise TensorError(
                f"{name} of {x.title} along axis {axis}: a row of {length} elements does not fit a PE's TCM",
                hint=f"use rows of at most {budget} elements, or a kernel of your own",
            )
        outs: list[Tensor] = []
        for size, dtype in zip(sizes, op.dtypes(x.element), strict=True):
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            outs.append(self._like([x], shape, dtype, name, sip))
        outer = moved[0].shape[:-1]
        if prod(outer) and all(sizes):
            views = [each.movedim(axis, -1) for each in outs]
            sites = tuple(_row_site(each, outer) for each in (*views, *moved))
            lengths = tuple((each.shape[-1],) for each in moved)
            block = max(1, budget // max(length, 1))
            every = (("lengths", lengths), *params.items())
            plan = OpPlan(name, self._row_shares(outs[0], axis), sites, len(outs), x.element, block, params=every)
            self._launch(name, kernels.row_op, plan, list(outs), moved)
        return tuple(outs) if keepdim else tuple(each.squeeze(axis) for each in outs)

    def _row_shares(self, out: TensorViews, axis: int) -> tuple[Share, ...]:
        """Which rows along an axis each PE computes; where the axis itself is split, one PE computes all."""
        shares = self._shares(out)
        if any(box[axis] != (0, out.shape[axis]) for _, _, box in shares):
            shares = self._writers(out)
        return tuple((cube, pe, (*box[:axis], *box[axis + 1 :]) or ((0, 1),)) for cube, pe, box in shares)

    # ---- products

    def matmul(self, a: TensorViews, b: TensorViews, name: str = "matmul") -> Tensor:
        """a @ b, with PyTorch's rules for vectors and for leading axes."""
        if not a.ndim or not b.ndim:
            raise TensorError(f"{name} of {a.title} and {b.title}", hint="give vectors, matrices or stacks of matrices")
        if a.element is not b.element:
            raise TensorError(f"{name} of {a.dtype} and {b.dtype}", hint="x.to(dtype) makes them the same")
        sip = self._same_device(name, [a, b])
        left = a.unsqueeze(0) if a.ndim == 1 else a
        right = b.unsqueeze(1) if b.ndim == 1 else b
        (m, k), (k2, n) = left.shape[-2:], right.shape[-2:]
        if k != k2:
            raise TensorError(
                f"{name} of {a.title} and {b.title}: {k} columns by {k2} rows", hint="let the inner sizes be equal"
            )
        batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
        dp = b.dp if b.storage.is_split and not a.storage.is_split else a.dp
        if not k:  # a sum over nothing
            out = self._torch.full((*batch, m, n), 0, dtype=a.element, dp=dp, device=a.device)
        else:
            out = self._empty((*batch, m, n), a.element, dp, name, sip)
        if k and out.numel():
            self._product(name, out, left, self._near(name, right, out, sip), k, sip)
        if a.ndim == 1:
            out = out.squeeze(-2)
        return out.squeeze(-1) if b.ndim == 1 else out

    def _product(self, name: str, out: TensorViews, a: TensorViews, b: TensorViews, k: int, sip: int) -> None:
        batch = out.shape[:-2]
        left, right = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
        shares = self._shares(out)
        tile = _tile(shares, k, self._tcm(sip) // WIDE_BYTES)
        sites = tuple(OperandLayout(each.layout.offset, each.layout.strides) for each in (out, left, right))
        params = (("tile", tile),)
        plan = OpPlan(name, shares, sites, 1, out.element, 0, params=params, inner=(k,))
        self._launch(name, kernels.product_of, plan, [out], [a, b])

    def _near(self, name: str, b: TensorViews, out: TensorViews, sip: int) -> TensorViews:
        """The right operand of a product, or a copy of it in every cube, over the cube's PEs: every PE reads all of it,
        and PEs of many cubes would all read from the same few places far away.
        """
        order = b.t() if b.ndim == 2 and b.t().is_contiguous() else b
        cubes = {cube for cube, _, _ in self._shares(out)}
        holders = {part.cube for part in b.storage.whole.placement}
        is_near = cubes <= holders and b.storage.dp.split_by(len(b.storage.shape))[0] is None
        if len(cubes) == 1 or is_near or b.ndim != 2 or not order.is_contiguous() or b.allocation.va_base is None:
            return b
        if b.numel() * b.itemsize < NEAR_FROM_BYTES:
            return b
        placed = DPPolicy(cube="replicate", pe="row_wise", num_cubes=max(cubes) + 1)
        copy = self._empty(order.shape, b.element, placed, name, sip)
        copy.copy_(order)
        return copy if order is b else copy.t()

    # ---- by index

    def take(self, x: TensorViews, index: Index) -> Tensor:
        """A copy of the elements that lists, arrays, masks or tensors select."""
        source, numbers, shape = selection(self._torch, x, index)
        return self.take_rows(source, numbers).view(shape)

    def take_rows(self, x: TensorViews, index: TensorViews, name: str = "index") -> Tensor:
        """The rows of x that a vector of integers names."""
        source, numbers = x.contiguous(), index.contiguous()
        shape = (index.numel(), *x.shape[1:])
        out = self._like([x], shape, x.element, name, x.allocation.sip)
        if out.numel():
            width = prod(x.shape[1:])
            block = max(width, self._block(x.allocation.sip, 3))
            shares = self._shares(out)
            if any(box[1:] != tuple((0, n) for n in shape[1:]) for _, _, box in shares):
                shares = self._writers(out)  # rows are taken whole
            plan = OpPlan(name, shares, (site_of(out, shape),), 1, x.element, block)
            self._launch(name, kernels.take_rows, plan, [out], [source, numbers], whole=False)
        return out

    def put_rows(self, name: str, out: TensorViews, index: TensorViews, source: TensorViews) -> None:
        """Rows of `source` are added to, or replace, the rows of out that a vector of integers names."""
        out.as_arg()  # a view that kernels cannot take is refused
        plan = OpPlan(name, self._writers(out), (), 1, out.element, 0)
        rows = source.contiguous()
        self._launch(name, kernels.add_rows, plan, [out], [index.contiguous(), rows], whole=False)


def _tile(shares: tuple[Share, ...], k: int, elements: int) -> tuple[int, int, int]:
    """Rows, columns and inner size of a product's blocks that fit so many elements of TCM: wide, tall, then deep, with
    the next blocks of both operands beside the current ones.
    """
    tall, wide = (max(box[axis][1] - box[axis][0] for _, _, box in shares) for axis in (-2, -1))
    columns = min(wide, MOST_COLUMNS, max(elements // 8, 1))
    rows = max(1, min(tall, elements // 4 // columns))
    depth = max(1, min(-(-k // STEPS), (elements - 2 * rows * columns) // (2 * (rows + columns))))
    return rows, columns, depth


def axes_of(dim: object, ndim: int) -> tuple[int, ...]:
    """The axes that `dim` names, in order: one, several, or all for None."""
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return tuple(range(ndim))
    wanted = [axis_of(each, ndim) for each in dim] if isinstance(dim, tuple | list) else [axis_of(dim, ndim)]
    if len(set(wanted)) != len(wanted):
        raise TensorError(f"axes {dim!r} name one twice", hint="name each once")
    return tuple(sorted(wanted)) if ndim else ()


def _row_site(x: TensorBase, outer: Shape) -> OperandLayout:
    """As `site_of`, for rows: the last axis is x's own."""
    layout = x.layout.expanded((*outer, x.shape[-1]))
    strides = layout.strides if outer else (0, *layout.strides)
    return OperandLayout(layout.offset, strides)
