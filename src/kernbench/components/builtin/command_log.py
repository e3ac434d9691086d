"""What the op log says of a command: its name, and the parameters that say what was done to what.

A simple command has one record. A composite has one of its own, and its tiles have one for each of their stages, which
are made from the plan when somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.common.commands import AtomicCmd, CompositeCmd, DmaReadCmd, DmaWriteCmd, GemmCmd, MathCmd
from kernbench.common.ids import PeId
from kernbench.common.messages import LaunchStream
from kernbench.components.builtin.pipeline import Fields, Stage, TilePlan, TileToken
from kernbench.components.recording import FieldValue, OpHead, Recorder


def simple_entry(cmd: DmaReadCmd | DmaWriteCmd | AtomicCmd | GemmCmd | MathCmd) -> tuple[str, Fields]:
    """Name and parameters of a simple command's record."""
    name, params = _simple_entry(cmd)
    return name, {**params, "line": cmd.line} if cmd.line else params


def _simple_entry(cmd: DmaReadCmd | DmaWriteCmd | AtomicCmd | GemmCmd | MathCmd) -> tuple[str, Fields]:
    if isinstance(cmd, DmaReadCmd):
        read: Fields = {"src_addr": cmd.source.address, "nbytes": moved_bytes(cmd), "handle_id": cmd.handle_id}
        return "dma_read", read | _requests(cmd)
    if isinstance(cmd, DmaWriteCmd):
        return "dma_write", {
            "src_space": cmd.source.space,
            "src_addr": cmd.source.address,
            "shape": cmd.source.shape,
            "dtype": cmd.source.dtype,
            "dst_space": cmd.target.space,
            "dst_addr": cmd.target.address,
            "nbytes": moved_bytes(cmd),
            "handle_id": cmd.handle_id,
        } | _requests(cmd)
    if isinstance(cmd, AtomicCmd):
        target = cmd.target
        atomic: Fields = {"dst_space": target.space, "dst_addr": target.address, "nbytes": moved_bytes(cmd)}
        return f"atomic_{cmd.op}", {**atomic, "dtype": target.dtype, "handle_id": cmd.handle_id} | _requests(cmd)
    if isinstance(cmd, GemmCmd):
        params = {**_product(cmd), "m": cmd.m, "k": cmd.k, "n": cmd.n, "batch": cmd.batch}
        return f"gemm_{cmd.a.dtype}", params if cmd.acc is None else {**params, "src_acc_addr": cmd.acc.address}
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


def composite_entry(cmd: CompositeCmd, tile: tuple[int, ...]) -> tuple[str, str, Fields]:
    """Kind, name and parameters of a composite's record; `tile` is what it was cut into."""
    params: Fields = {"op": cmd.op, "out_addr": cmd.out.address, "out_nbytes": cmd.out.nbytes}
    params["tile_shape"] = tile
    params["epilogues"] = tuple(f"{op.kind}/{op.scope}" for op in cmd.epilogues)
    if cmd.line:
        params["line"] = cmd.line
    if cmd.op == "gemm":
        return "gemm", "composite_gemm", {**params, **_product(cmd)}
    params["math_op"] = cmd.math_op
    params["input_addrs"] = tuple(x.address for x in cmd.inputs)
    params["input_shapes"] = tuple(x.shape for x in cmd.inputs)
    return "math", "composite_math", params


def _product(cmd: GemmCmd | CompositeCmd) -> Fields:
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


def moved_bytes(cmd: DmaReadCmd | DmaWriteCmd | AtomicCmd) -> int:
    return sum(nbytes for request in cmd.requests for _, nbytes in request)


def _requests(cmd: DmaReadCmd | DmaWriteCmd | AtomicCmd) -> Fields:
    """How a command is cut, where it is."""
    return {} if len(cmd.requests) == 1 else {"requests": len(cmd.requests)}


def simple_record(
    log: Recorder,
    pe: PeId,
    stages: Sequence[Stage],
    name: str,
    params: Fields,
    deps: tuple[int, ...],
    stream: LaunchStream,
) -> Callable[[TileToken], int]:
    """Writes down a simple command: one record, from the start of its first request to the end of its last."""
    component, kind = pe.part(stages[0].component), stages[0].op_kind
    unit, amount = stages[0].unit, sum(stage.amount for stage in stages)
    first: TileToken | None = None

    def record(token: TileToken) -> int:
        nonlocal first
        if first is None or token.times[0] < first.times[0]:
            first = token
        if token.context.completed_tiles < token.context.total_tiles:
            return -1
        return log.record(
            first.times[0],
            token.times[1],
            component,
            kind,
            name,
            params,
            deps,
            unit=unit,
            amount=amount,
            token=token.number,
            causes=first.causes,
            stream=stream,
        )

    return record


def tile_record(
    log: Recorder,
    pe: PeId,
    addresses: tuple[int, ...],
    deps: tuple[int, ...],
    stream: LaunchStream,
    line: str = "",
) -> Callable[[TileToken], int]:
    """Writes down a tile of a composite whose operands lie at `addresses`."""
    describer, record_chain = TileDescriber(str(pe), addresses, stream, line), log.record_chain

    def record(token: TileToken) -> int:
        return record_chain(describer, token.plan, token.times, deps, token.number, token.causes)

    return record


class TileDescriber:
    """Says what the op log has on tiles of one command."""

    __slots__ = ("addresses", "line", "pe", "stream")

    def __init__(self, pe: str, addresses: tuple[int, ...], stream: LaunchStream, line: str = "") -> None:
        self.pe = pe
        self.line = line
        self.stream = stream
        self.addresses = addresses

    def entries(self, subject: object) -> tuple[Sequence[OpHead], Sequence[FieldValue]]:
        assert isinstance(subject, TilePlan)
        heads: list[OpHead] = []
        values: list[FieldValue] = []
        for stage in subject.stages:
            name = stage.type.name
            fields = stage.fields(self.addresses)
            if self.line:
                fields = {**fields, "line": self.line}
            names = ("stage_type", "tile_id", *fields)
            heads.append((f"{self.pe}.{stage.component}", stage.op_kind, f"TileToken/{name}", names))
            values += (name, subject.tile_id, *fields.values())
        return heads, values

    def kind(self, subject: object) -> object:
        assert isinstance(subject, TilePlan)
        return subject.kind

    def amounts(self, subjects: Sequence[object]) -> Sequence[tuple[str, int]]:
        first = subjects[0]
        assert isinstance(first, TilePlan)
        return [(stage.unit, stage.amount * len(subjects)) for stage in first.stages]
