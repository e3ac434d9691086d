"""A transformer's two-layer perceptron: gelu(x @ w1 + b1) @ w2 + b2, rows spread over the PEs of a cube.

Each layer is one composite with its epilogue: bias and gelu in the first, bias in the second. The hidden layer stays
in TCM between them and is pinned in the second, so it never goes to HBM. All PEs read one copy of the weights, or each
its own where `replicate` says so: the difference is what one HBM slice can give.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from kernbench.benches import _numbers
from kernbench.benches._advice import faster_tile
from kernbench.benches._numbers import FloatName, Seed, Size, TileName, Wide, draw, tile_shape_of, weights, wide
from kernbench.benches._rows import over_pes, replicated, sharing
from kernbench.benches.registry import bench
from kernbench.common.dtypes import dtype_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


def mlp_kernel(
    x: TensorPtr,
    w1: TensorPtr,
    b1: TensorPtr,
    w2: TensorPtr,
    b2: TensorPtr,
    out: TensorPtr,
    auto_tile: bool,
    tl: TLContext,
) -> None:
    """Both layers for this PE's rows."""
    tile_shape = tile_shape_of(auto_tile)
    bias = tl.load(b1, shape=b1.shape)
    first = tl.composite(
        "gemm",
        tl.load(x.local),
        tl.ref(w1, shape=w1.shape),
        epilogue=[{"op": "bias", "bias": bias}, {"op": "gelu"}],
        out_dtype=x.dtype,
        tile_shape=tile_shape,
    )
    hidden = tl.wait(first)
    assert hidden is not None  # it went to no pointer
    bias = tl.load(b2, shape=b2.shape)
    second = tl.composite(
        "gemm",
        hidden,
        tl.ref(w2, shape=w2.shape),
        out_ptr=out.local,
        epilogue=[{"op": "bias", "bias": bias}],
        tile_shape=tile_shape,
    )
    tl.wait(second)


@bench(
    name="gelu-mlp",
    description="gelu(x @ w1 + b1) @ w2 + b2 as two composites, rows over the PEs of a cube.",
    advice=faster_tile,
)
def gelu_mlp(
    torch: RuntimeContext,
    *,
    rows: Annotated[Size, "rows of x, spread over PEs"] = 128,
    d_model: Annotated[Size, "columns of x and of the result"] = 128,
    d_hidden: Annotated[Size, "columns of the hidden layer"] = 512,
    replicate: Annotated[bool, "each PE has its own copy of the weights"] = True,
    tile: TileName = "native",
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> None:
    rng = np.random.default_rng(seed)
    x = draw(rng, rows, d_model, dtype=dtype)
    w1, w2 = weights(rng, d_model, d_hidden, dtype), weights(rng, d_hidden, d_model, dtype)
    b1, b2 = draw(rng, d_hidden, dtype=dtype), draw(rng, d_model, dtype=dtype)
    pes = sharing(torch, rows)
    source = torch.from_numpy(x, dp=over_pes(pes), name="x")
    shared = replicated(pes) if replicate else None
    named = (("w1", w1), ("b1", b1), ("w2", w2), ("b2", b2))
    fixed = [torch.from_numpy(array, dp=shared, name=name) for name, array in named]
    out = torch.empty(rows, d_model, dtype=dtype, dp=over_pes(pes), name="out")
    torch.launch("mlp", mlp_kernel, source, *fixed, out, tile == "auto")

    def reference() -> Wide:
        hidden = _numbers.gelu(wide(x) @ wide(w1) + wide(b1)).astype(dtype_of(dtype).numpy)  # as it lies in TCM
        return wide(hidden) @ wide(w2) + wide(b2)

    torch.check(out, reference)
