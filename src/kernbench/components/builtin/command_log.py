"""What the op log says of a command: its name, and the parameters that say what was done to what.

A simple command has one record. A composite has one of its own, and its tiles have one for each of their stages, which
are told from the plan when somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.common.commands import CompositeCmd, DmaReadCmd, DmaWriteCmd, GemmCmd, MathCmd
from kernbench.common.ids import PeId
from kernbench.components.builtin.pipeline import (
    DmaStage,
    GemmStage,
    MathStage,
    Params,
    Stage,
    TilePlan,
    TileToken,
)
from kernbench.components.recording import OpHead, Param, Recorder


def simple_entry(cmd: DmaReadCmd | DmaWriteCmd | GemmCmd | MathCmd) -> tuple[str, Params]:
    """Name and parameters of a simple command's record."""
    if isinstance(cmd, DmaReadCmd):
        source = cmd.source
        return "dma_read", {"src_addr": source.address, "nbytes": source.nbytes, "handle_id": cmd.handle_id}
    if isinstance(cmd, DmaWriteCmd):
        return "dma_write", {
            "src_space": cmd.source.space,
            "src_addr": cmd.source.address,
            "shape": cmd.source.shape,
            "dtype": cmd.source.dtype,
            "dst_space": cmd.target.space,
            "dst_addr": cmd.target.address,
            "nbytes": cmd.target.nbytes,
            "handle_id": cmd.handle_id,
        }
    if isinstance(cmd, GemmCmd):
        return f"gemm_{cmd.a.dtype}", {**_product(cmd), "m": cmd.m, "k": cmd.k, "n": cmd.n, "batch": cmd.batch}
    return cmd.op, {
        "input_addrs": tuple(x.address for x in cmd.inputs),
        "input_shapes": tuple(x.shape for x in cmd.inputs),
        "input_spaces": tuple(x.space for x in cmd.inputs),
        "input_dtypes": tuple(x.dtype for x in cmd.inputs),
        "dst_addr": cmd.out.address,
        "dst_space": cmd.out.space,
        "shape_out": cmd.out.shape,
        "dtype": cmd.out.dtype,
        "axis": cmd.axis,
        "elements": cmd.elements,
    }


def composite_entry(cmd: CompositeCmd, tile: tuple[int, ...]) -> tuple[str, str, Params]:
    """Kind, name and parameters of a composite's record; `tile` is what it was cut into."""
    params: Params = {"op": cmd.op, "out_addr": cmd.out.address, "out_nbytes": cmd.out.nbytes}
    params["tile_shape"] = tile
    params["epilogues"] = tuple(f"{op.kind}/{op.scope}" for op in cmd.epilogues)
    if cmd.op == "gemm":
        return "gemm", "composite_gemm", {**params, **_product(cmd)}
    params["math_op"] = cmd.math_op
    params["input_addrs"] = tuple(x.address for x in cmd.inputs)
    params["input_shapes"] = tuple(x.shape for x in cmd.inputs)
    return "math", "composite_math", params


def _product(cmd: GemmCmd | CompositeCmd) -> Params:
    a, b = (cmd.a, cmd.b) if isinstance(cmd, GemmCmd) else cmd.inputs
    return {
        "src_a_addr": a.address,
        "src_b_addr": b.address,
        "dst_addr": cmd.out.address,
        "shape_a": a.shape,
        "shape_b": b.shape,
        "shape_out": cmd.out.shape,
        "dtype_in": a.dtype,
        "dtype_out": cmd.out.dtype,
        "src_a_space": a.space,
        "src_b_space": b.space,
        "dst_space": cmd.out.space,
    }


def stage_kind(stage: Stage) -> str:
    return "gemm" if isinstance(stage, GemmStage) else "math" if isinstance(stage, MathStage) else "memory"


def simple_record(
    log: Recorder, pe: PeId, stage: Stage, name: str, params: Params, deps: tuple[int, ...]
) -> Callable[[TileToken], int]:
    """Writes down a simple command, of one stage."""
    component, kind = pe.part(stage.component), stage_kind(stage)

    def record(token: TileToken) -> int:
        start_ns, end_ns = token.times
        return log.record(start_ns, end_ns, component, kind, name, params, deps)

    return record


def tile_record(
    log: Recorder, pe: PeId, addresses: tuple[int, ...], deps: tuple[int, ...]
) -> Callable[[TileToken], int]:
    """Writes down a tile of a composite whose operands lie at `addresses`."""
    teller, record_chain = TileTeller(str(pe), addresses), log.record_chain

    def record(token: TileToken) -> int:
        return record_chain(teller, token.plan, token.times, deps)

    return record


class TileTeller:
    """Says what the op log has on tiles of one command."""

    __slots__ = ("addresses", "pe")

    def __init__(self, pe: str, addresses: tuple[int, ...]) -> None:
        self.pe = pe
        self.addresses = addresses

    def entries(self, subject: object) -> tuple[Sequence[OpHead], Sequence[Param]]:
        assert isinstance(subject, TilePlan)
        heads: list[OpHead] = []
        values: list[Param] = []
        for stage in subject.stages:
            name = stage.type.name
            said = self._said(stage)
            names = ("stage_type", "tile_id", *said)
            heads.append((f"{self.pe}.{stage.component}", stage_kind(stage), f"TileToken/{name}", names))
            values += (name, subject.tile_id, *said.values())
        return heads, values

    def _said(self, stage: Stage) -> Params:
        if isinstance(stage, DmaStage):
            return {"address": self.addresses[stage.operand] + stage.offset, "nbytes": stage.nbytes}
        if isinstance(stage, GemmStage):
            return {"m": stage.m, "k": stage.k, "n": stage.n, "dtype": stage.dtype}
        if isinstance(stage, MathStage):
            return {"op": stage.op, "elements": stage.elements, "dtype": stage.dtype}
        return {"nbytes": stage.nbytes}

    def kind(self, subject: object) -> object:
        assert isinstance(subject, TilePlan)
        return subject.kind

    def flops(self, subjects: Sequence[object]) -> Sequence[int]:
        first = subjects[0]
        assert isinstance(first, TilePlan)
        return [_flops(stage) * len(subjects) for stage in first.stages]


def _flops(stage: Stage) -> int:
    """Two a multiply-accumulate, one an element of a math op."""
    if isinstance(stage, GemmStage):
        return 2 * stage.m * stage.k * stage.n
    return stage.elements if isinstance(stage, MathStage) else 0
