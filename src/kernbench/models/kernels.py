"""Kernels of a decoder layer that work on rows, products at decode, and experts. They run on all PEs of a rank's SIP.

Row-major matrices have their rows over cubes and PEs, and norms find whole rows in their own memory. Biases of
products are left out: they take less than a thousandth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.models.column_kernels import Steps, put
from kernbench.models.layouts import ByHead
from kernbench.models.mapping import SplitKPlan
from kernbench.models.plans import Job
from kernbench.policy.placement.dp import Range, parts_of
from kernbench.tp.kernels import rows_here
from kernbench.triton_emu.handle import CompletionHandle, TensorHandle, TransferHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


def touch(*tensors: TensorPtr, tl: TLContext) -> None:
    """Nothing: a launch with tensors lets all PEs know where they lie."""


# ---- products with K over the PEs of a cube


def product_split_k(
    x: TensorPtr,
    w: TensorPtr,
    out: TensorPtr,
    up: TensorPtr | None = None,
    *,
    plan: SplitKPlan,
    jobs: Sequence[Job],
    activation: str | None = None,
    tl: TLContext,
) -> None:
    """out = activation(x @ w), or activation(x @ w) * (x @ up): each PE has the sums of its K part, and adds up its
    share of the columns with those of its cube's other PEs, while the next block of weights is streamed.
    """
    pe, cube = tl.program_id(0), tl.program_id(1)
    first, end = plan.k_of(pe)
    blocks = plan.columns_of(cube)
    per_expert = sum(b - a for a, b in blocks) * (end - first)
    before: tuple[list[CompletionHandle], Job, Range] | None = None
    for job in jobs:
        x_part = tl.load(x + (job.first * plan.k + first) * x.itemsize, (job.rows, end - first), strides=(plan.k, 1))
        at = job.expert * per_expert
        for block in blocks:
            running = [_stream(x_part, weight, at, block, tl) for weight in (w, up) if weight is not None]
            at += (end - first) * (block[1] - block[0])
            if before is not None:
                _add_up(out, *before, plan, activation, tl)
            before = running, job, block
    if before is not None:
        _add_up(out, *before, plan, activation, tl)
    tl.wait()


def _stream(x: TensorHandle, w: TensorPtr, at: int, block: Range, tl: TLContext) -> CompletionHandle:
    weights = tl.ref(w.local + at * w.itemsize, (x.shape[1], block[1] - block[0]))
    return tl.composite("gemm", x, weights, out_dtype="f32", tile_shape="auto")


def _add_up(
    out: TensorPtr,
    running: list[CompletionHandle],
    job: Job,
    block: Range,
    plan: SplitKPlan,
    activation: str | None,
    tl: TLContext,
) -> None:
    """The sums of a block over the PEs of the cube: each gets its share of the columns from all others."""
    me, pes = tl.program_id(0), tl.num_programs(0)
    shares = parts_of(block[1] - block[0], pes)
    mine = shares[me]
    totals: list[TensorHandle] = []
    for done in running:
        sums = tl.wait(done)
        assert sums is not None
        sent: list[TransferHandle] = []
        for turn in range(1, pes):
            other = (me + turn) % pes
            if shares[other][1] > shares[other][0]:
                sent.append(tl.send_async(f"intra_{other}", sums[:, shares[other][0] : shares[other][1]]))
        if mine[1] > mine[0]:
            total = sums[:, mine[0] : mine[1]]
            for turn in range(1, pes):
                total = total + tl.recv(f"intra_{(me - turn) % pes}", (job.rows, mine[1] - mine[0]), "f32")
            totals.append(total)
        for handle in sent:
            tl.wait(handle)
    if not totals:
        return
    result = totals[0]
    if activation is not None:
        result = tl.gelu(result) if activation == "gelu" else tl.silu(result)
    if len(totals) > 1:
        result = result * totals[1]
    at = out + (job.first * plan.n + block[0] + mine[0]) * out.itemsize
    tl.store_async(at, tl.cast(result, out.dtype), strides=(plan.n, 1))


# ---- rows


def add_norm(
    y: TensorPtr,
    out: TensorPtr,
    gain: TensorPtr,
    block_rows: int,
    eps: float,
    shift: TensorPtr | None = None,
    residual: TensorPtr | None = None,
    *,
    tl: TLContext,
) -> None:
    """y += residual, if there is one, and out = norm(y): over the root mean square; with `shift`, less the mean."""
    if 0 in y.local_shape:
        return
    if residual is not None:
        _add(y, residual, tl)
    width = y.shape[1]
    steps: Steps = [{"op": "mul", "other": tl.ref(gain.local, (width,))}]
    if shift is not None:
        steps.append({"op": "bias", "bias": tl.ref(shift.local, (width,))})
    for first, count in rows_here(y, block_rows):
        at = first * width * y.itemsize
        rows = tl.cast(tl.load(y + at, (count, width)), "f32")
        if shift is not None:
            rows = rows - tl.mean(rows, axis=1)
        scale = tl.rsqrt(tl.mean(rows * rows, axis=1) + eps)
        place = out + at
        tl.wait(tl.composite("math", rows, scale, math_op="mul", epilogue=steps, out_ptr=place, tile_shape="auto"))
        del rows


def add_rows(y: TensorPtr, residual: TensorPtr, *, tl: TLContext) -> None:
    """y += residual, in f32."""
    if 0 not in y.local_shape:
        _add(y, residual, tl)


def _add(y: TensorPtr, residual: TensorPtr, tl: TLContext) -> None:
    """This PE's own rows of y += residual."""
    a, b = (tl.ref(x.local, x.local_shape) for x in (y, residual))
    tl.wait(tl.composite("math", a, b, math_op="add", out_ptr=y.local, tile_shape="auto"))


def rope(qkv: TensorPtr, angles: TensorPtr, heads: int, head_dim: int, block_rows: int, tl: TLContext) -> None:
    """Turn the pairs (i, i + d / 2) of the first `heads` heads of every row, in place; a row of `angles` has the
    cosines and then the sines of its position.
    """
    width = qkv.shape[1]
    for first, count in rows_here(qkv, block_rows):
        table = tl.load(angles + first * head_dim * angles.itemsize, (count, 1, head_dim))
        _turn(qkv + first * width * qkv.itemsize, (count, heads, head_dim), width, table, qkv.dtype, tl)
    tl.wait()


def rope_by_head(
    queries: TensorPtr, keys: TensorPtr, angles: TensorPtr, tokens: int, block_elements: int, tl: TLContext
) -> None:
    """As `rope`, where queries and keys lie by head, `tokens` rows of each; every PE has all angles."""
    d = angles.shape[1]
    for x in (queries, keys):
        width = x.shape[1]
        for first, count in rows_here(x, x.shape[0]):
            row, end = first, first + count
            while row < end:
                token = row % tokens
                some = min(end - row, tokens - token, max(1, block_elements // width))
                table = tl.load(angles.local + token * d * angles.itemsize, (some, 1, d))
                _turn(x + row * width * x.itemsize, (some, width // d, d), width, table, x.dtype, tl)
                row += some
    tl.wait()


def _turn(at: int, shape: tuple[int, int, int], width: int, table: TensorHandle, dtype: str, tl: TLContext) -> None:
    """Rows of heads from an address on, by a table of their cosines and sines."""
    half = shape[2] // 2
    cos, sin = table[:, :, :half], table[:, :, half:]
    x = tl.load(at, shape, strides=(width, shape[2], 1))
    low, high = x[:, :, :half], x[:, :, half:]
    turned = tl.cat([low * cos - high * sin, high * cos + low * sin], axis=2)
    tl.store_async(at, tl.cast(turned, dtype), strides=(width, shape[2], 1))


def split_heads(
    qkv: TensorPtr, queries: TensorPtr, keys: TensorPtr, values: TensorPtr, block_rows: int, *, layout: ByHead,
    tl: TLContext,
) -> None:  # fmt: skip
    """Rows of queries, keys and values to where they lie by head."""
    width = qkv.shape[1]
    for first, count in rows_here(qkv, block_rows):
        rows = tl.load(qkv + first * width * qkv.itemsize, (count, width))
        put(rows, (first, first + count), (0, width), [queries, keys, values], layout, tl)
        del rows
        tl.wait()


# ---- experts


def route(
    x: TensorPtr, router: TensorPtr, gates: TensorPtr, ids: TensorPtr, chosen: int, block_rows: int, tl: TLContext
) -> None:
    """The `chosen` experts of each row with the largest products, and their softmax."""
    width = x.shape[1]
    if 0 in x.local_shape:
        return
    weights = tl.load(router.local)
    for first, count in rows_here(x, block_rows):
        rows = tl.load(x + first * width * x.itemsize, (count, width))
        values, places = tl.topk(tl.dot(rows, weights, out_dtype="f32"), chosen)
        tl.store_async(gates + first * chosen * gates.itemsize, tl.softmax(values, axis=1))
        tl.store_async(ids + first * chosen * ids.itemsize, tl.cast(places, "i32"))
    tl.wait()


def take_rows(x: TensorPtr, out: TensorPtr, block_rows: int, *, rows: Sequence[int], tl: TLContext) -> None:
    """out[i] = x[rows[i]]."""
    width = out.shape[1]
    for first, count in rows_here(out, block_rows):
        tl.store_async(out + first * width * out.itemsize, tl.load(x, rows=list(rows[first : first + count])))
    tl.wait()


def combine(
    x: TensorPtr, gates: TensorPtr, out: TensorPtr, block_rows: int, *, places: Sequence[Sequence[int]], tl: TLContext
) -> None:
    """out[t] = sum over i of gates[t, i] * x[places[i][t]]."""
    width, chosen = out.shape[1], gates.shape[1]
    for first, count in rows_here(out, block_rows):
        weights = tl.load(gates + first * chosen * gates.itemsize, (count, chosen))
        total = tl.zeros((count, width), "f32")
        for at, rows in enumerate(places):
            total = total + tl.load(x, rows=list(rows[first : first + count])) * weights[:, at : at + 1]
        tl.store_async(out + first * width * out.itemsize, tl.cast(total, out.dtype))
    tl.wait()
