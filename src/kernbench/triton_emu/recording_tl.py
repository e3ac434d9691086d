"""Record: `RecordingTl` records in a `Trace` the calls of a kernel, and of their results what the kernel may read.

Recorded are the outermost calls, also those behind operators of tensors, and which handles were dropped between them. A
trace is not usable where something of the kernel cannot be compared: atomics, barriers, prints, an address that has no
place, an argument of an unsupported type, or a call that raises. It holds no tensor, so TCM is taken and released as
without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator
from functools import wraps
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from kernbench.common.commands import Space
from kernbench.triton_emu.call_signatures import (
    MOST_ELEMENTS,
    CallSignatures,
    IncomparableError,
    PlaceOf,
    Pointer,
    pointer_of,
)
from kernbench.triton_emu.handle import CallOrigin, TensorHandle
from kernbench.triton_emu.kernel_env import KernelEnv
from kernbench.triton_emu.pending_handle import CompletionHandle, PendingHandle
from kernbench.triton_emu.tl_atomics import TlAtomics
from kernbench.triton_emu.tl_context import TLContext
from kernbench.triton_emu.tl_engines import TlEngines

ANSWERED = ("program_id", "num_programs", "physical_id", "directions", "peer")  # from where a kernel runs
NOT_FOR_KERNELS = ("close", "ended")
INCOMPARABLE = ("barrier", "device_print", "multicast")  # of other PEs, and what each PE says for itself


class TlMethod(NamedTuple):
    """A method of `tl` that kernels call."""

    name: str
    method: Callable[..., object]
    pointer: Pointer | None
    is_comparable: bool


def kernel_methods() -> Iterator[TlMethod]:
    """The methods whose calls are recorded."""
    for name in dir(TLContext):
        method = inspect.getattr_static(TLContext, name)
        if not name.startswith("_") and isinstance(method, FunctionType) and name not in (*ANSWERED, *NOT_FOR_KERNELS):
            is_comparable = name not in vars(TlAtomics) and name not in vars(TlEngines) and name not in INCOMPARABLE
            yield TlMethod(name, method, pointer_of(method), is_comparable)


# ---- what a call returns, as far as a kernel may look at it


class SeenTensor(NamedTuple):
    came_from: Hashable
    shape: tuple[int, ...]
    dtype: str
    space: Space
    is_reference: bool


class SeenPending(NamedTuple):
    came_from: Hashable
    is_composite: bool
    out: SeenTensor | None  # of a composite


class SeenSeveral(NamedTuple):
    items: tuple[object, ...]


class SeenArray(NamedTuple):
    value: np.ndarray  # read-only

    def __reduce__(self) -> tuple[object, ...]:
        return _seen_array, (self.value,)


def _seen_array(value: np.ndarray) -> SeenArray:
    """Arrays of some types can be written to when they come from another process."""
    value.flags.writeable = False
    return SeenArray(value)


class _Kept:
    """Stands for the result of a `wait` that returns the tensor of its handle, which is recorded with the handle."""

    def __reduce__(self) -> str:
        return "KEPT"


KEPT = _Kept()


class TlCall(NamedTuple):
    """A call that a kernel has made, and the handles that it has dropped since the call before: their TCM is free."""

    name: str
    args: Hashable
    dropped: list[Hashable]
    result: object


class SharedCalls:
    """Equal calls of several traces, kept once: kernels of a launch make mostly the same calls."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}

    def call(self, name: str, args: Hashable, dropped: list[Hashable], result: object) -> TlCall:
        """A call, made of the parts of equal ones that are kept already."""
        kept = self._kept
        args, dropped = kept.setdefault((TlCall, args), args), kept.setdefault((list, *dropped), dropped)
        result_key = _key_of_result(result)
        if result_key is None:
            return TlCall(name, args, dropped, result)
        result = kept.setdefault(result_key, result)
        made = TlCall(name, args, dropped, result)
        shared: TlCall = kept.setdefault((name, id(args), id(dropped), id(result)), made)
        return shared

    def clear(self) -> None:
        """Forget the calls: no trace is being recorded."""
        self._kept.clear()


def _key_of_result(seen: object) -> Hashable | None:
    """The key of a result: results with equal keys look the same to a kernel. None for rare kinds of results, which are
    not shared. A DType equals its name but has more attributes, so its type is part of the key.
    """
    if type(seen) is SeenTensor:
        return SeenTensor, seen, type(seen.dtype)
    if seen is None or seen is KEPT or (type(seen) is SeenPending and seen.out is None):
        return SeenPending, seen
    return None


class Trace:
    """The calls of one kernel, in order; holds none of its tensors."""

    def __init__(self) -> None:
        self.calls: list[TlCall] = []
        self.is_over = False  # whether the kernel has ended, without an error
        self._is_comparable = True

    @property
    def is_usable(self) -> bool:
        """Whether a kernel can be compared with it: all calls are there, and each can be compared."""
        return self.is_over and self._is_comparable

    @property
    def is_given_up(self) -> bool:
        """Whether the kernel did something that cannot be compared."""
        return not self._is_comparable

    @property
    def is_open(self) -> bool:
        """Whether calls are still recorded."""
        return self._is_comparable and not self.is_over

    def give_up(self) -> None:
        """The kernel did something that cannot be compared: drop the calls, and record no more."""
        self._is_comparable = False
        self.calls = []


# ---- recording


class RecordingTl(TLContext):
    """A `tl` that records its calls, and which handles are dropped between them."""

    def __init__(self, env: KernelEnv, trace: Trace, place_of: PlaceOf, shared: SharedCalls | None = None) -> None:
        super().__init__(env)
        self._trace = trace
        self._shared = SharedCalls() if shared is None else shared
        self._signatures = CallSignatures(self, place_of)
        self._dropped: list[Hashable] = []  # handles, since the last call
        self._is_inside = False  # in a call: calls of methods by each other are not recorded

    def device_print(self, prefix: object, *args: object, hex: bool = False) -> None:
        """Print nothing here: the trace is given up, so the kernel is run, and prints then."""
        self._trace.give_up()

    def ended(self, returned: object) -> object:
        result = super().ended(returned)
        self._trace.is_over = True
        return result

    def _note(self, name: str, args: Hashable, dropped: list[Hashable], result: object) -> None:
        """A call has returned."""
        calls = self._trace.calls
        try:
            seen = self._seen(name, result, ("result", len(calls)))
        except IncomparableError:
            self._trace.give_up()
        else:
            calls.append(self._shared.call(name, args, dropped, seen))

    def _seen(self, name: str, result: object, key: tuple[Hashable, ...]) -> object:
        if result is None:
            return None
        if isinstance(result, TensorHandle):
            if result.came_from is None:
                return self._seen_tensor(result, key)
            if name == "wait":
                return KEPT
        elif isinstance(result, PendingHandle) and result.came_from is None:
            result.came_from = CallOrigin(key, self._dropped)
            if not isinstance(result, CompletionHandle):
                return SeenPending(key, False, None)
            out = result.out
            return SeenPending(key, True, None if out is None else self._seen_tensor(out, (*key, "out")))
        elif type(result) is tuple:
            return SeenSeveral(tuple(self._seen(name, item, (*key, at)) for at, item in enumerate(result)))
        elif type(result) is np.ndarray and result.size <= MOST_ELEMENTS:
            return _seen_array(result.copy())
        raise IncomparableError

    def _seen_tensor(self, x: TensorHandle, key: Hashable) -> SeenTensor:
        x.came_from = CallOrigin(key, self._dropped)
        return SeenTensor(key, x.shape, x.dtype, x.space, x.is_reference)


def _recorded(about: TlMethod) -> object:
    method, pointer = about.method, about.pointer

    @wraps(method)
    def call(self: RecordingTl, *args: object, **named: object) -> object:
        trace = self._trace
        if self._is_inside or not trace.is_open:
            return method(self, *args, **named)
        if not about.is_comparable:
            trace.give_up()
            return method(self, *args, **named)
        try:
            signature = self._signatures.of_call(pointer, args, named)
        except (IncomparableError, RecursionError):
            trace.give_up()
            return method(self, *args, **named)
        dropped = self._dropped[:]
        self._dropped.clear()
        self._is_inside = True
        try:
            result = method(self, *args, **named)
        except BaseException:
            trace.give_up()
            raise
        finally:
            self._is_inside = False
        self._note(about.name, signature, dropped, result)
        return result

    return call


for _method in kernel_methods():
    if _method.name not in vars(RecordingTl):
        setattr(RecordingTl, _method.name, _recorded(_method))
