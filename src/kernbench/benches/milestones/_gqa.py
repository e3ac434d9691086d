"""Attention over ranks: kernels that take the axis their ranks lie on, PEs of a cube, cubes of a SIP, or SIPs.

A rank has some of the query rows and some of the keys and values of one KV head; query heads that share it are rows.
prefill   keys and values go around the ring of ranks block by block; each rank adds what it sees to a running softmax
decode    all ranks have the same few query rows; each attends to its own keys once, two products in total, and partial
          results (largest score m, sum l, output o) are merged along a binary tree towards rank 0
Scores and outputs are f32; probabilities are rounded to the tensors' type before they are multiplied by the values.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kernbench.common.dtypes import dtype_of
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

Axis = Literal["pe", "cube", "sip"]
_DIRECTIONS: dict[Axis, tuple[int, str]] = {"pe": (0, "intra"), "cube": (1, "cube"), "sip": (2, "rank")}
FAR_BELOW = -1e30  # a score whose exponential is 0


class AxisRing:
    """The ranks of a launch along an axis, as one of them sees them. `order` has the place of each rank on the axis."""

    def __init__(self, tl: TLContext, axis: Axis, order: tuple[int, ...]) -> None:
        at, self._name = _DIRECTIONS[axis]
        self._tl, self._order, self.ranks = tl, order, len(order)
        self.rank = order.index(tl.physical_id(at))

    def to(self, rank: int) -> str:
        """The direction of another rank."""
        return f"{self._name}_{self._order[rank % self.ranks]}"

    def pass_on(self, held: tuple[TensorHandle, ...]) -> list[tuple[TransferHandle, TransferHandle]]:
        """Send tensors to the next rank, and receive those of the previous one; `arrived` waits for both."""
        tl, there, back = self._tl, self.to(self.rank + 1), self.to(self.rank - 1)
        return [(tl.send_async(there, x), tl.recv_async(back, x.shape, x.dtype)) for x in held]

    def arrived(self, moving: list[tuple[TransferHandle, TransferHandle]]) -> tuple[TensorHandle, ...]:
        found = []
        for sent, received in moving:
            x = self._tl.wait(received)
            assert x is not None
            self._tl.wait(sent)
            found.append(x)
        return tuple(found)


def mesh_ring(width: int, height: int) -> tuple[int, ...]:
    """The places of a mesh, row by row from 0, in an order in which each is next to the one before and the last next to
    the first: down the first column and back through the rest of the rows. A mesh of an odd number of places, or of one
    line, has no such ring; there the last is not next to the first.
    """
    if height % 2 and not width % 2:  # the same, mirrored
        return tuple(width * (at % height) + at // height for at in mesh_ring(height, width))
    if min(width, height) == 1:
        return tuple(range(width * height))
    back: list[int] = []
    for y in reversed(range(height)):
        row = [width * y + x for x in range(1, width)]
        back += row if (height - 1 - y) % 2 == 0 else row[::-1]
    return (*(width * y for y in range(height)), *back)


class PartialSoftmax(NamedTuple):
    """A partial result of the query rows over some keys: largest score, sum of powers, output not yet divided by it."""

    best: TensorHandle
    total: TensorHandle
    result: TensorHandle


def prefill_kernel(
    q: TensorPtr,
    k: TensorPtr,
    v: TensorPtr,
    out: TensorPtr,
    *,
    axis: Axis,
    order: tuple[int, ...],
    block: int,
    tl: TLContext,
) -> None:
    """out = softmax(q k^T / sqrt(d)) v for this rank's query rows, over the keys of all ranks."""
    ring = AxisRing(tl, axis, order)
    queries = tl.load(q.local)
    (rows, d), keys = queries.shape, k.local_shape[0]
    row_bytes = d * dtype_of(k.dtype).itemsize
    so_far = PartialSoftmax(
        tl.full((rows, 1), FAR_BELOW, "f32"), tl.zeros((rows, 1), "f32"), tl.zeros((rows, d), "f32")
    )
    for at in range(0, keys, block):
        shape = (min(block, keys - at), d)
        held = tuple(tl.load(x.local + at * row_bytes, shape=shape) for x in (k, v))
        for step in range(ring.ranks):
            moving = ring.pass_on(held) if step + 1 < ring.ranks else []
            keys_here, values_here = held
            so_far = _attend(tl, queries, keys_here, values_here, so_far)
            held = ring.arrived(moving)
    tl.store(out.local, tl.cast(so_far.result / so_far.total, out.dtype))


def _attend(
    tl: TLContext, queries: TensorHandle, keys: TensorHandle, values: TensorHandle, so_far: PartialSoftmax
) -> PartialSoftmax:
    """Add one block of keys and values."""
    scores = tl.dot(queries, keys.T, out_dtype="f32") * queries.shape[1] ** -0.5
    best = tl.maximum(so_far.best, tl.max(scores, axis=1, keep_dims=True))
    powers = tl.exp(scores - best)
    del scores  # TCM is nearly full: tensors are dropped as soon as possible
    fade = tl.exp(so_far.best - best)
    total = so_far.total * fade + tl.sum(powers, axis=1, keep_dims=True)
    faded = so_far.result * fade
    weights = tl.cast(powers, values.dtype)
    del powers
    result = faded + tl.dot(weights, values, out_dtype="f32")
    return PartialSoftmax(best, total, result)


def decode_kernel(
    q: TensorPtr, k: TensorPtr, v: TensorPtr, out: TensorPtr, *, axis: Axis, order: tuple[int, ...], tl: TLContext
) -> None:
    """The same for rows that all ranks have; rank 0 stores the result."""
    ring = AxisRing(tl, axis, order)
    queries = tl.load(q.local)
    keys = tl.ref(k.local, shape=k.local_shape, dtype=k.dtype)
    values = tl.ref(v.local, shape=v.local_shape, dtype=v.dtype)
    products = tl.wait(tl.composite("gemm", queries, tl.trans(keys), out_dtype="f32"))
    assert products is not None
    scores = products * queries.shape[1] ** -0.5
    del products  # rows of scores are long: TCM holds three of them at a time
    best = tl.max(scores, axis=1, keep_dims=True)
    powers = tl.exp(scores - best)
    del scores
    total = tl.sum(powers, axis=1, keep_dims=True)
    result = tl.wait(tl.composite("gemm", tl.cast(powers, v.dtype), values, out_dtype="f32"))
    assert result is not None
    merged = _merged(tl, ring, PartialSoftmax(best, total, result))
    if ring.rank == 0:
        tl.store(out.local, tl.cast(merged.result / merged.total, out.dtype))


def _merged(tl: TLContext, ring: AxisRing, mine: PartialSoftmax) -> PartialSoftmax:
    """Along a binary tree: in every round, half of those that are left send theirs to the other half and are done."""
    step = 1
    while step < ring.ranks:
        if ring.rank % (2 * step) == step:
            for x in mine:
                tl.send(ring.to(ring.rank - step), x)
            return mine
        if ring.rank + step < ring.ranks:
            other = PartialSoftmax(*(tl.recv(ring.to(ring.rank + step), x.shape, x.dtype) for x in mine))
            mine = _merge(tl, mine, other)
        step *= 2
    return mine


def _merge(tl: TLContext, a: PartialSoftmax, b: PartialSoftmax) -> PartialSoftmax:
    best = tl.maximum(a.best, b.best)
    fade_a, fade_b = tl.exp(a.best - best), tl.exp(b.best - best)
    return PartialSoftmax(best, a.total * fade_a + b.total * fade_b, a.result * fade_a + b.result * fade_b)
