"""PE_GEMM: the MAC array. A product of m x k by k x n takes m * k * n / rate, in whole cycles, rounded up; f32 runs at
half the rate, one-byte types at double.

What counts is the tile actually computed, so an edge tile is cheaper. Operands and result are in registers. Not
modelled: fill and drain of the array, and the loss on tiles that its geometry does not divide.
"""

from __future__ import annotations

from kernbench.common.engine_declaration import RATE_PER_NS, TILE_SIDE, EngineDeclaration
from kernbench.components.base import Context
from kernbench.components.builtin.engine_cycles import CLOCK_GHZ, compute_ns
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.components.builtin.stages import GemmStage, MathStage
from kernbench.topology.graph import Node


def gemm_ns(m: int, k: int, n: int, macs_per_ns: float, dtype: str, clock_ghz: float = 1.0) -> float:
    """How long a product takes; `macs_per_ns` is for f16."""
    return compute_ns(m * k * n, macs_per_ns, dtype, clock_ghz)


class PeGemmComponent(ComputeEngine):
    """Serves GEMM stages."""

    declaration = EngineDeclaration(
        {
            "macs_per_ns": RATE_PER_NS,
            "tile_m": TILE_SIDE,
            "tile_k": TILE_SIDE,
            "tile_n": TILE_SIDE,
            "clock_ghz": CLOCK_GHZ,
        }
    )

    DERIVED = ("_last",)

    __slots__ = ("_clock_ghz", "_last", "_macs_per_ns")

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._macs_per_ns = float(node.attrs["macs_per_ns"])
        self._clock_ghz = float(node.attrs.get("clock_ghz", 1.0))
        self._last: tuple[GemmStage | None, float] = (None, 0.0)  # tiles of one size share their stage

    def stage_ns(self, stage: GemmStage | MathStage) -> float:
        assert isinstance(stage, GemmStage)
        last, ns = self._last
        if stage is not last:
            ns = gemm_ns(stage.m, stage.k, stage.n, self._macs_per_ns, stage.dtype, self._clock_ghz)
            self._last = (stage, ns)
        return ns
