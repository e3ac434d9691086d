"""PE_GEMM: the MAC array. A product of m x k by k x n takes m * k * n / rate, in whole cycles, rounded up; f32 runs at
half the rate, one-byte types at double.

What counts is the tile actually computed, so an edge tile is cheaper. Operands and result are in registers. Not
modelled: fill and drain of the array, and the loss on tiles that its geometry does not divide; `builtin.systolic` has
both.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.common.engine_declaration import EngineDeclaration
from kernbench.components.base import Context
from kernbench.components.builtin.engine_cycles import PRODUCT_ATTRS, MacArray, ProductCost
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.components.builtin.stages import GemmStage, MathStage
from kernbench.topology.graph import Node


class PeGemmComponent(ComputeEngine):
    """Serves GEMM stages."""

    declaration = EngineDeclaration(PRODUCT_ATTRS)

    DERIVED = ("_last",)

    __slots__ = ("_cost", "_last")

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._cost = self.cost_of(node.attrs)
        self._last: tuple[GemmStage | None, float] = (None, 0.0)  # tiles of one size share their stage

    @classmethod
    def cost_of(cls, attrs: Mapping[str, float | int | str | bool]) -> ProductCost:
        """How long products take: for the engine itself, the model that chooses tiles, bounds and rooflines."""
        return MacArray(float(attrs["macs_per_ns"]), float(attrs.get("clock_ghz", 1.0)))

    def stage_ns(self, stage: GemmStage | MathStage) -> float:
        assert isinstance(stage, GemmStage)
        last, ns = self._last
        if stage is not last:
            ns = self._cost.product_ns(stage.m, stage.k, stage.n, stage.dtype)
            self._last = (stage, ns)
        return ns
