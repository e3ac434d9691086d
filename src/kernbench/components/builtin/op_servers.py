"""Which engine of a PE serves a math op: the one whose class lists it in its declaration."""

from __future__ import annotations

from kernbench.common.errors import ComponentError
from kernbench.components.builtin.stages import MathStage
from kernbench.components.builtin.tiling import OpServer
from kernbench.topology.declarations import declaration_of, declared_ops
from kernbench.topology.spec_cube import PeComponents
from kernbench.values.ops import OPS


def op_servers(components: PeComponents) -> dict[str, OpServer]:
    """The servers of the ops that a part declares; PE_MATH serves all others.

    Raises ComponentError for an op that does not exist, and for a stage of the wrong kind.
    """
    return {op: OpServer(name, _stage(name, op, components)) for op, name in declared_ops(components).items()}


def _stage(name: str, op: str, components: PeComponents) -> type[MathStage]:
    impl = components.parts[name].impl
    stage = declaration_of(name, impl).stage or MathStage
    if op not in OPS:
        raise ComponentError(
            f"{name} declares the op '{op}', and there is none of that name",
            where=f"impl {impl}",
            hint=f"list some of {', '.join(OPS)}",
        )
    if not issubclass(stage, MathStage):
        raise ComponentError(
            f"{name} declares {stage.__name__} as the stage of its ops",
            where=f"impl {impl}",
            hint="derive that class from kernbench.components.builtin.stages.MathStage",
        )
    return stage
