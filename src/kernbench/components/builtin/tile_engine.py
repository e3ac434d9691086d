"""An engine for products of tiles of `side` x `side` elements, as the cores of a plain network have it.

A product is made of tile products, whole ones, one after the other. Each takes its MACs at `macs_per_ns`, and
`tile_overhead_ns` until the next one begins. Dtypes do not change the rate: engines with narrow multipliers pass
several times over the operands for a higher fidelity, and the rate is that of the fidelity in use. Operands and result
are in registers.
"""

from __future__ import annotations

from math import ceil

from kernbench.common.frozen import frozen
from kernbench.common.units import on_grid


@frozen
class TileEngine:
    """What a product costs on such an engine."""

    macs_per_ns: float  # the peak
    side: int
    tile_overhead_ns: float
    clock_ghz: float

    @property
    def tile_ns(self) -> float:
        """One product of two tiles."""
        return self.side**3 / self.macs_per_ns + self.tile_overhead_ns

    def product_ns(self, m: int, k: int, n: int) -> float:
        """m x k by k x n."""
        tiles = ceil(m / self.side) * ceil(k / self.side) * ceil(n / self.side)
        return on_grid(ceil(tiles * self.tile_ns * self.clock_ghz) / self.clock_ghz)
