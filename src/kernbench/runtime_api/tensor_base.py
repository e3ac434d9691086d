"""What a tensor is: a view of a storage. Its attributes, and how kernels get it as an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

from kernbench.common.array_types import Array, Mask, Shape
from kernbench.common.commands import Space
from kernbench.common.dtypes import DType
from kernbench.common.errors import TensorIndexError
from kernbench.common.messages import TensorArg, TensorShard
from kernbench.policy.placement.dp import DPPolicy, ShardSpec
from kernbench.runtime_api.deploy import Allocation
from kernbench.runtime_api.device import Device
from kernbench.runtime_api.layout import Layout
from kernbench.runtime_api.storage import Storage, ViewParts

T = TypeVar("T", bound="TensorBase")


class DeviceOperations(Protocol):
    """What computes on the device: `device_ops.DeviceOps`. Results are tensors."""

    def check(self) -> None:
        """Raise LaunchError for an operation that has failed."""

    def pointwise(self, name: str, x: T, *others: Any, out: Any = None, **params: Any) -> T:
        """The result of an expression of the table; with `out`, written there."""

    def fill(self, out: Any, value: float, name: str = "fill") -> None:
        """Every element becomes one number."""

    def randoms(self, out: Any, kind: str, seed: int, a: float, b: float) -> None:
        """Pseudo-random numbers of a kind: "uniform", "normal", "integers"."""

    def copy_into(self, out: Any, source: Any, name: str = "copy") -> None:
        """Copy a tensor into another of maybe another dtype, placement or device."""

    def dense_copy(self, x: T, name: str = "contiguous") -> T:
        """A contiguous copy, placed as the storage of x is."""

    def moved(self, x: T, dtype: DType, device: object) -> T:
        """A copy in another dtype, or on another device; x itself if it is so already."""

    def new(self, x: T, size: Sequence[int], value: float | None, dtype: object) -> T:
        """A tensor as `x.new_zeros` makes it: with the dtype, placement and device of x."""

    def masked(self, x: T, mask: Any) -> T:
        """A copy with zeros where a mask of numpy holds, which the host writes to the device."""

    def next_seed(self, generator: Any) -> int:
        """The seed of the next random numbers."""

    def reduce(self, name: str, x: T, dim: object, keepdim: bool, dtype: DType | None = None) -> T:
        """A reduction of the table along axes, or of all elements."""

    def rows(self, name: str, x: T, dim: int, *others: Any, keepdim: bool = True, **params: Any) -> tuple[T, ...]:
        """A row op of the table along one axis: its outputs."""

    def matmul(self, a: T, b: Any, name: str = "matmul") -> T:
        """a @ b."""

    def take(self, x: T, index: Any) -> T:
        """A copy of the elements that lists, arrays, masks or tensors select."""

    def take_rows(self, x: T, index: Any, name: str = "index") -> T:
        """The rows of x that a vector of integers names."""

    def put_rows(self, name: str, out: Any, index: Any, source: Any) -> None:
        """Rows of `source` are added to, or replace, the rows of out that a vector of integers names."""


class Host(Protocol):
    """The part of the context that a tensor needs. Reads and writes are of whole storages, by shard."""

    ops: Callable[[], DeviceOperations]  # what computes on the device

    def read_parts(
        self, tensor: TensorBase, parts: Sequence[int], *, timed: bool, wanted: Mapping[int, Mask] | None = None
    ) -> list[Array]:
        """The contents of some shards; elements that are not wanted may be anything."""

    def write_parts(self, tensor: TensorBase, parts: Sequence[tuple[int, int, Array]]) -> None:
        """Write arrays into shards; each item is (shard, first element, array)."""

    def written(self, tensor: TensorBase, at: int) -> Mask:
        """Which elements of a shard were ever written."""

    def leave_unwritten(self, tensor: TensorBase, gaps: Mapping[int, Mask]) -> None:
        """Mark elements that a write only passed over as not written; `gaps` are masks by shard."""


class TensorBase:
    """A view of a storage, on a device."""

    def __init__(self, host: Host, storage: Storage, layout: Layout) -> None:
        self.host = host
        self.storage = storage
        self.layout = layout

    # ---- attributes

    @property
    def number(self) -> int:
        return self.storage.number

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def element(self) -> DType:
        return self.storage.element

    @property
    def dtype(self) -> DType:
        return self.storage.element

    @property
    def ndim(self) -> int:
        return len(self.layout.shape)

    @property
    def itemsize(self) -> int:
        return self.element.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel() * self.itemsize

    @property
    def device(self) -> Device:
        return Device(self.allocation.sip)

    @property
    def dp(self) -> DPPolicy:
        """The placement of its storage."""
        return self.storage.dp

    @property
    def allocation(self) -> Allocation:
        """The memory of its storage."""
        return self.storage.allocation

    @property
    def space(self) -> Space:
        """The kind of memory that its parts lie in: "hbm", "sram", "tcm" or "far"."""
        return self.allocation.space

    @property
    def is_view(self) -> bool:
        """Whether it is another tensor than the storage was made for."""
        return self.layout != self.storage.layout and self.ndim > 0

    @cached_property
    def _parts(self) -> ViewParts:
        return self.storage.parts_of_view(self.layout, self.title)

    @property
    def placement(self) -> tuple[ShardSpec, ...]:
        """Which PE holds which part; raises TensorError for a view that kernels cannot take."""
        return self._parts.placement

    @property
    def shards(self) -> tuple[TensorShard, ...]:
        """The memory of its parts, by cube and then by PE."""
        return self._parts.shards

    @property
    def va_base(self) -> int | None:
        """The start of its virtual or logical address range; None where addresses are physical."""
        return self._parts.va_base

    @property
    def la_base(self) -> int | None:
        """The start of its logical address range; None in the other address models."""
        return self.va_base if self.allocation.is_logical else None

    @property
    def local_shape(self) -> Shape:
        """The shape of the first PE's part, which is the largest where parts differ."""
        return self.placement[0].local_shape

    @property
    def local_shapes(self) -> dict[tuple[int, int, int], Shape]:
        """The shape of every PE's part, by (sip, cube, pe); none where a PE has several parts."""
        if self.dp.cube == "interleave":
            return {}
        return {(part.sip, part.cube, part.pe): part.local_shape for part in self.placement}

    def numel(self) -> int:
        return self.layout.numel

    def __len__(self) -> int:
        if not self.shape:
            raise TensorIndexError(f"{self.title} has no axis, and so no length", hint="use x.item()")
        return self.shape[0]

    def as_arg(self) -> TensorArg:
        """The tensor as a kernel's argument; raises TensorError for a view that kernels cannot take."""
        split, split_by = self.dp.split_axes(self.ndim), self.dp.split_by(self.ndim)
        return TensorArg(
            self.name,
            self.shape,
            self.dtype.name,
            self.va_base,
            self.shards,
            self.local_shapes,
            split,
            self.space,
            split_by,
            self.allocation.is_logical,
            self.allocation.is_per_pe,
            self.storage.tile_layout,
        )

    def over(self, layout: Layout) -> Self:
        """Another view of the same storage."""
        return self if layout == self.layout else type(self)(self.host, self.storage, layout)

    def whole(self) -> Self:
        """All of its storage, as it is placed."""
        return self.over(self.storage.layout)

    @property
    def _ops(self) -> DeviceOperations:
        return self.host.ops()

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"tensor '{self.name}' {self.dtype}{list(self.shape)}"

    def first_holders(self) -> list[int]:
        """One shard for each distinct part, as indices into `placement`."""
        found: dict[int, int] = {}
        for at, part in enumerate(self.placement):
            found.setdefault(part.offset_bytes, at)
        return list(found.values())
