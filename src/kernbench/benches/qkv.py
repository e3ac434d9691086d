"""The three projections in front of attention: q, k and v from one input, and from weights that share its width.

`qkv-gemm` does them on one PE. `qkv-gemm-multi-pe` spreads the columns of the weights over the PEs of a cube, so that
each PE has its own weights and outputs in its own HBM slice and a replica of the input. `gpt3-qkv` spreads them over
cubes and PEs and has the proportions of GPT-3's attention (heads of 128), as many heads as asked for.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np

from kernbench.benches._advice import faster_tile
from kernbench.benches._numbers import FloatName, Seed, Size, TileName, draw, product, tile_shape_of, weights
from kernbench.benches._rows import replicated, sharing
from kernbench.benches.registry import bench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

GPT3_HEAD_DIM = 128
NAMES = ("q", "k", "v")


def qkv_kernel(
    x: TensorPtr,
    wq: TensorPtr,
    wk: TensorPtr,
    wv: TensorPtr,
    q: TensorPtr,
    k: TensorPtr,
    v: TensorPtr,
    auto_tile: bool,
    tl: TLContext,
) -> None:
    """This PE's columns of q, k and v. The input is loaded once; no product waits for the one before."""
    rows = tl.load(x.local)
    for weight, out in ((wq, q), (wk, k), (wv, v)):
        tl.composite("gemm", rows, tl.ref(weight.local), out_ptr=out.local, tile_shape=tile_shape_of(auto_tile))
    tl.wait()


def _qkv(
    torch: RuntimeContext,
    seq: int,
    d_model: int,
    d_out: int,
    tile: str,
    dtype: str,
    seed: int,
    split: DPPolicy | None = None,
    whole: DPPolicy | None = None,
) -> None:
    """`whole` places the input, `split` weights and outputs."""
    rng = np.random.default_rng(seed)
    x = draw(rng, seq, d_model, dtype=dtype)
    matrices = [weights(rng, d_model, d_out, dtype) for _ in NAMES]
    rows = torch.from_numpy(x, dp=whole, name="x")
    held = [torch.from_numpy(w, dp=split, name=f"w{name}") for w, name in zip(matrices, NAMES, strict=True)]
    outs = [torch.empty(seq, d_out, dtype=dtype, dp=split, name=name) for name in NAMES]
    torch.launch("qkv", qkv_kernel, rows, *held, *outs, tile == "auto")
    for out, w in zip(outs, matrices, strict=True):
        torch.check(out, partial(product, x, w))


@bench(name="qkv-gemm", description="Query, key and value projections on one PE.", advice=faster_tile)
def qkv_gemm(
    torch: RuntimeContext,
    *,
    seq: Annotated[Size, "rows of the input"] = 64,
    d_model: Annotated[Size, "its columns"] = 256,
    d_out: Annotated[Size, "columns of each of q, k, v"] = 128,
    tile: TileName = "native",
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> None:
    _qkv(torch, seq, d_model, d_out, tile, dtype, seed)


@bench(
    name="qkv-gemm-multi-pe",
    description="Query, key and value projections, columns over the PEs of a cube.",
    advice=faster_tile,
)
def qkv_gemm_multi_pe(
    torch: RuntimeContext,
    *,
    seq: Annotated[Size, "rows of the input"] = 64,
    d_model: Annotated[Size, "its columns"] = 256,
    d_out: Annotated[Size, "columns of each of q, k, v"] = 512,
    tile: TileName = "native",
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> None:
    pes = sharing(torch, d_out)
    columns = DPPolicy(pe="column_wise", num_cubes=1, num_pes=pes)
    _qkv(torch, seq, d_model, d_out, tile, dtype, seed, split=columns, whole=replicated(pes))


@bench(
    name="gpt3-qkv",
    description="Projections in GPT-3's proportions, heads over cubes and PEs of a device.",
    advice=faster_tile,
)
def gpt3_qkv(
    torch: RuntimeContext,
    *,
    seq: Annotated[Size, "rows of the input"] = 32,
    heads: Annotated[Size, "heads, of 128 columns each"] = 4,
    cubes: Annotated[Size, "cubes to spread over, if there are so many"] = 2,
    tile: TileName = "native",
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> None:
    d_model = heads * GPT3_HEAD_DIM
    n_cubes = min(cubes, torch.spec.sip.n_cubes)
    pes = sharing(torch, d_model // max(n_cubes, 1))
    columns = DPPolicy(cube="column_wise", pe="column_wise", num_cubes=n_cubes, num_pes=pes)
    everywhere = DPPolicy(num_cubes=n_cubes, num_pes=pes)
    _qkv(torch, seq, d_model, d_model, tile, dtype, seed, split=columns, whole=everywhere)
