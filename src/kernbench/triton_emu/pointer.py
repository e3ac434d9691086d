"""Pointers: what a tensor argument is to a kernel, and what counting bytes from one gives.

The rule: an address that was counted from a pointer, through `+` and `-`, remembers it, and reaches that tensor and
nothing else; from `x.local`, this PE's own part of it. Any other arithmetic gives plain numbers, which remember nothing
and reach all that their address model lets them.
"""

from __future__ import annotations

from math import prod
from numbers import Integral

from kernbench.common.dtypes import dtype_of
from kernbench.policy.placement.shard_grid import ShardGrid

_NUMBERS = (int, Integral)  # Python's first: looking for them is quicker, and most are


class Address(int):
    """A pointer, or an address in bytes that remembers the pointer it was counted from."""

    _base: TensorPtr

    @property
    def base(self) -> TensorPtr:
        return self._base

    def __add__(self, other: int) -> int:
        return self._moved(int(other)) if isinstance(other, _NUMBERS) else super().__add__(other)

    def __radd__(self, other: int) -> int:
        return self + other

    def __sub__(self, other: int) -> int:
        """So many bytes before; between two addresses, a number of bytes."""
        if isinstance(other, _NUMBERS) and not isinstance(other, Address):
            return self._moved(-int(other))
        return super().__sub__(other)

    def _moved(self, by: int) -> int:
        moved = Address(int(self) + by)
        moved._base = self.base
        return moved


class TensorPtr(Address):
    """The address of a tensor argument. Counting from it is in bytes.

    Element (i, j) of a tensor of shape (m, n) is i * n + j elements behind it, however the tensor is split. `local`
    points to this PE's own part, whatever the address model: `tl.load(x.local)` is all of it. A PE that holds no part
    of a tensor that is split has a `local_shape` with a 0 in it, and what it loads is empty; there is no place there to
    store to. `storage` points to the tensor as memory has it, one shard after the other; what is counted from it, or
    from `across`, may span shards in every model that reaches them: with logical addresses such an access has a run for
    each.
    """

    name: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    is_part: bool  # whether it is what `local` gives
    grid: ShardGrid | None  # where its elements lie, if its rows do not lie end to end
    space: str  # the kind of memory that it lies in
    part_ends: tuple[int, ...]  # with logical addresses, where its shards end, in bytes: a run of an access is in one
    may_span: bool  # whether a dense block that is counted from it may span shards
    _local: int | None

    def __new__(
        cls,
        address: int,
        name: str,
        shape: tuple[int, ...],
        local_shape: tuple[int, ...],
        dtype: str,
        local: int | None = None,
        is_part: bool = False,
        grid: ShardGrid | None = None,
        space: str = "hbm",
        part_ends: tuple[int, ...] = (),
        may_span: bool = False,
    ) -> TensorPtr:
        self = super().__new__(cls, address)
        self.name, self.shape, self.local_shape, self.dtype, self._local = name, shape, local_shape, dtype, local
        self.is_part, self.grid, self.space = is_part, grid, space
        self.part_ends, self.may_span = part_ends, may_span
        return self

    @property
    def base(self) -> TensorPtr:
        return self

    @property
    def local(self) -> TensorPtr:
        at = int(self) if self._local is None else self._local
        return TensorPtr(at, self.name, self.local_shape, self.local_shape, self.dtype, is_part=True, space=self.space)

    @property
    def storage(self) -> TensorPtr:
        """All elements along one axis, as they lie in the tensor's address range: with rows split, or nothing, in their
        order, else one shard after the other.
        """
        size, ends = (prod(self.shape),), self.part_ends
        return TensorPtr(
            int(self), self.name, size, size, self.dtype, None, self.is_part, None, self.space, ends, may_span=True
        )

    @property
    def across(self) -> TensorPtr:
        """The same pointer for dense blocks that may span shards, where rows of a tensor lie end to end."""
        if self.grid is not None or len(self.part_ends) < 2 or self.may_span:
            return self
        return TensorPtr(
            int(self), self.name, self.shape, self.local_shape, self.dtype, self._local, self.is_part, None, self.space,
            self.part_ends, may_span=True,
        )  # fmt: skip

    @property
    def itemsize(self) -> int:
        """Bytes per element: `x + n * x.itemsize` is n elements on."""
        return dtype_of(self.dtype).itemsize

    @property
    def local_nbytes(self) -> int:
        """Of this PE's own part, which is dense."""
        return prod(self.local_shape) * self.itemsize

    def __repr__(self) -> str:
        return f"<pointer {int(self):#x} to {self.name}: {self.dtype}{list(self.shape)}, {list(self.local_shape)} here>"
