"""PE_GEMM as a group of equal matrix units, each of which computes tiles of the result by itself, as the SMs of a GPU.

A product is cut into tiles of `unit_m` x `unit_n`; a side is halved, down to `unit_least`, while one tile still covers
the product. The units take one tile each, in rounds, and a tile takes its MACs over the rate of one unit, however much
of it the product needs: units without a tile are idle (wave quantisation). `macs_per_ns` is the rate of all units
together for f16; f32 has half of it, one-byte types double. Operands and result are in registers. Not modelled: the
load of a tile's first operands, several tiles on one unit, K split over units.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernbench.common.array_types import Floats, Ints
from kernbench.common.engine_declaration import TILE_SIDE, Attribute, EngineDeclaration
from kernbench.common.frozen import frozen
from kernbench.components.builtin.engine_cycles import PRODUCT_ATTRS, compute_ns, compute_ns_each
from kernbench.components.builtin.pe_gemm import PeGemmComponent


@frozen
class UnitGroup:
    """What a product costs on such a group: a `ProductCost`."""

    macs_per_ns: float  # of all units, for f16
    units: int
    unit_m: int
    unit_n: int
    unit_least: int
    clock_ghz: float

    def rounds(self, m: int, n: int) -> int:
        """How many tiles a unit computes, one after another."""
        height, width = self.tile(m, n)
        return -(-(-(-m // height) * -(-n // width)) // self.units)

    def tile(self, m: int, n: int) -> tuple[int, int]:
        """Rows and columns of the tiles of an m x n result."""
        return self._side(m, self.unit_m), self._side(n, self.unit_n)

    def _side(self, length: int, side: int) -> int:
        while side // 2 >= max(length, self.unit_least):
            side //= 2
        return side

    def product_ns(self, m: int, k: int, n: int, dtype: str) -> float:
        return compute_ns(self._macs(m, k, n), self.macs_per_ns, dtype, self.clock_ghz)

    def product_ns_each(self, m: Ints, k: Ints, n: Ints, dtype: str) -> Floats:
        each = np.broadcast(m, k, n)
        macs = np.array([self._macs(int(a), int(b), int(c)) for a, b, c in each], np.int64).reshape(each.shape)
        return compute_ns_each(macs, self.macs_per_ns, dtype, self.clock_ghz)

    def _macs(self, m: int, k: int, n: int) -> int:
        """Those that the group could do meanwhile."""
        height, width = self.tile(m, n)
        return self.rounds(m, n) * height * width * k * self.units


class UnitGroupComponent(PeGemmComponent):
    """Serves GEMM stages."""

    declaration = EngineDeclaration(
        {
            **PRODUCT_ATTRS,
            "units": Attribute.whole(1, 1 << 14),
            "unit_m": TILE_SIDE,
            "unit_n": TILE_SIDE,
            "unit_least": TILE_SIDE,
        }
    )

    __slots__ = ()

    @classmethod
    def cost_of(cls, attrs: Mapping[str, float | int | str | bool]) -> UnitGroup:
        units, unit_m, unit_n, least = (int(attrs[name]) for name in ("units", "unit_m", "unit_n", "unit_least"))
        return UnitGroup(float(attrs["macs_per_ns"]), units, unit_m, unit_n, least, float(attrs.get("clock_ghz", 1.0)))
