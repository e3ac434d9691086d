"""Chains of tile products: the K-loops of GEMMs, many at once.

Chains of one group have the same types and length. Their products are computed as stacks, several links ahead when
there are few chains, and added link by link in order, as matmul.py defines it. When the chains form a grid, every row
of tiles of one parent against every column of tiles of another, each tile is cut and widened once and numpy broadcasts
the stacks: the same calls on the same operands, so the same bits.

Small products leave a BLAS half idle, so the columns of a grid are put side by side in one product per row, if that
gives the same bits. That depends on the BLAS and on sizes, not on data, and is tested once for each set of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array
from kernbench.values.casts import cast, from_work
from kernbench.values.matmul import sum_type
from kernbench.values.op import TensorType
from kernbench.values.plan import EvaluationUnit
from kernbench.values.stacking import CHUNK_BYTES, Tiles, stack_of

Product: TypeAlias = Callable[[Array, Array, TensorType, TensorType], Array]
Indices: TypeAlias = NDArray[np.int64]


def _grid(left: Indices | None, right: Indices | None, chains: int) -> Indices | None:
    """The chains as (rows, columns) of a grid, from the offsets of their operands; None if they form no grid."""
    if left is None or right is None or chains < 4:
        return None
    left, right = left.reshape(chains, -1), right.reshape(chains, -1)
    order = np.lexsort((right[:, 0], left[:, 0]))
    columns = int(np.count_nonzero(left[:, 0] == left[order[0], 0]))
    if chains % columns:
        return None
    grid = order.reshape(-1, columns)
    fits = (left[grid] == left[grid[:, :1]]).all() and (right[grid] == right[grid[:1]]).all()
    return grid if fits else None


@lru_cache(maxsize=256)
def joins_exactly(m: int, k: int, n: int, columns: int) -> bool:
    """Whether (m, k) by `columns` tiles of (k, n) has the bits of one product with the tiles side by side.

    The order of additions in a product follows from its sizes. With random numbers another order changes the last bits.
    """
    rng = np.random.default_rng(0)
    left = rng.standard_normal((1, m, k), np.float32)
    tiles = rng.standard_normal((columns, k, n), np.float32)
    joined = np.matmul(left, _side_by_side(tiles[np.newaxis]))
    return bool((_as_tiles(joined, columns) == np.matmul(left, tiles)).all())


def _side_by_side(tiles: Array) -> Array:
    """(..., columns, rows, width) laid out as (..., rows, columns * width)."""
    *outer, columns, rows, width = tiles.shape
    return np.ascontiguousarray(np.swapaxes(tiles, -3, -2)).reshape(*outer, rows, columns * width)


def _as_tiles(wide: Array, columns: int) -> Array:
    """(rows of tiles, height, columns * width) laid out as (rows * columns, height, width)."""
    rows, height, width = wide.shape
    tiles = wide.reshape(rows, height, columns, width // columns).swapaxes(1, 2)
    return np.ascontiguousarray(tiles).reshape(rows * columns, height, width // columns)


class ChainGroup:
    """Chains of equal types and length, and how to compute them a share at a time."""

    def __init__(self, chains: Sequence[EvaluationUnit], product: Product) -> None:
        self._chains = chains
        self._product = product
        first = chains[0].links[0]
        self._types = first.inputs[-2].type, first.inputs[-1].type
        self._length = len(chains[0].links)
        self._left = Tiles([link.inputs[-2] for chain in chains for link in chain.links])
        self._right = Tiles([link.inputs[-1] for chain in chains for link in chain.links])
        self._grid = _grid(self._left.offsets, self._right.offsets, len(chains)) if len(first.shape) == 2 else None
        tiles_bytes = 4 * (self._types[0].size + self._types[1].size)  # in a grid, tiles are shared
        self._product_bytes = max(4 * first.type.size + (tiles_bytes if self._grid is None else 0), 1)

        (m, k), n = self._types[0].shape[-2:], self._types[1].shape[-1]
        self._joined = self._grid is not None and joins_exactly(m, k, n, self._grid.shape[1])

    @property
    def heavy(self) -> bool:
        """Whether one product fills a chunk: BLAS threads are then more efficient than ours."""
        return self._product_bytes > CHUNK_BYTES

    def shares(self, threads: int) -> list[Indices]:
        """The chains split into parts that fit the cache and occupy all threads."""
        rows = np.arange(len(self._chains)).reshape(-1, 1) if self._grid is None else self._grid
        fit = max(1, CHUNK_BYTES // (self._product_bytes * rows.shape[1]))
        size = min(fit, -(-len(rows) // threads))
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    def compute(self, share: Indices) -> tuple[list[EvaluationUnit], Array]:
        """The chains of a share and the stack of their last links."""
        chains = [self._chains[at] for at in share.ravel().tolist()]
        ahead = max(1, CHUNK_BYTES // (self._product_bytes * len(chains)))
        total: Array | None = None
        if chains[0].init is not None:
            stack = stack_of([chain.init for chain in chains if chain.init is not None])
            total = np.array(cast(stack, chains[0].init.dtype, sum_type(*self._types)))
            if self._joined:
                total = _side_by_side(total.reshape(*share.shape, *total.shape[1:]))
        with np.errstate(all="ignore"):
            for start in range(0, self._length, ahead):
                for tile in self._products(share, np.arange(start, min(start + ahead, self._length))):
                    total = tile if total is None else np.add(total, tile, out=total)
        assert total is not None  # a chain has at least one link
        if self._joined:
            total = _as_tiles(total, share.shape[1])
        return chains, from_work(total, chains[0].last.type.dtype)

    def _products(self, share: Indices, links: Indices) -> Array:
        """The products of these links of a share: (links, chains, ...), or (links, rows, m, columns * n) if joined."""
        if self._grid is None:
            which = (share.ravel() * self._length + links[:, np.newaxis]).ravel()
            tiles = self._product(self._left.stack(which), self._right.stack(which), *self._types)
        else:
            rows = self._left.stack(share[:, 0] * self._length + links[:, np.newaxis])
            columns = self._right.stack(share[0] * self._length + links[:, np.newaxis])
            if self._joined:
                return self._product(rows, _side_by_side(columns)[:, np.newaxis], *self._types)
            tiles = self._product(rows[:, :, np.newaxis], columns[:, np.newaxis], *self._types)
        return tiles.reshape(len(links), share.size, *self._chains[0].last.shape)
