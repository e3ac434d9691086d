"""Value: a concrete tensor, or the pending result of an op on other values.

A value is immutable: its id, type, op and params are set once. Evaluation only sets `data`, and then drops
`inputs`, so that unreferenced intermediates are freed. Ids count up in one ValueGraph, inputs before results,
so ids give a dependency order. Graphs share nothing: two simulations in one process number their values equally.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeAlias
from typing import cast as cast_to

import numpy as np
from numpy.typing import ArrayLike

from kernbench.common.array_types import Array, Shape
from kernbench.common.dtypes import BOOL, F32, I32, DType, dtype_of, promote, promote_scalar
from kernbench.common.errors import DataError
from kernbench.values.bytes_of import Patch, ViewParams
from kernbench.values.casts import cast
from kernbench.values.op import BackendName, DeviceArray, Op, Params, TensorType
from kernbench.values.ops import OPS, infer, op_named

Scalar: TypeAlias = bool | int | float
_SCALARS = (bool, int, float)
CONSTANT = "constant"


class Value:
    """One tensor value. Treat every field as read-only; `data` is None while the value is pending."""

    __slots__ = ("data", "id", "inputs", "op", "params", "type")

    def __init__(
        self,
        id_: int,
        type_: TensorType,
        op: str,
        inputs: tuple[Value, ...],
        params: Params,
        data: Array | DeviceArray | None = None,
    ) -> None:
        self.id = id_
        self.type = type_
        self.op = op
        self.inputs = inputs
        self.params = params
        self.data = data

    def array(self) -> Array | None:
        """The data as a numpy array, copied from a device if necessary; None while the value is pending."""
        data = self.data
        if data is None or isinstance(data, np.ndarray | np.generic):  # numpy returns a single number as a generic
            return data
        return data.host()

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def nbytes(self) -> int:
        return self.type.nbytes

    def __repr__(self) -> str:
        inputs = ", ".join(f"%{v.id}" for v in self.inputs)
        return f"%{self.id} = {self.op}({inputs}) {self.type}"


class ValueGraph:
    """Creates and numbers values. One per simulation. `backend` evaluates its values."""

    def __init__(self) -> None:
        self.backend: BackendName = "numpy"
        self._count = 0
        self._types: dict[tuple[Shape, DType], TensorType] = {}
        self._results: dict[tuple[object, ...], TensorType] = {}  # op, params and input types -> result type
        self._defaults: dict[str, Params] = {}  # op -> its parameters when none are given
        self._scalars: dict[tuple[str, DType], Value] = {}
        self.sites: dict[int, str] | None = None  # value id -> kernel line; None: not recorded

    def type_of(self, shape: Sequence[int], dtype: DType) -> TensorType:
        """The one TensorType object of this graph for `shape` and `dtype`."""
        key = (tuple(shape), dtype)
        found = self._types.get(key)
        if found is None:
            found = self._types[key] = TensorType(*key)
        return found

    @property
    def count(self) -> int:
        """How many values were made so far: the id of the last one."""
        return self._count

    def make(
        self, type_: TensorType, op: str, inputs: tuple[Value, ...], params: Params, data: Array | None = None
    ) -> Value:
        """A value without checks: `type_` is of this graph, and the parameters are bound."""
        self._count = number = self._count + 1
        return Value(number, type_, op, inputs, params, data)

    def constant(self, array: ArrayLike, dtype: DType | str | None = None) -> Value:
        """A constant: a copy of `array`, converted to `dtype` if given."""
        held = np.array(array, order="C")
        source = dtype_of(held.dtype)
        target = source if dtype is None else dtype_of(dtype)
        held = cast(held, source, target)
        held.setflags(write=False)
        return self.make(self.type_of(held.shape, target), CONSTANT, (), (), held)

    def full(self, shape: Sequence[int], value: Scalar, dtype: DType | str) -> Value:
        """A tensor filled with `value`; it takes no storage, whatever its size."""
        return self.apply("full", (), shape=tuple(shape), value=value, dtype=dtype_of(dtype))

    def apply(self, op: str, inputs: Sequence[Value | Scalar] = (), **params: object) -> Value:
        """The pending result of `op`. Python scalars among the inputs take the type of the tensors among the inputs.

        Raises DataError if shapes, dtypes or parameters do not fit.
        """
        spec = OPS.get(op) or op_named(op)
        values: tuple[Value, ...] = tuple(inputs)  # type: ignore[arg-type]  # scalars are replaced on the next lines
        try:
            types = [value.type for value in values]
        except AttributeError:
            values, params = self._with_scalars(spec, inputs, params)
            types = [value.type for value in values]
        if params:
            bound = spec.bind(params)
        else:
            found = self._defaults.get(op)
            bound = self._defaults[op] = spec.bind(params) if found is None else found
        key = (op, bound, *types)
        result = self._results.get(key)
        if result is None:
            result = self._results[key] = self.type_of(*infer(spec, types, bound))
        self._count = number = self._count + 1
        return Value(number, result, op, values, bound)

    def view(self, parent: Value, type_: TensorType, offset: int, stride: int, rows: int) -> Value:
        """Strided rows of the bytes of `parent`, `stride` bytes apart, as `type_`. The caller checks the bounds."""
        if parent.op == "view" and parent.data is None and parent.dtype is not BOOL:
            start, _, lines = cast_to(ViewParams, parent.params)
            if lines == 1:
                return self.make(type_, "view", parent.inputs, (start + offset, stride, rows))
        return self.make(type_, "view", (parent,), (offset, stride, rows))

    def gather(self, type_: TensorType, sources: Sequence[Value], patches: Sequence[Patch]) -> Value:
        """Bytes assembled from strided rows of other values, one patch per source; bytes without a patch are zero."""
        return self.make(type_, "gather", tuple(sources), tuple(patches))

    def _with_scalars(
        self, spec: Op, inputs: Sequence[Value | Scalar], params: dict[str, object]
    ) -> tuple[tuple[Value, ...], dict[str, object]]:
        """Scalars as 0-d values in full precision, and the result type, which scalars do not change."""
        if "dtype" not in spec.params or spec.name == "cast":
            raise DataError(f"{spec.name} takes tensors, got {inputs}", hint="make a tensor of the number with full()")
        deciding = inputs[1:] if spec.name == "where" else inputs
        dtypes = [v.dtype for v in deciding if isinstance(v, Value)]
        values: list[Value] = []
        weak: list[TensorType] = []
        for item in inputs:
            if isinstance(item, Value):
                values.append(item)
                weak.append(item.type)
                continue
            scalar = _plain_scalar(spec.name, item)
            untyped = BOOL if isinstance(scalar, bool) else I32 if isinstance(scalar, int) else F32
            dtype = promote_scalar(reduce(promote, dtypes), scalar) if dtypes else untyped
            values.append(self.scalar(scalar, dtype.work))
            weak.append(self.type_of((), dtype))
        result = infer(spec, weak, spec.bind(params))[1]
        return tuple(values), {**params, "dtype": result}

    def scalar(self, scalar: Scalar, dtype: DType) -> Value:
        """A single number; equal numbers are one value, so that backends need not stack it."""
        key = (repr(scalar), dtype)
        found = self._scalars.get(key)
        if found is None:
            found = self._scalars[key] = self.full((), scalar, dtype)
        return found


def _plain_scalar(op: str, item: object) -> Scalar:
    plain = item.item() if isinstance(item, np.generic) else item
    if not isinstance(plain, _SCALARS):
        raise DataError(f"{op}: an input is a {type(item).__name__}", hint="give tensors and Python numbers")
    return plain
