"""A core that multiplies tiles of `side` x `side` elements, as those of a plain network do.

A product is made of tile products, whole ones, one after the other. Each takes its MACs at `macs_per_ns` and
`tile_overhead_ns` until the next one begins, and a tile of the result `pack_ns` to be added to L1; all of it takes at
least as long as one operand of each tile product takes to come from L1 at `operand_gbs`. Dtypes do not change the rate:
engines with narrow multipliers pass several times over the operands for a higher fidelity, and the rate is that of the
fidelity in use. A processor issues requests one by one.
"""

from __future__ import annotations

from math import ceil

from kernbench.common.frozen import frozen
from kernbench.common.units import on_grid, transfer_ns


@frozen
class TileCore:
    """How long the parts of such a core take."""

    macs_per_ns: float  # the peak
    side: int
    tile_overhead_ns: float
    pack_ns: float
    operand_gbs: float
    issue_ns: float
    clock_ghz: float

    def product_ns(self, m: int, k: int, n: int, tile_bytes: int) -> float:
        """m x k by k x n."""
        results = ceil(m / self.side) * ceil(n / self.side)
        tiles = results * ceil(k / self.side)
        tile_ns = self.side**3 / self.macs_per_ns + self.tile_overhead_ns
        computed_ns = ceil((tiles * tile_ns + results * self.pack_ns) * self.clock_ghz) / self.clock_ghz
        return max(on_grid(computed_ns), transfer_ns(tiles * tile_bytes, self.operand_gbs))

    def requests_ns(self, count: int) -> float:
        """So many requests."""
        return count * on_grid(self.issue_ns)
