"""Attention without the score matrix: key blocks stream by, and a running maximum and sum keep the softmax right.

One head. Each PE has some of the query rows (`pes` of a cube's PEs take part, 0 for all) and its own copy of keys and
values; it goes through its queries in blocks, and for each block through all key blocks. Scores and the output are
kept in f32; probabilities are rounded to the tensors' type before they meet the values, as accelerators do.
With `causal`, a query sees keys up to its own position, and blocks that lie wholly behind it are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from kernbench.benches import _numbers
from kernbench.benches._numbers import FloatName, Seed, Size, Wide, draw, wide
from kernbench.benches._rows import over_pes, replicated, sharing
from kernbench.benches.registry import AtLeast, bench
from kernbench.common.dtypes import dtype_of
from kernbench.policy.placement.dp import parts_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

LONGEST_BLOCK = 512  # keys of a block: scores of several blocks of queries fit in TCM
FAR_BELOW = -1e30  # a masked score: its exponential is 0


def flash_kernel(
    q: TensorPtr,
    k: TensorPtr,
    v: TensorPtr,
    out: TensorPtr,
    block_q: int,
    block_k: int,
    causal: bool,
    tl: TLContext,
) -> None:
    """out = softmax(q k^T / sqrt(d)) v for this PE's query rows."""
    rows, d = q.local_shape
    row_bytes = d * dtype_of(q.dtype).itemsize
    before_me = parts_of(q.shape[0], tl.num_programs(0))[tl.program_id(0)][0]
    for at in range(0, rows, block_q):
        n = min(block_q, rows - at)
        queries = tl.load(q.local + at * row_bytes, shape=(n, d))
        result = _attend(tl, queries, k, v, before_me + at, block_k, causal)
        tl.store(out.local + at * row_bytes, tl.cast(result, out.dtype))


def _attend(
    tl: TLContext, queries: TensorHandle, k: TensorPtr, v: TensorPtr, position: int, block_k: int, causal: bool
) -> TensorHandle:
    """One block of queries, the first of them at `position`, against all keys."""
    n, d = queries.shape
    n_keys, row_bytes = k.local_shape[0], d * dtype_of(k.dtype).itemsize
    best = tl.full((n, 1), FAR_BELOW, "f32")
    total = tl.zeros((n, 1), "f32")
    result = tl.zeros((n, d), "f32")
    for at in range(0, min(n_keys, position + n) if causal else n_keys, block_k):
        shape = (min(block_k, n_keys - at), d)
        keys, values = tl.load(k.local + at * row_bytes, shape=shape), tl.load(v.local + at * row_bytes, shape=shape)
        scores = tl.dot(queries, keys.T, out_dtype="f32") * d**-0.5
        if causal and at + shape[0] > position:
            where = tl.reshape(tl.arange(position, position + n), (n, 1)) >= tl.arange(at, at + shape[0])
            scores = tl.where(where, scores, FAR_BELOW)
        new_best = tl.maximum(best, tl.max(scores, axis=1, keep_dims=True))
        powers = tl.exp(scores - new_best)
        fade = tl.exp(best - new_best)
        total = total * fade + tl.sum(powers, axis=1, keep_dims=True)
        result = result * fade + tl.dot(tl.cast(powers, v.dtype), values, out_dtype="f32")
        best = new_best
    return result / total


def _advice(_cause: str, params: Mapping[str, Any]) -> Mapping[str, object]:
    """All PEs; then longer blocks of keys, which are loaded and rescaled less often."""
    if params["pes"]:
        return {"pes": 0}
    longer = min(params["seq_k"], 2 * params["block_k"], LONGEST_BLOCK)
    return {"block_k": longer} if longer > params["block_k"] else {}


@bench(
    name="flash-attention",
    description="Attention with online softmax, on one PE or all PEs of a cube.",
    advice=_advice,
)
def flash_attention(
    torch: RuntimeContext,
    *,
    seq_q: Annotated[Size, "queries"] = 128,
    seq_k: Annotated[Size, "keys and values"] = 256,
    d_head: Annotated[Size, "length of each"] = 64,
    block_q: Annotated[Size, "queries in TCM at a time"] = 32,
    block_k: Annotated[Size, "keys in TCM at a time"] = 64,
    pes: Annotated[int, AtLeast(0), "PEs of a cube that share the queries; 0 for all"] = 1,
    causal: Annotated[bool, "a query sees keys up to its own position"] = False,
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> None:
    rng = np.random.default_rng(seed)
    q, k, v = (draw(rng, n, d_head, dtype=dtype) for n in (seq_q, seq_k, seq_k))
    some = sharing(torch, seq_q, pes)
    queries = torch.from_numpy(q, dp=over_pes(some), name="q")
    keys, values = (torch.from_numpy(x, dp=replicated(some), name=name) for x, name in ((k, "k"), (v, "v")))
    out = torch.empty(seq_q, d_head, dtype=dtype, dp=over_pes(some), name="out")
    torch.launch("flash", flash_kernel, queries, keys, values, out, block_q, block_k, causal)

    def reference() -> Wide:
        scores = wide(q) @ wide(k).T * d_head**-0.5
        if causal:
            scores = np.where(np.arange(seq_q)[:, None] >= np.arange(seq_k), scores, -np.inf)
        return _numbers.softmax(scores) @ wide(v)

    torch.check(out, reference)
