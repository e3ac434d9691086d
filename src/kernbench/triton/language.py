"""Triton's language while a launch runs: its own interpreter's patches, with reductions and scans of ours.

Kernels are rewritten (`rewriting`). Reductions and scans are one command of MATH each, with Triton's own numbers; user
functions are applied to whole slices at a time, in a tree of neighbours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from kernbench.triton import libdevice
from kernbench.triton.builder import SimulatedBuilder, current, outside_of_programs
from kernbench.triton.handles import DeviceHandle, without_room
from kernbench.triton.internals import TritonHandle, TritonSemantic, core, interpreter, language, np_dtype_of, standard
from kernbench.triton.recording import recordable
from kernbench.triton.refusals import refuse, refused_functions
from kernbench.triton.rewriting import PipelinedRange, rewritten
from kernbench.triton.shared_types import block_init, tensor_init
from kernbench.triton.small_floats import SCALED_OPERAND, is_small, scaled_operand
from kernbench.triton_emu.call_site import is_own_code

_Change = tuple[object, str, object, object]  # what, which attribute, as it was, as it is while kernels run


# ---- ranges


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, core.constexpr) else value


def _range(arg1: Any, arg2: Any = None, step: Any = None, **options: Any) -> PipelinedRange:
    if _plain(options.get("warp_specialize")):
        refuse(
            "warp specialisation is not supported by the simulator",
            "it is for processors with warps: leave warp_specialize out",
        )
    start, end = (0, arg1) if arg2 is None else (arg1, arg2)
    stages = _plain(options.get("num_stages"))
    items = range(_index(start), _index(end), 1 if step is None else _index(step))
    return PipelinedRange(items, None if stages is None else max(int(stages), 1))


def _static_range(arg1: Any, arg2: Any = None, step: Any = None, **_: Any) -> range:
    start, end = (0, arg1) if arg2 is None else (arg1, arg2)
    return range(_index(start), _index(end), 1 if step is None else _index(step))


def _static_print(*args: Any, **options: Any) -> None:
    """Not in programs that are run ahead, which then have to run again."""
    program = current()
    if program is not None and not program.has_effects:
        program.give_up()
    else:
        print(*args, **options)


def _index(value: Any) -> int:
    value = _plain(value)
    return int(_settled(value).reshape(-1)[0]) if isinstance(value, core.tensor) else int(value)


# ---- looking at numbers


def _settled(tensor: Any) -> Any:
    """The numbers of a tensor, at the instant at which the machine has them."""
    program = current()
    return tensor.handle.data if program is None else program.materialize(tensor.handle)


def _bool(self: Any) -> bool:
    shape = tuple(self.type.get_block_shapes()) if self.type.is_block() else ()
    if prod(shape) != 1:
        if is_own_code(sys._getframe(1)):  # Triton asks whether there is a tensor
            return True
        refuse(f"the truth of a block of shape {shape}", "reduce it to one value, or use tl.where or a mask")
    return bool(_settled(self).reshape(-1)[0])


def _transposed(self: Any) -> Any:
    shape = list(self.type.shape)
    shape[-1], shape[-2] = shape[-2], shape[-1]
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    handle = interpreter.interpreter_builder.create_trans(self.handle, axes)
    return core.tensor(handle, core.block_type(self.dtype, shape))


# ---- reductions and scans

_NATIVE_REDUCTIONS = tuple(
    getattr(standard, name)
    for name in (
        "_argmin_combine_tie_break_left", "_argmin_combine_tie_break_fast", "_argmax_combine_tie_break_left",
        "_argmax_combine_tie_break_fast", "_elementwise_max", "_elementwise_min", "_sum_combine",
    )
)  # fmt: skip


def _reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
    axis, keep_dims = _plain(axis), _plain(keep_dims)
    is_several = isinstance(input, (tuple, core.tuple))
    tensors = tuple(input) if is_several else (input,)
    if axis is not None and axis < 0:
        axis += len(tensors[0].shape)
    found = _collective("reduce", tensors, lambda plain: _reduced(plain, axis, combine_fn, keep_dims))
    return found if is_several else found[0]


def _scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
    axis, reverse = _plain(axis), _plain(reverse)
    is_several = isinstance(input, (tuple, core.tuple))
    tensors = tuple(input) if is_several else (input,)
    if axis < 0:
        axis += len(tensors[0].shape)
    found = _collective("scan", tensors, lambda plain: _scanned(plain, axis, combine_fn, reverse))
    return found if is_several else found[0]


@recordable
def _collective(name: str, tensors: tuple[Any, ...], compute: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Any:
    """An op over an axis of one or several tensors: at once for index data, else a command of MATH."""
    program = current()
    inputs = tuple([each.handle for each in tensors if isinstance(each.handle, DeviceHandle)])
    if program is None or not inputs:
        if program is not None:
            program.index_ops += 1
        with outside_of_programs():
            return compute(tensors)
    with outside_of_programs():  # the types of the results are those of the same op on zeros
        shapes = compute(tuple(_zeros_like(each) for each in tensors))
    results: list[Any] = []
    needed = tuple(core.tensor(without_room(each.handle), each.type) for each in tensors)

    def numbers(at: int) -> Any:
        if not results:
            with outside_of_programs():
                results.extend(compute(tuple(_plain_tensor(each) for each in needed)))
        return results[at].handle.data

    found: list[Any] = []
    for at, like in enumerate(shapes):
        handle = like.handle
        shape = tuple(np.shape(handle.data))
        args = (lambda at=at: numbers(at), inputs, shape, handle.dtype)
        if at == 0:
            elements = max(int(np.prod(each.shape)) for each in inputs)
            node = program.math(name, *args, handle.dtype, elements=elements)
        else:  # delivered by the same command
            node = DeviceHandle.of(
                shape, handle.dtype, program._room(shape, handle.dtype), args[0], inputs, found[0].handle.after
            )
        found.append(core.tensor(node, like.type))
    return tuple(found)


def _zeros_like(tensor: Any) -> Any:
    handle = tensor.handle
    shape = handle.shape if isinstance(handle, DeviceHandle) else np.shape(handle.data)
    return core.tensor(TritonHandle(np.zeros(shape, np_dtype_of(handle.dtype)), handle.dtype), tensor.type)


def _plain_tensor(tensor: Any) -> Any:
    handle = tensor.handle
    return core.tensor(TritonHandle(handle.data, handle.dtype), tensor.type)


def _reduced(tensors: tuple[Any, ...], axis: int | None, combine_fn: Any, keep_dims: bool) -> tuple[Any, ...]:
    is_native = any(combine_fn is each for each in _NATIVE_REDUCTIONS)
    if is_native and not any(is_small(each.dtype) for each in tensors):
        with np.errstate(all="ignore"):
            found = interpreter.ReduceOps(axis, combine_fn, keep_dims).apply(tensors)
        return found if isinstance(found, tuple) else (found,)
    arrays = [each.handle.data for each in tensors]
    rank = arrays[0].ndim
    if axis is None:
        arrays, along = [array.reshape(-1) for array in arrays], 0
    else:
        along = axis
    while arrays[0].shape[along] > 1:
        n = arrays[0].shape[along]
        left = [_take(array, along, slice(0, n - n % 2, 2)) for array in arrays]
        right = [_take(array, along, slice(1, n, 2)) for array in arrays]
        rest = [_take(array, along, slice(n - n % 2, n)) for array in arrays]
        merged = _combined(combine_fn, left, right, tensors)
        arrays = [np.concatenate(pair, axis=along) if n % 2 else pair[0] for pair in zip(merged, rest, strict=True)]
    results = [array.squeeze(along) for array in arrays]
    if keep_dims:
        results = [array.reshape((1,) * rank) if axis is None else np.expand_dims(array, along) for array in results]
    ops = interpreter.ReduceOps(axis, combine_fn, keep_dims)
    return tuple(
        ops.to_tensor(array if array.shape else array.item(), each.dtype)
        for array, each in zip(results, tensors, strict=True)
    )


def _scanned(tensors: tuple[Any, ...], axis: int, combine_fn: Any, reverse: bool) -> tuple[Any, ...]:
    ops = interpreter.ScanOps(axis, combine_fn, reverse)
    is_native = combine_fn is standard._sum_combine or combine_fn is getattr(standard, "_prod_combine", None)
    if is_native and not is_small(tensors[0].dtype):
        return tuple(ops.apply(tensors))
    arrays = [each.handle.data for each in tensors]
    if reverse:
        arrays = [np.flip(array, axis) for array in arrays]
    n, distance = arrays[0].shape[axis], 1
    while distance < n:  # element i holds the last 2 * distance elements up to i after each step
        shifted = [np.roll(array, distance, axis) for array in arrays]
        merged = _combined(combine_fn, shifted, arrays, tensors)
        arrays = [
            np.concatenate((_take(array, axis, slice(0, distance)), _take(new, axis, slice(distance, n))), axis=axis)
            for array, new in zip(arrays, merged, strict=True)
        ]
        distance *= 2
    if reverse:
        arrays = [np.flip(array, axis) for array in arrays]
    return tuple(
        ops.to_tensor(np.ascontiguousarray(array), each.dtype) for array, each in zip(arrays, tensors, strict=True)
    )


def _take(array: Any, axis: int, part: slice) -> Any:
    index: list[slice] = [slice(None)] * array.ndim
    index[axis] = part
    return array[tuple(index)]


def _combined(combine_fn: Any, left: list[Any], right: list[Any], tensors: tuple[Any, ...]) -> list[Any]:
    """A user's function applied to whole slices."""

    def tensor(array: Any, like: Any) -> Any:
        kind = core.block_type(like.dtype, list(array.shape))
        return core.tensor(TritonHandle(np.ascontiguousarray(array), like.dtype.scalar), kind)

    args = [tensor(a, t) for a, t in zip(left, tensors, strict=True)]
    args += [tensor(a, t) for a, t in zip(right, tensors, strict=True)]
    with np.errstate(all="ignore"):
        got = rewritten(combine_fn.fn)(*args)
    several = tuple(got) if isinstance(got, (tuple, core.tuple)) else (got,)
    return [
        np.broadcast_to(each.handle.data, left[0].shape).astype(np_dtype_of(like.dtype))
        for each, like in zip(several, tensors, strict=True)
    ]


# ---- while kernels run


class Patches:
    """The changes to Triton's modules, made and undone together."""

    def __init__(self) -> None:
        self.builder = SimulatedBuilder()
        self._before: tuple[Any, Any] = (None, None)
        self._changes: list[_Change] = []

    def find(self) -> None:
        """Let Triton patch its language once, and keep what it changed."""
        scope = _Scope()
        for lang in (language, core):
            interpreter._patch_builtin(lang, self.builder, scope)
            interpreter._patch_builtin(lang.tensor, self.builder, scope)
            interpreter._patch_lang_tensor(lang.tensor, scope)
            interpreter._patch_lang_core(lang, scope)
        interpreter._patch_builtin(language.math, self.builder, scope)
        interpreter._patch_builtin(core.tensor_descriptor_base, self.builder, scope)
        for lang in (language, core):
            scope.set_attr(lang, "range", _range)
            scope.set_attr(lang, "static_range", _static_range)
            scope.set_attr(lang, "reduce", _reduce)
            scope.set_attr(lang, "associative_scan", _scan)
            scope.set_attr(lang, "static_print", _static_print)
            for name, function in refused_functions():
                scope.set_attr(lang, name, function)
        scope.set_attr(core.tensor, "__index__", _index)
        scope.set_attr(core.tensor, "__int__", _index)
        scope.set_attr(core.tensor, "__bool__", _bool)
        scope.set_attr(core.tensor, "T", property(_transposed))
        scope.set_attr(core.tensor, "__array_ufunc__", None)  # numpy's functions say that they do not take it
        for module, name, function in libdevice.found_replacements():
            scope.set_attr(module, name, function)
        scope.set_attr(core.tensor, "__init__", tensor_init)
        scope.set_attr(core.block_type, "__init__", block_init)
        scope.set_attr(interpreter, "_get_np_dtype", np_dtype_of)  # the interpreter makes its table at every call
        if hasattr(interpreter, SCALED_OPERAND):
            scope.set_attr(interpreter, SCALED_OPERAND, scaled_operand)
        self._changes = scope.undo()

    def __enter__(self) -> None:
        if not self._changes:
            self.find()
        self._before = interpreter.interpreter_builder, interpreter.interpreter_semantic
        interpreter.interpreter_builder = self.builder
        interpreter.interpreter_semantic = TritonSemantic(self.builder)
        for owner, name, _, during in self._changes:
            setattr(owner, name, during)

    def __exit__(self, *_: object) -> None:
        interpreter.interpreter_builder, interpreter.interpreter_semantic = self._before
        _restore(self._changes)


_MISSING = object()


def _restore(changes: list[_Change]) -> None:
    for owner, name, before, _ in changes:
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


class _Scope:
    """Takes Triton's patches; the first value of each attribute is the one to go back to."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], tuple[object, object]] = {}

    def set_attr(self, owner: object, name: str, value: object) -> None:
        before: object = vars(owner).get(name, _MISSING)
        self._first.setdefault((id(owner), name), (owner, before))
        setattr(owner, name, value)

    def undo(self) -> list[_Change]:
        """Put everything back; returns the changes."""
        changes = [(owner, name, before, vars(owner)[name]) for (_, name), (owner, before) in self._first.items()]
        _restore(changes)
        return changes
