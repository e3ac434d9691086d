"""PE_GEMM as a group of equal cores: each has systolic arrays and a local buffer, and all are fed by one memory.

A product is cut into tiles of the result, of which every core takes one at a time, in whole rounds. K passes in chunks:
a core's local buffer has the sums of its tile in f32, and two chunks of both operands, one of which is moved while the
other is multiplied. So a chunk takes the longer of

computing  folds of rows x columns results, dealt over the arrays of the core in whole rounds; a fold takes the chunk's
           k and rows + columns - 2 steps, as an output-stationary array does in `systolic.py`;
moving     the chunk's operands, at the core's share of `feed_gbs`. No core passes them on to another.

Of the tiles that fit the buffer, the fastest for the whole product is taken, as a library of kernels would. A buffer in
which no tile fits computes single folds, a step of K at a time. Not modelled: the move of a tile's first chunk and of
its results, edge tiles that take less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import ceil

import numpy as np

from kernbench.common.array_types import Floats, Ints
from kernbench.common.dtypes import dtype_of
from kernbench.common.engine_declaration import RATE_PER_NS, Attribute, EngineDeclaration
from kernbench.common.frozen import frozen
from kernbench.common.units import on_grid
from kernbench.components.builtin.engine_cycles import PRODUCT_ATTRS
from kernbench.components.builtin.pe_gemm import PeGemmComponent

SIDES = (16, 32, 48, 64, 96, 128, 192, 256)  # of tiles
SUM_BYTES = 4


@frozen
class CoreGroup:
    """What a product costs on such a group: a `ProductCost`."""

    cores: int
    arrays: int  # of a core
    rows: int
    columns: int
    local_bytes: int  # of a core
    feed_gbs: float  # of all cores
    clock_ghz: float

    @property
    def macs_per_ns(self) -> float:
        return self.cores * self.arrays * self.rows * self.columns * self.clock_ghz

    def tiles(self, m: int, k: int, n: int, itemsize: int) -> Iterator[tuple[int, int, int]]:
        """Rows, columns and K of the tiles and chunks that fit the local buffer; the last side covers the product."""
        for height, width in product(_sides(m), _sides(n)):
            room = self.local_bytes - height * width * SUM_BYTES
            depth = min(k, room // (2 * (height + width) * itemsize))
            if depth > 0:
                yield height, width, ceil(k / ceil(k / depth))
        yield min(m, self.rows), min(n, self.columns), 1

    def cycles(self, m: int, k: int, n: int, tile: tuple[int, int, int], itemsize: int, speed: float) -> float:
        """Of a product with this tile, where an array takes `speed` elements of K per step."""
        height, width, depth = tile
        rounds = ceil(ceil(m / height) * ceil(n / width) / self.cores)
        folds = ceil(ceil(height / self.rows) * ceil(width / self.columns) / self.arrays)
        compute = folds * ((depth + self.rows + self.columns - 2) / speed)
        bytes_per_cycle = self.feed_gbs / self.clock_ghz / self.cores
        move = (height + width) * depth * itemsize / bytes_per_cycle
        return rounds * ceil(k / depth) * max(compute, move)

    def product_ns(self, m: int, k: int, n: int, dtype: str) -> float:
        return on_grid(self._fastest_ns(m, k, n, dtype))

    def product_ns_each(self, m: Ints, k: Ints, n: Ints, dtype: str) -> Floats:
        each = np.broadcast(m, k, n)
        found = [self._fastest_ns(int(a), int(b), int(c), dtype) for a, b, c in each]
        return np.array(found, np.float64).reshape(each.shape)

    def _fastest_ns(self, m: int, k: int, n: int, dtype: str) -> float:
        return _fastest_cycles(self, m, k, n, dtype) / self.clock_ghz


def _sides(length: int) -> list[int]:
    """Sides of tiles, up to the first that covers the product."""
    return [*(side for side in SIDES if side < length), *[side for side in SIDES if side >= length][:1]]


@lru_cache(maxsize=1 << 14)
def _fastest_cycles(group: CoreGroup, m: int, k: int, n: int, dtype: str) -> int:
    """Whole cycles of the fastest tile, at least one; an empty product, of which the model of tiles asks, takes one."""
    if not m * k * n:
        return 1
    kind = dtype_of(dtype)
    tiles = group.tiles(m, k, n, kind.itemsize)
    least = min(group.cycles(m, k, n, tile, kind.itemsize, kind.compute_scale) for tile in tiles)
    return max(ceil(least), 1)


class CoreGroupComponent(PeGemmComponent):
    """Serves GEMM stages. `macs_per_ns` is the peak, cores x arrays x rows x columns x clock_ghz."""

    declaration = EngineDeclaration(
        {
            **PRODUCT_ATTRS,
            "cores": Attribute.whole(1, 1 << 14),
            "arrays": Attribute.whole(1, 1 << 10),
            "rows": Attribute.whole(1, 1 << 14),
            "columns": Attribute.whole(1, 1 << 14),
            "local_kb": Attribute.whole(1, 1 << 20),
            "feed_gbs": RATE_PER_NS,
        }
    )

    __slots__ = ()

    @classmethod
    def cost_of(cls, attrs: Mapping[str, float | int | str | bool]) -> CoreGroup:
        cores, arrays, rows, columns, local = (
            int(attrs[name]) for name in ("cores", "arrays", "rows", "columns", "local_kb")
        )
        clock_ghz = float(attrs.get("clock_ghz", 1.0))
        return CoreGroup(cores, arrays, rows, columns, local << 10, float(attrs["feed_gbs"]), clock_ghz)
