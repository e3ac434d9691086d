"""What the op log says of a command: its name, and the parameters that say what was done to what.

Simple commands have one record, written by their engine. A composite has one of its own besides those of its tiles.
"""

from __future__ import annotations

from kernbench.common.commands import CompositeCmd, DmaReadCmd, DmaWriteCmd, GemmCmd, MathCmd
from kernbench.components.builtin.pipeline import Params


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


def composite_entry(cmd: CompositeCmd) -> tuple[str, str, Params]:
    """Kind, name and parameters of a composite's record."""
    params: Params = {"op": cmd.op, "out_addr": cmd.out.address, "out_nbytes": cmd.out.nbytes}
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
