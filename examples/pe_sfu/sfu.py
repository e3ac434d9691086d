"""PE_SFU: a special-function unit next to the vector lanes. It serves exp, log, sin and their like, one op at a time.

An op over some elements takes ceil(elements / rate) ns; f32 at half the rate, one-byte types at double. Not modelled:
different costs of different functions.

This file is all there is to the engine: what it is, which ops it takes, how it is wired, how long it needs. The
machine's description names the class; the scheduler, the op log, the figures of a launch and the pictures do the rest.
"""

from __future__ import annotations

from kernbench.common.engine_declaration import COMPUTE_WIRES, Attribute, EngineDeclaration
from kernbench.components.base import Context
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.components.builtin.pipeline import GemmStage, MathStage, lanes_ns
from kernbench.topology.graph import Node


class PeSfuComponent(ComputeEngine):
    """Serves the functions it lists; all other math stays with PE_MATH."""

    declaration = EngineDeclaration(
        attrs={"functions_per_ns": Attribute(0.001, 1e6, default=64.0)},
        ops=("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "sigmoid", "gelu", "silu"),
        wires=COMPUTE_WIRES,
        has_own_slot=True,  # it works while GEMM or MATH do
    )

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self.functions_per_ns = float(node.attrs["functions_per_ns"])

    def stage_ns(self, stage: GemmStage | MathStage) -> float:
        assert isinstance(stage, MathStage)
        return lanes_ns(stage.elements, self.functions_per_ns, stage.dtype)
