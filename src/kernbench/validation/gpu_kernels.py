"""Kernels of the set `gpu_operators`: what PyTorch launches on a GPU, for PEs that stand for a part of its SMs.

A product is tiles of the result, one for each SM at a time; blocks of as many tiles as a PE has SMs follow one another,
and K passes in steps. Rows and elements are streamed; a kernel that needs a row several times reads it again, unless
all rows that are under way fit the L2, which is the PE's TCM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import NamedTuple

from kernbench.common.array_types import Span
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

BlockAddress = tuple[int, tuple[int, ...]]  # address, shape
K_STEP = 128  # of K at a time
LONG_K = 4096  # from here on a block ends before the next begins: 2 % at most, and equal blocks are replayed
EPS = 1e-5


class TileBlock(NamedTuple):
    """Rows and columns of a result, in tiles."""

    top: int
    left: int
    height: int
    width: int


class GridCut(NamedTuple):
    """How a grid of tiles is cut: blocks, and by what they are chosen."""

    blocks: int
    sides: int  # operands that are loaded, in tiles
    bands: int  # of `size` tiles each: rows, or columns
    size: int
    is_rows: bool


@cache
def _cut(height: int, width: int, most: int) -> GridCut:
    """The fewest blocks of at most `most` tiles; among those, the least to load."""
    if height * width <= most:
        return GridCut(1 if height and width else 0, height + width, 1, height, True)
    found = []
    for along, across, is_rows in ((height, width, True), (width, height, False)):
        for size in range(1, min(along, most) + 1):
            bands, parts = along // size, -(-across // (most // size))
            left = along % size
            rest = _cut(*((left, across) if is_rows else (across, left)), most)
            sides = bands * (parts * size + across) + rest.sides
            found.append(GridCut(bands * parts + rest.blocks, sides, bands, size, is_rows))
    return min(found)


def blocks_of(height: int, width: int, most: int, top: int = 0, left: int = 0) -> Iterator[TileBlock]:
    """A grid of tiles in blocks of at most `most`: bands of equal ones, then what is left over."""
    cut = _cut(height, width, most)
    if height * width <= most:
        if cut.blocks:
            yield TileBlock(top, left, height, width)
        return
    across = width if cut.is_rows else height
    parts = -(-across // (most // cut.size))
    for band in range(cut.bands):
        for part in range(parts):
            first, end = part * across // parts, (part + 1) * across // parts
            at, size = band * cut.size, cut.size
            sides = (at, first, size, end - first) if cut.is_rows else (first, at, end - first, size)
            yield TileBlock(top + sides[0], left + sides[1], *sides[2:])
    done = cut.bands * cut.size
    if cut.is_rows:
        yield from blocks_of(height - done, width, most, top + done, left)
    else:
        yield from blocks_of(height, width - done, most, top, left + done)


def share_of(length: int, side: int, pes: int) -> int:
    """The rows or columns of a PE, in whole tiles."""
    tiles = -(-length // side)
    return -(-tiles // pes) * side


@repeatable
def product(
    a: TensorPtr, b: TensorPtr, c: TensorPtr, m: int, k: int, n: int, tile: tuple[int, int], units: int,
    is_split_by_rows: bool, *, tl: TLContext,
) -> None:  # fmt: skip
    """This PE's rows or columns of a product. Operands lie as they are needed, block by block."""
    number, pes = tl.program_id(0), tl.num_programs(0)
    length, side = (m, tile[0]) if is_split_by_rows else (n, tile[1])
    share = share_of(length, side, pes)
    own = max(min(length - number * share, share), 0)
    m, n = (own, n) if is_split_by_rows else (m, own)
    _multiply(a.local, b.local, c.local, (m, k, n), tile, units, a.itemsize, tl)
    tl.wait()


@repeatable
def batch(
    a: TensorPtr, b: TensorPtr, c: TensorPtr, m: int, k: int, n: int, count: int, together: int, tile: tuple[int, int],
    units: int, *, tl: TLContext,
) -> None:  # fmt: skip
    """This PE's products of a batch. Where one has few tiles, some are done `together`, side by side along the longer
    side of the result, and the operands of the other side are loaded by themselves.
    """
    own, size = len(range(tl.program_id(0), count, tl.num_programs(0))), a.itemsize
    for first in range(0, own, together):
        some = min(together, own - first)
        at = (a.local + first * m * k * size, b.local + first * k * n * size, c.local + first * m * n * size)
        if n >= m:
            others, place = (some - 1) * m * k, at[0] + m * k * size
            _multiply(*at, (m, k, n * some), tile, units, size, tl)
        else:
            others, place = (some - 1) * k * n, at[1] + k * n * size
            _multiply(*at, (m * some, k, n), tile, units, size, tl)
        if others:
            tl.load_async(place, (others,))
    tl.wait()


def _multiply(
    a: int, b: int, c: int, sizes: tuple[int, int, int], tile: tuple[int, int], units: int, itemsize: int,
    tl: TLContext,
) -> None:  # fmt: skip
    """A product, block by block."""
    (m, k, n), written = sizes, 0
    for block in blocks_of(-(-m // tile[0]), -(-n // tile[1]), units):
        top, left = block.top * tile[0], block.left * tile[1]
        rows, columns = min(block.height * tile[0], m - top), min(block.width * tile[1], n - left)
        operands = tl.ref(a + top * k * itemsize, (rows, k)), tl.ref(b + left * k * itemsize, (k, columns))
        out, written = c + written * itemsize, written + rows * columns
        done = tl.composite("gemm", *operands, out_ptr=out, tile_shape=(rows, min(K_STEP, k), columns))
        if k > LONG_K:
            tl.wait(done)


# ---- rows and elements


def _loaded(places: Iterator[BlockAddress], tl: TLContext) -> Iterator[TensorHandle]:
    """Blocks in f32, in order; the next one is loaded meanwhile."""
    asked = deque(tl.load_async(*place) for place in islice(places, 1))
    while asked:
        asked.extend(tl.load_async(*place) for place in islice(places, 1))
        block = tl.wait(asked.popleft())
        assert block is not None
        yield block if block.dtype == "f32" else tl.cast(block, "f32")
        del block


class _Rows:
    """This PE's rows in blocks of at most some elements, and parts of a row that is longer than a block."""

    def __init__(self, x: TensorPtr, elements: int) -> None:
        self._count, self.width = x.local_shape
        self._at_once, self._part = max(elements // self.width, 1), min(elements, self.width)

    def blocks(self) -> Iterator[Span]:
        for first in range(0, self._count, self._at_once):
            yield first, min(self._at_once, self._count - first)

    def parts(self) -> list[Span]:
        return [(at, min(self._part, self.width - at)) for at in range(0, self.width, self._part)]

    def place(self, x: TensorPtr, rows: Span, part: Span) -> BlockAddress:
        return x.local + (rows[0] * self.width + part[0]) * x.itemsize, (rows[1], part[1])

    def read(self, x: TensorPtr, times: int, tl: TLContext) -> Iterator[TensorHandle]:
        """All blocks, the parts of each so many times."""
        places = (self.place(x, rows, part) for rows in self.blocks() for _ in range(times) for part in self.parts())
        return _loaded(places, tl)


def _pass(blocks: Iterator[TensorHandle], parts: int, kept: list[TensorHandle]) -> Iterator[TensorHandle]:
    """The parts of a row for one more pass: what was kept of the first one, or loaded again."""
    return iter(kept) if kept else islice(blocks, parts)


@repeatable
def softmax(x: TensorPtr, y: TensorPtr, elements: int, is_kept: bool, *, tl: TLContext) -> None:
    """The largest, the sum of exponentials, the quotients: three passes over every row."""
    rows = _Rows(x, elements)
    parts = rows.parts()
    blocks = rows.read(x, 1 if is_kept else 3, tl)
    for some in rows.blocks():
        kept: list[TensorHandle] = []
        largest = total = None
        for block in islice(blocks, len(parts)):
            if is_kept:
                kept.append(block)
            found = tl.max(block, axis=1)
            largest = found if largest is None else tl.maximum(largest, found)
        assert largest is not None
        for block in _pass(blocks, len(parts), kept):
            found = tl.sum(tl.exp(block - largest), axis=1)
            total = found if total is None else total + found
        assert total is not None
        for part, block in zip(parts, _pass(blocks, len(parts), kept), strict=True):
            _store(rows.place(y, some, part), tl.exp(block - largest) / total, y.dtype, tl)
    tl.wait()


@repeatable
def layernorm(x: TensorPtr, y: TensorPtr, elements: int, is_kept: bool, *, tl: TLContext) -> None:
    """Mean and variance, the result: two passes over every row. Gain and shift are left out."""
    rows = _Rows(x, elements)
    parts = rows.parts()
    blocks = rows.read(x, 1 if is_kept else 2, tl)
    for some in rows.blocks():
        kept: list[TensorHandle] = []
        total = squares = None
        for block in islice(blocks, len(parts)):
            if is_kept:
                kept.append(block)
            one, two = tl.sum(block, axis=1), tl.sum(block * block, axis=1)
            total, squares = (one, two) if total is None or squares is None else (total + one, squares + two)
        assert total is not None
        assert squares is not None
        mean = total / rows.width
        scale = tl.rsqrt(squares / rows.width - mean * mean + EPS)
        for part, block in zip(parts, _pass(blocks, len(parts), kept), strict=True):
            _store(rows.place(y, some, part), (block - mean) * scale, y.dtype, tl)
    tl.wait()


@repeatable
def gelu(x: TensorPtr, y: TensorPtr, elements: int, *, tl: TLContext) -> None:
    """0.5 x (1 + erf(x / sqrt 2)), element by element."""
    (count,) = x.local_shape
    spans = [(at, min(elements, count - at)) for at in range(0, count, elements)]
    blocks = _loaded(((x.local + at * x.itemsize, (size,)) for at, size in spans), tl)
    for (at, size), block in zip(spans, blocks, strict=True):
        _store((y.local + at * y.itemsize, (size,)), tl.gelu(block), y.dtype, tl)
    tl.wait()


def _store(place: BlockAddress, block: TensorHandle, dtype: str, tl: TLContext) -> None:
    tl.store_async(place[0], block if block.dtype == dtype else tl.cast(block, dtype))
