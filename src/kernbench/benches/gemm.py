"""One matrix product on one PE: by hand (load, dot, store), and as a composite that streams tiles.

`matmul-composite` also takes its parameters from MATMUL_M, MATMUL_K, MATMUL_N, MATMUL_VARIANT, MATMUL_TILE,
MATMUL_LAYOUT, MATMUL_DTYPE and MATMUL_SEED. Its variants say where the operands are when the composite begins: `load`
both in TCM, `load-ref` the left one in TCM and the right one streamed from HBM, `ref` both streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np

from kernbench.benches._advice import faster_tile
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
from kernbench.benches.registry import AtLeast, bench
from kernbench.common.commands import TILED, TensorLayout
from kernbench.common.dtypes import dtype_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

Variant = Literal["load", "load-ref", "ref"]
WORTH_BLOCKS = 64  # rows of a product below which blocks cost more commands than they hide
VARIANTS: tuple[Variant, ...] = ("load", "load-ref", "ref")


def gemm_kernel(a: TensorPtr, b: TensorPtr, c: TensorPtr, block_m: int, tl: TLContext) -> None:
    """c = a @ b, with everything in TCM at once, or `block_m` rows of a at a time, the next ones loaded meanwhile."""
    if not block_m:
        tl.store(c, tl.dot(tl.load(a), tl.load(b), out_dtype=c.dtype))
        return
    rows, k = a.shape
    a_bytes, c_bytes = k * dtype_of(a.dtype).itemsize, c.shape[1] * dtype_of(c.dtype).itemsize
    starts = range(0, rows, block_m)
    loads = [tl.load_async(a, shape=(min(block_m, rows), k))]
    right = tl.load(b)
    stores = []
    for number, at in enumerate(starts):
        left = tl.wait(loads[number])
        assert left is not None
        after = at + block_m
        if after < rows:
            loads.append(tl.load_async(a + after * a_bytes, shape=(min(block_m, rows - after), k)))
        stores.append(tl.store_async(c + at * c_bytes, tl.dot(left, right, out_dtype=c.dtype)))
    for store in stores:
        tl.wait(store)


def _overlapped(_cause: str, params: Mapping[str, Any]) -> Mapping[str, object]:
    """Four blocks of rows: loads and stores of all but one are hidden behind products."""
    return {"block_m": params["m"] // 4} if not params["block_m"] and params["m"] >= WORTH_BLOCKS else {}


def matmul_kernel(a: TensorPtr, b: TensorPtr, c: TensorPtr, in_tcm: int, auto_tile: bool, tl: TLContext) -> None:
    """c = a @ b tile by tile, with the first `in_tcm` operands loaded beforehand."""
    left = tl.load(a) if in_tcm >= 1 else tl.ref(a)
    right = tl.load(b) if in_tcm >= 2 else tl.ref(b)
    tl.wait(tl.composite("gemm", left, right, out_ptr=c, tile_shape=tile_shape_of(auto_tile)))


@bench(name="gemm-single-pe", description="One product on one PE: load both operands, dot, store.", advice=_overlapped)
def gemm_single_pe(
    torch: RuntimeContext,
    *,
    m: Annotated[Size, "rows of a and c"] = 128,
    k: Annotated[Size, "columns of a, rows of b"] = 256,
    n: Annotated[Size, "columns of b and c"] = 128,
    block_m: Annotated[int, AtLeast(0), "rows of a at a time, the next ones loaded meanwhile; 0 for all at once"] = 0,
    dtype: DTypeName = "f16",
    seed: Seed = 0,
) -> None:
    _launch_product(torch, (m, k, n), dtype, seed, "gemm", gemm_kernel, block_m)


@bench(
    name="matmul-composite",
    description="One product on one PE as a tiled composite, operands in TCM or streamed.",
    env="MATMUL",
    advice=faster_tile,
)
def matmul_composite(
    torch: RuntimeContext,
    *,
    m: Annotated[Size, "rows of a and c"] = 128,
    k: Annotated[Size, "columns of a, rows of b"] = 256,
    n: Annotated[Size, "columns of b and c"] = 128,
    variant: Annotated[Variant, "operands in TCM: both, the left one, none"] = "load-ref",
    tile: TileName = "native",
    layout: Annotated[TensorLayout, "a tile is one run of bytes to HBM, or one for each of its rows"] = "tiled",
    dtype: DTypeName = "f16",
    seed: Seed = 0,
) -> None:
    args = (2 - VARIANTS.index(variant), tile == "auto")
    _launch_product(torch, (m, k, n), dtype, seed, f"matmul-{variant}", matmul_kernel, *args, layout=layout)


def _launch_product(
    torch: RuntimeContext, shape: tuple[int, int, int], dtype: str, seed: int, name: str, kernel: Callable[..., None],
    *args: object, layout: TensorLayout = "tiled",
) -> None:  # fmt: skip
    """Launch `kernel` for c = a b, and check c."""
    m, k, n = shape
    rng = np.random.default_rng(seed)
    a, b = draw(rng, m, k, dtype=dtype), weights(rng, k, n, dtype)
    given = None if layout == TILED else layout  # tiles lie so anyway; memories other than HBM have no layouts
    left, right = (torch.from_numpy(x, name=name, layout=given) for name, x in (("a", a), ("b", b)))
    out = torch.empty(m, n, dtype=product_dtype(dtype), name="c", layout=given)
    torch.launch(name, kernel, left, right, out, *args)
    torch.check(out, lambda: product(a, b))
