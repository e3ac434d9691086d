"""Storages: the memory that tensors are views of, and where the parts of a view lie.

A storage is placed on its device by a DPPolicy; its shape is that of the tensor it was made for, or (1,) for a tensor
of no axes or no elements. A kernel or a collective takes a view whose elements follow one another (`is_contiguous`) and
whose parts on each PE are whole rows of it; `parts_of_view` finds them, or says what to do instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

from kernbench.common.array_types import Shape
from kernbench.common.commands import TILED, TensorLayout
from kernbench.common.dtypes import DType
from kernbench.common.errors import TensorError
from kernbench.common.messages import TensorShard
from kernbench.policy.placement.dp import DPPolicy, ShardSpec
from kernbench.runtime_api.deploy import Allocation
from kernbench.runtime_api.layout import Layout

COPY_HINT = "use x.contiguous(), which copies it on the device"


class ViewParts(NamedTuple):
    """The parts of a view on PEs, as indices into the view and as memory."""

    placement: tuple[ShardSpec, ...]
    shards: tuple[TensorShard, ...]
    va_base: int | None


class Storage:
    """The memory of one or several tensors. Freed when no tensor refers to it any more."""

    def __init__(
        self,
        number: int,
        name: str,
        shape: Shape,
        dtype: DType,
        policy: DPPolicy,
        placement: Sequence[ShardSpec],
        allocation: Allocation,
        tile_layout: TensorLayout = TILED,
    ) -> None:
        self.number = number  # unique in its context
        self.name = name
        self.element = dtype
        self.dp = policy
        self.allocation = allocation
        self.tile_layout = tile_layout  # what a composite's tile of it is to memory
        self.layout = Layout.dense(shape)  # of all of it
        self.whole = ViewParts(tuple(placement), allocation.shards, allocation.va_base)

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @cached_property
    def is_split(self) -> bool:
        """Whether its elements are divided among PEs, so that no PE holds all of them."""
        return len({part.offset_bytes for part in self.whole.placement}) > 1

    @cached_property
    def is_row_major(self) -> bool:
        """Whether its address range is the row-major tensor: nothing is split, or rows are."""
        return not self.is_split or not any(self.dp.split_axes(len(self.shape)))

    def parts_of_view(self, layout: Layout, title: str) -> ViewParts:
        """The parts of a view; raises TensorError for a view that kernels and collectives cannot take."""
        if layout == self.layout:
            return self.whole
        if not layout.is_contiguous:
            raise TensorError(
                f"{title} is a view with strides {list(layout.strides)}, so its elements do not follow one another",
                hint=COPY_HINT,
            )
        if not self.is_row_major:
            raise TensorError(
                f"{title} is a view of tensor '{self.name}', whose columns are split over PEs: its elements do not "
                "follow one another in memory",
                hint=COPY_HINT,
            )
        size = self.element.itemsize
        first = layout.offset if layout.numel else 0  # without elements any place will do
        end = first + max(layout.numel, 1)
        row = prod(layout.shape[1:]) or 1
        parts: list[ShardSpec] = []
        shards: list[TensorShard] = []
        for part, shard in zip(self.whole.placement, self.whole.shards, strict=True):
            low = part.offset_bytes // size
            a, b = max(first, low), min(end, low + part.nbytes // size)
            if a >= b:
                continue
            box = self._box(layout, a - first, b - first, row, title)
            offset, nbytes = (a - first) * size, (b - a) * size
            parts.append(ShardSpec(part.sip, part.cube, part.pe, offset, nbytes, box))
            shards.append(TensorShard(*shard.key, shard.pa + (a - low) * size, nbytes, offset))
        base = self.allocation.va_base
        return ViewParts(tuple(parts), tuple(shards), None if base is None else base + first * size)

    def _box(self, layout: Layout, first: int, end: int, row: int, title: str) -> tuple[tuple[int, int], ...]:
        """Elements `first` to `end` of a view as index ranges of it."""
        if layout.numel <= 1 or end - first == layout.numel:
            return tuple((0, n) for n in layout.shape)
        if first % row or end % row:
            raise TensorError(
                f"{title} is a view of tensor '{self.name}' whose rows of {row} elements lie on two PEs",
                hint=f"{COPY_HINT}, or keep rows as they are placed",
            )
        return ((first // row, end // row), *((0, n) for n in layout.shape[1:]))
