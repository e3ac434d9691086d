"""Op-log records of commands: the name, and the parameters that describe operands and work.

A simple command has one record. A composite has one, and its tiles have one for each of their stages; the latter are
made from the plan when the log is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kernbench.common.commands import AtomicCmd, CompositeCmd, DmaCommand, DmaReadCmd, GemmCmd, MathCmd, SimpleCmd
from kernbench.common.ids import PeId
from kernbench.common.messages import LaunchStream
from kernbench.components.builtin.pipeline import TileToken
from kernbench.components.builtin.stages import Fields, Stage
from kernbench.components.builtin.tile_plan import TilePlan
from kernbench.components.recording import Causes, FieldValue, OneOp, OpHead, Recorder

_PRODUCT = (
    "src_a_addr", "src_b_addr", "dst_addr", "shape_a", "shape_b", "shape_out", "dtype_in", "dtype_out", "src_a_space",
    "src_b_space", "dst_space",
)  # fmt: skip
_GEMM = (*_PRODUCT, "m", "k", "n", "batch")
_READ = ("src_addr", "nbytes", "handle_id")
_WRITE = ("src_space", "src_addr", "shape", "dtype", "dst_space", "dst_addr", "nbytes", "handle_id")
_ATOMIC = ("dst_space", "dst_addr", "nbytes", "dtype", "handle_id")
_MATH = (
    "input_addrs", "input_shapes", "input_spaces", "input_dtypes", "dst_addr", "dst_space", "shape_out", "dtype",
    "axis", "elements",
)  # fmt: skip


class SimpleEntry(NamedTuple):
    """The contents of a simple command's record: its name, and its parameters as names and values."""

    name: str
    names: tuple[str, ...]
    values: tuple[FieldValue, ...]

    def plus(self, name: str, value: FieldValue) -> SimpleEntry:
        """The entry with one more parameter."""
        return SimpleEntry(self.name, (*self.names, name), (*self.values, value))


def simple_entry(cmd: SimpleCmd, nbytes: int) -> SimpleEntry:
    """The record of a simple command; `nbytes` is what a DMA command moves."""
    if isinstance(cmd, MathCmd):
        entry = _math_entry(cmd)
    elif isinstance(cmd, GemmCmd):
        entry = SimpleEntry(f"gemm_{cmd.a.dtype}", _GEMM, (*_product(cmd), cmd.m, cmd.k, cmd.n, cmd.batch))
        if cmd.acc is not None:
            entry = entry.plus("src_acc_addr", cmd.acc.address)
    else:
        entry = _dma_entry(cmd, nbytes)
        if len(cmd.requests) > 1:
            entry = entry.plus("requests", len(cmd.requests))
        runs = sum(map(len, cmd.requests))
        if runs > len(cmd.requests):  # of several contiguous runs of bytes per request
            entry = entry.plus("runs", runs)
    return entry.plus("line", cmd.line) if cmd.line else entry


def _dma_entry(cmd: DmaCommand, nbytes: int) -> SimpleEntry:
    if isinstance(cmd, DmaReadCmd):
        return SimpleEntry("dma_read", _READ, (cmd.source.address, nbytes, cmd.handle_id))
    target = cmd.target
    if isinstance(cmd, AtomicCmd):
        atomic = (target.space, target.address, nbytes, target.dtype, cmd.handle_id)
        return SimpleEntry(f"atomic_{cmd.op}", _ATOMIC, atomic)
    source = cmd.source
    of_source = (source.space, source.address, source.shape, source.dtype)
    entry = SimpleEntry("dma_write", _WRITE, (*of_source, target.space, target.address, nbytes, cmd.handle_id))
    return entry.plus("copies", len(cmd.copies)) if cmd.copies else entry


def _math_entry(cmd: MathCmd) -> SimpleEntry:
    inputs, out = cmd.inputs, cmd.out
    of_inputs = (
        tuple([x.address for x in inputs]),
        tuple([x.shape for x in inputs]),
        tuple([x.space for x in inputs]),
        tuple([x.dtype for x in inputs]),
    )
    return SimpleEntry(
        cmd.op, _MATH, (*of_inputs, out.address, out.space, out.shape, out.dtype, cmd.axis, cmd.elements)
    )


def composite_entry(cmd: CompositeCmd, tile: tuple[int, ...]) -> tuple[str, str, Fields]:
    """Kind, name and parameters of a composite's record; `tile` is its tile shape."""
    params: Fields = {"op": cmd.op, "out_addr": cmd.out.address, "out_nbytes": cmd.out.nbytes}
    params["tile_shape"] = tile
    params["epilogues"] = tuple(f"{op.kind}/{op.scope}" for op in cmd.epilogues)
    if cmd.line:
        params["line"] = cmd.line
    if cmd.op == "gemm":
        return "gemm", "composite_gemm", {**params, **dict(zip(_PRODUCT, _product(cmd), strict=True))}
    params["math_op"] = cmd.math_op
    params["input_addrs"] = tuple(x.address for x in cmd.inputs)
    params["input_shapes"] = tuple(x.shape for x in cmd.inputs)
    return "math", "composite_math", params


def _product(cmd: GemmCmd | CompositeCmd) -> tuple[FieldValue, ...]:
    """The values of `_PRODUCT`."""
    (a, b), out = (cmd.a, cmd.b) if isinstance(cmd, GemmCmd) else cmd.inputs, cmd.out
    places = (a.address, b.address, out.address, a.shape, b.shape, out.shape)
    return (*places, a.dtype, out.dtype, a.space, b.space, out.space)


class SimpleRecords:
    """Records the simple commands of one PE: one record each."""

    __slots__ = ("_describers", "_log", "_pe")

    def __init__(self, log: Recorder, pe: PeId) -> None:
        self._log = log
        self._pe = pe
        self._describers: dict[tuple[object, ...], OneOp] = {}

    def record(
        self,
        cmd: SimpleCmd,
        stage: Stage,
        amount: int,
        times: Sequence[float],
        token: int,
        causes: Causes,
        stream: LaunchStream,
    ) -> int:
        """Record a command with stages like `stage` and a total of `amount`; returns the number of the record."""
        name, names, values = simple_entry(cmd, amount)
        key = (stage.component, name, names, stage.unit, stream)
        describer = self._describers.get(key)
        if describer is None:
            head = (self._pe.part(stage.component), stage.op_kind, name, names)
            describer = self._describers[key] = OneOp(head, stream, stage.unit)
        return self._log.record_chain(describer, (amount, *values), times, cmd.deps, token, causes)


def tile_record(
    log: Recorder,
    pe: PeId,
    addresses: tuple[int, ...],
    deps: tuple[int, ...],
    stream: LaunchStream,
    line: str = "",
) -> Callable[[TileToken], int]:
    """A function that records a tile of a composite whose operands are at `addresses`."""
    describer, record_chain = TileDescriber(str(pe), addresses, stream, line), log.record_chain

    def record(token: TileToken) -> int:
        return record_chain(describer, token.plan, token.times, deps, token.number, token.causes)

    return record


class TileDescriber:
    """Makes the op-log records of the tiles of one command when they are read."""

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
