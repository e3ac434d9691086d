"""`tl`: constants, and views of tensors."""

from __future__ import annotations

from kernbench.common.array_types import Array
from kernbench.common.errors import DataError
from kernbench.common.whole_numbers import is_whole
from kernbench.triton_emu.call_site import at_kernel_line
from kernbench.triton_emu.handle import Index, Scalar, TensorHandle
from kernbench.triton_emu.tl_core import BUFFER, TlCore
from kernbench.values.evaluate import evaluate


class TlMemory(TlCore):
    """Constants and views."""

    # ---- constants

    def arange(self, start: int, end: int, dtype: object = "i32") -> TensorHandle:
        """start, start + 1, ... below end. Shape: (end - start,). dtype: as given. Engine: none."""
        return self._new(self._apply("arange", (), start=start, stop=end, dtype=self._dtype(dtype)))

    def full(self, shape: object, value: Scalar, dtype: object = "f16") -> TensorHandle:
        """One number everywhere. Shape and dtype: as given. Engine: none."""
        dims = self._shape("full", shape)
        number = self._number("full", value)
        return self._new(self._apply("full", (), shape=dims, value=number, dtype=self._dtype(dtype)))

    def zeros(self, shape: object, dtype: object = "f16") -> TensorHandle:
        """Zeros. Shape and dtype: as given. Engine: none."""
        return self.full(shape, 0, dtype)

    def ones(self, shape: object, dtype: object = "f16") -> TensorHandle:
        """Ones. Shape and dtype: as given. Engine: none."""
        return self.full(shape, 1, dtype)

    def full_like(self, x: TensorHandle, value: Scalar, dtype: object = None) -> TensorHandle:
        """One number everywhere. Shape: x's. dtype: x's unless given. Engine: none."""
        tensor = self._tensor("full_like", x)
        return self.full(tensor.shape, value, tensor.dtype if dtype is None else dtype)

    def zeros_like(self, x: TensorHandle, dtype: object = None) -> TensorHandle:
        """Zeros. Shape: x's. dtype: x's unless given. Engine: none."""
        return self.full_like(x, 0, dtype)

    def ones_like(self, x: TensorHandle, dtype: object = None) -> TensorHandle:
        """Ones. Shape: x's. dtype: x's unless given. Engine: none."""
        return self.full_like(x, 1, dtype)

    # ---- views: the same bytes

    def trans(self, x: TensorHandle) -> TensorHandle:
        """Swap the last two axes. Shape: (..., N, M) of (..., M, N). dtype: kept. Engine: none; a reference stays
        one.
        """
        tensor = self._tensor("trans", x)
        if tensor.is_reference:
            if tensor.ndim != 2:
                self._fail(f"trans: a reference of shape {tensor.shape}", "refer to a matrix, or load it first")
            shape = (tensor.shape[1], tensor.shape[0])
            turned = not tensor.transposed
            return self._handle(
                shape, tensor.dtype, tensor.space, tensor.address, None, transposed=turned, segments=tensor.segments,
                layout=tensor.layout,
            )  # fmt: skip
        return self._alias(tensor, self._apply("trans", (self._known(tensor),)))

    def reshape(self, x: TensorHandle, *shape: object) -> TensorHandle:
        """The same elements in another shape; one size may be -1. dtype: kept. Engine: none."""
        tensor = self._local("reshape", x)
        dims = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        assert isinstance(dims, list | tuple)
        return self._alias(tensor, self._apply("reshape", (self._known(tensor),), shape=tuple(dims)))

    def broadcast_to(self, x: TensorHandle, shape: object) -> TensorHandle:
        """Repeat axes of size 1: the same bytes, read several times. Shape: as given, by numpy's rule. dtype: kept.
        Engine: none.
        """
        tensor = self._local("broadcast_to", x)
        dims = self._shape("broadcast_to", shape)
        return self._alias(tensor, self._apply("broadcast_to", (self._known(tensor),), shape=dims))

    def part(self, x: TensorHandle, index: tuple[Index, ...]) -> TensorHandle:
        """What `x[index]` is: integers drop an axis, slices keep it, None adds one. dtype: kept. Engine: none."""
        tensor = self._local("[]", x)
        starts, stops, steps, shape = self._cut(tensor.shape, index)
        value = self._apply("slice", (self._known(tensor),), starts=starts, stops=stops, steps=steps)
        return self._alias(tensor, self._apply("reshape", (value,), shape=shape))

    def _cut(
        self, sizes: tuple[int, ...], index: tuple[Index, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """starts, stops and steps of each axis, and the shape that is left."""
        named = sum(1 for item in index if item is not None and item is not Ellipsis)
        dots = [at for at, item in enumerate(index) if item is Ellipsis]
        if named > len(sizes) or len(dots) > 1:
            self._fail(f"{len(index)} indices for a tensor of shape {sizes}", f"give at most {len(sizes)}")
        fill: list[Index] = [slice(None)] * (len(sizes) - named)
        at = dots[0] if dots else len(index)
        items = [*index[:at], *fill, *index[at + 1 :]]
        starts, stops, steps, shape, axis = [], [], [], [], 0
        for item in items:
            if item is None:
                shape.append(1)
                continue
            size = sizes[axis]
            axis += 1
            if isinstance(item, slice):
                start, stop, step = self._bounds(item, size)
                if step < 1:
                    self._fail(f"a slice with step {step}", "use a step of 1 or more")
                stop = max(start, stop)
                shape.append(len(range(start, stop, step)))
            elif is_whole(item):
                if not -size <= item < size:
                    hint = f"use {-size} to {size - 1}" if size else "there is nothing to index: use a slice"
                    self._fail(f"index {item} of an axis of {size}", hint)
                start, step = int(item) % size, 1
                stop = start + 1
            else:
                self._fail(f"an index that is a {type(item).__name__}", "use integers, slices, ... and None")
            starts.append(start)
            stops.append(stop)
            steps.append(step)
        return tuple(starts), tuple(stops), tuple(steps), tuple(shape)

    def _bounds(self, item: slice, size: int) -> tuple[int, int, int]:
        try:
            return item.indices(size)
        except (TypeError, ValueError) as error:  # a bound that is no whole number, or a step of 0
            self._fail(f"{item}: {error}", "use whole numbers")

    # ---- reading numbers

    def known_numbers(self, x: TensorHandle) -> Array | None:
        """What `x.numpy()` is, where the run keeps contents; else None."""
        value = self._known(self._local("print", x))
        return None if value.op == BUFFER or self._env.memory.is_unknown(value) else self.evaluate(x)

    def evaluate(self, x: TensorHandle) -> Array:
        """What `x.numpy()` is."""
        tensor = self._local("numpy()", x)
        if self._known(tensor).op == BUFFER:
            self._fail(
                "a look at the numbers of a buffer, which has none", "its maker computes them outside the machine"
            )
        if self._env.memory.is_unknown(self._known(tensor)):
            self._fail("a look at numbers that were loaded, in a run that keeps none", "leave torch.timing_only() out")
        try:
            graph = self._values
            return evaluate([self._known(tensor)], backend=graph.backend, keep_inputs=graph.sites is not None)[0]
        except DataError as error:
            raise at_kernel_line(error) from None
