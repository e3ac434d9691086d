"""The kernels behind the host's tensor operations. Each PE computes its share of the output, a block at a time.

A kernel gets whole storages as arguments, and in its plan where the elements of each operand lie in them: an offset and
a stride per axis of the output (0 where the operand is broadcast). So any view is an operand. Where all operands are
placed alike (`is_local`), a PE touches the memory that it holds and nothing else.

Plans are values: an operation that is repeated with operands of the same form is the same kernel, and is memoised as
such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import product, zip_longest
from math import prod
from typing import Any

from kernbench.common.dtypes import F32, DType, dtype_of
from kernbench.common.errors import TensorError
from kernbench.common.frozen import frozen
from kernbench.policy.placement.dp import Box
from kernbench.runtime_api.layout import dense_strides
from kernbench.runtime_api.op_table import POINTWISE, REDUCTIONS, ROW_OPS
from kernbench.triton_emu.handle import Scalar, TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.registry import Kernel
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

Share = tuple[int, int, Box]  # cube, PE, and the part of the output that it computes
_KERNELS = 512  # plans that are remembered
TWO_PI = 6.283185307179586
FIRST, SECOND, THIRD = 0x85EBCA6B, 0xC2B2AE35, 0x9E3779B1  # MurmurHash3's last step, over counter and seed


@frozen
class OperandLayout:
    """Where an operand's elements lie in its storage, by axis of the output."""

    offset: int
    strides: tuple[int, ...]


@frozen
class OpPlan:
    """What every PE of a launch does. `params` are further arguments of the expression, by name."""

    op: str
    shares: tuple[Share, ...]
    sites: tuple[OperandLayout | None, ...]  # of the outputs, then of the inputs; None for a number
    outputs: int
    dtype: DType  # in which it is computed
    block: int  # elements of the output at a time
    is_local: bool = False
    params: tuple[tuple[str, Any], ...] = ()
    inner: tuple[int, ...] = ()  # of a reduction, the sizes of the reduced axes; of a row op, (length,)

    def share_of(self, tl: TLContext) -> Box | None:
        return next((box for _, box in self.shares_of(tl)), None)

    def shares_of(self, tl: TLContext) -> list[tuple[int, Box]]:
        """All shares of this PE and their numbers: several in a reduction of pages that are dealt in turn."""
        place = tl.physical_id(1), tl.physical_id(0)
        return [(number, box) for number, (cube, pe, box) in enumerate(self.shares) if (cube, pe) == place]


@lru_cache(maxsize=_KERNELS)
def kernel_for(kernel: Kernel, plan: OpPlan) -> Kernel:
    """A kernel with its plan; the same object for the same plan."""
    return partial(kernel, plan=plan)


# ---- blocks


def blocks_of(box: Box, most: int) -> Iterator[Box]:
    """A box cut into boxes of at most `most` elements, along its first axes."""
    sizes = [end - first for first, end in box]
    axis = next((at for at in range(len(sizes)) if prod(sizes[at + 1 :]) <= most), len(sizes) - 1)
    inner = prod(sizes[axis + 1 :])
    step = max(1, most // max(inner, 1))
    first, end = box[axis]
    for outer in product(*[range(*each) for each in box[:axis]]):
        for start in range(first, end, step):
            yield (*((at, at + 1) for at in outer), (start, min(start + step, end)), *box[axis + 1 :])


def _address(x: TensorPtr, site: OperandLayout, box: Box, extra: Box) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Where a block of an operand begins, its shape (1 along axes that are broadcast) and its strides."""
    ranges = (*box, *extra)
    steps = tuple(stride if end - first > 1 else 0 for (first, end), stride in zip(ranges, site.strides, strict=True))
    start = site.offset + sum(first * stride for (first, _), stride in zip(ranges, site.strides, strict=True))
    shape = tuple(end - first if stride else 1 for (first, end), stride in zip(ranges, steps, strict=True))
    return x.across + start * x.itemsize, shape, steps


def _is_dense(x: TensorPtr, shape: Sequence[int], strides: Sequence[int]) -> bool:
    steps = zip(shape, strides, dense_strides(shape), strict=True)
    return x.grid is None and all(size == 1 or stride == dense for size, stride, dense in steps)


def _load(x: TensorPtr, site: OperandLayout, box: Box, tl: TLContext, extra: Box = ()) -> TransferHandle:
    at, shape, strides = _address(x, site, box, extra)
    return tl.load_async(at, shape) if _is_dense(x, shape, strides) else tl.load_async(at, shape, strides=strides)


def _store(x: TensorPtr, site: OperandLayout, box: Box, value: TensorHandle, tl: TLContext, extra: Box = ()) -> None:
    at, _, strides = _address(x, site, box, extra)
    shape = tuple(end - first for first, end in (*box, *extra))
    if value.dtype != x.dtype:
        value = tl.cast(value, x.dtype)
    if value.shape != shape:
        value = tl.reshape(value, shape) if value.size == prod(shape) else tl.broadcast_to(value, shape)
    if _is_dense(x, shape, strides):
        tl.store_async(at, value)
    else:
        tl.store_async(at, value, strides=strides)


def _operands(args: Sequence[Any], plan: OpPlan, box: Box, tl: TLContext, extra: Box = ()) -> list[Any]:
    """The inputs of a block: their transfers are started together."""
    started = [
        x if site is None else _load(x, site, box, tl, extra)
        for x, site in zip(args[plan.outputs :], plan.sites[plan.outputs :], strict=True)
    ]
    found: list[Any] = []
    for each in started:
        block = tl.wait(each) if isinstance(each, TransferHandle) else each
        found.append(block)
    return found


def _in(dtype: DType, block: Any, tl: TLContext) -> Any:
    """A block in the dtype of a computation; numbers stay numbers."""
    return tl.cast(block, dtype) if isinstance(block, TensorHandle) and block.dtype != dtype else block


def _local(args: Sequence[Any], plan: OpPlan) -> tuple[Sequence[Any], OpPlan, Box]:
    """Of operands that are placed alike: this PE's parts, and where their elements lie."""
    shape = args[0].local_shape
    parts = [x if site is None else x.local for x, site in zip(args, plan.sites, strict=True)]
    site = OperandLayout(0, dense_strides(shape))
    sites = tuple(None if each is None else site for each in plan.sites)
    return parts, _with_sites(plan, sites), tuple((0, size) for size in shape)


@lru_cache(maxsize=_KERNELS)
def _with_sites(plan: OpPlan, sites: tuple[OperandLayout | None, ...]) -> OpPlan:
    return OpPlan(plan.op, plan.shares, sites, plan.outputs, plan.dtype, plan.block, True, plan.params, plan.inner)


# ---- kernels


@repeatable
def pointwise(*args: Any, plan: OpPlan, tl: TLContext) -> None:
    """args[0] = expression(args[1], ...), element by element."""
    box = plan.share_of(tl)
    if box is None:
        return
    if plan.is_local:
        args, plan, box = _local(args, plan)  # type: ignore[assignment]  # a sequence either way
    out, site, op = args[0], plan.sites[0], POINTWISE[plan.op]
    assert site is not None
    params = dict(plan.params)
    for block in blocks_of(box, plan.block):
        inputs = _operands(args, plan, block, tl)
        if op.in_f32 and plan.dtype.is_float:
            inputs = [_in(F32, each, tl) for each in inputs]
        value = op.expression(tl, *inputs, **params)
        if not isinstance(value, TensorHandle):
            value = tl.full(tuple(end - first for first, end in block), value, out.dtype)
        _store(out, site, block, value, tl)
    tl.wait()


@repeatable
def fill(out: TensorPtr, value: Scalar, *, plan: OpPlan, tl: TLContext) -> None:
    """Every element becomes one number."""
    box, site = plan.share_of(tl), plan.sites[0]
    if box is None:
        return
    assert site is not None
    for block in blocks_of(box, plan.block):
        shape = tuple(end - first for first, end in block)
        _store(out, site, block, tl.full(shape, value, out.dtype), tl)
    tl.wait()


@repeatable
def randoms(out: TensorPtr, seed: int, a: Scalar, b: Scalar, *, plan: OpPlan, tl: TLContext) -> None:
    """Pseudo-random numbers, a function of the seed and the element's position: uniform in [a, b), normal with mean a
    and standard deviation b, or whole numbers in [a, b).
    """
    box, site = plan.share_of(tl), plan.sites[0]
    if box is None:
        return
    assert site is not None
    shape_strides = dense_strides(plan.inner)
    for block in blocks_of(box, plan.block):
        count = None
        for axis, ((first, end), stride) in enumerate(zip(block, shape_strides, strict=True)):
            here = tl.mul(tl.arange(first, end, "i64"), stride)
            here = tl.reshape(here, *(end - first if at == axis else 1 for at in range(len(block))))
            count = here if count is None else tl.add(count, here)
        assert count is not None
        if plan.op == "normal":
            angle = tl.mul(_uniform(count, 2 * seed + 1, tl), TWO_PI)
            radius = tl.sqrt(tl.mul(tl.log(tl.sub(1.0, _uniform(count, 2 * seed, tl))), -2.0))
            value = tl.add(tl.mul(tl.mul(radius, tl.cos(angle)), b), a)
        elif plan.op == "integers":
            value = tl.add(_below(b - a, count, 2 * seed, tl), a)
        else:
            value = tl.add(tl.mul(_uniform(count, 2 * seed, tl), b - a), a)
            if plan.params:  # the last number of the dtype below b, to which others would be rounded up
                value = tl.minimum(value, dict(plan.params)["last"])
        _store(out, site, block, value, tl)
    tl.wait()


def _uniform(count: TensorHandle, seed: int, tl: TLContext) -> TensorHandle:
    """Numbers in [0, 1) with 24 random bits."""
    return tl.mul(tl.cast(tl.bitwise("shr", _hash(count, seed, tl), 8), F32), 2.0**-24)


def _below(span: Scalar, count: TensorHandle, seed: int, tl: TLContext) -> TensorHandle:
    """Whole numbers in [0, span), of 24 random bits if that is enough, else of 63."""
    bits = _hash(count, seed, tl)
    if span <= 1 << 24:
        return tl.bitwise("shr", tl.mul(tl.bitwise("shr", bits, 8), span), 24)
    upper = tl.mul(tl.bitwise("shr", _hash(count, seed + 1, tl), 1), 1 << 32)
    return tl.mod(tl.add(upper, bits), span)


def _hash(count: TensorHandle, seed: int, tl: TLContext) -> TensorHandle:
    """32 random bits in i64, of each count and the seed."""
    low = 0xFFFFFFFF
    x = tl.bitwise("bit_and", tl.add(count, seed * THIRD & low), low)
    for shift, factor in ((16, FIRST), (13, SECOND), (16, None)):
        x = tl.bitwise("bit_xor", x, tl.bitwise("shr", x, shift))
        if factor is not None:
            # 32 by 32 bits: the low half of the factor first, so that no product leaves 63 bits.
            lower = tl.mul(x, factor & 0xFFFF)
            upper = tl.mul(tl.bitwise("bit_and", tl.mul(x, factor >> 16), 0xFFFF), 0x10000)
            x = tl.bitwise("bit_and", tl.add(lower, upper), low)
    return x


@repeatable
def reduction(out: TensorPtr, x: TensorPtr, *, plan: OpPlan, tl: TLContext) -> None:
    """out = x reduced along its last axes, of sizes `inner`; blocks are joined in order."""
    site = plan.sites[0]
    assert site is not None
    row = dict(plan.params)["row"]  # 0, or each share has a row of the output
    for number, box in plan.shares_of(tl):
        _reduce_share(out, OperandLayout(site.offset + number * row, site.strides), x, box, plan, tl)
    tl.wait()


def _reduce_share(out: TensorPtr, out_site: OperandLayout, x: TensorPtr, box: Box, plan: OpPlan, tl: TLContext) -> None:
    site = plan.sites[1]
    assert site is not None
    op, kept, params = REDUCTIONS[plan.op], len(box) - len(plan.inner), dict(plan.params)
    outer, inner = box[:kept], box[kept:]
    width = prod(end - first for first, end in inner)
    for block in blocks_of(outer, max(1, plan.block // max(width, 1))):
        rows = prod(end - first for first, end in block)
        total: TensorHandle | None = None
        for part in blocks_of(inner, max(1, plan.block // rows)):
            loaded = tl.wait(_load(x, site, block, tl, part))
            assert loaded is not None
            here = tl.reshape(loaded, rows, -1)
            if op.result != "truth":
                here = _in(plan.dtype, here, tl)
            if op.start is not None and params["starts"]:
                here = op.start(tl, here)
            found = _in(plan.dtype, op.block(tl, here), tl)
            total = found if total is None else op.join(tl, total, found)
        assert total is not None
        if params["ends"] and op.end is not None:
            total = op.end(tl, total, params["count"])
        _store(out, out_site, block, total, tl)


@repeatable
def row_op(*args: Any, plan: OpPlan, tl: TLContext) -> None:
    """Outputs = expression(inputs), rows of the last axis at a time."""
    box = plan.share_of(tl)
    if box is None:
        return
    op, params = ROW_OPS[plan.op], dict(plan.params)
    lengths: tuple[tuple[int, ...], ...] = params.pop("lengths")
    for block in blocks_of(box, plan.block):
        started = [
            _load(x, site, block, tl, ((0, length),))
            for x, site, (length,) in zip(args[plan.outputs :], plan.sites[plan.outputs :], lengths, strict=True)
            if site is not None
        ]
        inputs = [tl.wait(each) for each in started]
        if op.in_f32:
            inputs = [_in(F32, each, tl) for each in inputs]
        found = op.expression(tl, *inputs, **params)
        for x, site, value in zip(args, plan.sites, found if isinstance(found, tuple) else (found,), strict=False):
            assert site is not None
            _store(x, site, block, value, tl, ((0, value.shape[-1]),))
    tl.wait()


@repeatable
def product_of(out: TensorPtr, a: TensorPtr, b: TensorPtr, *, plan: OpPlan, tl: TLContext) -> None:
    """out = a @ b: this PE's rows and columns of each matrix, in blocks. The next blocks are loaded while two are
    multiplied; PEs begin at different places along K, so that they read from different memories. Sums over blocks of K
    are kept in f32.
    """
    shares = plan.shares_of(tl)
    if not shares:
        return
    (number, box), *_ = shares
    out_site, a_site, b_site = plan.sites
    assert out_site is not None
    assert a_site is not None
    assert b_site is not None
    rows, columns, depth = dict(plan.params)["tile"]
    acc_dtype = dtype_of(a.dtype).accumulate
    steps = list(_steps((0, plan.inner[0]), depth))
    steps = steps[number % len(steps) :] + steps[: number % len(steps)]
    for batch in product(*[range(*each) for each in box[:-2]]):
        outer: Box = tuple((at, at + 1) for at in batch)
        for r, c in product(list(_steps(box[-2], rows)), list(_steps(box[-1], columns))):
            acc: TensorHandle | None = None
            loads = [(_load(a, a_site, (*outer, r, d), tl), _load(b, b_site, (*outer, d, c), tl)) for d in steps[:1]]
            for d, after in zip_longest(steps, steps[1:]):
                left, right = loads.pop()
                x, y = tl.wait(left), tl.wait(right)
                if after is not None:
                    loads.append((_load(a, a_site, (*outer, r, after), tl), _load(b, b_site, (*outer, after, c), tl)))
                assert x is not None
                assert y is not None
                x, y = tl.reshape(x, _size(r), _size(d)), tl.reshape(y, _size(d), _size(c))
                acc = tl.dot(x, y, acc, out_dtype=acc_dtype)
            assert acc is not None
            _store(out, out_site, (*outer, r, c), acc, tl)
    tl.wait()


def _size(bounds: tuple[int, int]) -> int:
    return bounds[1] - bounds[0]


def _steps(bounds: tuple[int, int], step: int) -> Iterator[tuple[int, int]]:
    first, end = bounds
    for at in range(first, end, step):
        yield at, min(at + step, end)


def take_rows(out: TensorPtr, x: TensorPtr, index: TensorPtr, *, plan: OpPlan, tl: TLContext) -> None:
    """Row i of out becomes the row of x that index i names."""
    box, site = plan.share_of(tl), plan.sites[0]
    if box is None:
        return
    assert site is not None
    for block in blocks_of(box, plan.block):
        first, end = block[0]
        numbers = tl.load(index.across + first * index.itemsize, (end - first,))
        numbers = tl.where(tl.compare("lt", numbers, 0), tl.add(numbers, x.shape[0]), numbers)
        _store(out, site, block, tl.load(x, rows=numbers), tl)
    tl.wait()


def add_rows(out: TensorPtr, index: TensorPtr, x: TensorPtr, *, plan: OpPlan, tl: TLContext) -> None:
    """Row i of x is added to, or with `op` "put_rows" replaces, the row of out that index i names, one by one."""
    box = plan.share_of(tl)
    if box is None:
        return
    numbers = tl.load(index.across, index.shape).numpy()
    row, width = prod(out.shape[1:]), x.itemsize
    for at, number in enumerate(numbers.reshape(-1).tolist()):
        if not 0 <= number < out.shape[0]:
            raise TensorError(f"index {number} of {out.shape[0]} rows", hint=f"use 0 to {out.shape[0] - 1}")
        block = tl.load(x + at * row * width, (row,))
        place = out + number * row * width
        tl.store(place, block if plan.op == "put_rows" else tl.add(tl.load(place, (row,)), block))
