"""Tensors of a kernel: handles of what is in its PE's TCM, and references to tensors in memory.

A handle has a reference to the `tl` that created it, so operators need no current context. It is immutable; its TCM is
freed when the last handle on it is dropped. Reading numbers (`numpy`, `float`, `int`, `bool`)
evaluates what they depend on, on the spot, and costs no simulated time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import prod
from types import EllipsisType
from typing import Protocol, TypeAlias

from numpy import array2string

from kernbench.common.array_types import Array
from kernbench.common.commands import TILED, Operand, Segment, Space, TensorLayout
from kernbench.common.dtypes import BOOL, dtype_of
from kernbench.triton_emu.call_site import kernel_error
from kernbench.triton_emu.pointer import Address
from kernbench.triton_emu.tcm_arena import TcmBlock
from kernbench.values.graph import Value

Scalar: TypeAlias = bool | int | float
Index: TypeAlias = int | slice | EllipsisType | None
_SHOWN = 64  # elements printed of a tensor; of a larger one, those at its ends


class TensorOps(Protocol):
    """What a handle needs of the `tl` it came from: the ops that its operators and methods stand for."""

    def add(self, a: TensorHandle | Scalar, b: TensorHandle | Scalar) -> TensorHandle: ...
    def sub(self, a: TensorHandle | Scalar, b: TensorHandle | Scalar) -> TensorHandle: ...
    def mul(self, a: TensorHandle | Scalar, b: TensorHandle | Scalar) -> TensorHandle: ...
    def div(self, a: TensorHandle | Scalar, b: TensorHandle | Scalar) -> TensorHandle: ...
    def floordiv(self, a: TensorHandle | Scalar, b: TensorHandle | Scalar) -> TensorHandle: ...
    def mod(self, a: TensorHandle | Scalar, b: TensorHandle | Scalar) -> TensorHandle: ...
    def pow(self, a: TensorHandle | Scalar, b: TensorHandle | Scalar) -> TensorHandle: ...
    def compare(self, op: str, a: TensorHandle | Scalar, b: TensorHandle | Scalar) -> TensorHandle: ...
    def bitwise(self, op: str, a: TensorHandle | Scalar, b: TensorHandle | Scalar) -> TensorHandle: ...
    def bit_not(self, x: TensorHandle) -> TensorHandle: ...
    def neg(self, x: TensorHandle) -> TensorHandle: ...
    def abs(self, x: TensorHandle) -> TensorHandle: ...
    def cast(self, x: TensorHandle, dtype: object) -> TensorHandle: ...
    def dot(self, a: TensorHandle, b: TensorHandle) -> TensorHandle: ...
    def trans(self, x: TensorHandle) -> TensorHandle: ...
    def part(self, x: TensorHandle, index: tuple[Index, ...]) -> TensorHandle: ...
    def evaluate(self, x: TensorHandle) -> Array: ...
    def known_numbers(self, x: TensorHandle) -> Array | None: ...


class IssuedCommand(Protocol):
    """A command that its kernel issued."""

    number: int


class CallOrigin:
    """Which call a handle came from, where calls are recorded or compared. It belongs to one handle, and notes in
    `dropped` that the handle was dropped.
    """

    __slots__ = ("_dropped", "key")

    def __init__(self, key: Hashable, dropped: list[Hashable]) -> None:
        self.key, self._dropped = key, dropped

    def __del__(self) -> None:
        self._dropped.append(self.key)


class TcmAddress(int):
    """The address of a tensor in TCM, which knows the tensor."""

    tensor: TensorHandle

    def __new__(cls, tensor: TensorHandle) -> TcmAddress:
        made = super().__new__(cls, tensor.address)
        made.tensor = tensor
        return made


class TensorHandle:
    """A tensor: in TCM, or (from `tl.ref`) where it lies in memory. Operators are elementwise with numpy's
    broadcasting; `@` is `tl.dot`. `&`, `|`, `^`, `~`, `<<` and `>>` work on the bits of integers and on the truth of
    bools; `//` and `%` round down, as in Python and numpy, where Triton's integers cut towards zero.

    Kernel code sets no field. `tl`, `block`, `came_from`, `composite`, `records`, `segments`, `transposed` and `value`
    are internal to `triton_emu`; they are plain slots because every op reads them.
    """

    __slots__ = (
        "__weakref__", "_operand", "address", "block", "came_from", "composite", "dtype", "layout", "records",
        "segments", "shape", "space", "tl", "transposed", "value",
    )  # fmt: skip

    def __init__(
        self,
        tl: TensorOps,
        shape: tuple[int, ...],
        dtype: str,
        space: Space,
        address: int,
        value: Value | None,
        block: TcmBlock | None = None,
        records: tuple[int, ...] = (),
        transposed: bool = False,
        segments: tuple[Segment, ...] = (),
        layout: TensorLayout = TILED,
    ) -> None:
        self.tl: TensorOps = tl  # the kernel's `tl` that it came from
        self.shape = shape
        self.dtype = dtype
        self.space = space
        self.address = address
        self.value = value  # None for a reference: memory is read when it is used
        self.records = records  # op-log ids of what made it
        self.transposed = transposed
        self.segments = segments  # where a reference lies in memory
        self.layout = layout  # what a composite's tile of a reference is to memory
        self.block = block
        self.composite: IssuedCommand | None = None  # that has yet to write it
        self._operand: Operand | None = None  # once a command has named it
        self.came_from: CallOrigin | None = None  # which call, where calls are recorded

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape) if self.value is None else self.value.type.size

    def operand(self) -> Operand:
        """The operand as commands refer to it."""
        operand = self._operand
        if operand is None:
            pinned = self.value is not None
            operand = self._operand = Operand(
                self.address, self.shape, self.dtype, self.space, self.transposed, pinned, self.segments, self.layout
            )
        return operand

    @property
    def nbytes(self) -> int:
        return self.size * dtype_of(self.dtype).itemsize

    @property
    def addr(self) -> TcmAddress | int:
        """Its address, as `tl.send(src_addr=)` takes it."""
        return self.address if self.is_reference else TcmAddress(self)

    @property
    def is_reference(self) -> bool:
        """Whether it names a tensor in memory, from `tl.ref`, instead of holding one in this PE's TCM."""
        return self.value is None

    @property
    def T(self) -> TensorHandle:  # noqa: N802  # as numpy and PyTorch spell it
        return self.tl.trans(self)

    def __repr__(self) -> str:
        place = f"in {self.space.upper()}" if self.is_reference else "in this PE's TCM"
        return f"<tensor {self.dtype}{list(self.shape)} {place} at {self.address:#x}>"

    def __str__(self) -> str:
        """What `print` shows: the numbers where they are known, else what it is. Costs no simulated time."""
        numbers = None if self.is_reference else self.tl.known_numbers(self)
        if numbers is None:
            return repr(self)
        text = array2string(numbers, threshold=_SHOWN, separator=", ")
        return (
            f"{self.dtype}{list(self.shape)} {text}" if "\n" not in text else f"{self.dtype}{list(self.shape)}\n{text}"
        )

    # ---- looking at numbers

    def numpy(self) -> Array:
        """The numbers, read-only. Evaluates what they depend on; costs no simulated time."""
        return self.tl.evaluate(self)

    @property
    def data(self) -> Array:
        """The numbers, as `numpy()` gives them."""
        return self.numpy()

    def _one(self, what: str) -> Array:
        if self.size != 1:
            raise kernel_error(
                f"{what} of a tensor of shape {self.shape}",
                "reduce it first, with tl.max or tl.sum, or index one element",
            )
        return self.numpy().reshape(())

    def __bool__(self) -> bool:
        return bool(self._one("bool()"))

    def __int__(self) -> int:
        return int(self._one("int()"))

    def __index__(self) -> int:
        """For `range(n)` and the like, of one integer."""
        if dtype_of(self.dtype).is_float or self.dtype == BOOL:
            raise kernel_error(
                f"a tensor of {self.dtype} where a whole number is needed", "use int(x), or cast it to an integer type"
            )
        return int(self._one("a whole number"))

    def __float__(self) -> float:
        return float(self._one("float()"))

    def item(self) -> Scalar:
        """The one number, as a Python scalar."""
        plain = self._one("item()").item()
        return plain if isinstance(plain, bool | int | float) else float(plain)

    def to(self, dtype: object) -> TensorHandle:
        """`tl.cast(self, dtype)`."""
        return self.tl.cast(self, dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise kernel_error("len() of a single number", "use .size or .shape")
        return self.shape[0]

    def __iter__(self) -> Iterator[TensorHandle]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, index: Index | tuple[Index, ...]) -> TensorHandle:
        """A part, for reading: integers, slices with a positive step, `...` and None. Shares the TCM; no engine."""
        return self.tl.part(self, index if isinstance(index, tuple) else (index,))

    # ---- operators

    __array_ufunc__ = None  # numpy leaves `np.float32(2) * x` to this class, and does not take `x` apart

    __hash__ = object.__hash__

    def __add__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.add(self, other)

    def __radd__(self, other: Scalar) -> TensorHandle:
        if isinstance(other, Address) and self.size == 1 and not dtype_of(self.dtype).is_float:
            return other + int(self)  # type: ignore[return-value]  # a whole number of bytes behind a pointer
        return self.tl.add(other, self)

    def __sub__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.sub(self, other)

    def __rsub__(self, other: Scalar) -> TensorHandle:
        return self.tl.sub(other, self)

    def __mul__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.mul(self, other)

    def __rmul__(self, other: Scalar) -> TensorHandle:
        return self.tl.mul(other, self)

    def __truediv__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.div(self, other)

    def __rtruediv__(self, other: Scalar) -> TensorHandle:
        return self.tl.div(other, self)

    def __matmul__(self, other: TensorHandle) -> TensorHandle:
        return self.tl.dot(self, other)

    def __neg__(self) -> TensorHandle:
        return self.tl.neg(self)

    def __abs__(self) -> TensorHandle:
        return self.tl.abs(self)

    def __eq__(self, other: TensorHandle | Scalar) -> TensorHandle:  # type: ignore[override]  # elementwise, as in numpy
        return self.tl.compare("eq", self, other)

    def __ne__(self, other: TensorHandle | Scalar) -> TensorHandle:  # type: ignore[override]  # elementwise, as in numpy
        return self.tl.compare("ne", self, other)

    def __lt__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.compare("lt", self, other)

    def __le__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.compare("le", self, other)

    def __gt__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.compare("gt", self, other)

    def __ge__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.compare("ge", self, other)

    def __floordiv__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.floordiv(self, other)

    def __rfloordiv__(self, other: Scalar) -> TensorHandle:
        return self.tl.floordiv(other, self)

    def __mod__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.mod(self, other)

    def __rmod__(self, other: Scalar) -> TensorHandle:
        return self.tl.mod(other, self)

    def __pow__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.pow(self, other)

    def __rpow__(self, other: Scalar) -> TensorHandle:
        return self.tl.pow(other, self)

    def __and__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.bitwise("bit_and", self, other)

    def __rand__(self, other: Scalar) -> TensorHandle:
        return self.tl.bitwise("bit_and", other, self)

    def __or__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.bitwise("bit_or", self, other)

    def __ror__(self, other: Scalar) -> TensorHandle:
        return self.tl.bitwise("bit_or", other, self)

    def __xor__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.bitwise("bit_xor", self, other)

    def __rxor__(self, other: Scalar) -> TensorHandle:
        return self.tl.bitwise("bit_xor", other, self)

    def __lshift__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.bitwise("shl", self, other)

    def __rlshift__(self, other: Scalar) -> TensorHandle:
        return self.tl.bitwise("shl", other, self)

    def __rshift__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self.tl.bitwise("shr", self, other)

    def __rrshift__(self, other: Scalar) -> TensorHandle:
        return self.tl.bitwise("shr", other, self)

    def __invert__(self) -> TensorHandle:
        return self.tl.bit_not(self)
