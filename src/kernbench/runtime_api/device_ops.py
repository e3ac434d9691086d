"""Tensor operations of the host, launched as kernels on the device.

An operation is one launch, or a few, on the PEs that hold its output: each computes the part that it holds, and
replicas are computed where they lie. Outputs are placed as the operand whose shape they have is, else as the largest
operand is. A sum, or another reduction, along an axis that is split over PEs takes two launches: the parts on their
PEs, then their results on the first of these, where the result lies.

Launches are not waited for. A PE runs its launches in order, so an operation waits on the host for an earlier one only
where they share memory and different PEs touch it.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from kernbench.common.array_types import Shape
from kernbench.common.dtypes import BOOL, F32, I64, DType, dtype_of, promote
from kernbench.common.errors import TensorError, UsageError
from kernbench.runtime_api import op_kernels as kernels
from kernbench.runtime_api.axis_ops import AxisOps
from kernbench.runtime_api.device import sip_of
from kernbench.runtime_api.layout import broadcast_shapes
from kernbench.runtime_api.op_kernels import OpPlan
from kernbench.runtime_api.op_launcher import site_of
from kernbench.runtime_api.op_table import POINTWISE
from kernbench.runtime_api.random_state import Generator
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_base import TensorBase
from kernbench.runtime_api.tensor_views import TensorViews
from kernbench.triton_emu.registry import Kernel

TensorOrNumber = Any  # a tensor, or a number


class DeviceOps(AxisOps):
    """The operations of one context: elementwise ones here, those along axes in `AxisOps`."""

    # ---- elementwise

    def pointwise(
        self, name: str, *operands: TensorOrNumber, out: TensorViews | None = None, **params: object
    ) -> Tensor:
        """The result of an expression of the table; with `out`, written there."""
        given = [_number(each, name) for each in operands]
        tensors = [each for each in given if isinstance(each, TensorViews)]
        sip = self._same_device(name, tensors)
        shape = broadcast_shapes(*(each.shape for each in tensors))
        dtype = self._result(name, given)
        if out is None:
            target: TensorViews = self._like(tensors, shape, dtype, name, sip)
        else:
            self._check_out(name, out, shape, dtype, tensors)
            target, shape = out, out.shape
        sites = [None if not isinstance(each, TensorViews) else site_of(each, shape) for each in given]
        plan = OpPlan(
            name,
            self._shares(target),
            (site_of(target, shape), *sites),
            1,
            dtype,
            self._block(sip, len(given) + 4),
            _placed_alike([target, *tensors]),
            tuple(params.items()),
        )
        self._launch(name, kernels.pointwise, plan, [target], given)
        return target  # type: ignore[return-value]  # `out`, or one of ours

    def fill(self, out: TensorViews, value: float, name: str = "fill") -> None:
        if not isinstance(value, Real | np.bool_):
            raise UsageError(f"{name}: the value is {value!r}", hint="give a number")
        self._torch.engine.values.full((), value, out.element)  # raises DataError for one that does not fit
        self._each(name, kernels.fill, out, _number(value, name))

    def randoms(self, out: TensorViews, kind: str, seed: int, a: float, b: float) -> None:
        """Pseudo-random numbers of a kind: "uniform", "normal", "integers"."""
        low, high = (int(a), int(b)) if kind == "integers" else (float(a), float(b))
        params: tuple[tuple[str, object], ...] = ()
        if kind == "uniform" and out.element.is_float and (low or out.element.itemsize < F32.itemsize):
            params = (("last", _last_below(high, out.element if out.element.itemsize < F32.itemsize else F32)),)
        self._each(kind, kernels.randoms, out, seed, low, high, inner=out.shape or (1,), params=params)

    def _each(
        self,
        name: str,
        kernel: Kernel,
        out: TensorViews,
        *numbers: object,
        inner: Shape = (),
        params: tuple[tuple[str, object], ...] = (),
    ) -> None:
        """A kernel without tensor inputs."""
        if out.layout.repeats:
            raise _repeated(name, out)
        block = self._block(out.allocation.sip, 10)
        site = site_of(out, out.shape)
        plan = OpPlan(name, self._shares(out), (site,), 1, out.element, block, params=params, inner=inner)
        self._launch(name, kernel, plan, [out], numbers)

    def copy_into(self, out: TensorViews, source: TensorViews, name: str = "copy") -> None:
        """Copy a tensor into another of maybe another dtype, placement or device."""
        shape = out.shape
        if broadcast_shapes(shape, source.shape) != shape:
            raise TensorError(f"{out.title} cannot take {source.title}", hint="let its shape broadcast to the target's")
        _check_overlap("copy", out, [source])
        alike = _placed_alike([out, source])
        sites = (site_of(out, shape), site_of(source, shape))
        plan = OpPlan("copy", self._shares(out), sites, 1, out.element, self._block(out.allocation.sip, 5), alike)
        self._launch(name, kernels.pointwise, plan, [out], [source])

    def dense_copy(self, x: TensorViews, name: str = "contiguous") -> Tensor:
        """A contiguous copy, placed as the storage of x is."""
        out = self._like([x], x.shape, x.element, name, x.allocation.sip)
        self.copy_into(out, x, name)
        return out

    def moved(self, x: TensorViews, dtype: DType, device: object) -> Tensor:
        """A copy in another dtype, or on another device; x itself if it is so already."""
        sip = sip_of(self._torch.ahbm, device)
        if dtype is x.element and sip == x.allocation.sip:
            return x  # type: ignore[return-value]  # every tensor is a Tensor
        out = self._like([x], x.shape, dtype, "to", sip)
        self.copy_into(out, x, "to")
        return out

    def new(self, x: TensorViews, size: Sequence[int], value: float | None, dtype: object) -> Tensor:
        """A tensor as `x.new_zeros` makes it: with the dtype, placement and device of x."""
        element = x.element if dtype is None else dtype_of(dtype)
        if value is None:
            return self._empty(tuple(size), element, x.dp, "new", x.allocation.sip)
        return self._torch.full(tuple(size), value, dtype=element, dp=x.dp, device=x.device)

    def masked(self, x: TensorViews, mask: Any) -> Tensor:
        """A copy with zeros where a mask of numpy holds, which the host writes to the device."""
        return self.pointwise("masked_fill", x, self._torch.from_numpy(mask, device=x.device), 0)

    def next_seed(self, generator: Generator | None) -> int:
        return (generator or self._torch.random_state.current()).next_seed()

    def _result(self, name: str, operands: Sequence[TensorOrNumber]) -> DType:
        rule = POINTWISE[name].result
        if rule == "truth":
            return BOOL
        if rule == "first":
            first: DType = operands[0].element
            if name == "masked_fill" and not first.is_float and not _is_whole(operands[2]):
                raise TensorError(
                    f"masked_fill of {operands[0].title} with {operands[2]!r}, which is no integer",
                    hint="give a whole number, or make it a float tensor: x.float()",
                )
            return first
        mixed = self.result_type(operands[1:] if name == "where" else operands)
        return self._torch.get_default_dtype() if rule == "real" and not mixed.is_float else mixed

    def result_type(self, operands: Sequence[TensorOrNumber]) -> DType:
        """The dtype of a result by PyTorch's rule: tensors with axes decide, others widen only to another kind."""
        levels: dict[int, DType] = {}
        for each in operands:
            if isinstance(each, TensorBase):
                level, dtype = (0 if each.shape else 1), each.element
            elif each is None:
                continue
            else:
                default = self._torch.get_default_dtype()
                level, dtype = 2, BOOL if isinstance(each, bool) else I64 if isinstance(each, int) else default
            levels[level] = promote(levels[level], dtype) if level in levels else dtype
        found = [levels[level] for level in sorted(levels)]
        result = found[0]
        for other in found[1:]:
            if _kind(other) > _kind(result):
                result = other
        return result

    def _check_out(
        self, name: str, out: TensorViews, shape: Shape, dtype: DType, tensors: Sequence[TensorViews]
    ) -> None:
        if broadcast_shapes(out.shape, shape) != out.shape:
            raise TensorError(
                f"{name}_: {out.title} cannot take a result of shape {list(shape)}", hint="in place, shapes do not grow"
            )
        if _kind(dtype) > _kind(out.element):
            raise TensorError(
                f"{name}_: a result of {dtype} cannot be stored in {out.title}", hint="make it a float tensor first"
            )
        if out.layout.repeats:
            raise _repeated(name, out)
        _check_overlap(name, out, tensors)


def _number(value: TensorOrNumber, name: str) -> TensorOrNumber:
    """An operand as kernels take it: tensors, and Python numbers."""
    if isinstance(value, TensorViews) or value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, np.generic | Integral | Real):
        return value.item() if isinstance(value, np.generic) else float(value)
    raise UsageError(
        f"{name}: an operand is a {type(value).__name__}", hint="give tensors and numbers; torch.tensor makes one"
    )


def _is_whole(value: TensorOrNumber) -> bool:
    """Whether a tensor of integers can take a number, or the element of a tensor."""
    return not value.element.is_float if isinstance(value, TensorBase) else float(value).is_integer()


def _last_below(end: float, dtype: DType) -> float:
    """The largest number of a float dtype that is below `end`."""
    nearest = np.asarray(end).astype(dtype.numpy)
    return float(nearest if float(nearest) < end else np.nextafter(nearest, np.asarray(-np.inf).astype(dtype.numpy)))


def _kind(dtype: DType) -> int:
    return 2 if dtype.is_float else 0 if dtype is BOOL else 1


def _placed_alike(tensors: Sequence[TensorBase]) -> bool:
    """Whether tensors are whole storages of one shape and placement, so that each PE has all that it needs."""
    first = tensors[0].storage
    return (
        bool(tensors[0].shape)
        and first.dp.cube != "interleave"
        and all(
            each.layout == each.storage.layout
            and each.shape == first.shape
            and each.storage.dp == first.dp
            and each.space == tensors[0].space
            and each.allocation.sip == first.allocation.sip
            for each in tensors
        )
    )


def _check_overlap(name: str, out: TensorBase, tensors: Sequence[TensorBase]) -> None:
    """Raise TensorError for an input that is another view of some elements of the output."""
    for each in tensors:
        if each.storage is not out.storage or each.layout == out.layout or not each.numel() or not out.numel():
            continue
        if np.intersect1d(_places(out), _places(each)).size:
            raise TensorError(
                f"{name}: {out.title} and {each.title} are different views of the same elements",
                hint="use x.clone() for the one that is read",
            )


def _places(x: TensorBase) -> Any:
    at = np.array(x.layout.offset)
    for size, stride in zip(x.shape, x.layout.strides, strict=True):
        at = at[..., None] + np.arange(size if stride else 1) * stride
    return at.reshape(-1)


def _repeated(name: str, out: TensorBase) -> TensorError:
    return TensorError(
        f"{name}_: several elements of {out.title} are one element of memory",
        hint="use x.clone() or x.contiguous() first",
    )
