"""Functions of `torch` on tensors. Most call the tensor's method of the same name (`METHODS`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from typing import Any

import numpy as np

from kernbench.common.dtypes import DType, dtype_of
from kernbench.common.errors import NotModelledError, TensorError, UsageError
from kernbench.runtime_api.layout import axis_of, broadcast_shapes
from kernbench.runtime_api.nn_functional import NnNamespace
from kernbench.runtime_api.not_modelled import NO_AUTOGRAD
from kernbench.runtime_api.numpy_names import takes_numpy_names
from kernbench.runtime_api.random_state import Generator
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_factory import TensorFactory


def _method(name: str) -> Callable[..., Any]:
    def function(self: TensorFactory, input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, Tensor) and not hasattr(type(input), "is_dtensor"):
            raise UsageError(
                f"torch.{name}: the first argument is a {type(input).__name__}",
                hint="give a tensor of this context: torch.tensor makes one",
            )
        return getattr(input, name)(*args, **kwargs)

    function.__name__, function.__doc__ = name, f"`input.{name}(...)`."
    return function


class NoGrad(ContextDecorator):
    """`torch.no_grad()`: does nothing, since there are no gradients."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


class TorchMethods(TensorFactory):
    """Functions that call the method of their first argument; apart, since they would hide Python's own names."""

    abs, add, all, allclose, amax, amin, any = map(_method, ("abs", "add", "all", "allclose", "amax", "amin", "any"))
    argmax, argmin, argsort, addmm, addcmul = map(_method, ("argmax", "argmin", "argsort", "addmm", "addcmul"))
    bitwise_and, bitwise_not, bitwise_or = map(_method, ("bitwise_and", "bitwise_not", "bitwise_or"))
    bitwise_xor, bmm, broadcast_to, ceil = map(_method, ("bitwise_xor", "bmm", "broadcast_to", "ceil"))
    chunk, clamp, clip, clone, cos, cumsum = map(_method, ("chunk", "clamp", "clip", "clone", "cos", "cumsum"))
    detach, diagonal, div, dot, eq, equal = map(_method, ("detach", "diagonal", "div", "dot", "eq", "equal"))
    erf, exp, exp2, flatten, flip, floor = map(_method, ("erf", "exp", "exp2", "flatten", "flip", "floor"))
    floor_divide, gather, ge, gt, index_select = map(_method, ("floor_divide", "gather", "ge", "gt", "index_select"))
    isfinite, isinf, isnan, le, lerp, log = map(_method, ("isfinite", "isinf", "isnan", "le", "lerp", "log"))
    log2, log_softmax, logical_and, logical_not = map(_method, ("log2", "log_softmax", "logical_and", "logical_not"))
    logaddexp, logical_or, logsumexp, lt = map(_method, ("logaddexp", "logical_or", "logsumexp", "lt"))
    masked_fill = _method("masked_fill")
    max, maximum, mean, min, minimum, mm = map(_method, ("max", "maximum", "mean", "min", "minimum", "mm"))
    movedim, mul, mv, narrow, ne, neg, norm = map(_method, ("movedim", "mul", "mv", "narrow", "ne", "neg", "norm"))
    numel, permute, pow, ravel, reciprocal = map(_method, ("numel", "permute", "pow", "ravel", "reciprocal"))
    outer, repeat_interleave, roll, tile = map(_method, ("outer", "repeat_interleave", "roll", "tile"))
    relu, remainder, reshape, round, rsqrt = map(_method, ("relu", "remainder", "reshape", "round", "rsqrt"))
    select, sigmoid, sign, sin, softmax, sort = map(_method, ("select", "sigmoid", "sign", "sin", "softmax", "sort"))
    split, sqrt, square, squeeze, std, sub = map(_method, ("split", "sqrt", "square", "squeeze", "std", "sub"))
    sum, swapaxes, swapdims, t, tanh = map(_method, ("sum", "swapaxes", "swapdims", "t", "tanh"))
    tensor_split, topk, transpose, tril, triu = map(_method, ("tensor_split", "topk", "transpose", "tril", "triu"))
    true_divide, unbind = map(_method, ("true_divide", "unbind"))
    unflatten, unsqueeze, var = map(_method, ("unflatten", "unsqueeze", "var"))


METHODS = tuple(name for name in vars(TorchMethods) if not name.startswith("_"))


@takes_numpy_names
class TorchFunctions(TorchMethods):
    """Base of the host's context."""

    def manual_seed(self, seed: int) -> Generator:
        """Begin the caller's random numbers again with a seed."""
        return self.random_state.current().manual_seed(seed)

    def initial_seed(self) -> int:
        return self.random_state.current().initial_seed()

    def set_grad_enabled(self, mode: bool) -> NoGrad:
        """Accepted with False, since there are no gradients."""
        if mode:
            raise NotModelledError("torch.set_grad_enabled(True) is not modelled", hint=NO_AUTOGRAD)
        return NoGrad()

    def is_grad_enabled(self) -> bool:
        return False

    def is_tensor(self, obj: object) -> bool:
        return isinstance(obj, Tensor)

    def is_floating_point(self, input: Tensor) -> bool:
        return input.element.is_float

    def finfo(self, type: DType | str | None = None) -> Any:
        """Limits of a float dtype: `min`, `max`, `eps`, `tiny`."""
        import ml_dtypes

        return ml_dtypes.finfo(  # type: ignore[no-untyped-call]  # the package has no types
            dtype_of(type or self.get_default_dtype()).numpy
        )

    def iinfo(self, type: DType | str) -> Any:
        """Limits of an integer dtype: `min`, `max`."""
        return np.iinfo(dtype_of(type).numpy)

    def broadcast_shapes(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        return broadcast_shapes(*shapes)

    def result_type(self, *operands: Any) -> DType:
        return self.ops.result_type(operands)

    @property
    def nn(self) -> NnNamespace:
        """`torch.nn.functional`, and nothing else."""
        return NnNamespace(self)

    # ---- several tensors

    def where(self, condition: Tensor, input: Any, other: Any) -> Tensor:
        """`input` where the condition holds, else `other`."""
        return self.ops.pointwise("where", condition, input, other)

    def matmul(self, input: Tensor, other: Tensor) -> Tensor:
        """The matrix product."""
        product: Tensor = input @ other
        return product

    def cat(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Tensors one after the other along an axis, copied by kernels; placed as the first one is."""
        some = _tensors("cat", tensors)
        kept = [each for each in some if each.shape != (0,)] or some[:1]
        first = kept[0]
        axis = axis_of(dim, first.ndim)
        for each in kept:
            sizes = (*each.shape[:axis], *each.shape[axis + 1 :])
            if each.ndim != first.ndim or sizes != (*first.shape[:axis], *first.shape[axis + 1 :]):
                raise TensorError(
                    f"cat of {first.title} and {each.title} along axis {axis}", hint="sizes differ along that axis only"
                )
        dtype = self.ops.result_type(kept)
        shape = list(first.shape)
        shape[axis] = sum(each.shape[axis] for each in kept)
        out = self.empty(shape, dtype=dtype, dp=first.dp, device=first.device, name="cat")
        at = 0
        for each in kept:
            self.ops.copy_into(out.narrow(axis, at, each.shape[axis]), each, "cat")
            at += each.shape[axis]
        return out

    concat = concatenate = cat

    def stack(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Tensors of one shape along a new axis."""
        some = _tensors("stack", tensors)
        axis = axis_of(dim, some[0].ndim + 1)
        if any(each.shape != some[0].shape for each in some):
            raise TensorError(
                f"stack of tensors of shapes {[list(each.shape) for each in some]}", hint="make them equal"
            )
        return self.cat([each.unsqueeze(axis) for each in some], axis)

    def vstack(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.cat([each.unsqueeze(0) if each.ndim < 2 else each for each in tensors], 0)

    def hstack(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.cat(tensors, 0 if tensors[0].ndim < 2 else 1)

    def isclose(self, input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> Tensor:
        return input.isclose(other, rtol, atol)

    def bincount(self, input: Tensor, minlength: int = 0) -> Tensor:
        """How often each whole number is there, counted on the host."""
        return self.from_numpy(np.bincount(input.cpu().numpy(), minlength=minlength), device=input.device)


def _tensors(name: str, given: Any) -> list[Tensor]:
    if not isinstance(given, list | tuple) or not given or not all(isinstance(each, Tensor) for each in given):
        raise UsageError(f"{name}: got a {type(given).__name__}", hint=f"give a list of tensors: torch.{name}([a, b])")
    return list(given)
