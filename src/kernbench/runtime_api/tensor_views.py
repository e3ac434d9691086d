"""The part of a tensor that describes its shape and gives views of it, with PyTorch's names and meaning.

A view shares memory with its tensor and takes no simulated time. `reshape`, `flatten` and `contiguous` copy, by a
kernel, where strides cannot express the result; the copy is a launch of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Literal, Self, overload

from kernbench.common.array_types import Shape
from kernbench.common.errors import NotModelledError, TensorError, TensorIndexError
from kernbench.runtime_api.layout import Layout, axis_of, broadcast_shapes, resolve_shape
from kernbench.runtime_api.numpy_names import takes_numpy_names
from kernbench.runtime_api.tensor_base import TensorBase

SizeArguments = int | Sequence[int]


def sizes_of(size: Sequence[SizeArguments]) -> tuple[int, ...]:
    """`(4, 8)` and `((4, 8),)` alike."""
    sizes = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    return tuple(sizes)  # type: ignore[arg-type]  # checked where they are used


def are_whole(numbers: Sequence[object]) -> bool:
    """Whether all are whole numbers, Python's or numpy's."""
    return all(isinstance(each, Integral) and not isinstance(each, bool) for each in numbers)


@takes_numpy_names
class TensorViews(TensorBase):
    """Shapes and views."""

    # ---- the shape

    @overload
    def size(self) -> Shape: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> Shape | int:
        """Its shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[axis_of(dim, self.ndim)]

    def dim(self) -> int:
        return self.ndim

    ndimension = dim

    def nelement(self) -> int:
        return self.numel()

    def element_size(self) -> int:
        """Bytes per element."""
        return self.itemsize

    @overload
    def stride(self) -> Shape: ...
    @overload
    def stride(self, dim: int) -> int: ...
    def stride(self, dim: int | None = None) -> Shape | int:
        """How many elements of its storage lie between neighbours along each axis, or along one."""
        return self.layout.strides if dim is None else self.layout.strides[axis_of(dim, self.ndim)]

    def storage_offset(self) -> int:
        """Its first element, counted in elements of its storage."""
        return self.layout.offset

    def data_ptr(self) -> int:
        """The device address of its first element: virtual, or physical where the machine has no virtual addresses."""
        allocation = self.allocation
        base = allocation.shards[0].pa if allocation.va_base is None else allocation.va_base
        return base + self.layout.offset * self.itemsize

    def get_device(self) -> int:
        """The number of its SIP."""
        return self.allocation.sip

    def is_contiguous(self) -> bool:
        """Whether its elements follow one another in its storage."""
        return self.layout.is_contiguous

    def is_floating_point(self) -> bool:
        return self.element.is_float

    def is_same_size(self, other: TensorBase) -> bool:
        return self.shape == other.shape

    # ---- views

    def view(self, *shape: SizeArguments) -> Self:
        """The same elements in another shape; one size may be -1. Raises TensorError where that needs a copy."""
        if len(shape) == 1 and isinstance(shape[0], str):
            raise NotModelledError(
                f"x.view({shape[0]!r}), the same bits as another dtype, is not modelled",
                hint="x.to(dtype) converts numbers; numpy reinterprets bits: torch.from_numpy(x.cpu().view(...))",
            )
        sizes = resolve_shape(sizes_of(shape), self.numel())
        layout = self.layout.viewed(sizes)
        if layout is None:
            raise TensorError(
                f"{self.title} with strides {list(self.layout.strides)} cannot be viewed as {list(sizes)}",
                hint="use x.reshape(...), which copies where it must",
            )
        return self.over(layout)

    def view_as(self, other: TensorBase) -> Self:
        return self.view(other.shape)

    def reshape(self, *shape: SizeArguments) -> Self:
        """As `view`, and a copy by a kernel where strides cannot express it."""
        sizes = resolve_shape(sizes_of(shape), self.numel())
        layout = self.layout.viewed(sizes)
        if layout is not None:
            return self.over(layout)
        copy: Self = self._ops.dense_copy(self)
        return copy.view(sizes)

    def reshape_as(self, other: TensorBase) -> Self:
        return self.reshape(other.shape)

    def contiguous(self) -> Self:
        """The tensor itself if kernels and collectives can take it; else a copy that they can, by a kernel, placed as
        its storage is.
        """
        try:
            self.storage.parts_of_view(self.layout, self.title)
        except TensorError:
            copy: Self = self._ops.dense_copy(self)
            return copy
        return self

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Axes `start_dim` to `end_dim` as one."""
        first, last = axis_of(start_dim, self.ndim), axis_of(end_dim, self.ndim)
        if not self.shape:
            return self.reshape(1)
        if first > last:
            raise TensorError(f"flatten from axis {start_dim} to axis {end_dim}", hint="let the first be the smaller")
        merged = 1
        for size in self.shape[first : last + 1]:
            merged *= size
        return self.reshape(*self.shape[:first], merged, *self.shape[last + 1 :])

    def ravel(self) -> Self:
        return self.reshape(self.numel())

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """One axis as several."""
        axis = axis_of(dim, self.ndim)
        inner = resolve_shape(sizes, self.shape[axis])
        return self.view(*self.shape[:axis], *inner, *self.shape[axis + 1 :])

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Without axes of size 1, or without those of `dim` that have it."""
        wanted = range(self.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
        axes = {axis_of(axis, self.ndim) for axis in wanted} if self.shape else set()
        layout = self.layout
        for axis in sorted(axes, reverse=True):
            if self.shape[axis] == 1:
                layout = layout.without(axis)
        return self.over(layout)

    def unsqueeze(self, dim: int) -> Self:
        """With an axis of size 1 before axis `dim`."""
        return self.over(self.layout.inserted(axis_of(dim, self.ndim + 1)))

    def transpose(self, dim0: int, dim1: int) -> Self:
        a, b = axis_of(dim0, self.ndim), axis_of(dim1, self.ndim)
        axes = list(range(self.ndim))
        if axes:
            axes[a], axes[b] = b, a
        return self.over(self.layout.permuted(axes))

    swapaxes = swapdims = transpose

    def t(self) -> Self:
        """A matrix with rows and columns exchanged."""
        if self.ndim > 2:
            raise TensorError(f"t() of {self.title}", hint="use x.transpose(dim0, dim1) or x.mT")
        return self.transpose(0, 1) if self.ndim == 2 else self

    @property
    def T(self) -> Self:  # noqa: N802  # PyTorch's name
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> Self:  # noqa: N802  # PyTorch's name
        return self.transpose(-2, -1)

    def permute(self, *dims: SizeArguments) -> Self:
        """With its axes in another order."""
        return self.over(self.layout.permuted(sizes_of(dims)))

    def movedim(self, source: int, destination: int) -> Self:
        """With one axis moved to another place."""
        axes = list(range(self.ndim))
        axes.insert(axis_of(destination, self.ndim), axes.pop(axis_of(source, self.ndim)))
        return self.permute(*axes)

    def expand(self, *sizes: SizeArguments) -> Self:
        """Repeated along axes of size 1, without a copy; -1 keeps a size."""
        return self.over(self.layout.expanded(sizes_of(sizes)))

    def expand_as(self, other: TensorBase) -> Self:
        return self.expand(other.shape)

    def broadcast_to(self, *shape: SizeArguments) -> Self:
        sizes = sizes_of(shape)
        if broadcast_shapes(self.shape, sizes) != tuple(sizes):
            raise TensorError(f"{self.title} cannot be broadcast to {list(sizes)}", hint="only sizes of 1 are repeated")
        return self.expand(sizes)

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """`length` elements along one axis, from `start` on."""
        axis = axis_of(dim, self.ndim)
        if not are_whole((start, length)):
            raise TensorError(f"narrow to {length!r} elements from {start!r} on", hint="give whole numbers")
        size = self.shape[axis] if self.shape else 0
        first = start + size if start < 0 else start
        if not (0 <= first <= size and 0 <= length <= size - first):
            raise TensorIndexError(
                f"narrow of {self.title}: {length} elements from {start} on along axis {axis}, which has {size}",
                hint="let start + length be at most its size",
            )
        return self.over(self.layout.narrowed(axis, first, length))

    def select(self, dim: int, index: int) -> Self:
        """One place along an axis, which is removed."""
        axis = axis_of(dim, self.ndim)
        layout = self.layout.indexed((*[slice(None)] * axis, index))
        assert layout is not None
        return self.over(layout)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """At most `chunks` parts along an axis: equal ones, but for the last."""
        if isinstance(chunks, bool) or not isinstance(chunks, int) or chunks < 1:
            raise TensorError(f"chunk into {chunks!r}", hint="give a whole number of 1 or more")
        size = self.shape[axis_of(dim, self.ndim)]
        return self.split(max(-(-size // chunks), 1), dim)

    def tensor_split(self, sections: int, dim: int = 0) -> tuple[Self, ...]:
        """Exactly `sections` parts along an axis, of sizes that differ by 1 at most."""
        if not are_whole((sections,)) or sections < 1:
            raise TensorError(f"tensor_split into {sections!r}", hint="give a whole number of 1 or more; or use split")
        size, more = divmod(self.shape[axis_of(dim, self.ndim)], sections)
        return self.split([size + (at < more) for at in range(sections)], dim)

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Parts of one size along an axis, the last one maybe smaller; or parts of the sizes of a list."""
        axis = axis_of(dim, self.ndim)
        size = self.shape[axis]
        if isinstance(split_size, int):
            if split_size < 1:
                raise TensorError(f"split into parts of {split_size}", hint="give a whole number of 1 or more")
            sizes = [min(split_size, size - at) for at in range(0, size, split_size)] or [0]
        else:
            if not isinstance(split_size, Sequence) or not are_whole(split_size):
                raise TensorError(f"split into parts of {split_size!r}", hint="give a whole number, or a list of them")
            sizes = list(split_size)
            if sum(sizes) != size or any(n < 0 for n in sizes):
                raise TensorError(
                    f"split into parts of {sizes}, {sum(sizes)} together, along axis {axis}, which has {size}",
                    hint="let the sizes add up to that of the axis",
                )
        starts = [sum(sizes[:at]) for at in range(len(sizes))]
        return tuple(self.narrow(axis, start, n) for start, n in zip(starts, sizes, strict=True))

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The places along an axis, one by one."""
        return tuple(self.select(dim, at) for at in range(self.shape[axis_of(dim, self.ndim)]))

    def diagonal(self) -> Self:
        """The diagonal of a matrix."""
        if self.ndim != 2:
            raise TensorError(f"diagonal of {self.title}", hint="give a matrix")
        return self.over(Layout((min(self.shape),), (sum(self.layout.strides),), self.layout.offset))

    # ---- gradients, of which there are none

    def detach(self) -> Self:
        """The same elements in the same memory; there are no gradients."""
        return type(self)(self.host, self.storage, self.layout)

    def requires_grad_(self, requires_grad: Literal[False] = False) -> Self:
        """The tensor itself; raises NotModelledError for True."""
        from kernbench.runtime_api.not_modelled import check_no_grad

        check_no_grad(requires_grad)
        return self
