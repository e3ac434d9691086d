"""PE_MATH: the vector lanes. An op over some elements takes elements / lanes, in whole cycles, rounded up, whatever
the op, unless the description says otherwise of functions (`vector_functions.py`).

f32 has half the lanes, one-byte types double. A reduction goes through its input once; softmax, gelu and other
compound ops are one op. Operands and result are in registers. Not modelled by default: different costs of
different functions.
"""

from __future__ import annotations

from kernbench.common.engine_declaration import RATE_PER_NS, TILE_SIDE, EngineDeclaration
from kernbench.components.base import Context
from kernbench.components.builtin.engine_cycles import CLOCK_GHZ
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.components.builtin.stages import GemmStage, MathStage
from kernbench.components.builtin.vector_functions import FUNCTION_ATTRS, VectorUnit
from kernbench.topology.graph import Node


class PeMathComponent(ComputeEngine):
    """Serves MATH stages."""

    declaration = EngineDeclaration(
        {
            "lanes_per_ns": RATE_PER_NS,
            "tile_m": TILE_SIDE,
            "tile_n": TILE_SIDE,
            "clock_ghz": CLOCK_GHZ,
            **FUNCTION_ATTRS,
        }
    )

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._unit = VectorUnit.of(node.attrs)

    def stage_ns(self, stage: GemmStage | MathStage) -> float:
        assert isinstance(stage, MathStage)
        return self._unit.op_ns(stage.op, stage.elements, stage.dtype, stage.along)
