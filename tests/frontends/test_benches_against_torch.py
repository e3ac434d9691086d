"""Shipped benches against PyTorch, where it is installed: what a kernel left in memory, and torch's own function of the
same inputs in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.benches.registry import resolve
from kernbench.common.dtypes import dtype_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the benches' own numpy references judge them")
functional = torch.nn.functional

SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
FLOATS = ["f16", "bf16", "f32"]


def tensors_of(bench: str, **params: object) -> dict[str, np.ndarray]:
    """The contents of every named tensor of a bench when it is over."""
    return tensors_after(resolve(bench).run, SMALL, **params)


def tensors_after(run: Callable[..., Any], machine: dict[str, int], **params: object) -> dict[str, np.ndarray]:
    held: dict[str, Any] = {}

    def noted(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: object, **options: Any) -> Any:
            tensor = held[options["name"]] = make(*args, **options)
            return tensor

        return made

    def program(host: Any) -> dict[str, np.ndarray]:
        host.from_numpy, host.empty, host.zeros = noted(host.from_numpy), noted(host.empty), noted(host.zeros)
        run(host, **params)
        return {name: tensor.numpy() for name, tensor in held.items()}

    return kernbench.run(program, overrides=machine).returned[0]


def wide(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float32))


def agree(got: np.ndarray, reference: torch.Tensor, dtype: str) -> None:
    element = dtype_of(dtype)
    assert got.dtype == element.numpy
    expected = reference.numpy().astype(np.float64)
    assert np.ptp(expected) > 0.1  # something was computed
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=element.rtol, atol=element.atol)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fused", [False, True])
def test_softmax(dtype: str, fused: bool) -> None:
    found = tensors_of("softmax", rows=37, cols=50, block_rows=4, fused=fused, dtype=dtype)
    agree(found["out"], torch.softmax(wide(found["x"]), -1), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_layernorm(dtype: str) -> None:
    found = tensors_of("layernorm", rows=21, cols=48, block_rows=4, eps=1e-5, dtype=dtype)
    x, gain, bias = (wide(found[name]) for name in ("x", "gain", "bias"))
    agree(found["out"], functional.layer_norm(x, (48,), gain, bias, 1e-5), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("replicate", [False, True])
def test_gelu_mlp(dtype: str, replicate: bool) -> None:
    found = tensors_of("gelu-mlp", rows=13, d_model=48, d_hidden=80, replicate=replicate, dtype=dtype)
    x, w1, b1, w2, b2 = (wide(found[name]) for name in ("x", "w1", "b1", "w2", "b2"))
    hidden = functional.gelu(functional.linear(x, w1.T, b1))
    hidden = hidden.to(getattr(torch, dtype_of(dtype).numpy_name)).to(torch.float32)  # as it lies in TCM
    agree(found["out"], functional.linear(hidden, w2.T, b2), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("pes", "causal"), [(1, False), (0, False), (0, True)])
def test_flash_attention(dtype: str, pes: int, causal: bool) -> None:
    sizes = {"seq_q": 70, "seq_k": 70, "d_head": 32, "block_q": 16, "block_k": 24}
    found = tensors_of("flash-attention", **sizes, pes=pes, causal=causal, dtype=dtype)
    q, k, v = (wide(found[name])[None] for name in ("q", "k", "v"))
    reference = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    agree(found["out"], reference[0], dtype)


@pytest.mark.parametrize("variant", ["load", "load-ref", "ref"])
@pytest.mark.parametrize("dtype", [*FLOATS, "f8e4m3", "i8"])
def test_matmul_composite(dtype: str, variant: str) -> None:
    found = tensors_of("matmul-composite", m=33, k=130, n=50, variant=variant, dtype=dtype)
    stored = {"f8e4m3": "f32", "i8": "i32"}.get(dtype, dtype)
    agree(found["c"], wide(found["a"]) @ wide(found["b"]), stored)


@pytest.mark.parametrize("panel", ["single-prefill", "single-decode", "multi-prefill", "multi-decode"])
def test_grouped_query_attention_of_every_panel(panel: str) -> None:
    evaluation = resolve("milestone-gqa-llama70b").evaluation
    assert evaluation is not None
    machine = {**SMALL, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2}
    found = tensors_after(evaluation.point, machine, part="validated", panel=panel, context=256)
    heads, d = found["q"].shape[1] // 128, 128  # heads lie next to each other
    q, k, v = (wide(found[name]).reshape(-1, heads, d).transpose(0, 1) for name in ("q", "k", "v"))
    reference = functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(-1, heads * d)
    agree(found["out"], reference, "f16")
