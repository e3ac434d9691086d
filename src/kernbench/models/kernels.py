"""Kernels of a decoder layer that work on rows, and those of experts. They run on all PEs of a rank's SIP.

Row-major matrices are split by rows over cubes and PEs, so norms find whole rows in the PE's own memory. Biases of
products are not modelled: they take less than a thousandth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.models.column_kernels import put
from kernbench.models.layouts import ByHead
from kernbench.models.row_pieces import StoresInFlight, loaded_ahead
from kernbench.tp.kernels import rows_here
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


@repeatable
def touch(*tensors: TensorPtr, tl: TLContext) -> None:
    """An empty kernel: launching it maps its tensors on all PEs."""


# ---- rows


@repeatable
def add_norm(
    y: TensorPtr,
    out: TensorPtr,
    gain: TensorPtr,
    block_rows: int,
    ahead: int,
    eps: float,
    shift: TensorPtr | None = None,
    residual: TensorPtr | None = None,
    *,
    tl: TLContext,
) -> None:
    """y += residual, if there is one, and out = norm(y): RMSNorm, or with `shift` LayerNorm. Each is read once."""
    if 0 in y.local_shape:
        return
    width = y.shape[1]
    factors = [tl.load(each.local, (1, width)) for each in (gain, shift) if each is not None]
    read = [each for each in (y, residual) if each is not None]

    def load(piece: tuple[int, int]) -> list[TransferHandle]:
        at = piece[0] * width * y.itemsize
        return [tl.load_async(each.across + at, (piece[1], width)) for each in read]

    pieces = rows_here(y, block_rows)
    stored = StoresInFlight(ahead, tl)
    for (first, _), tensors in loaded_ahead(pieces, load, ahead, tl):
        at = first * width * y.itemsize
        written: list[TransferHandle] = []
        if residual is not None:
            tensors = [tensors[0] + tensors[1]]
            written.append(tl.store_async(y.across + at, tensors[0]))
        rows = tl.cast(_normal(tensors, factors, eps, tl), out.dtype)
        stored.add([*written, tl.store_async(out.across + at, rows)])
        del rows
    tl.wait()


def _normal(tensors: list[TensorHandle], factors: Sequence[TensorHandle], eps: float, tl: TLContext) -> TensorHandle:
    """The normalised rows of the only one of `tensors`, which is dropped, in f32."""
    rows = tl.cast(tensors.pop(), "f32")
    if len(factors) > 1:
        rows = rows - tl.mean(rows, axis=1)
    rows = rows * tl.rsqrt(tl.mean(rows * rows, axis=1) + eps)
    rows = rows * factors[0]
    return rows if len(factors) == 1 else rows + factors[1]


@repeatable
def add_rows(y: TensorPtr, residual: TensorPtr, *, tl: TLContext) -> None:
    """y += residual, in f32."""
    if 0 not in y.local_shape:
        _add(y, residual, tl)


def _add(y: TensorPtr, residual: TensorPtr, tl: TLContext) -> None:
    """This PE's own rows of y += residual."""
    a, b = (tl.ref(x.local, x.local_shape) for x in (y, residual))
    tl.wait(tl.composite("math", a, b, math_op="add", out_ptr=y.local, tile_shape="auto"))


@repeatable
def rope(
    qkv: TensorPtr, angles: TensorPtr, width: int, heads: int, head_dim: int, block_rows: int, ahead: int,
    tl: TLContext,
) -> None:  # fmt: skip
    """Rotary embedding: rotate the pairs (i, i + d / 2) of the first `heads` heads of every row, in place. Rows have
    `width` elements; a row of `angles`, on the PE that does this, has the cosines and then the sines of its position.
    """
    strides = (width, head_dim, 1)

    def load(piece: tuple[int, int]) -> list[TransferHandle]:
        first, count = piece
        table = tl.load_async(angles.across + first * head_dim * angles.itemsize, (count, 1, head_dim))
        place = qkv + first * width * qkv.itemsize
        return [tl.load_async(place, (count, heads, head_dim), strides=strides), table]

    pieces, stored = rows_here(angles, block_rows), StoresInFlight(ahead, tl)
    for (first, _), tensors in loaded_ahead(pieces, load, ahead, tl):
        rotated = rotate_heads(tensors[0], tensors[1], qkv.dtype, tl)
        del tensors
        stored.add([tl.store_async(qkv + first * width * qkv.itemsize, rotated, strides=strides)])
        del rotated
    tl.wait()


def rotate_heads(x: TensorHandle, table: TensorHandle, dtype: str, tl: TLContext) -> TensorHandle:
    """Rotate (rows, heads, head_dim) by a table of the rows' cosines and sines."""
    half = x.shape[2] // 2
    cos, sin = table[:, :, :half], table[:, :, half:]
    low, high = x[:, :, :half], x[:, :, half:]
    return tl.cast(tl.cat([low * cos - high * sin, high * cos + low * sin], axis=2), dtype)


@repeatable
def split_heads(
    qkv: TensorPtr, queries: TensorPtr, keys: TensorPtr, values: TensorPtr, block_rows: int, *, layout: ByHead,
    tl: TLContext,
) -> None:  # fmt: skip
    """Store rows of queries, keys and values in the layout by head."""
    width = qkv.shape[1]
    for first, count in rows_here(qkv, block_rows):
        rows = tl.load(qkv.across + first * width * qkv.itemsize, (count, width))
        put(rows, (first, first + count), (0, width), [queries, keys, values], layout, tl)
        del rows
        tl.wait()


# ---- experts


@repeatable
def route(
    x: TensorPtr, router: TensorPtr, gates: TensorPtr, ids: TensorPtr, chosen: int, block_rows: int, tl: TLContext
) -> None:
    """The top-`chosen` experts of each row, and the softmax of their products."""
    width = x.shape[1]
    if 0 in x.local_shape:
        return
    weights = tl.load(router.local)
    for first, count in rows_here(x, block_rows):
        rows = tl.load(x.across + first * width * x.itemsize, (count, width))
        values, places = tl.topk(tl.dot(rows, weights, out_dtype="f32"), chosen)
        tl.store_async(gates.across + first * chosen * gates.itemsize, tl.softmax(values, axis=1))
        tl.store_async(ids.across + first * chosen * ids.itemsize, tl.cast(places, "i32"))
    tl.wait()


@repeatable
def take_rows(x: TensorPtr, out: TensorPtr, block_rows: int, *, rows: Sequence[int], tl: TLContext) -> None:
    """out[i] = x[rows[i]]."""
    width = out.shape[1]
    for first, count in rows_here(out, block_rows):
        tl.store_async(out.across + first * width * out.itemsize, tl.load(x, rows=list(rows[first : first + count])))
    tl.wait()


@repeatable
def combine(
    x: TensorPtr, gates: TensorPtr, out: TensorPtr, block_rows: int, *, places: Sequence[Sequence[int]], tl: TLContext
) -> None:
    """out[t] = sum over i of gates[t, i] * x[places[i][t]]."""
    width, chosen = out.shape[1], gates.shape[1]
    for first, count in rows_here(out, block_rows):
        weights = tl.load(gates.across + first * chosen * gates.itemsize, (count, chosen))
        total = tl.zeros((count, width), "f32")
        for at, rows in enumerate(places):
            total = total + tl.load(x, rows=list(rows[first : first + count])) * weights[:, at : at + 1]
        tl.store_async(out.across + first * width * out.itemsize, tl.cast(total, out.dtype))
    tl.wait()
