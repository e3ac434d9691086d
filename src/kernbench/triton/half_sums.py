"""Functions of PyTorch that add up many f16 or bf16 numbers, computed as accelerators do: in f32, rounded at the end.

PyTorch's norms on a CPU add up their gradients in halves, and a CPU without instructions for halves needs 100 times as
long for a product in f16 as for the same product in f32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functions

_HALVES = (torch.float16, torch.bfloat16)
_NORMS = ("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm")
_PRODUCTS = ("addbmm", "addmm", "addmv", "baddbmm", "bmm", "einsum", "inner", "matmul", "mm", "mv", "tensordot")
_LAYERS = (
    *("bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("linear", "scaled_dot_product_attention"),
)
_LENIENT = tuple(getattr(functions, name) for name in _NORMS if hasattr(functions, name))  # weights may be in f32
_STRICT = tuple(
    getattr(owner, name)
    for owner, names in ((functions, _LAYERS), (torch, _PRODUCTS), (torch.Tensor, _PRODUCTS))
    for name in names
    if hasattr(owner, name)
)


def computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call of PyTorch."""
    half = _half_of(func, args, kwargs)
    if half is None:
        return func(*args, **kwargs)
    return func(*map(_wide, args), **{name: _wide(arg) for name, arg in kwargs.items()}).to(half)


def _half_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The type of the halves that a call adds up, unless something else says how: `out=`, autocast, operands of
    different types.
    """
    is_norm = func in _LENIENT
    if not (is_norm or func in _STRICT) or kwargs.get("out") is not None or torch.is_autocast_enabled("cpu"):
        return None
    types = [tensor.dtype for tensor in _tensors((*args, *kwargs.values())) if tensor.is_floating_point()]
    is_alike = is_norm or len(set(types)) == 1
    return types[0] if types and types[0] in _HALVES and is_alike else None


def _tensors(values: tuple[Any, ...]) -> list[torch.Tensor]:
    """Tensors among arguments; operands of an einsum may be in a list."""
    found = []
    for value in values:
        found += [each for each in (value if isinstance(value, (tuple, list)) else (value,)) if _is_tensor(each)]
    return found


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _wide(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_wide(each) for each in value)
    return value.float() if _is_tensor(value) and value.dtype in _HALVES else value
