"""`tl.composite`: a tiled op with epilogues that runs alongside the kernel, and `tl.wait` for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

import numpy as np

from kernbench.common.commands import CompositeCmd, Operand, OpSpec, Scope, Segment, WaitCmd
from kernbench.common.dtypes import F32, DType, dtype_of, promote
from kernbench.common.errors import DataError, KernBenchError
from kernbench.common.whole_numbers import is_whole
from kernbench.triton_emu.call_site import at_kernel_line
from kernbench.triton_emu.epilogues import EPILOGUES, MATH_OPS, SCOPES
from kernbench.triton_emu.handle import Scalar, TensorHandle
from kernbench.triton_emu.kernel_runner import Records
from kernbench.triton_emu.pending_handle import CompletionHandle, PendingHandle
from kernbench.triton_emu.tl_core import TlCore
from kernbench.values.graph import Value
from kernbench.values.op import broadcast_shape

EpilogueSpec = Mapping[str, object]
Ready = tuple[OpSpec, list[TensorHandle | Scalar]]  # an epilogue, and its operands


class TlComposite(TlCore):
    """Composites, and waiting for commands."""

    def composite(
        self,
        op: str,
        a: TensorHandle,
        b: TensorHandle | None = None,
        out_ptr: int | None = None,
        math_op: str | None = None,
        epilogue: Sequence[EpilogueSpec] | None = None,
        acc_dtype: object = None,
        tile_shape: Sequence[int] | str | None = None,
        out_dtype: object = None,
    ) -> CompletionHandle:
        """Start a tiled op and return; `tl.wait` waits for it. References are streamed, tensors in TCM are pinned.

        op "gemm": (M, K) by (K, N). op "math": `math_op` of a, or of a and b broadcast. References are read when this
        is called, and the result is written to `out_ptr` when all tiles are done; if an earlier composite has yet to
        write any of these bytes, the call waits for it first. Without `out_ptr` the result stays in TCM, and
        `tl.wait` returns it.
        `epilogue` is a list of steps (see epilogues.py), computed in `acc_dtype` (f32, or i32 for integers);
        `tile_shape` is (m, k, n), or (m, n) for math; "auto" is the fastest tile by the model of the pipeline, and
        without it the PE's native tile is taken. Shape: (M, N), or the inputs' broadcast. dtype: the output tensor's;
        in TCM `out_dtype`, or as in `tl.dot`. Engines: DMA, FETCH_STORE, GEMM and MATH, tile by tile; none where the
        result has no elements. Unknown ops and missing fields fail here.
        """
        if op not in ("gemm", "math"):
            self._fail(f"composite: unknown op {op!r}", "use 'gemm', or 'math' with math_op")
        inputs = self._heads(op, a, b, math_op)
        shape = self._out_shape(op, inputs)
        acc = self._acc(inputs, acc_dtype)
        if not isinstance(epilogue, list | tuple | None):
            self._fail(f"composite: epilogue is {epilogue!r}", 'give a list of steps, say [{"op": "relu"}]')
        steps = [self._step(number, step, shape, acc) for number, step in enumerate(epilogue or ())]
        steps.sort(key=lambda ready: tuple(Scope).index(ready[0].scope))  # within a scope, as listed
        out, dtype = self._target(op, inputs, shape, out_ptr, out_dtype)
        tile = self._tile(tile_shape)
        used = (*inputs, *(x for _, operands in steps for x in operands if isinstance(x, TensorHandle)))
        pieces = list(out.segments) if out is not None else []
        streamed = [piece for x in used for piece in x.segments]
        waited = (*self._wait_for_pending(pieces, writing=True), *self._wait_for_pending(streamed))
        value = self._result(op, math_op, inputs, steps, acc, dtype)
        result = self._new(value) if out is None else None
        handle = CompletionHandle(inputs[0].tl, used, result)
        if not value.type.size:
            handle.command.finish(())
            return handle
        target = out if result is None else result.operand()
        assert target is not None
        made = (number for x in used for number in x.records)
        deps = tuple(dict.fromkeys((*made, *waited, *self._written_by(streamed))))
        kind: Literal["gemm", "math"] = "gemm" if op == "gemm" else "math"
        specs = tuple(spec for spec, _ in steps)
        cmd = CompositeCmd(kind, tuple(x.operand() for x in inputs), target, tile, math_op or "", acc.name, specs, deps)
        self._issue(cmd, handle, pieces, value)
        return handle

    def _issue(self, cmd: CompositeCmd, handle: CompletionHandle, pieces: list[Segment], value: Value) -> None:
        """Issue a composite to the PE; memory has its result when it is done."""
        command = handle.command

        def done(records: Records) -> None:
            if pieces:
                self._write(pieces, value, records)
                self._under_way.end(command)
            command.finish(records)

        try:
            command.number = self._runner.issue(cmd, done)
        except KernBenchError as error:
            raise at_kernel_line(error) from None
        if pieces:
            self._under_way.begin(command, pieces)
        if handle.out is not None:
            handle.out.composite = command

    def wait(self, handle: PendingHandle | None = None) -> TensorHandle | None:
        """Wait for a composite, a load, a store, a send or a receive, or for all that are in flight. Engine: none.

        Returns the tensor that the command left in TCM, if any, and the same tensor when called again, as long as the
        kernel holds it: once returned it belongs to the kernel, and its TCM is freed when the kernel drops it.
        """
        if handle is None:
            self._call(WaitCmd())
            self._receives.clear()
            self._raise_failure()
            return None
        if not isinstance(handle, PendingHandle) or handle.tl is not self:
            self._fail(
                f"wait: {handle!r} is nothing of this kernel that is under way",
                "give what tl.composite, tl.load_async, tl.store_async, tl.send_async or tl.recv_async returned",
            )
        self._await(handle.command)
        return handle.hand_over()

    # ---- what a composite is given

    def _heads(self, op: str, a: TensorHandle, b: TensorHandle | None, math_op: str | None) -> list[TensorHandle]:
        inputs = [self._tensor("composite", a, "a")]
        if op == "gemm":
            if b is None or math_op is not None:
                self._fail("composite: op 'gemm' needs a and b, and no math_op", "composite('gemm', a, b, ...)")
            inputs.append(self._tensor("composite", b, "b"))
            return inputs
        if math_op not in MATH_OPS:
            self._fail(f"composite: unknown math_op {math_op!r}", f"use one of {', '.join(MATH_OPS)}")
        if (b is not None) != (MATH_OPS[math_op] == 2):
            self._fail(
                f"composite: {math_op} takes {MATH_OPS[math_op]} tensors", "give a, and b only where it takes two"
            )
        if b is not None:
            inputs.append(self._tensor("composite", b, "b"))
        return inputs

    def _out_shape(self, op: str, inputs: list[TensorHandle]) -> tuple[int, ...]:
        a, b = inputs[0], inputs[-1]
        if op == "gemm":
            if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
                self._fail(f"composite: gemm of {a.shape} by {b.shape}", "expected (M, K) by (K, N)")
            return a.shape[0], b.shape[1]
        try:
            shape = broadcast_shape("composite", [x.shape for x in inputs])
        except DataError as error:
            raise at_kernel_line(error) from None
        for name, x in zip("ab", inputs, strict=False):
            self._check_spread(shape, x.shape, f"composite: {name}")
        return shape

    def _check_spread(self, shape: tuple[int, ...], other: tuple[int, ...], what: str) -> None:
        """Tiles are cut from rows and columns, leading axes being rows: of each a tensor must have all or one."""
        try:
            fits = broadcast_shape("composite", [shape, other]) == shape
        except DataError:
            fits = False
        if not fits or prod(other[:-1]) not in (1, prod(shape[:-1])):
            rows, cols = shape[:-1], shape[-1:]
            allowed = (shape, cols, (*(1 for _ in rows), *cols), (*rows, *(1 for _ in cols)))
            expected = ", ".join(map(str, dict.fromkeys(allowed)))
            self._fail(f"{what} has shape {other}", f"expected one of {expected}, or a number")

    def _acc(self, inputs: list[TensorHandle], acc_dtype: object) -> DType:
        usual = promote(dtype_of(inputs[0].dtype), dtype_of(inputs[-1].dtype)).accumulate
        acc = self._dtype(acc_dtype) if acc_dtype is not None else usual
        if not acc.is_float and acc is not usual:
            given = " and ".join(x.dtype for x in inputs)
            self._fail(
                f"composite: acc_dtype {acc} cannot hold sums of {given}", f"use {usual}, or leave acc_dtype out"
            )
        return acc

    def _step(self, number: int, step: EpilogueSpec, shape: tuple[int, ...], acc: DType) -> Ready:
        where = f"epilogue[{number}]"
        if not isinstance(step, Mapping) or "op" not in step:
            self._fail(f"{where} is {step!r}", 'give a dict with an "op", say {"op": "relu"}')
        name, scope = step["op"], step.get("scope", Scope.OUTPUT_TILE.value)
        known = EPILOGUES.get(name) if isinstance(name, str) else None
        if known is None:
            self._fail(f"{where}: unknown op {name!r}", f"use one of {', '.join(EPILOGUES)}")
        if scope not in SCOPES:
            self._fail(f"{where}: unknown scope {scope!r}", f"use one of {', '.join(SCOPES)}")
        if scope == Scope.K_TILE.value and not known.linear:
            listed = ", ".join(n for n, s in EPILOGUES.items() if s.linear)
            self._fail(
                f"{where}: {name} cannot be applied to partial sums: the result would depend on the number of K tiles",
                f"use scope 'output_tile'; 'k_tile' is for what multiplies: {listed}",
            )
        for field in known.fields:
            if field not in step:
                self._fail(f"{where}: {name} has no '{field}'", f'say {{"op": "{name}", "{field}": ...}}')
        for field in step:
            if field not in ("op", "scope", *known.fields):
                self._fail(
                    f"{where}: {name} has no field {field!r}", f"its fields: {', '.join(known.fields) or 'none'}"
                )
        operands: list[TensorHandle | Scalar] = []
        operand = None
        for field in known.fields:
            given = step[field]
            given = given.item() if isinstance(given, np.generic) else given
            if isinstance(given, bool | int | float):
                operands.append(given)
                continue
            tensor = self._tensor("composite", given, f"{where}['{field}']")
            self._check_spread(shape, tensor.shape, f"{where}: {field}")
            if operand is not None:
                self._fail(f"{where}: two tensors", f"give {name} at most one tensor")
            operand = tensor.operand()
            operands.append(tensor)
        return OpSpec(known.op, Scope(str(scope)), operand, acc.name), operands

    def _target(
        self, op: str, inputs: list[TensorHandle], shape: tuple[int, ...], out_ptr: int | None, out_dtype: object
    ) -> tuple[Operand | None, DType]:
        """Where the result goes, None for TCM, and its type."""
        if out_ptr is None:
            if out_dtype is not None:
                return None, self._dtype(out_dtype)
            if op == "gemm":
                return None, self._product_dtype(inputs[0], inputs[1])
            mixed = promote(dtype_of(inputs[0].dtype), dtype_of(inputs[-1].dtype))
            return None, mixed if mixed.is_float else F32
        out_ptr = self._on_shard("composite: out_ptr", out_ptr, shape, streams=True)
        tensor = self._tensor_at("composite: out_ptr", out_ptr, not prod(shape))
        if out_dtype is not None and self._dtype(out_dtype).name != tensor.dtype:
            self._fail(
                f"composite: '{tensor.name}' holds {tensor.dtype}, got out_dtype {out_dtype!r}", "leave out_dtype out"
            )
        out = Operand(int(out_ptr), shape, tensor.dtype, tensor.space, layout=tensor.layout)
        self._check_range("composite: out_ptr", out_ptr, tensor, 0, out.nbytes, dtype_of(tensor.dtype).itemsize)
        segments = tuple(self._translation(out_ptr)(out.address, out.nbytes)) if out.elements else ()
        return out._replace(segments=segments), dtype_of(tensor.dtype)

    def _product_dtype(self, a: TensorHandle, b: TensorHandle) -> DType:
        """The default type of a product: two-byte and wider floats keep their type, one-byte ones give f32."""
        mixed = promote(dtype_of(a.dtype), dtype_of(b.dtype))
        return mixed if mixed.is_float and mixed.itemsize > 1 else mixed.accumulate

    def _tile(self, tile_shape: Sequence[int] | str | None) -> tuple[int, ...] | Literal["auto"] | None:
        if tile_shape is None:
            return None
        if isinstance(tile_shape, str) and tile_shape == "auto":
            return "auto"
        sizes = tile_shape if isinstance(tile_shape, list | tuple) else (None,)
        if not all(is_whole(size) for size in sizes):
            self._fail(f"composite: tile_shape is {tile_shape!r}", 'give (m, k, n), or (m, n) for math, or "auto"')
        return tuple(int(size) for size in sizes if size is not None)

    # ---- what it computes

    def _value_of(self, x: TensorHandle) -> Value:
        """The value of an operand; a reference is read now."""
        if x.value is not None:
            return x.value
        dtype = dtype_of(x.dtype)
        if not x.transposed:
            return self._read(list(x.segments), x.shape, dtype)
        return self._apply("trans", (self._read(list(x.segments), x.shape[::-1], dtype),))

    def _result(
        self, op: str, math_op: str | None, inputs: list[TensorHandle], steps: list[Ready], acc: DType, dtype: DType
    ) -> Value:
        """One value for the whole composite: the head, then the epilogues in the accumulating type, rounded once."""
        operands = [self._value_of(x) for x in inputs]
        head = "dot" if op == "gemm" else str(math_op)
        if not steps:
            return self._apply(head, operands, dtype=dtype)
        value = self._apply(head, operands, dtype=acc)
        for at, (spec, given) in enumerate(steps):
            others = [self._value_of(x) if isinstance(x, TensorHandle) else x for x in given]
            last = at == len(steps) - 1
            value = self._apply(spec.kind, (value, *others), dtype=dtype if last else acc if acc.is_float else None)
        return value
