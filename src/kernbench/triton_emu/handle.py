"""What a kernel holds: tensors in its PE's TCM, references to tensors in memory, and composites under way.

A handle knows the `tl` it came from, so operators need no current context. It is a value that never changes; the TCM
behind it is given back when the last handle on it is dropped. Looking at numbers (`numpy`, `float`, `int`, `bool`)
evaluates what they depend on, on the spot, and costs no simulated time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, TypeAlias
from weakref import ref

from kernbench.common.commands import Operand, Space
from kernbench.triton_emu.call_site import kernel_error
from kernbench.triton_emu.tcm_arena import TcmBlock
from kernbench.values.graph import Value
from kernbench.values.op import Array

if TYPE_CHECKING:
    from kernbench.triton_emu.tl_context import TLContext

Scalar: TypeAlias = bool | int | float
Index: TypeAlias = int | slice | EllipsisType | None


class TensorHandle:
    """A tensor: in TCM, or (from `tl.ref`) where it lies in memory. Operators are elementwise with numpy's
    broadcasting; `@` is `tl.dot`.
    """

    __slots__ = (
        "__weakref__",
        "_block",
        "_composite",
        "_tl",
        "address",
        "dtype",
        "records",
        "shape",
        "space",
        "transposed",
        "value",
    )

    def __init__(
        self,
        tl: TLContext,
        shape: tuple[int, ...],
        dtype: str,
        space: Space,
        address: int,
        value: Value | None,
        block: TcmBlock | None = None,
        records: tuple[int, ...] = (),
        transposed: bool = False,
    ) -> None:
        self._tl = tl
        self.shape = shape
        self.dtype = dtype
        self.space = space
        self.address = address
        self.value = value  # None for a reference: memory is read when it is used
        self.records = records  # op-log ids of what made it
        self.transposed = transposed
        self._block = block
        self._composite: CompletionHandle | None = None  # that has yet to write it

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def tl(self) -> TLContext:
        return self._tl

    @property
    def block(self) -> TcmBlock | None:
        return self._block

    @property
    def composite(self) -> CompletionHandle | None:
        return self._composite

    def awaits(self, composite: CompletionHandle | None) -> None:
        self._composite = composite

    def operand(self) -> Operand:
        """As a command names it."""
        return Operand(self.address, self.shape, self.dtype, self.space, self.transposed)

    @property
    def T(self) -> TensorHandle:  # noqa: N802  # as numpy and PyTorch spell it
        return self._tl.trans(self)

    def __repr__(self) -> str:
        place = "in TCM" if self.space == "tcm" else "in memory"
        return f"<tensor {self.dtype}{list(self.shape)} {place} at {self.address:#x}>"

    # ---- looking at numbers

    def numpy(self) -> Array:
        """The numbers, read-only. Evaluates what they depend on; costs no simulated time."""
        return self._tl.evaluate(self)

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

    def __float__(self) -> float:
        return float(self._one("float()"))

    def item(self) -> Scalar:
        """The one number, as a Python scalar."""
        plain = self._one("item()").item()
        return plain if isinstance(plain, bool | int | float) else float(plain)

    def __len__(self) -> int:
        if not self.shape:
            raise kernel_error("len() of a single number", "use .size or .shape")
        return self.shape[0]

    def __iter__(self) -> Iterator[TensorHandle]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, index: Index | tuple[Index, ...]) -> TensorHandle:
        """A part, for reading: integers, slices with a positive step, `...` and None. Shares the TCM; no engine."""
        return self._tl.part(self, index if isinstance(index, tuple) else (index,))

    # ---- operators

    __array_ufunc__ = None  # numpy leaves `np.float32(2) * x` to this class, and does not take `x` apart

    __hash__ = object.__hash__

    def __add__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self._tl.add(self, other)

    def __radd__(self, other: Scalar) -> TensorHandle:
        return self._tl.add(other, self)

    def __sub__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self._tl.sub(self, other)

    def __rsub__(self, other: Scalar) -> TensorHandle:
        return self._tl.sub(other, self)

    def __mul__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self._tl.mul(self, other)

    def __rmul__(self, other: Scalar) -> TensorHandle:
        return self._tl.mul(other, self)

    def __truediv__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self._tl.div(self, other)

    def __rtruediv__(self, other: Scalar) -> TensorHandle:
        return self._tl.div(other, self)

    def __matmul__(self, other: TensorHandle) -> TensorHandle:
        return self._tl.dot(self, other)

    def __neg__(self) -> TensorHandle:
        return self._tl.neg(self)

    def __abs__(self) -> TensorHandle:
        return self._tl.abs(self)

    def __eq__(self, other: TensorHandle | Scalar) -> TensorHandle:  # type: ignore[override]  # elementwise, as in numpy
        return self._tl.compare("eq", self, other)

    def __ne__(self, other: TensorHandle | Scalar) -> TensorHandle:  # type: ignore[override]  # elementwise, as in numpy
        return self._tl.compare("ne", self, other)

    def __lt__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self._tl.compare("lt", self, other)

    def __le__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self._tl.compare("le", self, other)

    def __gt__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self._tl.compare("gt", self, other)

    def __ge__(self, other: TensorHandle | Scalar) -> TensorHandle:
        return self._tl.compare("ge", self, other)

    def __and__(self, other: TensorHandle) -> TensorHandle:
        return self._tl.compare("logical_and", self, other)

    def __or__(self, other: TensorHandle) -> TensorHandle:
        return self._tl.compare("logical_or", self, other)

    def __invert__(self) -> TensorHandle:
        return self._tl.logical_not(self)


class CompletionHandle:
    """A composite under way, or done.

    Where its result stays in TCM, the handle keeps it until `tl.wait` has returned it; from then on it is the kernel's
    alone, and its TCM is free when the kernel drops it, whether the handle is still there or not.
    """

    __slots__ = ("_held", "_kept", "_result", "_tl", "number", "records")

    def __init__(self, tl: TLContext, held: tuple[TensorHandle, ...], out: TensorHandle | None) -> None:
        self._tl = tl
        self._held = held  # operands stay in TCM until it is done
        self.number = -1  # until it is issued
        self.records: tuple[int, ...] = ()  # its op-log ids, once it is done
        self._kept = out
        self._result = None if out is None else ref(out)

    @property
    def tl(self) -> TLContext:
        return self._tl

    @property
    def out(self) -> TensorHandle | None:
        """Its result where that stays in TCM, None where it goes to memory; raises KernelError for one that was waited
        for and dropped.
        """
        if self._result is None:
            return None
        result = self._result()
        if result is None:
            raise kernel_error(
                "the result of this composite was dropped after tl.wait had returned it",
                "keep what tl.wait returns for as long as you need it: y = tl.wait(h)",
            )
        return result

    def hand_over(self) -> TensorHandle | None:
        """The result, which from now on is kept by whoever takes it."""
        result = self.out
        self._kept = None
        return result

    def finish(self, records: tuple[int, ...]) -> None:
        """It is done: its operands may go, and its result may be used."""
        self._held = ()
        self.records = records
        if self._kept is not None:
            self._kept.records = records
            self._kept.awaits(None)
