"""The builder that Triton's semantics call: numbers by Triton's interpreter, time by KernBench.

An operation none of whose inputs is device data is index arithmetic: evaluated at once, and counted. One with device
data is a command of the PE's MATH or GEMM engine, or costs nothing where it only looks at data another way. Loads,
stores and atomics are commands of its DMA engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from greenlet import getcurrent

from kernbench.triton.handles import DeviceHandle, shape_of, without_room
from kernbench.triton.internals import Builder, TritonHandle, core, native, np_dtype_of
from kernbench.triton.origins import BLOCKS, CARRIERS, attributes_of, carrying, with_origin
from kernbench.triton.recording import recordable
from kernbench.triton.refusals import refuse
from kernbench.triton.small_floats import FloatBuilder, is_small, rounded, widened

# Results that are the same data in another shape, or addresses: no engine.
VIEWS = frozenset((
    "create_addptr", "create_bitcast", "create_broadcast", "create_expand_dims", "create_int_to_ptr",
    "create_ptr_to_int", "create_reshape", "create_splat", "create_trans", "create_unsplat",
))  # fmt: skip
CASTS = frozenset((
    "create_bitcast", "create_fp_ext", "create_fp_to_fp", "create_fp_to_si", "create_fp_to_ui", "create_fp_trunc",
    "create_int_cast", "create_int_to_ptr", "create_ptr_to_int", "create_si_to_fp", "create_ui_to_fp", "cast_impl",
))  # fmt: skip
# Not operations on data: memory, control, and what is built from other methods of the builder.
OTHERS = frozenset((
    "create_advance", "create_assert", "create_assume", "create_make_block_ptr", "create_tensor_pointer_load",
    "create_tensor_pointer_store", "create_atomic_cas", "create_atomic_load", "create_atomic_poll",
    "create_atomic_rmw", "create_atomic_store", "create_barrier", "create_descriptor_gather",
    "create_descriptor_load", "create_descriptor_scatter", "create_descriptor_store", "create_dot",
    "create_dot_scaled", "create_extern_elementwise", "create_get_num_programs", "create_get_program_id",
    "create_inline_asm", "create_load", "create_make_range", "create_make_tensor_descriptor", "create_masked_load",
    "create_masked_store", "create_print", "create_split", "create_store",
))  # fmt: skip


_WHOLE_BLOCKS: dict[Any, tuple[Any, Any]] = {}  # by shape, strides, size: addresses from the first one on, and the mask
_MOST_BLOCKS = 256
_ALIGNED_BYTES = 16  # of a block's first address, which Triton asserts

_FLOATS = (np.dtype(np.float16), np.dtype(np.float32))


def _product(x: Any, y: Any) -> Any:
    """A product in f32. PyTorch computes it on one thread while kernels run (`Simulation`): numpy's BLAS hands blocks
    of this size to all cores, which takes hundreds of times as long as the product where cores are busy.
    """
    return torch.matmul(*(_as_torch(each).to(torch.float32) for each in (x, y))).numpy()


def _as_torch(array: Any) -> Any:
    """The same numbers in PyTorch, which warns of arrays that cannot be written."""
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else np.array(array, order="C"))


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "ADD": np.add, "MIN": np.minimum, "MAX": np.maximum,
    "AND": np.bitwise_and, "OR": np.bitwise_or, "XOR": np.bitwise_xor,
}  # fmt: skip


def _combined(combine: Callable[[Any, Any], Any], x: Any, y: Any, dtype: Any) -> Any:
    """Two arrays combined in their type."""
    if not is_small(dtype):
        return combine(x, y)
    return rounded(combine(*(widened(TritonHandle(each, dtype)).data for each in (x, y))), dtype)


def _added_in_turn(ptrs: Any, values: Any, dtype: Any) -> Any:
    """Add values to memory, those at one address one after the other; returns what each of them found."""
    order = np.argsort(ptrs, kind="stable")
    is_first = np.append(True, np.diff(ptrs[order]) != 0)
    at = np.arange(ptrs.size)
    turns = np.empty_like(at)
    turns[order] = at - np.maximum.accumulate(np.where(is_first, at, 0))
    old = np.zeros(ptrs.shape, values.dtype)
    for turn in range(int(turns.max()) + 1):
        live = turns == turn
        old[live] = native.load(ptrs, live, old, old.dtype)[live]
        native.store(ptrs, _combined(np.add, old, values, dtype), live)
    return old


def _block_of(desc: Any, indices: Any) -> tuple[Any, Any]:
    """The addresses of a descriptor's block, and which are inside. Those of a block that is inside as a whole differ
    from those of other such blocks by one number.
    """
    at = [int(index.data.item()) for index in indices]
    strides, sizes = ([int(each.data.item()) for each in values] for values in (desc.strides, desc.shape))
    shape = tuple(desc.block_shape)
    if any(first < 0 or first + block > size for first, block, size in zip(at, shape, sizes, strict=True)):
        return desc.materialize_pointers(indices)  # type: ignore[no-any-return]  # Triton has no types
    itemsize = desc.base.dtype.element_ty.primitive_bitwidth // 8
    key = (shape, tuple(strides), itemsize)
    known = _WHOLE_BLOCKS.get(key)
    if known is None:
        ptrs, mask = desc.materialize_pointers(indices)  # raises where a block is not aligned
        if len(_WHOLE_BLOCKS) >= _MOST_BLOCKS:
            _WHOLE_BLOCKS.clear()
        _WHOLE_BLOCKS[key] = ptrs.data - ptrs.data.flat[0], mask
        return ptrs, mask
    if at[-1] * itemsize % _ALIGNED_BYTES:
        return desc.materialize_pointers(indices)  # type: ignore[no-any-return]  # Triton has no types
    offsets, mask = known
    first = sum(index * stride for index, stride in zip(at, strides, strict=True)) * itemsize
    ptrs = offsets + np.uint64(desc.base.data.item() + first)
    return TritonHandle(ptrs, desc.base.dtype.scalar, attributes_of(desc.base)), mask


def current() -> Any:
    """The Triton program that runs in this greenlet; None outside kernels."""
    return getattr(getcurrent(), "triton_program", None)


@contextmanager
def outside_of_programs() -> Iterator[None]:
    """Operations within belong to one that the program has been charged for: they are none of its own."""
    thread, before = getcurrent(), current()
    thread.triton_program = None
    try:
        yield
    finally:
        thread.triton_program = before


def _name_of(method: str) -> str:
    return method.removeprefix("create_")


def _result_shape(method: str, args: tuple[Any, ...], handles: list[Any]) -> tuple[int, ...]:
    if method == "create_reshape" or method == "create_broadcast":
        return tuple(args[1])
    if method == "create_expand_dims":
        shape, axis = list(shape_of(args[0])), args[1]
        shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 1)
        return tuple(shape)
    if method == "create_trans":
        shape_in = shape_of(args[0])
        return tuple(shape_in[axis] for axis in args[1])
    if method == "create_splat":
        return tuple(args[0].shape)
    if method == "create_unsplat":
        return (1,)
    if method == "create_join":
        return (*shape_of(args[0]), 2)
    if method == "create_cat":
        first, second = shape_of(args[0]), shape_of(args[1])
        return (first[0] + second[0], *first[1:])
    if method == "create_histogram":
        return (int(args[1]),)
    if method == "create_gather":
        return shape_of(args[1])
    return np.broadcast_shapes(*(shape_of(handle) for handle in handles))


def _result_dtype(method: str, args: tuple[Any, ...], handles: list[Any]) -> Any:
    if method in CASTS:
        return args[1].scalar
    if method == "create_histogram":
        return core.int32
    if method == "create_select" or method == "create_fma":
        return handles[-1].dtype.scalar
    if method == "create_addptr":
        return handles[0].dtype
    return handles[0].dtype.scalar


def _wrapped(method: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Triton's builder that takes device data too."""
    is_view = method in VIEWS
    is_comparison = method.startswith(("create_icmp", "create_fcmp"))

    def call(self: Any, *args: Any) -> Any:
        handles = [arg for arg in args if isinstance(arg, TritonHandle)]
        inputs = tuple([handle for handle in handles if isinstance(handle, DeviceHandle)])
        program = current()
        if not inputs or program is None:
            if program is not None:
                program.index_ops += 1
            return plain(self, *args)
        shape = _result_shape(method, args, handles)
        dtype = core.int1 if is_comparison else _result_dtype(method, args, handles)
        needed = tuple([without_room(arg) for arg in args])

        def compute() -> Any:
            return plain(self, *needed).data

        if is_view:
            return program.view(compute, inputs, shape, dtype)
        return program.math(_name_of(method), compute, inputs, shape, dtype, dtype)

    call.__name__ = method
    return call


class SimulatedBuilder(FloatBuilder):
    """Triton's builder with memory, engines and time."""

    def __init__(self) -> None:
        super().__init__()
        # The interpreter computes every integer operation again in 64 bits, for an assertion that it makes in a debug
        # build only: else neither is part of the kernel.
        self.set_debug(False)

    def set_debug(self, is_debug: bool) -> None:
        """Whether assertions on the device are part of the kernel."""
        plain: Any = vars(self)["options"]
        self.options = replace(plain, debug=is_debug, sanitize_overflow=is_debug)

    def create_get_program_id(self, axis: int) -> Any:
        return TritonHandle(np.array([current().program_id[axis]], dtype=np.int32), core.int32)

    def create_get_num_programs(self, axis: int) -> Any:
        return TritonHandle(np.array([current().grid[axis]], dtype=np.int32), core.int32)

    # ---- memory

    def create_load(self, ptr: Any, *_: Any) -> Any:
        return current().load(ptr, None, None)

    def create_store(self, ptr: Any, val: Any, *_: Any) -> None:
        current().store(ptr, val, None)

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *_: Any) -> Any:
        return current().load(ptrs, mask, other)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *_: Any) -> None:
        current().store(ptrs, value, mask)

    def create_atomic_rmw(self, rmw_op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        op, order = self.ir_rmw_op_to_interpreter_rmw_op[rmw_op], self.ir_sem_to_interpreter_sem[sem]

        def change(ptrs: Any, values: Any, live: Any) -> Any:
            if is_small(dtype):  # of which the interpreter knows none; the language has a sum only
                return _added_in_turn(ptrs, values[0], dtype)
            return native.atomic_rmw(op, ptrs, values[0], live, order)

        dtype = val.dtype.scalar
        return current().atomic(str(op.name).lower(), ptr, (val,), mask, change, dtype)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        order = self.ir_sem_to_interpreter_sem[sem]

        def change(ptrs: Any, values: Any, live: Any) -> Any:
            return native.atomic_cas(ptrs, values[0], values[1], order)

        return current().atomic("cas", ptr, (cmp, val), None, change, cmp.dtype.scalar)

    def create_atomic_load(self, ptr: Any, mask: Any, sem: Any, scope: Any) -> Any:
        loaded = current().load(ptr, mask, None)
        current().wait_for(loaded.after)
        return loaded

    def create_atomic_store(self, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> None:
        current().fence()
        current().store(ptr, val, mask)
        current().fence()

    def create_atomic_poll(self, ptr: Any, expected: Any, timeout_ns: Any, sem: Any, scope: Any) -> Any:
        program = current()
        # without one, Triton gives a value of its compiler
        until = program.now_ns + float(timeout_ns.data.item()) if isinstance(timeout_ns, TritonHandle) else None
        while True:
            found = program.load(ptr, None, None)
            matched = found.data == expected.data
            if matched.all() or (until is not None and program.now_ns >= until):
                return TritonHandle(matched, core.int1)

    # ---- matrix products

    def create_dot(self, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        x, y, z = without_room(a), without_room(b), without_room(d)

        def compute() -> Any:
            left, right = widened(x), widened(y)
            if left.data.dtype in _FLOATS and right.data.dtype in _FLOATS and z.data.dtype == np.float32:
                return _product(left.data, right.data) + z.data
            return Builder.create_dot(self, left, right, z, *rest).data

        return current().dot(compute, a, b, d)

    def create_dot_scaled(self, lhs: Any, lhs_scale: Any, lhs_format: Any, rhs: Any, *rest: Any) -> Any:
        acc = rest[-1]
        args = tuple([without_room(arg) for arg in (lhs, lhs_scale, lhs_format, rhs, *rest)])
        return current().dot(lambda: Builder.create_dot_scaled(self, *args).data, lhs, rhs, acc, (lhs_scale, rest[0]))

    # ---- several operations of the plain builder

    def create_split(self, val: Any) -> Any:
        if not isinstance(val, DeviceHandle):
            return Builder.create_split(self, val)
        program, shape, held = current(), val.shape[:-1], without_room(val)
        return tuple(
            program.math("split", lambda at=at: held.data[..., at], (val,), shape, val.dtype.scalar, val.dtype.scalar)
            for at in (0, 1)
        )

    def create_descriptor_gather(self, desc: Any, x_offsets: Any, y_offset: Any, *_: Any) -> Any:
        ptrs = self._rows_of(desc, x_offsets, y_offset)
        return current().load(*ptrs, None)

    def create_descriptor_scatter(self, desc: Any, value: Any, x_offsets: Any, y_offset: Any) -> None:
        ptrs, mask = self._rows_of(desc, x_offsets, y_offset)
        current().store(ptrs, value, mask)

    def _rows_of(self, desc: Any, x_offsets: Any, y_offset: Any) -> tuple[Any, Any]:
        """The addresses of rows of a descriptor by their numbers, and which of them are inside."""
        ptrs, masks = [], []
        for row in x_offsets.data:
            found, inside = desc.materialize_pointers([TritonHandle(np.asarray(row), core.int32), y_offset])
            ptrs.append(found.data.reshape(-1))
            masks.append((inside.data if isinstance(inside, TritonHandle) else inside).reshape(-1))  # by release
        dtype = desc.base.dtype.scalar
        return TritonHandle(np.stack(ptrs), dtype, attributes_of(desc.base)), TritonHandle(np.stack(masks), core.int1)

    def create_descriptor_load(self, desc: Any, indices: Any, *rest: Any) -> Any:
        ptrs, mask = _block_of(desc, indices)
        dtype = ptrs.get_element_ty()
        is_nan = "NAN" in str(desc.padding).upper()
        other = TritonHandle(np.full_like(ptrs.data, float("nan"), dtype=np_dtype_of(dtype)), dtype) if is_nan else None
        return current().load(ptrs, mask, other)

    def create_descriptor_reduce(self, kind: Any, desc: Any, value: Any, indices: Any) -> Any:
        """A block that is added to, or otherwise combined with, what a descriptor's memory holds."""
        ptrs, mask = desc.materialize_pointers(indices)
        dtype = ptrs.get_element_ty()
        found, combine = np_dtype_of(dtype), _REDUCTIONS.get(kind.name)
        if combine is None:
            refuse(f"a descriptor's atomic '{kind.name.lower()}'", f"use one of {', '.join(_REDUCTIONS)}")

        def change(ptrs: Any, values: Any, live: Any) -> Any:
            old = native.load(ptrs, live, np.zeros(ptrs.shape, found), found)
            native.store(ptrs, _combined(combine, old, values[0], dtype), live)
            return old

        return current().atomic(kind.name.lower(), ptrs, (value,), mask, change, dtype)

    # ---- what only has an effect

    def create_barrier(self) -> None:
        """Programs run one after the other on a PE: there is nothing to wait for."""

    def create_print(self, prefix: Any, hex: Any, values: Any, *rest: Any) -> None:
        program = current()
        if not program.has_effects:
            program.give_up()  # it has to print again
            return
        for value in values:
            program.materialize(value)
        self.grid_idx = program.program_id
        Builder.create_print(self, prefix, hex, values, *rest)

    def create_assert(self, condition: Any, message: Any, *_: Any) -> None:
        if not current().materialize(condition).all() and current().has_effects:
            refuse(
                f"device_assert failed in program {current().program_id}: {message}",
                "the condition does not hold there",
            )

    def create_grid_dependency_wait(self) -> None:
        """Launches run one after the other: the one before is over."""

    def create_grid_dependency_launch_dependents(self) -> None:
        """The next launch begins when this one is over."""

    # ---- refused

    def create_inline_asm(self, *_: Any) -> Any:
        refuse(
            "inline assembly is not supported by the simulator",
            "it is for one processor: write the operation in Triton",
        )

    def create_extern_elementwise(self, lib: Any, path: Any, symbol: Any, *_: Any) -> Any:
        refuse(
            f"the library function '{symbol}' is not supported by the simulator",
            "it is machine code of one vendor; libdevice functions are known",
        )


for _method in dir(SimulatedBuilder):
    if _method.startswith("create_"):
        is_plain = _method not in OTHERS and _method not in vars(SimulatedBuilder)
        _function = getattr(FloatBuilder if is_plain else SimulatedBuilder, _method)
        _function = _wrapped(_method, _function) if is_plain else _function
        if _method in CARRIERS:
            _function = carrying(_function, CARRIERS[_method])
        elif _method in BLOCKS:
            _function = with_origin(_function)
        setattr(SimulatedBuilder, _method, recordable(_function))
