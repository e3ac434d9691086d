"""Tensor: the host's handle of a tensor on a device: shape, dtype, which PE holds which part, and its contents.

Reading (`numpy()`, `data`, indexing, `repr`) returns what memory holds once everything issued before is done, and
evaluates pending values. It inspects the simulation from outside and takes no simulated time; `cpu()` is the read that
is simulated. Writing (`copy_`, assignment to an index) is a host write to every shard it touches, and is simulated. Of
replicas, reads return the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernbench.common.commands import Space
from kernbench.common.dtypes import DType
from kernbench.common.errors import DataError, UsageError
from kernbench.common.messages import TensorArg, TensorShard
from kernbench.common.units import format_bytes
from kernbench.policy.placement.dp import DPPolicy, ShardSpec
from kernbench.runtime_api.deploy import Allocation
from kernbench.runtime_api.host_numbers import as_elements
from kernbench.runtime_api.unwritten import Mask

if TYPE_CHECKING:
    from types import EllipsisType

Array: TypeAlias = NDArray[np.generic]
Index: TypeAlias = "int | slice | EllipsisType | Array | Sequence[int] | tuple[Index, ...] | None"
Shape: TypeAlias = tuple[int, ...]
REPR_ELEMENTS = 4096  # a larger tensor is described, not printed


class Host(Protocol):
    """The part of the context that a tensor needs."""

    def read_parts(
        self, tensor: Tensor, parts: Sequence[int], *, timed: bool, wanted: Mapping[int, Mask] | None = None
    ) -> list[Array]:
        """The contents of some shards; elements that are not wanted may be anything."""

    def write_parts(self, tensor: Tensor, parts: Sequence[tuple[int, int, Array]]) -> None:
        """Write arrays into shards; each item is (shard, first element, array)."""

    def written(self, tensor: Tensor, at: int) -> Mask:
        """Which elements of a shard were ever written."""

    def leave_unwritten(self, tensor: Tensor, gaps: Mapping[int, Mask]) -> None:
        """Mark elements that a write only passed over as not written; `gaps` are masks by shard."""


class Tensor:
    """Made by a RuntimeContext: `torch.empty`, `torch.from_numpy`, ... Freed when nothing refers to it any more."""

    def __init__(
        self,
        host: Host,
        number: int,
        name: str,
        shape: Shape,
        dtype: DType,
        policy: DPPolicy,
        placement: Sequence[ShardSpec],
        allocation: Allocation,
    ) -> None:
        self.host = host
        self.number = number  # unique in its context
        self.name = name
        self.shape = shape
        self.element = dtype
        self.dp = policy
        self.placement = tuple(placement)
        self.allocation = allocation

    # ---- attributes

    @property
    def dtype(self) -> str:
        return self.element.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.element.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel() * self.itemsize

    @property
    def device(self) -> str:
        return f"sip:{self.allocation.sip}"

    @property
    def space(self) -> Space:
        """The kind of memory that its parts lie in: "hbm", "sram" or "tcm"."""
        return self.allocation.space

    @property
    def shards(self) -> tuple[TensorShard, ...]:
        """The memory of its parts, by cube and then by PE."""
        return self.allocation.shards

    @property
    def va_base(self) -> int | None:
        """The start of its virtual address range; None where addresses are physical."""
        return self.allocation.va_base

    @property
    def local_shape(self) -> Shape:
        """The shape of the first PE's part, which is the largest where parts differ."""
        return self.placement[0].local_shape

    @property
    def local_shapes(self) -> dict[tuple[int, int, int], Shape]:
        """The shape of every PE's part, by (sip, cube, pe)."""
        return {(part.sip, part.cube, part.pe): part.local_shape for part in self.placement}

    def numel(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def as_arg(self) -> TensorArg:
        """The tensor as a kernel's argument."""
        split, split_by = self.dp.split_axes(self.ndim), self.dp.split_by(self.ndim)
        shapes, space = self.local_shapes, self.space
        return TensorArg(self.name, self.shape, self.dtype, self.va_base, self.shards, shapes, split, space, split_by)

    # ---- reading

    def numpy(self) -> Array:
        """Its contents as a new array; raises DataError if elements were never written."""
        return self._gather()

    def cpu(self) -> Array:
        """As `numpy()`, but the transfer to the host is simulated and takes time."""
        return self._gather(timed=True)

    @property
    def data(self) -> Array:
        return self.numpy()

    def __array__(self, dtype: np.dtype[np.generic] | None = None, copy: bool | None = None) -> Array:
        contents = self.numpy()
        return contents if dtype is None else contents.astype(dtype)

    def __getitem__(self, index: Index) -> Array:
        """Its contents indexed as a numpy array; other elements need not have been written."""
        touched = self._touched(index)
        wanted = {at: touched[self.placement[at].index].reshape(-1) for at in self.first_holders()}
        contents = self._gather({at: here for at, here in wanted.items() if here.any()})
        return np.asarray(contents[index])  # type: ignore[index]  # numpy takes what this takes

    def __iter__(self) -> Iterator[Array]:
        return iter(self.numpy())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def item(self) -> bool | int | float:
        """The only element of a tensor that has one."""
        if self.numel() != 1:
            raise DataError(f"{self._title} has {self.numel()} elements", hint="index it first")
        only = self.numpy().reshape(())
        if self.dtype == "bool":
            return bool(only)
        return float(only.astype(np.float64)) if self.element.is_float else int(only.astype(np.int64))

    # ---- writing

    def copy_(self, source: Tensor | ArrayLike) -> Tensor:
        """Write another tensor's contents, or an array's, into this one; sizes of 1 are broadcast."""
        contents = self._cast(source, self.shape)
        parts = {part.offset_bytes: contents[part.index] for part in self.placement}  # replicas get the same array
        self.host.write_parts(self, [(at, 0, parts[part.offset_bytes]) for at, part in enumerate(self.placement)])
        return self

    def fill_(self, value: float) -> Tensor:
        """Write one number everywhere."""
        return self.copy_(value)

    def __setitem__(self, index: Index, source: Tensor | ArrayLike) -> None:
        """Write the elements that an index selects, in every shard that has some of them.

        A shard gets one write, from the first selected element to the last; elements between keep their contents.
        """
        touched = self._touched(index)
        new = np.zeros(self.shape, self.element.numpy)
        new[index] = self._cast(source, new[index].shape)  # type: ignore[index]  # numpy takes what this takes
        parts: list[tuple[int, int, Array]] = []
        gaps: dict[int, Mask] = {}  # elements between that were never written
        for at, part in enumerate(self.placement):
            here, contents = touched[part.index].reshape(-1), new[part.index].reshape(-1)
            changed = np.flatnonzero(here)
            if changed.size:
                first, end = int(changed[0]), int(changed[-1]) + 1
                if changed.size < end - first:
                    contents, gaps[at] = self._filled(at, here, contents, first, end)
                parts.append((at, first, contents[first:end]))
        self.host.write_parts(self, parts)
        self.host.leave_unwritten(self, gaps)

    def _filled(self, at: int, touched: Mask, new: Array, first: int, end: int) -> tuple[Array, Mask]:
        """`new` where it is touched and the shard's current contents elsewhere from `first` to `end`; and which of
        these were never written.
        """
        between = ~touched
        between[:first] = between[end:] = False
        kept = between & self.host.written(self, at)
        (old,) = self.host.read_parts(self, [at], timed=False, wanted={at: kept})
        return np.where(kept, old.reshape(-1), new), between & ~kept

    # ---- inside

    @property
    def _title(self) -> str:
        return f"tensor '{self.name}' {self.dtype}{list(self.shape)}"

    def first_holders(self) -> list[int]:
        """One shard for each distinct part, as indices into `placement`."""
        found: dict[int, int] = {}
        for at, part in enumerate(self.placement):
            found.setdefault(part.offset_bytes, at)
        return list(found.values())

    def _gather(self, wanted: Mapping[int, Mask] | None = None, *, timed: bool = False) -> Array:
        """Its contents; with `wanted`, only these elements of these shards."""
        out = np.zeros(self.shape, self.element.numpy)
        which = self.first_holders() if wanted is None else list(wanted)
        for at, part in zip(which, self.host.read_parts(self, which, timed=timed, wanted=wanted), strict=True):
            out[self.placement[at].index] = part
        return out

    def _cast(self, source: Tensor | ArrayLike, shape: Shape) -> Array:
        array = as_elements(source.numpy() if isinstance(source, Tensor) else source, self.element, self._title)
        try:
            return np.broadcast_to(array, shape)
        except ValueError:
            raise DataError(
                f"{self._title} cannot take an array of shape {array.shape}", hint=f"give shape {shape}"
            ) from None

    def _touched(self, index: Index) -> Mask:
        """Which elements an index selects; raises UsageError for an invalid index."""
        touched = np.zeros(self.shape, bool)
        try:
            touched[index] = True  # type: ignore[index]  # numpy takes what this takes
        except (IndexError, TypeError) as error:
            raise UsageError(f"{self._title}: {error}", hint="index it as a numpy array of its shape") from None
        return touched

    def __repr__(self) -> str:
        first = self.placement[0]
        cubes = len(self.allocation.cubes)
        pes = len({part.pe for part in self.placement})
        where = (
            f"on sip {first.sip}, {len(self.placement)} shards" if len(self.placement) > 1 else f"on {_place(first)}"
        )
        spread = f", cube {self.dp.cube} over {cubes}, pe {self.dp.pe} over {pes}" if len(self.placement) > 1 else ""
        sizes = f", {format_bytes(self.nbytes)}"
        local = f", local shape {list(self.local_shape)}" if len(self.placement) > 1 else ""
        at = f", va {self.va_base:#x}" if self.va_base is not None else f", pa {self.shards[0].pa:#x}"
        return f"{self._title} {where}{spread}{local}{sizes}{at}\n{self._printed()}"

    def _printed(self) -> str:
        if self.numel() > REPR_ELEMENTS:
            return f"({self.numel()} elements)"
        try:
            return str(self.numpy())
        except (DataError, UsageError) as error:
            return f"({error.what})"


def _place(part: ShardSpec) -> str:
    return f"sip {part.sip}, cube {part.cube}, pe {part.pe}"
