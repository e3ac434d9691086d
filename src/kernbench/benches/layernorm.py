"""Layer normalisation over rows, with gain and bias, rows spread over the PEs of a cube."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from kernbench.benches._advice import more_rows
from kernbench.benches._numbers import FloatName, Seed, Size, Wide, draw, wide
from kernbench.benches._rows import blocks_of, over_pes, replicated, sharing
from kernbench.benches.registry import AtLeast, bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


def layernorm_kernel(
    x: TensorPtr, gain: TensorPtr, bias: TensorPtr, out: TensorPtr, block_rows: int, eps: float, tl: TLContext
) -> None:
    """(x - mean) / sqrt(variance + eps) * gain + bias of this PE's rows, in f32."""
    scale, shift = tl.cast(tl.load(gain.local), "f32"), tl.cast(tl.load(bias.local), "f32")
    for source, target, shape in blocks_of(x.local, out.local, block_rows):
        rows = tl.cast(tl.load(source, shape=shape), "f32")
        centred = rows - tl.mean(rows, axis=1, keep_dims=True)
        variance = tl.mean(centred * centred, axis=1, keep_dims=True)
        normal = centred * tl.rsqrt(variance + eps)
        tl.store(target, tl.cast(normal * scale + shift, x.dtype))


@bench(name="layernorm", description="Layer normalisation over rows, rows over the PEs of a cube.", advice=more_rows)
def layernorm(
    torch: RuntimeContext,
    *,
    rows: Annotated[Size, "rows, spread over PEs"] = 256,
    cols: Annotated[Size, "length of a row"] = 512,
    block_rows: Annotated[Size, "rows in TCM at a time"] = 16,
    eps: Annotated[float, AtLeast(0), "added to the variance"] = 1e-5,
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> None:
    rng = np.random.default_rng(seed)
    x, gain, bias = (draw(rng, *shape, dtype=dtype) for shape in ((rows, cols), (cols,), (cols,)))
    pes = sharing(torch, rows)
    source = torch.from_numpy(x, dp=over_pes(pes), name="x")
    scale, shift = (torch.from_numpy(v, dp=replicated(pes), name=n) for v, n in ((gain, "gain"), (bias, "bias")))
    out = torch.empty(rows, cols, dtype=dtype, dp=over_pes(pes), name="out")
    torch.launch("layernorm", layernorm_kernel, source, scale, shift, out, block_rows, eps)

    def reference() -> Wide:
        centred = wide(x) - wide(x).mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps)
        normal: Wide = centred / deviation
        return normal * wide(gain) + wide(bias)

    torch.check(out, reference)
