"""Match: signatures of `tl` calls, in which calls of two kernels can be compared, and which keep nothing alive.

Two arguments have equal signatures where `tl` would do the same with both, each at its own place in the machine. Whole
numbers, strings, None and tuples of whole numbers are their own signatures; anything else is a tuple that begins with
what it is. So 1, 1.0 and True differ, and 0.0 and -0.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np

from kernbench.common.dtypes import DType, dtype_of
from kernbench.common.errors import DataError
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import PendingHandle
from kernbench.triton_emu.pointer import Address, TensorPtr

PlaceOf = Callable[[int], Hashable | None]
"""Where an address lies, as seen from the group of PEs that a kernel belongs to: which tensor argument, which part of
it, and how far in it; None where that is unknown.
"""

MOST_ELEMENTS = 4096  # of an array that is compared, or kept as what a kernel saw
_HANDLES = (TensorHandle, PendingHandle)
_ITSELF = frozenset(
    (int, str, DType, type(None))
)  # types whose objects are their own signatures; a DType equals its name


class IncomparableError(Exception):
    """An argument has no signature."""


_ADDRESSES = frozenset(("ptr", "out_ptr", "src_addr", "dst", "dst_addr"))  # names of such parameters


class Pointer(NamedTuple):
    """The parameters of a method of `tl` that are addresses, whatever is given for them: by position and by name."""

    at: frozenset[int]
    names: frozenset[str]


def pointer_of(method: Callable[..., object]) -> Pointer | None:
    """The addresses that a method of `tl` takes, if it takes any."""
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    at = frozenset(at for at, name in enumerate(names) if name in _ADDRESSES)
    return Pointer(at, _ADDRESSES.intersection(names)) if at else None


class CallSignatures:
    """The signatures of what one kernel passes to its `tl`. All methods raise IncomparableError."""

    __slots__ = ("_place_of", "_tl")

    def __init__(self, tl: object, place_of: PlaceOf) -> None:
        self._tl, self._place_of = tl, place_of

    def of_call(self, pointer: Pointer | None, args: tuple[object, ...], named: dict[str, object]) -> Hashable:
        """The signature of a call's arguments."""
        if pointer is None:
            found = [x if type(x) in _ITSELF else self.of(x) for x in args]
        else:
            found = [
                self._of_pointer(x) if at in pointer.at else x if type(x) in _ITSELF else self.of(x)
                for at, x in enumerate(args)
            ]
        for name, x in named.items():
            is_pointer = pointer is not None and name in pointer.names
            found += (name, self._of_pointer(x) if is_pointer else x if type(x) in _ITSELF else self.of(x))
        return len(args), tuple(found)

    def of(self, x: Any) -> Hashable:
        """The signature of an argument, or of an element of one."""
        kind = type(x)
        itself: Hashable = x
        if kind is tuple:
            for item in x:
                if type(item) is not int:
                    return ("tuple", *[item if type(item) in _ITSELF else self.of(item) for item in x])
            return itself
        if kind in _ITSELF:
            return itself
        if isinstance(x, _HANDLES):
            if x.came_from is None or x.tl is not self._tl:
                raise IncomparableError
            return x.came_from.key
        if kind is slice:
            a, b, step = x.start, x.stop, x.step
            return "slice", self.of(a), self.of(b), None if step is None else self.of(step)
        if isinstance(x, Address):
            return self._of_address(x)
        return self._of_rare_type(x)

    def _of_rare_type(self, x: object) -> Hashable:
        """The signature of an object of a type that is rare as an argument."""
        if isinstance(x, bool):
            return "bool", int(x)
        if type(x) is float:
            return "float", x.hex()
        if type(x) is list or isinstance(x, tuple):
            return ("list" if type(x) is list else "tuple", *[self.of(item) for item in x])
        if type(x) is dict:
            return ("dict", *[self.of(item) for pair in x.items() for item in pair])
        if x is Ellipsis:
            return ("...",)
        if type(x) is range:
            return "range", x.start, x.stop, x.step
        if isinstance(x, np.generic):
            return "number", str(x.dtype), x.tobytes()
        if type(x) is np.ndarray and x.size <= MOST_ELEMENTS and not x.dtype.hasobject:
            return "array", str(x.dtype), x.shape, x.tobytes()
        if isinstance(x, type | np.dtype):
            try:
                return dtype_of(x)
            except DataError:
                pass
        raise IncomparableError

    def _of_pointer(self, x: object) -> Hashable:
        """The signature of an argument that is an address: there a plain number is one, too."""
        if isinstance(x, Address):
            return self._of_address(x)
        if isinstance(x, int | np.integer) and not isinstance(x, bool):
            place = self._place_of(int(x))
            if place is None:
                raise IncomparableError
            return "plain at", place
        return self.of(x)

    def _of_address(self, x: Address) -> Hashable:
        """Where it is, and what of the pointer that it was counted from `tl` looks at. That it lies in the PE's own
        part where it must is known from that part's size (`LaunchRecording.can_be_at`).
        """
        base = x if type(x) is TensorPtr else getattr(x, "_base", None)
        at = int(x)
        place = self._place_of(at)
        if place is None or type(base) is not TensorPtr or base.grid is not None:
            raise IncomparableError
        local = self._place_of(int(base.local)) if base is x and not base.is_part else None  # what a load takes
        return "at", place, base.is_part, base is x, local, base.dtype, base.shape, base.local_shape
