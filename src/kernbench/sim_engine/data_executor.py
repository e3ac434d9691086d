"""The second pass: compute what outputs need, outside the clock, and say whether they are right.

Values are evaluated in dependency order, in batches, on threads (`values.evaluate`). A result is right when it
differs from its reference by no more than atol + rtol * |reference|, by default the tolerances of its dtype; integers
and bools must be equal. NaN agrees with NaN, infinity with itself. With `debug_ops` every op on the way is also
computed a second time, alone, and compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from kernbench.common.dtypes import DType
from kernbench.common.errors import DataError
from kernbench.values.bytes_of import Patch, View, compute_gather, compute_view
from kernbench.values.evaluate import Backend, evaluate
from kernbench.values.graph import CONSTANT, Value
from kernbench.values.op import Array
from kernbench.values.ops import OPS


@dataclass(frozen=True, slots=True)
class DataCheck:
    """How one tensor compares with its reference. `max_abs_err` is infinite when NaN or infinity stand alone."""

    tensor: str
    dtype: str
    ok: bool
    max_abs_err: float
    rtol: float
    atol: float

    def as_json(self) -> dict[str, object]:
        """JSON knows no infinity: an error without bound is null there."""
        error = self.max_abs_err if isfinite(self.max_abs_err) else None
        fields = {"tensor": self.tensor, "dtype": self.dtype, "ok": self.ok, "max_abs_err": error}
        return {**fields, "rtol": self.rtol, "atol": self.atol}


def compare(
    name: str, dtype: DType, actual: Array, reference: ArrayLike, rtol: float | None = None, atol: float | None = None
) -> DataCheck:
    """Compare a result with its reference; raises DataError when their shapes differ."""
    expected = np.asarray(reference)
    if expected.shape != actual.shape:
        raise DataError(
            f"tensor '{name}' has shape {actual.shape}, its reference {expected.shape}", mend="compare like with like"
        )
    rtol = dtype.rtol if rtol is None else rtol
    atol = dtype.atol if atol is None else atol
    got, want = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        errors = np.asarray(np.abs(got - want))  # of single numbers too
    errors[(got == want) | (np.isnan(got) & np.isnan(want))] = 0.0
    errors[np.isnan(errors)] = np.inf
    with np.errstate(invalid="ignore"):
        ok = bool(np.all(errors <= atol + rtol * np.where(np.isfinite(want), np.abs(want), 0.0)))
    return DataCheck(name, dtype.name, ok, float(errors.max(initial=0.0)), rtol, atol)


class DataExecutor:
    """Runs pass 2 for some outputs."""

    def __init__(self, *, threads: int | None = None, backend: Backend = "numpy", debug_ops: bool = False) -> None:
        self._threads = threads
        self._backend = backend
        self._debug_ops = debug_ops
        self.ops: list[DataCheck] = []  # of every op on the way, when they are debugged

    def run(self, outputs: Sequence[Value]) -> list[Array]:
        """The arrays of `outputs`."""
        pending = _below(outputs) if self._debug_ops else []
        arrays = evaluate(outputs, threads=self._threads, backend=self._backend, keep_inputs=self._debug_ops)
        if pending:
            self._compare_ops(pending)
        return arrays

    def _compare_ops(self, values: Sequence[Value]) -> None:
        alone: dict[int, Array] = {}
        for value in values:
            alone[value.id] = _compute_alone(value, alone)
            if value.data is not None:
                name = f"%{value.id} {value.op}{list(value.shape)}"
                self.ops.append(compare(name, value.dtype, value.data, alone[value.id]))


def _below(outputs: Sequence[Value]) -> list[Value]:
    """Everything pending that outputs rest on, inputs before results."""
    found: dict[int, Value] = {}
    to_see = list(outputs)
    while to_see:
        value = to_see.pop()
        if value.id not in found and value.data is None:
            found[value.id] = value
            to_see += value.inputs
    return [found[number] for number in sorted(found)]


def _compute_alone(value: Value, known: dict[int, Array]) -> Array:
    """One op by itself, from what was computed the same way."""
    inputs = [known[v.id] if v.id in known else cast(Array, v.data) for v in value.inputs]
    if value.op == CONSTANT:
        return cast(Array, value.data)
    if value.op == "view":
        return compute_view(inputs[0], value.inputs[0].type, value.type, cast(View, value.params))
    if value.op == "gather":
        return compute_gather(inputs, value.type, cast(tuple[Patch, ...], value.params))
    stacks = [array[np.newaxis] for array in inputs]
    result = OPS[value.op].compute(stacks, [v.type for v in value.inputs], value.type, value.params)
    return cast(Array, result[0])  # a stack of one
