"""Match: kernels whose `tl` calls are compared with recorded ones instead of being simulated.

`matches` runs a kernel for a PE with a stand-in `tl` that only compares, and returns whether it makes the calls of a
`Trace`, each at its own place; that costs a small part of what the calls themselves do.

So a kernel is run for PEs on which nothing is simulated, and several times for some. It must be `repeatable`: its calls
depend on its arguments and its place in the grid only, not on time, on chance, on contents of tensors or on what
another run of it left behind; and it has no effect but those of `tl`. Handles that it drops between two calls are
compared, too, since that decides when TCM is free. Contents that it reads are those that the recorded kernel read,
which must not depend on the place: a kernel that reads numbers that it has loaded has no usable trace.

A kernel that touches of its `tl` or its tensors what was not recorded (where a tensor lies in TCM, which ops made it,
`out` of a transfer that was not waited for) does not match.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from inspect import isgenerator
from math import prod
from typing import TYPE_CHECKING, NoReturn
from weakref import ref

from kernbench.triton_emu.call_signatures import CallSignatures, IncomparableError, PlaceOf, Pointer
from kernbench.triton_emu.handle import CallOrigin, TensorHandle
from kernbench.triton_emu.kernel_env import KernelIds
from kernbench.triton_emu.pending_handle import CompletionHandle, PendingHandle, TransferHandle
from kernbench.triton_emu.recording_tl import (
    KEPT,
    NOT_FOR_KERNELS,
    RecordingTl,
    SeenArray,
    SeenPending,
    SeenSeveral,
    SeenTensor,
    TlMethod,
    Trace,
    kernel_methods,
)
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["MatchingTl", "RecordingTl", "Trace", "matches"]


class _DiffersError(BaseException):
    """The kernel makes other calls than the recorded one. No Exception: a kernel may catch those."""


def matches(trace: Trace, call: Callable[[TLContext], object], place_of: PlaceOf, ids: KernelIds) -> bool:
    """Whether a kernel makes the calls of `trace`: `call` runs it with the `tl` that it is given. What it raises says
    that it does not.
    """
    if not trace.is_usable:
        return False
    tl = MatchingTl(trace, place_of, ids)
    try:
        returned = call(tl)
    except (_DiffersError, Exception, SystemExit):
        return False
    return tl.has_matched and not isgenerator(returned)


class MatchingTl(TLContext):
    """A `tl` that compares its calls with those of a trace, and gives what stands for their results."""

    def __init__(self, trace: Trace, place_of: PlaceOf, ids: KernelIds) -> None:  # no TCM, no runner: nothing is done
        self._env = ids  # type: ignore[assignment]  # of it only where the kernel runs
        self._calls = trace.calls
        self._at = 0
        self._dropped: list[Hashable] = []  # handles, since the last call
        self._differs = False
        self._signatures = CallSignatures(self, place_of)

    @property
    def has_matched(self) -> bool:
        """Whether all calls of the trace were made, and nothing else was touched."""
        return not self._differs and self._at == len(self._calls)

    def _differ(self) -> NoReturn:
        self._differs = True  # for good, whatever the kernel catches
        raise _DiffersError

    def _match(self, name: str, pointer: Pointer | None, args: tuple[object, ...], named: dict[str, object]) -> object:
        """What the trace has of this call's result."""
        at = self._at
        if at < len(self._calls):
            self._at = at + 1
            expected, signature, dropped, result = self._calls[at]
            try:
                if (
                    name == expected
                    and self._dropped == dropped
                    and self._signatures.of_call(pointer, args, named) == signature
                ):
                    self._dropped.clear()
                    return result
            except IncomparableError:
                pass
        return self._differ()

    def _stand_in(self, seen: object) -> object:
        if type(seen) is SeenTensor:
            return _stand_in_tensor(self, seen)
        if type(seen) is SeenPending:
            kind = CompletionStandIn if seen.is_composite else TransferStandIn
            pending = kind.__new__(kind)
            pending._tl, pending.came_from = self, CallOrigin(seen.came_from, self._dropped)
            if seen.is_composite:
                out = pending._kept = None if seen.out is None else _stand_in_tensor(self, seen.out)
                pending._result = None if out is None else ref(out)
            return pending
        if type(seen) is SeenSeveral:
            return tuple([self._stand_in(item) for item in seen.items])
        assert type(seen) is SeenArray
        return seen.value

    def _wait(self, *args: object, **named: object) -> object:
        """`wait`: what its handle keeps is the kernel's from now on."""
        seen = self._match("wait", None, args, named)
        handle = next(iter(args or named.values()), None)
        if handle is None:
            return None
        assert isinstance(handle, PendingHandle)
        if seen is KEPT:
            if handle._result is None or handle._result() is None:
                self._differ()
            return handle.hand_over()
        result = None if seen is None else self._stand_in(seen)
        assert result is None or isinstance(result, TensorHandle)
        handle._kept = None
        handle._result = None if result is None else ref(result)
        return result

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            self._differ()


def _matched(about: TlMethod) -> object:
    name, _, pointer, _ = about

    @wraps(about.method)
    def call(self: MatchingTl, *args: object, **named: object) -> object:
        seen = self._match(name, pointer, args, named)
        if type(seen) is SeenTensor:
            made = _stand_in_tensor(self, seen)
            if seen.is_reference:
                source = next(iter(args or named.values()))
                made.address = source.address if isinstance(source, TensorHandle) else int(source)  # type: ignore[call-overload]  # `ref` and `trans` have taken it
            return made
        return None if seen is None else self._stand_in(seen)

    return call


def _not_comparable(self: MatchingTl, *args: object, **named: object) -> NoReturn:
    self._differ()


class TensorStandIn(TensorHandle):
    """What a kernel may look at of a tensor. The rest is not set: to touch it is a difference."""

    __slots__ = ("refers",)

    refers: bool

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_reference(self) -> bool:
        return self.refers

    def __repr__(self) -> str:
        _differ(self.tl)

    def __getattr__(self, name: str) -> NoReturn:
        _differ(self.tl)

    __hash__ = object.__hash__


class _PendingStandIn(PendingHandle):
    """What a kernel may look at of what is under way. To touch the rest is a difference."""

    __slots__ = ()

    def __repr__(self) -> str:
        _differ(self._tl)

    def __getattr__(self, name: str) -> NoReturn:
        _differ(self._tl)


class CompletionStandIn(_PendingStandIn, CompletionHandle):
    """Stands for a composite."""

    __slots__ = ()


class TransferStandIn(_PendingStandIn, TransferHandle):
    """Stands for a load or a store; what it leaves is unknown before it is waited for."""

    __slots__ = ()


def _differ(tl: object) -> NoReturn:
    assert isinstance(tl, MatchingTl)
    tl._differ()


def _stand_in_tensor(tl: MatchingTl, seen: SeenTensor) -> TensorStandIn:
    made = TensorStandIn.__new__(TensorStandIn)
    key, made.shape, made.dtype, made.space, made.refers = seen
    made.tl, made.came_from = tl, CallOrigin(key, tl._dropped)
    return made


for _name in NOT_FOR_KERNELS:
    setattr(MatchingTl, _name, _not_comparable)
for _method in kernel_methods():
    setattr(MatchingTl, _method.name, _matched(_method) if _method.is_comparable else _not_comparable)
setattr(MatchingTl, "wait", wraps(TLContext.wait)(MatchingTl._wait))  # noqa: B010  # mypy: another signature
