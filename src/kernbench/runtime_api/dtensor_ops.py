"""Operations on DTensors: placements are propagated, operands are moved where an operation needs them otherwise.

    elementwise     operands are sharded as the first sharded one; sums of addends stay Partial()
    products        Shard of rows or columns stays; a product over a sharded inner axis is Partial()
    reductions      along a sharded axis Partial(), along others the placement stays
    rows            softmax, norms and orders need whole rows: a sharded axis is gathered

Each rank computes on its own part, by the kernels of `device_ops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

from kernbench.common.array_types import Shape
from kernbench.common.dtypes import DType, dtype_of
from kernbench.common.errors import DistributedError, DistributedTypeError, TensorError
from kernbench.runtime_api.axis_ops import axes_of
from kernbench.runtime_api.device_mesh import DeviceMesh
from kernbench.runtime_api.dtensor import DTensorBase, as_local
from kernbench.runtime_api.dtensor_placement import Partial, Placement, Replicate, Shard, checked, local_shape
from kernbench.runtime_api.layout import axis_of, broadcast_shapes
from kernbench.runtime_api.numpy_names import takes_numpy_names
from kernbench.runtime_api.tensor import Tensor

SUMS = (Partial("sum"), Partial("avg"))  # linear: a sum or a product of addends is one of the result
KEEP_SUMS = ("neg", "copy", "scaled")  # of one operand; scaled: times a number, or divided by one
PARTIAL_OF = {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min", "any": "max", "all": "min"}
REPLICATE = Replicate()


def _binary(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: DTensor, other: Any) -> Any:
        return self.pointwise(name, *((other, self) if swapped else (self, other)))

    return method


def _unary(name: str) -> Callable[..., Any]:
    def method(self: DTensor, **params: Any) -> Any:
        return self.pointwise(name, self, **params)

    return method


def _in_place(name: str) -> Callable[..., Any]:
    def method(self: DTensor, other: Any) -> Any:
        return self._assigned(name, other)

    return method


def _reduced(name: str) -> Callable[..., Any]:
    def method(self: DTensor, dim: Any = None, keepdim: bool = False) -> Any:
        return self.reduce(name, dim, keepdim)

    return method


@takes_numpy_names
class DTensor(DTensorBase):
    """A distributed tensor with PyTorch's operators and methods."""

    is_dtensor = True
    __hash__ = object.__hash__

    __add__, __radd__ = _binary("add"), _binary("add", swapped=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", swapped=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", swapped=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", swapped=True)
    __pow__, __neg__, __abs__ = _binary("pow"), _unary("neg"), _unary("abs")
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")
    __eq__ = _binary("eq")
    __ne__ = _binary("ne")
    __iadd__, __isub__, __imul__, __itruediv__ = map(_in_place, ("add", "sub", "mul", "div"))
    add, sub, mul, div, pow = map(_binary, ("add", "sub", "mul", "div", "pow"))
    maximum, minimum = _binary("maximum"), _binary("minimum")
    add_, sub_, mul_, div_ = map(_in_place, ("add", "sub", "mul", "div"))
    neg, abs, exp, log, sqrt, rsqrt = map(_unary, ("neg", "abs", "exp", "log", "sqrt", "rsqrt"))
    tanh, sigmoid, relu, silu, square = map(_unary, ("tanh", "sigmoid", "relu", "silu", "square"))
    sum, mean, amax, amin, any, all = map(_reduced, ("sum", "mean", "amax", "amin", "any", "all"))

    @staticmethod
    def from_local(
        local_tensor: Tensor,
        device_mesh: DeviceMesh,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
    ) -> DTensor:
        """A DTensor of parts that the ranks have. Without `shape`, parts are of equal sizes."""
        local = as_local(device_mesh.torch, local_tensor, "from_local")
        wanted = checked(placements, device_mesh, local.ndim, "from_local")
        sizes = list(local.shape)
        for dim, each in enumerate(wanted):
            if isinstance(each, Shard) and not device_mesh.is_cube(dim):
                sizes[each.dim] *= device_mesh.shape[dim]
        whole = tuple(sizes) if shape is None else tuple(shape)
        place = device_mesh.get_coordinate() or []
        if local_shape(whole, device_mesh, wanted, place) != local.shape:
            raise DistributedError(
                f"from_local: a part of {list(local.shape)} for {list(whole)} with {list(wanted)} on {device_mesh!r}",
                hint=f"this rank's part is {list(local_shape(whole, device_mesh, wanted, place))}",
            )
        return DTensor(local, device_mesh, wanted, whole)

    def gelu(self, approximate: str = "none") -> Any:
        return self.pointwise("gelu", self, approximate=approximate)

    def clamp(self, min: Any = None, max: Any = None) -> Any:
        return self.pointwise("clamp", self, min, max)

    def masked_fill(self, mask: Any, value: Any) -> Any:
        return self.pointwise("masked_fill", self, mask, value)

    def masked_fill_(self, mask: Any, value: Any) -> Any:
        return self._assigned("masked_fill", mask, value)

    def clone(self) -> Any:
        return self._with(self._local.clone(), self.placements)

    def detach(self) -> Any:
        return self

    def contiguous(self) -> Any:
        return self

    def to(self, dtype: object) -> Any:
        """In another dtype; a tensor of addends is reduced first."""
        whole = self._without_partial()
        return whole._with(whole._local.to(dtype_of(dtype)), whole.placements)

    def norm(self, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
        if p not in (2, 2.0, "fro"):
            raise DistributedError(f"norm: p is {p!r}", hint="2 is there")
        return (self * self).sum(dim, keepdim).sqrt()

    # ---- elementwise

    def pointwise(self, name: str, *operands: Any, **params: Any) -> Any:
        """An expression of the table of operations on DTensors and numbers."""
        some = [each for each in operands if isinstance(each, DTensor)]
        for each in operands:
            if isinstance(each, DTensor) and each.device_mesh != self.device_mesh:
                raise DistributedError(
                    f"{name}: {list(self.placements)} on {self.device_mesh!r} with {list(each.placements)} on "
                    f"{each.device_mesh!r}",
                    hint="use tensors of one mesh",
                )
            if isinstance(each, Tensor) and each.shape:
                raise DistributedTypeError(
                    f"{name}: got mixed torch.Tensor and DTensor: {each.title}, and one placed {list(self.placements)}",
                    hint="convert it with distribute_tensor(x, mesh, placements) first",
                )
        try:
            shape = broadcast_shapes(*(each.shape for each in some))
        except TensorError as error:
            raise _no_fit(name, some, error.hint) from None
        kind = name
        if len(some) == 1 and len(operands) > 1:  # with numbers
            kind = "scaled" if name == "mul" or (name == "div" and operands[0] is some[0]) else "of a number"
        out = tuple(_elementwise(kind, dim, some, shape) for dim in range(self.device_mesh.ndim))
        locals_ = []
        for each in operands:
            if isinstance(each, DTensor):
                wanted = tuple(_operand_placement(each, dim, placement, shape) for dim, placement in enumerate(out))
                locals_.append(each._redistributed(wanted)._local)
            else:
                locals_.append(each)
        return self._with(self._torch.ops.pointwise(name, *locals_, **params), out, shape)

    def _assigned(self, name: str, *others: Any) -> Any:
        """An expression of this tensor and others, written to this one."""
        if any(each.is_partial() for each in self.placements):
            raise DistributedError(f"{name}_ of a tensor with {list(self.placements)}", hint="redistribute it first")
        result = self.pointwise(name, self, *others)._redistributed(self.placements)
        self._local.copy_(result._local)
        return self

    # ---- along axes

    def reduce(self, name: str, dim: Any, keepdim: bool) -> Any:
        axes = axes_of(dim, self.ndim)
        x = self._without_partial(SUMS if name in ("sum", "mean") else ())
        count = prod(self.shape[axis] for axis in axes)
        local = x._reduced_locally(name, axes, keepdim)
        if name == "mean":
            local = self._torch.ops.pointwise("div", local, float(count))
        placements = tuple(_reduced_placement(each, axes, keepdim, PARTIAL_OF[name]) for each in x.placements)
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(self.shape))
        if not keepdim:
            shape = tuple(n for axis, n in enumerate(self.shape) if axis not in axes)
        return self._with(local, placements, shape)

    def _reduced_locally(self, name: str, axes: tuple[int, ...], keepdim: bool) -> Tensor:
        local, op = self._local, "sum" if name == "mean" else name
        is_empty, is_empty_here = (not prod(shape[axis] for axis in axes) for shape in (self.shape, local.shape))
        if is_empty or not is_empty_here or op in ("sum", "any", "all"):
            found: Tensor = self._torch.ops.reduce(op, local, axes, keepdim)
            return found
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(local.shape) if keepdim or axis not in axes)
        neutral = _neutral(self._torch, op, local.dtype)
        made: Tensor = self._torch.full(shape, neutral, dtype=local.dtype, device=local.device)
        return made

    def rows(self, name: str, dim: int, *others: Tensor, **params: Any) -> tuple[Any, ...]:
        """A row op along one axis, of which every rank needs whole rows."""
        axis = axis_of(dim, self.ndim)
        x = self._whole_along((axis,))
        found = self._torch.ops.rows(name, x._local, axis, *others, **params)
        shapes = [(*self.shape[:axis], each.shape[axis], *self.shape[axis + 1 :]) for each in found]
        return tuple(self._with(each, x.placements, shape) for each, shape in zip(found, shapes, strict=True))

    def softmax(self, dim: int, dtype: object = None) -> Any:
        return (self if dtype is None else self.to(dtype)).rows("softmax", dim)[0]

    def log_softmax(self, dim: int, dtype: object = None) -> Any:
        return (self if dtype is None else self.to(dtype)).rows("log_softmax", dim)[0]

    def argmax(self, dim: int, keepdim: bool = False) -> Any:
        found = self.rows("argmax", dim)[0]
        return found if keepdim else found._squeezed(axis_of(dim, self.ndim))

    def topk(self, k: int, dim: int = -1, largest: bool = True) -> tuple[Any, ...]:
        return self.rows("topk", dim, k=k, largest=largest)

    def layer_norm(self, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
        return self._normed("layer_norm", normalized_shape, weight, bias, eps=eps)

    def rms_norm(self, normalized_shape: Any, weight: Any, eps: float) -> Any:
        return self._normed("rms_norm", normalized_shape, weight, eps=eps)

    def _normed(self, name: str, normalized_shape: Any, *weights: Any, eps: float) -> Any:
        """A norm over the last axes, of which every rank needs all."""
        count = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
        x = self._whole_along(range(max(self.ndim - count, 0), self.ndim))
        function = getattr(self._torch.nn.functional, name)
        return self._with(function(x._local, normalized_shape, *map(_everywhere, weights), eps=eps), x.placements)

    # ---- axes in another order

    def permute(self, *dims: Any) -> Any:
        order = [axis_of(dim, self.ndim) for dim in (dims[0] if isinstance(dims[0], list | tuple) else dims)]
        placements = tuple(Shard(order.index(p.dim)) if isinstance(p, Shard) else p for p in self.placements)
        shape = tuple(self.shape[axis] for axis in order)
        return self._with(self._local.permute(*order), placements, shape)

    def transpose(self, dim0: int, dim1: int) -> Any:
        order = list(range(self.ndim))
        a, b = axis_of(dim0, self.ndim), axis_of(dim1, self.ndim)
        order[a], order[b] = b, a
        return self.permute(*order)

    def t(self) -> Any:
        return self.transpose(0, 1)

    @property
    def T(self) -> Any:  # noqa: N802  # PyTorch's name
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> Any:  # noqa: N802  # PyTorch's name
        return self.transpose(-2, -1)

    def _squeezed(self, axis: int) -> Any:
        placements = tuple(_reduced_placement(each, (axis,), False, "sum") for each in self.placements)
        return self._with(self._local.squeeze(axis), placements, (*self.shape[:axis], *self.shape[axis + 1 :]))

    def _without_partial(self, kept: Sequence[Placement] = ()) -> Any:
        wanted = (REPLICATE if each.is_partial() and each not in kept else each for each in self.placements)
        return self._redistributed(tuple(wanted))

    def _whole_along(self, axes: Sequence[int]) -> Any:
        """Without addends, and with all of some axes on every rank."""
        moved = [each.is_partial() or any(each.is_shard(axis) for axis in axes) for each in self.placements]
        wanted = (REPLICATE if is_moved else each for is_moved, each in zip(moved, self.placements, strict=True))
        return self._redistributed(tuple(wanted))

    # ---- products

    def matmul(self, other: Any) -> Any:
        """self @ other: matrices, or stacks of them by one matrix."""
        if not isinstance(other, DTensor) or other.device_mesh != self.device_mesh:
            what = list(other.placements) if isinstance(other, DTensor) else type(other).__name__
            raise DistributedTypeError(
                f"matmul: {list(self.placements)} on {self.device_mesh!r} with {what}",
                hint="give a DTensor of this mesh",
            )
        if self.ndim < 2 or other.ndim < 2 or (other.ndim > 2 and other.ndim != self.ndim):
            raise _no_fit("matmul", [self, other], "give matrices, or stacks of equally many axes")
        if self.shape[-1] != other.shape[-2]:
            raise _no_fit("matmul", [self, other], "let the inner sizes be equal")
        a, b, out = self, other, list[Placement]()
        for dim in range(self.device_mesh.ndim):
            left, right, result = _product(a, b, dim)
            a = a._redistributed((*a.placements[:dim], left, *a.placements[dim + 1 :]))
            b = b._redistributed((*b.placements[:dim], right, *b.placements[dim + 1 :]))
            out.append(result)
        stack = broadcast_shapes(self.shape[:-2], other.shape[:-2])
        shape = (*stack, self.shape[-2], other.shape[-1])
        return self._with(self._torch.ops.matmul(a._local, b._local), tuple(out), shape)

    __matmul__ = mm = bmm = matmul


def _no_fit(name: str, some: Sequence[DTensor], hint: str | None) -> DistributedError:
    shapes = " and ".join(str(list(each.shape)) for each in some)
    placed = " and ".join(str(list(each.placements)) for each in some)
    return DistributedError(f"{name} of shapes {shapes}, placed {placed}", hint=hint)


def _elementwise(name: str, dim: int, some: Sequence[DTensor], shape: Shape) -> Placement:
    """The placement of an elementwise result along one dimension of the mesh."""
    mine = [each.placements[dim] for each in some]
    if any(each.is_partial() for each in mine) and _keeps_sum(name, mine):
        return next(each for each in mine if each.is_partial())
    for each, placement in zip(some, mine, strict=True):
        if isinstance(placement, Shard):
            axis = placement.dim + len(shape) - each.ndim
            if each.shape[placement.dim] == shape[axis]:
                return Shard(axis)
    return REPLICATE


def _keeps_sum(name: str, mine: Sequence[Placement]) -> bool:
    """Whether an operation on addends gives addends of the result."""
    if any(each.is_partial() and each not in SUMS for each in mine):
        return False
    if name in ("add", "sub"):
        return all(each == mine[0] for each in mine)
    return name in KEEP_SUMS or (name == "mul" and sum(each.is_partial() for each in mine) == 1 and all(
        each.is_partial() or each.is_replicate() for each in mine
    ))  # fmt: skip


def _operand_placement(x: DTensor, dim: int, out: Placement, shape: Shape) -> Placement:
    """Where an operand must be along one dimension of the mesh for a result that is placed so."""
    if not isinstance(out, Shard):
        return out if x.placements[dim].is_partial() else REPLICATE
    axis = out.dim - (len(shape) - x.ndim)
    return REPLICATE if axis < 0 or x.shape[axis] != shape[out.dim] else Shard(axis)


def _neutral(torch: Any, op: str, dtype: DType) -> float:
    """What amax or amin is of a rank without elements: it never wins against another rank's."""
    if dtype.is_float:
        return -inf if op == "amax" else inf
    if dtype == "bool":
        return op == "amin"
    limits = torch.iinfo(dtype)
    return int(limits.min if op == "amax" else limits.max)


def _reduced_placement(placement: Placement, axes: Sequence[int], keepdim: bool, op: str) -> Placement:
    if not isinstance(placement, Shard):
        return placement
    if placement.dim in axes:
        return Partial(op)
    return Shard(placement.dim if keepdim else placement.dim - sum(axis < placement.dim for axis in axes))


def _product(a: DTensor, b: DTensor, dim: int) -> tuple[Placement, Placement, Placement]:
    """Where the operands of a product must be along one dimension of the mesh, and where the product is then."""
    left, right = a.placements[dim], b.placements[dim]
    if left in SUMS and right.is_replicate():
        return left, right, left
    if right in SUMS and left.is_replicate():
        return left, right, right
    left = REPLICATE if left.is_partial() else left
    right = REPLICATE if right.is_partial() else right
    for axis in range(b.ndim - 2):  # of stacks: both have the same matrices, or one has one for all
        n, here = max(a.shape[axis], b.shape[axis]), Shard(axis)
        if (left == here and a.shape[axis] == n) or (right == here and b.shape[axis] == n):
            return here if a.shape[axis] == n else REPLICATE, here if b.shape[axis] == n else REPLICATE, here
        left, right = (REPLICATE if each == here else each for each in (left, right))
    inner_a, inner_b, columns = Shard(a.ndim - 1), Shard(b.ndim - 2), Shard(b.ndim - 1)
    if left == inner_a and right in (inner_b, REPLICATE):
        return inner_a, inner_b, Partial("sum")
    if left == REPLICATE and right == inner_b:
        return inner_a, inner_b, Partial("sum")
    if left == REPLICATE:
        return left, right, Shard(a.ndim - 1) if right == columns else right
    if right == REPLICATE:
        return left, right, left
    if a.numel() <= b.numel() and right in (columns, inner_b):  # gather the smaller operand
        return (REPLICATE, right, Shard(a.ndim - 1)) if right == columns else (inner_a, inner_b, Partial("sum"))
    if left == inner_a:
        return inner_a, inner_b, Partial("sum")
    return left, REPLICATE, left


def _everywhere(x: Any) -> Tensor | None:
    """A weight that every rank has."""
    found: Tensor | None = x.full_tensor() if isinstance(x, DTensor) else x
    return found
