"""The table of ops: name -> rules and computation. The family modules define each op.

`view` and `gather`, the ops on bytes that memory reads create, are not in the table: they carry their result type
 (see bytes_of.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.array_types import Shape
from kernbench.common.dtypes import DType
from kernbench.common.errors import DataError
from kernbench.values.along import ALONG
from kernbench.values.elementwise import ELEMENTWISE
from kernbench.values.matmul import MATMULS
from kernbench.values.op import Op, Params, TensorType
from kernbench.values.random_numbers import RANDOM
from kernbench.values.rearrange import REARRANGEMENTS
from kernbench.values.reduce import REDUCTIONS

OPS: dict[str, Op] = {op.name: op for op in (*ELEMENTWISE, *REDUCTIONS, *ALONG, *MATMULS, *REARRANGEMENTS, *RANDOM)}


def op_named(name: str) -> Op:
    """The op of that name; raises DataError, listing the ops, if there is none."""
    op = OPS.get(name)
    if op is None:
        raise DataError(f"no op {name!r}", hint=f"use one of {', '.join(OPS)}")
    return op


def infer(op: Op, types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    """Shape and dtype of the result; raises DataError when the inputs do not fit the op."""
    if len(types) != op.arity and (op.arity >= 0 or not types):
        wanted = op.arity if op.arity >= 0 else "one or more"
        raise DataError(f"{op.name} takes {wanted} inputs, got {len(types)}", hint=f"got {list(types)}")
    return op.infer(types, params)
