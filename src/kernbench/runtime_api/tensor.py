"""Tensor: the host's handle of a tensor on a device: a view of a storage, with PyTorch's names.

Views (`x[2:4]`, `x.data`, `x.view`, `x.t()`, ...) share memory with the tensor they are taken from: what is written to
one is read from the other. Arithmetic runs as kernels on the device (`device_ops.py`).

Looking at contents (`numpy()`, `tolist()`, `item()`, `repr`, `__array__`) returns what memory holds once everything
issued before is done, and evaluates pending values. It inspects the simulation from outside and takes no simulated
time; `cpu()` is the read that is simulated. Assignment of numbers and arrays (`x[i] = ...`, `copy_(array)`) is a host
write to every shard it touches, and is simulated; a tensor is copied by a kernel. Of replicas, reads return the first
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from kernbench.common.array_types import Array, Mask, Shape
from kernbench.common.errors import DataError, TensorError, TensorIndexError, TensorTypeError, UsageError
from kernbench.common.units import format_bytes
from kernbench.policy.placement.dp import ShardSpec
from kernbench.runtime_api.device import is_host
from kernbench.runtime_api.host_numbers import as_elements
from kernbench.runtime_api.not_modelled import TENSOR_NAMES, refuse_name
from kernbench.runtime_api.tensor_base import Host
from kernbench.runtime_api.tensor_rows import TensorCasts

if TYPE_CHECKING:
    from types import EllipsisType

__all__ = ["Array", "Host", "Shape", "Tensor"]
Index: TypeAlias = "int | slice | EllipsisType | Array | Tensor | Sequence[int] | tuple[Index, ...] | None"
UFUNCS: dict[np.ufunc, str] = {  # numpy's operators, and their names in the table of operations
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.divide: "div",
    np.power: "pow",
    np.floor_divide: "floor_divide",
    np.remainder: "remainder",
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
    np.equal: "eq",
    np.not_equal: "ne",
    np.bitwise_and: "bitwise_and",
    np.bitwise_or: "bitwise_or",
    np.bitwise_xor: "bitwise_xor",
}
REPR_ELEMENTS = 4096  # a larger tensor is described, not printed


class Tensor(TensorCasts):
    """Made by a RuntimeContext: `torch.empty`, `torch.from_numpy`, ... Its storage is freed when no tensor refers to it
    any more.
    """

    requires_grad = False
    is_cuda = True

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Called for missing names: the error names what to use instead."""
            if name.startswith("__"):  # Python's own protocols
                raise AttributeError(name)
            refuse_name("Tensor", name, TENSOR_NAMES.get(name), public_names(type(self)))

    # ---- reading

    def numpy(self, *, force: bool = False) -> Array:
        """Its contents as a new array, which shares no memory with it; raises DataError if elements were never written.
        `force` is accepted for compatibility.
        """
        return self._read(timed=False)

    def cpu(self) -> HostArray:
        """As `numpy()`, but the transfer to the host is simulated and takes time."""
        return self._read(timed=True).view(HostArray)

    def to(self, *what: Any, **named: Any) -> Any:
        """In another dtype, or on another device; the tensor itself if it is so already. "cpu" is `cpu()`."""
        if any(is_host(each) for each in (*what, named.get("device"))):
            return self.cpu()
        return super().to(*what, **named)

    type = type_as = to

    @property
    def data(self) -> Tensor:
        """The same elements, in the same memory."""
        return Tensor(self.host, self.storage, self.layout)

    def __array__(self, dtype: np.dtype[np.generic] | None = None, copy: bool | None = None) -> Array:
        contents = self.numpy()
        return contents if dtype is None else contents.astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **named: Any) -> Any:
        """`np.float32(2) * x`, which is computed on the device; numpy's functions of arrays get contents."""
        name = UFUNCS.get(ufunc)
        is_number = not isinstance(inputs[0], Tensor) and np.ndim(inputs[0]) == 0
        if name is not None and method == "__call__" and is_number and not (out or named):
            number: Any = np.asarray(inputs[0])[()]
            return self._ops.pointwise(name, number, inputs[1])
        if any(isinstance(each, Tensor) for each in out):
            return NotImplemented
        arrays = [each.numpy() if isinstance(each, Tensor) else each for each in inputs]
        return getattr(ufunc, method)(*arrays, **named, **({"out": out} if out else {}))

    def tolist(self) -> object:
        """Its contents as Python numbers in nested lists; of a tensor of no axes, the number."""
        contents = self.numpy()
        return contents.astype(np.float32).tolist() if contents.dtype.kind == "V" else contents.tolist()

    def __getitem__(self, index: Index) -> Tensor:
        """A view, for integers, slices, `...` and None; for lists, arrays, masks and tensors, a copy by a kernel."""
        layout = self.layout.indexed(index)
        return self.over(layout) if layout is not None else self._ops.take(self, index)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[at] for at in range(len(self)))

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.element.is_float:
            raise UsageError(f"{self.title} is used as an index", hint="use an integer tensor, or int(x)")
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if not self.shape else format(str(self), spec)

    def item(self) -> bool | int | float:
        """The only element of a tensor that has one."""
        if self.numel() != 1:
            raise TensorError(f"{self.title} has {self.numel()} elements", hint="index it first")
        only = self.numpy().reshape(())
        if self.dtype == "bool":
            return bool(only)
        return float(only.astype(np.float64)) if self.element.is_float else int(only.astype(np.int64))

    def allclose(self, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Whether all elements are nearly equal: computed on the device, then read."""
        return bool(self.isclose(other, rtol, atol).all())

    def isclose(self, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> Tensor:
        """Whether each element is nearly equal to that of another tensor."""
        return self._ops.pointwise("isclose", self, _other_tensor("isclose", other), rtol=rtol, atol=atol)

    def equal(self, other: Tensor) -> bool:
        """Whether shape and all elements are equal: computed on the device, then read."""
        _other_tensor("equal", other)
        return self.shape == other.shape and bool(self._ops.pointwise("eq", self, other).all())

    # ---- writing

    def __setitem__(self, index: Index, source: Tensor | ArrayLike) -> None:
        """Write the elements that an index selects: numbers and arrays by the host, a tensor by a kernel."""
        if isinstance(source, Tensor):
            layout = self.layout.indexed(index)
            if layout is not None:
                if source.storage is not self.storage or source.layout != layout:  # else `x[i] += 1`, which is done
                    self.over(layout).copy_(source)
                return
            source = source.cpu()
        self.write_elements(_as_numpy(index), source)

    def write_elements(self, index: Index, source: ArrayLike) -> None:
        """A host write to every shard that an index touches.

        A shard gets one write, from the first selected element to the last; elements between keep their contents.
        """
        whole = self.whole()
        touched = np.zeros(whole.shape, bool)
        new = np.zeros(whole.shape, self.element.numpy)
        try:
            self._seen_in(touched)[index] = True  # type: ignore[index]  # numpy takes what this takes
        except (IndexError, TypeError) as error:
            raise TensorIndexError(f"{self.title}: {error}", hint="index it as a numpy array of its shape") from None
        view = self._seen_in(new)
        view[index] = self._cast(source, view[index].shape)  # type: ignore[index]  # numpy takes what this takes
        parts: list[tuple[int, int, Array]] = []
        gaps: dict[int, Mask] = {}  # elements between that were never written
        whole_parts: dict[int, Array] = {}  # replicas get the same array
        for at, part in enumerate(whole.placement):
            here, contents = touched[part.index].reshape(-1), new[part.index].reshape(-1)
            changed = np.flatnonzero(here)
            if changed.size == here.size:
                parts.append((at, 0, whole_parts.setdefault(part.offset_bytes, contents)))
            elif changed.size:
                first, end = int(changed[0]), int(changed[-1]) + 1
                if changed.size < end - first:
                    contents, gaps[at] = _filled(whole, at, here, contents, first, end)
                parts.append((at, first, contents[first:end]))
        self.host.write_parts(whole, parts)
        self.host.leave_unwritten(whole, gaps)

    # ---- inside

    def _seen_in(self, whole: Array) -> Array:
        """This view of an array that stands for the whole storage."""
        layout, size = self.layout, whole.itemsize
        if not layout.numel:
            return np.zeros(layout.shape, whole.dtype)
        steps = tuple(stride * size for stride in layout.strides)
        return np.ndarray(layout.shape, whole.dtype, whole.reshape(-1).view(np.uint8), layout.offset * size, steps)

    def _read(self, *, timed: bool) -> Array:
        whole = self.whole()
        out = np.zeros(whole.shape, self.element.numpy)
        if not self.numel():
            return np.zeros(self.shape, self.element.numpy)
        which, wanted = whole.first_holders(), None
        if self.layout != whole.layout:
            touched = np.zeros(whole.shape, bool)
            self._seen_in(touched)[...] = True
            masks = {at: touched[whole.placement[at].index].reshape(-1) for at in which}
            wanted = {at: mask for at, mask in masks.items() if mask.any()}
            which = list(wanted)
        for at, part in zip(which, self.host.read_parts(whole, which, timed=timed, wanted=wanted), strict=True):
            out[whole.placement[at].index] = part
        return out if self.layout == whole.layout else np.array(self._seen_in(out))

    def _cast(self, source: ArrayLike, shape: Shape) -> Array:
        array = as_elements(source, self.element, self.title)
        try:
            return np.broadcast_to(array, shape)
        except ValueError:
            raise DataError(
                f"{self.title} cannot take an array of shape {array.shape}", hint=f"give shape {shape}"
            ) from None

    def __repr__(self) -> str:
        first = self.whole().placement
        cubes = len(self.allocation.cubes)
        pes = len({part.pe for part in first})
        where = f"on sip {first[0].sip}, {len(first)} shards" if len(first) > 1 else f"on {_place(first[0])}"
        spread = f", cube {self.dp.cube} over {cubes}, pe {self.dp.pe} over {pes}" if len(first) > 1 else ""
        sizes = f", {format_bytes(self.nbytes)}"
        if self.is_view:
            seen = f", a view from element {self.layout.offset} on with strides {list(self.layout.strides)}"
            return f"{self.title} {where}{spread}{sizes}{seen}\n{self._printed()}"
        local = f", local shape {list(self.local_shape)}" if len(first) > 1 else ""
        kind = "la" if self.allocation.is_logical else "va"
        at = f", {kind} {self.va_base:#x}" if self.va_base is not None else f", pa {self.shards[0].pa:#x}"
        return f"{self.title} {where}{spread}{local}{sizes}{at}\n{self._printed()}"

    def _printed(self) -> str:
        if self.numel() > REPR_ELEMENTS:
            return f"({self.numel()} elements)"
        try:
            return str(self.numpy())
        except (DataError, UsageError) as error:
            return f"({error.what})"


class HostArray(np.ndarray):
    """What `cpu()` returns: an array, with the methods that a tensor of the host has in PyTorch."""

    def numpy(self) -> Array:
        """The array itself."""
        return self.view(np.ndarray)

    def cpu(self) -> HostArray:
        return self

    def detach(self) -> HostArray:
        return self


def _other_tensor(name: str, other: object) -> Tensor:
    """The second operand of a comparison of tensors; raises TensorTypeError for a number, as PyTorch does."""
    if not isinstance(other, Tensor):
        raise TensorTypeError(
            f"{name}(): argument 'other' must be a tensor, not {type(other).__name__}",
            hint="torch.full_like(x, number) makes one; x == number compares with a number",
        )
    return other


def _as_numpy(index: Index) -> Index:
    """An index with tensors replaced by their contents."""
    if isinstance(index, tuple):
        return tuple(_as_numpy(item) for item in index)
    return index.numpy() if isinstance(index, Tensor) else index


def public_names(cls: type) -> list[str]:
    """The names that a class offers to programs."""
    return [name for name in dir(cls) if not name.startswith("_") and name not in INTERNAL]


INTERNAL = (
    "host",
    "storage",
    "layout",
    "over",
    "whole",
    "as_arg",
    "number",
    "write_elements",
    "first_holders",
    "title",
)


def _filled(tensor: Tensor, at: int, touched: Mask, new: Array, first: int, end: int) -> tuple[Array, Mask]:
    """`new` where it is touched and the shard's current contents elsewhere from `first` to `end`; and which of these
    were never written.
    """
    between = ~touched
    between[:first] = between[end:] = False
    kept = between & tensor.host.written(tensor, at)
    (old,) = tensor.host.read_parts(tensor, [at], timed=False, wanted={at: kept})
    return np.where(kept, old.reshape(-1), new), between & ~kept


def _place(part: ShardSpec) -> str:
    return f"sip {part.sip}, cube {part.cube}, pe {part.pe}"
