"""The second pass: computes what outputs depend on, outside simulated time, and compares them with their references.

Values are evaluated in dependency order, in batches, on threads (`values.evaluate`). A result is right when it
differs from its reference by no more than atol + rtol * |reference|, by default the tolerances of its dtype; integers
and bools must be equal. NaN agrees with NaN, infinity with itself. With `debug_ops` every intermediate op is also
computed a second time, in isolation, in double precision and by independent definitions (`values.plain`), from the
inputs it had: an error is reported at the op that caused it, and not again for every op that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np
from numpy.typing import ArrayLike

from kernbench.common.array_types import Array
from kernbench.common.dtypes import I64, DType
from kernbench.common.errors import DataError
from kernbench.common.frozen import frozen
from kernbench.common.plain_json import json_number
from kernbench.values.backend import ArrayBackend
from kernbench.values.backends import backend_named
from kernbench.values.estimate import seconds_for, work_of
from kernbench.values.evaluate import evaluate, thread_count
from kernbench.values.graph import CONSTANT, Value
from kernbench.values.op import BackendName
from kernbench.values.plain import expected

LONG_S = 10.0  # a pass over this is announced


@frozen
class Mismatch:
    """The elements of a tensor that are wrong: how many, and the first of them, with its error over |want|."""

    wrong: int
    elements: int
    index: tuple[int, ...]
    got: float
    want: float
    rel_err: float

    @classmethod
    def of(cls, differs: Array, actual: Array, expected: Array) -> Mismatch | None:
        """The elements that differ; None where none does."""
        wrong = int(np.count_nonzero(differs))
        if not wrong:
            return None
        index = tuple(int(at) for at in np.unravel_index(int(np.argmax(differs)), np.shape(differs)))
        got, want = (x.item() if x.dtype.kind in "biu" else float(x) for x in (actual[index], expected[index]))
        off = abs(got - want)
        relative = inf if not isfinite(off) or not want else off / abs(want)
        return cls(wrong, differs.size, index, got, want, relative)

    def __str__(self) -> str:
        where = f"element {list(self.index)}" if self.index else "it"
        return (
            f"{self.wrong:,} of {self.elements:,} elements differ, the first {where}: got {self.got:.8g}, "
            f"want {self.want:.8g}, relative error {self.rel_err:.3g}"
        )

    def as_json(self) -> dict[str, object]:
        numbers = {"got": self.got, "want": self.want, "rel_err": self.rel_err}
        written = {name: json_number(number) for name, number in numbers.items()}
        return {"wrong": self.wrong, "elements": self.elements, "index": list(self.index), **written}


@frozen
class DataCheck:
    """How one tensor compares with its reference. `max_abs_err` is infinite when only one of the two is NaN or
    infinite, and when `reason` states why the two were not compared.
    """

    tensor: str
    dtype: str
    ok: bool
    max_abs_err: float
    rtol: float
    atol: float
    reason: str | None = None
    mismatch: Mismatch | None = None

    def as_json(self) -> dict[str, object]:
        """JSON has no infinity: an infinite error is "inf" there, and null where nothing was compared."""
        error = json_number(self.max_abs_err) if self.reason is None else None
        fields = {"tensor": self.tensor, "dtype": self.dtype, "ok": self.ok, "max_abs_err": error}
        why: dict[str, object] = {} if self.reason is None else {"reason": self.reason}
        if self.mismatch is not None:
            why["mismatch"] = self.mismatch.as_json()
        return {**fields, "rtol": self.rtol, "atol": self.atol, **why}


def compare(
    name: str, dtype: DType, actual: Array, reference: ArrayLike, rtol: float | None = None, atol: float | None = None
) -> DataCheck:
    """Compare a result with its reference; raises DataError when their shapes differ."""
    expected = np.asarray(reference)
    if expected.shape != actual.shape:
        raise DataError(
            f"tensor '{name}' has shape {actual.shape}, its reference {expected.shape}", hint="compare like with like"
        )
    rtol = float(dtype.rtol if rtol is None else rtol)  # numpy's own floats are no JSON
    atol = float(dtype.atol if atol is None else atol)
    if dtype is I64 and expected.dtype.kind in "biu":  # doubles do not hold all of them
        differs = np.asarray(np.not_equal(actual, expected))
        off = [abs(int(a) - int(b)) for a, b in zip(actual[differs], expected[differs], strict=True)]
        differs[differs] = np.array(off, np.float64) > atol
        wrong = Mismatch.of(differs, actual, expected)
        return DataCheck(name, dtype.name, wrong is None, float(max(off, default=0)), rtol, atol, None, wrong)
    got, want = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        errors = np.asarray(np.abs(got - want))  # of single numbers too
    errors[(got == want) | (np.isnan(got) & np.isnan(want))] = 0.0
    errors[np.isnan(errors)] = np.inf
    with np.errstate(invalid="ignore"):
        bound = atol + rtol * np.where(np.isfinite(want), np.abs(want), 0.0)  # NaN for an infinite rtol of 0
    wrong = Mismatch.of(~((errors == 0) | (errors <= bound)), got, want)
    return DataCheck(name, dtype.name, wrong is None, float(errors.max(initial=0.0)), rtol, atol, None, wrong)


class DataExecutor:
    """Runs pass 2 for some outputs. `sites` names the kernel lines that values come from, by value id.

    `announce` is called beforehand with the estimated seconds of a pass, if that is more than ten.
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        backend: ArrayBackend | BackendName = "numpy",
        debug_ops: bool = False,
        sites: Mapping[int, str] | None = None,
        announce: Callable[[float], None] | None = None,
    ) -> None:
        self._threads = thread_count(threads)
        self._backend = backend_named(backend) if isinstance(backend, str) else backend
        self._announce = announce
        self._debug_ops = debug_ops
        self._sites = {} if sites is None else sites  # it fills while kernels run
        self.ops: list[DataCheck] = []  # of every intermediate op, when they are debugged

    def run(self, outputs: Sequence[Value]) -> list[Array]:
        """The arrays of `outputs`."""
        if self._announce is not None:
            seconds = seconds_for(work_of(outputs), self._backend)
            if seconds > LONG_S:
                self._announce(seconds)
        values = _below(outputs) if self._debug_ops else []
        arrays = evaluate(outputs, threads=self._threads, backend=self._backend, keep_inputs=self._debug_ops)
        if values:
            self._compare_ops(values)
        return arrays

    def _compare_ops(self, values: Sequence[Value]) -> None:
        unstored: dict[int, Array] = {}  # links inside a fused chain, which are intermediate ops all the same
        for value in values:
            inputs = [_array(v, unstored) for v in value.inputs]
            wanted = expected(value, inputs)
            held = value.array()
            if held is None:
                unstored[value.id] = wanted.answer.astype(value.dtype.numpy)
                continue
            got = held if value.dtype is I64 else held.astype(np.float64)
            same = compare(self._title(value), value.dtype, held, wanted.answer)
            inside = np.less_equal(wanted.low, got) & np.less_equal(got, wanted.high) | np.isnan(got) & np.isnan(
                wanted.answer
            )
            wrong = Mismatch.of(np.asarray(~inside), held, wanted.answer)
            self.ops.append(replace(same, ok=wrong is None, mismatch=wrong))

    def _title(self, value: Value) -> str:
        site = self._sites.get(value.id)
        return f"%{value.id} {value.op}{list(value.shape)}" + (f" at {site}" if site else "")


def _array(value: Value, unstored: Mapping[int, Array]) -> Array:
    held = value.array()
    return unstored[value.id] if held is None else held


def _below(outputs: Sequence[Value]) -> list[Value]:
    """Every op that outputs depend on, inputs before results, as long as its inputs have not been dropped."""
    found: dict[int, Value] = {}
    to_see = list(outputs)
    while to_see:
        value = to_see.pop()
        forgotten = value.data is not None and not value.inputs
        if value.id not in found and value.op != CONSTANT and not forgotten:
            found[value.id] = value
            to_see += value.inputs
    return [found[number] for number in sorted(found)]
