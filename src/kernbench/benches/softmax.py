"""Softmax over the rows of a matrix, rows spread over the PEs of a cube: bound by memory, with five passes of MATH.

`fused` uses `tl.softmax`, which the MATH engine is charged for once. Otherwise the kernel spells it out: maximum,
difference, exponent, sum, quotient, in f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from kernbench.benches import _numbers
from kernbench.benches._advice import more_rows
from kernbench.benches._numbers import FloatName, Seed, Size, draw, wide
from kernbench.benches._rows import blocks_of, over_pes, sharing
from kernbench.benches.registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


def softmax_kernel(x: TensorPtr, out: TensorPtr, block_rows: int, fused: bool, tl: TLContext) -> None:
    """Softmax of this PE's rows, `block_rows` at a time."""
    for source, target, shape in blocks_of(x.local, out.local, block_rows):
        rows = tl.load(source, shape=shape)
        if fused:
            tl.store(target, tl.softmax(rows))
            continue
        rows = tl.cast(rows, "f32")
        powers = tl.exp(rows - tl.max(rows, axis=1, keep_dims=True))
        tl.store(target, tl.cast(powers / tl.sum(powers, axis=1, keep_dims=True), x.dtype))


def _advice(cause: str, params: Mapping[str, Any]) -> Mapping[str, object]:
    """One fused op; then larger blocks."""
    return more_rows(cause, params) if params["fused"] else {"fused": True}


@bench(name="softmax", description="Softmax over rows, rows over the PEs of a cube.", advice=_advice)
def softmax(
    torch: RuntimeContext,
    *,
    rows: Annotated[Size, "rows, spread over PEs"] = 256,
    cols: Annotated[Size, "length of a row"] = 512,
    block_rows: Annotated[Size, "rows in TCM at a time"] = 16,
    fused: Annotated[bool, "one tl.softmax instead of its steps"] = False,
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> None:
    x = draw(np.random.default_rng(seed), rows, cols, dtype=dtype, scale=3.0)
    rows_over_pes = over_pes(sharing(torch, rows))
    source = torch.from_numpy(x, dp=rows_over_pes, name="x")
    out = torch.empty(rows, cols, dtype=dtype, dp=rows_over_pes, name="out")
    torch.launch("softmax", softmax_kernel, source, out, block_rows, fused)
    torch.check(out, lambda: _numbers.softmax(wide(x)))
