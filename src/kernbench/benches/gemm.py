"""One matrix product on one PE: by hand (load, dot, store), and as a composite that streams tiles.

`matmul-composite` also takes its parameters from MATMUL_M, MATMUL_K, MATMUL_N, MATMUL_VARIANT, MATMUL_TILE,
MATMUL_DTYPE and MATMUL_SEED. Its variants say where the operands are when the composite begins: `load` both in TCM,
`load-ref` the left one in TCM and the right one streamed from HBM, `ref` both streamed.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from kernbench.benches._numbers import (
    DTypeName,
    Seed,
    Size,
    TileName,
    draw,
    product,
    product_dtype,
    tile_shape_of,
    weights,
)
from kernbench.benches.registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

Variant = Literal["load", "load-ref", "ref"]
VARIANTS: tuple[Variant, ...] = ("load", "load-ref", "ref")


def gemm_kernel(a: TensorPtr, b: TensorPtr, c: TensorPtr, tl: TLContext) -> None:
    """c = a @ b, with everything in TCM at once."""
    tl.store(c, tl.dot(tl.load(a), tl.load(b), out_dtype=c.dtype))


def matmul_kernel(a: TensorPtr, b: TensorPtr, c: TensorPtr, in_tcm: int, auto_tile: bool, tl: TLContext) -> None:
    """c = a @ b tile by tile, with the first `in_tcm` operands loaded beforehand."""
    left = tl.load(a) if in_tcm >= 1 else tl.ref(a)
    right = tl.load(b) if in_tcm >= 2 else tl.ref(b)
    tl.wait(tl.composite("gemm", left, right, out_ptr=c, tile_shape=tile_shape_of(auto_tile)))


@bench(name="gemm-single-pe", description="One product on one PE: load both operands, dot, store.")
def gemm_single_pe(
    torch: RuntimeContext,
    *,
    m: Annotated[Size, "rows of a and c"] = 128,
    k: Annotated[Size, "columns of a, rows of b"] = 256,
    n: Annotated[Size, "columns of b and c"] = 128,
    dtype: DTypeName = "f16",
    seed: Seed = 0,
) -> None:
    rng = np.random.default_rng(seed)
    a, b = draw(rng, m, k, dtype=dtype), weights(rng, k, n, dtype)
    left, right = torch.from_numpy(a, name="a"), torch.from_numpy(b, name="b")
    out = torch.empty(m, n, dtype=product_dtype(dtype), name="c")
    torch.launch("gemm", gemm_kernel, left, right, out)
    torch.check(out, lambda: product(a, b))


@bench(
    name="matmul-composite",
    description="One product on one PE as a tiled composite, operands in TCM or streamed.",
    env="MATMUL",
)
def matmul_composite(
    torch: RuntimeContext,
    *,
    m: Annotated[Size, "rows of a and c"] = 128,
    k: Annotated[Size, "columns of a, rows of b"] = 256,
    n: Annotated[Size, "columns of b and c"] = 128,
    variant: Annotated[Variant, "operands in TCM: both, the left one, none"] = "load-ref",
    tile: TileName = "native",
    dtype: DTypeName = "f16",
    seed: Seed = 0,
) -> None:
    rng = np.random.default_rng(seed)
    a, b = draw(rng, m, k, dtype=dtype), weights(rng, k, n, dtype)
    left, right = torch.from_numpy(a, name="a"), torch.from_numpy(b, name="b")
    out = torch.empty(m, n, dtype=product_dtype(dtype), name="c")
    torch.launch(f"matmul-{variant}", matmul_kernel, left, right, out, 2 - VARIANTS.index(variant), tile == "auto")
    torch.check(out, lambda: product(a, b))
