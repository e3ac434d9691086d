"""`tl`: moving tensors, making them, and looking at them another way."""

from __future__ import annotations

from functools import partial
from math import prod
from numbers import Integral

from kernbench.common.commands import DmaReadCmd, DmaWriteCmd, Operand
from kernbench.common.errors import DataError
from kernbench.triton_emu.call_site import at_kernel_line
from kernbench.triton_emu.handle import Index, Scalar, TensorHandle
from kernbench.triton_emu.pointer import TensorPtr
from kernbench.triton_emu.tl_core import TlCore
from kernbench.values.evaluate import evaluate
from kernbench.values.op import Array


class TlMemory(TlCore):
    """Loads, stores, references, constants and views."""

    # ---- between memory and TCM

    def load(self, ptr: int, shape: object = None, dtype: object = None) -> TensorHandle:
        """Bring a dense tensor from memory to TCM, and wait for it. It holds what the bytes are when the last one
        arrives.

        Shape: as given; without, the local shape of the tensor that `ptr` is the pointer of. dtype: the tensor's own.
        Engine: DMA (read channel); none where there are no elements. Waits for composites that have yet to write there.
        """
        source = self._source("load", ptr, shape, dtype)
        if not source.elements:
            return self._nothing(source)
        pieces = self._pieces(source.address, source.nbytes)
        block = self._arena.alloc(source.nbytes)
        self._settle(pieces)
        deps = tuple(dict.fromkeys(self._written_by(pieces)))
        records = self._call(DmaReadCmd(source, self._next_name(), (tuple(pieces),), deps))
        value = self._read(pieces, source.shape, self._dtype(source.dtype))
        return self._handle(source.shape, source.dtype, "tcm", block.address, value, block, records)

    def store(self, ptr: int, value: TensorHandle) -> None:
        """Write a tensor to memory, dense, and wait for the acknowledgement; memory holds it from then on.

        Shape: any; its bytes must fit the tensor that `ptr` points into. dtype: that tensor's. Engine: DMA (write
        channel); none where there are no elements. Waits for composites that have yet to write there.
        """
        x = self._local("store", value, "value")
        known = self._known(x)
        tensor = self._tensor_at("store", ptr, not x.size)
        self._check_dtype("store", tensor.name, tensor.dtype, x.dtype, f"tl.cast(value, '{tensor.dtype}') first")
        address, _ = self._range_of("store", ptr, known.nbytes)
        if not x.size:
            return
        pieces = self._pieces(address, known.nbytes)
        target = Operand(address, x.shape, x.dtype, "hbm")
        deps = tuple(dict.fromkeys((*x.records, *self._settle(pieces))))
        # Written when the engine is done: a kernel that is thrown out meanwhile does not come back here.
        written = partial(self._write, pieces, known)
        self._call(DmaWriteCmd(x.operand(), target, self._next_name(), (tuple(pieces),), deps), written)

    def ref(self, ptr: int, shape: object = None, dtype: object = None) -> TensorHandle:
        """Name a dense tensor in memory without moving it: for tl.composite, which streams it tile by tile.

        Shape and dtype: as in `load`. Engine: none.
        """
        source = self._source("ref", ptr, shape, dtype)
        if not source.elements:
            return self._nothing(source)
        segments = tuple(self._pieces(source.address, source.nbytes))
        return self._handle(source.shape, source.dtype, "hbm", source.address, None, segments=segments)

    def _nothing(self, source: Operand) -> TensorHandle:
        """What a tensor without elements is, wherever it was to be: there is nothing to move or to stream."""
        return self._new(self._values.full(source.shape, 0, source.dtype))

    def _source(self, op: str, ptr: int, shape: object, dtype: object) -> Operand:
        address = self._address(op, ptr)
        if shape is None:
            if not isinstance(ptr, TensorPtr):
                self._fail(f"{op}: no shape", "give one; only a tensor argument itself knows its shape")
            shape = ptr.local_shape
        dims = self._shape(op, shape)
        tensor = self._tensor_at(op, ptr, not prod(dims))
        if dtype is not None:
            wanted = self._dtype(dtype).name
            self._check_dtype(op, tensor.name, tensor.dtype, wanted, f"leave dtype out, or give '{tensor.dtype}'")
        source = Operand(address, dims, tensor.dtype, "hbm")
        self._range_of(op, ptr, source.nbytes)
        return source

    def _check_dtype(self, op: str, name: str, expected: str, given: str, hint: str) -> None:
        if expected != given:
            self._fail(f"{op}: '{name}' holds {expected}, got {given}", hint)

    def _next_name(self) -> str:
        self._tensors_made += 1
        return f"t{self._tensors_made}"

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

    # ---- the same bytes, seen another way

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
            address, segments = tensor.address, tensor.segments
            return self._handle(shape, tensor.dtype, tensor.space, address, None, transposed=turned, segments=segments)
        return self._alias(tensor, self._apply("trans", (self._known(tensor),)))

    def reshape(self, x: TensorHandle, *shape: object) -> TensorHandle:
        """The same elements in another shape; one size may be -1. dtype: kept. Engine: none."""
        tensor = self._local("reshape", x)
        dims = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        assert isinstance(dims, list | tuple)
        return self._alias(tensor, self._apply("reshape", (self._known(tensor),), shape=tuple(dims)))

    def broadcast_to(self, x: TensorHandle, shape: object) -> TensorHandle:
        """Repeat axes of size 1. Shape: as given, by numpy's rule. dtype: kept. Engine: none."""
        tensor = self._local("broadcast_to", x)
        dims = self._shape("broadcast_to", shape)
        return self._new(self._apply("broadcast_to", (self._known(tensor),), shape=dims), tensor.records)

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
            elif isinstance(item, Integral) and not isinstance(item, bool):
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

    # ---- looking at numbers

    def evaluate(self, x: TensorHandle) -> Array:
        """What `x.numpy()` is."""
        tensor = self._local("numpy()", x)
        try:
            return evaluate([self._known(tensor)], keep_inputs=self._values.sites is not None)[0]
        except DataError as error:
            raise at_kernel_line(error) from None
