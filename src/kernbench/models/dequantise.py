"""A product of few rows by a quantised weight in the PE's own slice, for `split_k.py` (`quantised.py` has the rule).

Rows of the weight are loaded ahead, as many at a time as a part of TCM allows, within a group of rows that share
scales. They are widened on the vector engine and multiplied; the sums of a group are multiplied by its scales.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from kernbench.models.quantised import OFFSET, QuantisedForm
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

AHEAD = 6  # loads under way: their bytes have to cover the latency of memory
WIDENED = 3  # bytes of TCM per element that is being widened
SHARE = 4  # of TCM is kept for them, one part of so many


class StoredRows(NamedTuple):
    """Bytes of some rows of a group, `first` to `end` among its rows of bytes."""

    group: int
    first: int
    end: int


def stored_rows(depth: int, columns: int, form: QuantisedForm, room_bytes: int) -> list[StoredRows]:
    """All rows of a part of K, in the order of loading."""
    of_group = form.group // form.per_byte
    per_byte = AHEAD + 1 + WIDENED * form.per_byte
    most = max(1, room_bytes // per_byte // columns)
    step = -(-of_group // -(-of_group // most))
    return [
        StoredRows(group, at, min(of_group, at + step))
        for group in range(depth // form.group)
        for at in range(0, of_group, step)
    ]


class QuantisedBlock(NamedTuple):
    """A block of a weight in the own slice: its elements, its scales, how they are stored, and its shape."""

    bits: TensorPtr
    scales: TensorPtr
    form: QuantisedForm
    at: int  # its first element
    depth: int
    columns: int


def multiply_quantised(x: TensorHandle, block: QuantisedBlock, room_bytes: int, tl: TLContext) -> TensorHandle:
    """x @ weight, in f32."""
    form, columns = block.form, block.columns
    spans = stored_rows(block.depth, columns, form, room_bytes)
    start = block.at // form.group * block.scales.itemsize
    scales = tl.load(block.scales.local + start, (block.depth // form.group, columns))
    issued = deque(_issue(block, span, tl) for span in spans[:AHEAD])
    total: TensorHandle | None = None
    sums: TensorHandle | None = None
    for number, span in enumerate(spans):
        bits = tl.wait(issued.popleft())
        assert bits is not None
        if number + AHEAD < len(spans):
            issued.append(_issue(block, spans[number + AHEAD], tl))
        sums = _add(x, bits, span, form, sums, tl)
        del bits
        if span.end == form.group // form.per_byte:
            scaled = sums * scales[span.group : span.group + 1]
            total = scaled if total is None else total + scaled
            sums = None
            del scaled
    assert total is not None
    return total


def _issue(block: QuantisedBlock, span: StoredRows, tl: TLContext) -> TransferHandle:
    row = span.group * (block.form.group // block.form.per_byte) + span.first
    place = block.at // block.form.per_byte + row * block.columns
    return tl.load_async(block.bits.local + place, (span.end - span.first, block.columns))


def _add(
    x: TensorHandle, bits: TensorHandle, span: StoredRows, form: QuantisedForm, sums: TensorHandle | None, tl: TLContext
) -> TensorHandle:
    """The sums of a group so far, and the products of some of its rows."""
    first, end = (span.group * form.group + at for at in (span.first, span.end))
    if form.per_byte == 1:
        return _dot(x[:, first:end], tl.cast(bits, x.dtype), sums, tl)
    half = form.group // 2
    sums = _dot(x[:, first:end], tl.cast(bits & 15, x.dtype), sums, tl)
    others = x[:, first + half : end + half]
    sums = _dot(others, tl.cast(bits >> 4, x.dtype), sums, tl)
    both = tl.sum(tl.cast(x[:, first:end], "f32"), axis=1) + tl.sum(tl.cast(others, "f32"), axis=1)
    return sums - both * float(OFFSET)


def _dot(x: TensorHandle, w: TensorHandle, sums: TensorHandle | None, tl: TLContext) -> TensorHandle:
    return tl.dot(x, w, out_dtype="f32") if sums is None else tl.dot(x, w, sums)
