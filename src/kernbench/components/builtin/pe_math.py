"""PE_MATH: the vector lanes. An op over some elements takes elements / lanes, in whole cycles, rounded up, whatever
the op.

f32 has half the lanes, one-byte types double. A reduction goes through its input once; softmax, gelu and other
compound ops are one op. Operands and result are in registers. Not modelled: different costs of different functions.
"""

from __future__ import annotations

from kernbench.common.engine_declaration import RATE_PER_NS, TILE_SIDE, EngineDeclaration
from kernbench.components.base import Context
from kernbench.components.builtin.engine_cycles import CLOCK_GHZ, compute_ns
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.components.builtin.stages import GemmStage, MathStage
from kernbench.topology.graph import Node


class PeMathComponent(ComputeEngine):
    """Serves MATH stages."""

    declaration = EngineDeclaration(
        {"lanes_per_ns": RATE_PER_NS, "tile_m": TILE_SIDE, "tile_n": TILE_SIDE, "clock_ghz": CLOCK_GHZ}
    )

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._lanes_per_ns = float(node.attrs["lanes_per_ns"])
        self._clock_ghz = float(node.attrs.get("clock_ghz", 1.0))

    def stage_ns(self, stage: GemmStage | MathStage) -> float:
        assert isinstance(stage, MathStage)
        return compute_ns(stage.elements, self._lanes_per_ns, stage.dtype, self._clock_ghz)
