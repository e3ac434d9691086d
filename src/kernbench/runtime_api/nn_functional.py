"""`torch.nn.functional`: the functions of layers, as kernels on the device. Modules are in `kernbench.tp`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kernbench.common.errors import NotModelledError, TensorError
from kernbench.runtime_api.not_modelled import FUNCTIONAL_NAMES, refuse_name
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.tensor_factory import TensorFactory

EPS = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}  # the step after 1
_LAYERS = "kernbench.tp has parallel layers; torch.nn.functional has functions of tensors"


class NnNamespace:
    """`torch.nn`."""

    def __init__(self, torch: TensorFactory) -> None:
        self.functional = Functional(torch)

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise NotModelledError(f"torch.nn.{name} is not modelled", hint=_LAYERS)


class Functional:
    """`torch.nn.functional`."""

    def __init__(self, torch: TensorFactory) -> None:
        self._torch = torch

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            refuse_name("torch.nn.functional", name, FUNCTIONAL_NAMES.get(name), dir(type(self)))

    def relu(self, input: Tensor) -> Tensor:
        return input.relu()

    def gelu(self, input: Tensor, approximate: str = "none") -> Tensor:
        return input.gelu(approximate)

    def silu(self, input: Tensor) -> Tensor:
        return input.silu()

    def sigmoid(self, input: Tensor) -> Tensor:
        return input.sigmoid()

    def tanh(self, input: Tensor) -> Tensor:
        return input.tanh()

    def softmax(self, input: Tensor, dim: int, dtype: object = None) -> Tensor:
        return input.softmax(dim, dtype)

    def log_softmax(self, input: Tensor, dim: int, dtype: object = None) -> Tensor:
        return input.log_softmax(dim, dtype)

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """input @ weight.T + bias."""
        if not isinstance(input, Tensor):  # a DTensor
            return input @ weight.t() if bias is None else input @ weight.t() + bias
        product = self._torch.ops.matmul(input, weight.t(), "linear")
        return product if bias is None else self._torch.ops.pointwise("add", product, bias, out=product)

    def embedding(self, input: Tensor, weight: Tensor) -> Tensor:
        """Rows of a table by their numbers."""
        rows = self._torch.ops.take_rows(weight, input.reshape(-1), "embedding")
        return rows.view(*input.shape, *weight.shape[1:])

    def layer_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """(x - mean) / sqrt(variance + eps) over the last axes, times weight, plus bias."""
        if not isinstance(input, Tensor):  # a DTensor
            return input.layer_norm(normalized_shape, weight, bias, eps)
        if bias is not None and weight is None:
            return self._torch.ops.pointwise("add", self._norm("layer_norm", input, normalized_shape, (), eps), bias)
        given = [each for each in (weight, bias) if each is not None]
        return self._norm("layer_norm", input, normalized_shape, given, eps)

    def rms_norm(
        self, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        """x / sqrt(mean of squares + eps) over the last axes, times weight."""
        least = EPS.get(input.dtype, EPS["f32"]) if eps is None else eps
        if not isinstance(input, Tensor):  # a DTensor
            return input.rms_norm(normalized_shape, weight, least)
        return self._norm("rms_norm", input, normalized_shape, [] if weight is None else [weight], least)

    def _norm(self, name: str, x: Tensor, normalized: Any, weights: Sequence[Tensor], eps: float) -> Tensor:
        sizes = (normalized,) if isinstance(normalized, int) else tuple(normalized)
        if not sizes or x.shape[-len(sizes) :] != sizes or any(each.shape != sizes for each in weights):
            raise TensorError(f"{name} over {list(sizes)} of {x.title}", hint="give the sizes of its last axes")
        rows = x.reshape(*x.shape[: x.ndim - len(sizes)], prod(sizes))
        flat = [each.reshape(prod(sizes)) for each in weights]
        return self._torch.ops.rows(name, rows, -1, *flat, eps=eps)[0].view(x.shape)

    def mse_loss(self, input: Tensor, target: Tensor) -> Tensor:
        error: Tensor = (input - target).square()
        loss: Tensor = error.mean()
        return loss

    def scaled_dot_product_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """softmax(query @ key.T * scale) @ value, step by step. A mask of bools says which scores count; another one is
        added to them.
        """
        if dropout_p:
            raise NotModelledError("dropout is not modelled", hint="leave dropout_p out: inference has none")
        if is_causal and attn_mask is not None:
            raise TensorError("attention has attn_mask and is_causal", hint="give one of them")
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        scores = self._torch.ops.matmul(query, key.transpose(-2, -1)) * factor
        if is_causal:
            earlier = np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
            scores = self._masked(scores, self._torch.from_numpy(~earlier, device=query.device))
        elif attn_mask is not None and attn_mask.dtype == "bool":
            scores = self._masked(scores, attn_mask.logical_not())
        elif attn_mask is not None:
            scores = self._torch.ops.pointwise("add", scores, attn_mask)
        return self._torch.ops.matmul(scores.softmax(-1), value)

    def _masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask, -1e30 if scores.dtype == "f32" else -6e4)
