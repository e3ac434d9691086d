"""Which argument goes to which parameter of a kernel. `tl` goes where the kernel has a parameter of that name; one that
is annotated `tl.constexpr` takes a plain Python number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from kernbench.common.errors import KernelError
from kernbench.common.launch import TensorArg
from kernbench.triton_emu.names import constexpr
from kernbench.triton_emu.pointer import Address
from kernbench.triton_emu.tl_core import TensorRange

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KERNELS = 16  # remembered: few run at a time, and what they hold must not stay alive for long


@dataclass(frozen=True, slots=True, eq=False)
class _Only:
    """A kernel as itself: two are never equal, and one that cannot be hashed is remembered like any other."""

    kernel: Callable[..., object]

    def __hash__(self) -> int:
        return id(self.kernel)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Only) and other.kernel is self.kernel


def signature_of(kernel: Callable[..., object]) -> inspect.Signature:
    """The parameters of a kernel; raises KernelError for a callable that does not tell them, as some builtins."""
    return _signature(_Only(kernel))


@lru_cache(maxsize=_KERNELS)
def _signature(only: _Only) -> inspect.Signature:
    try:
        return inspect.signature(only.kernel)
    except (TypeError, ValueError):
        raise KernelError(
            f"kernel {only.kernel!r} does not tell its parameters", hint="write a function that calls it: def k(x, tl)"
        ) from None


def bind(kernel: Callable[..., object], args: Sequence[object], tl: object) -> Callable[[], object]:
    """The call of a kernel with its arguments; raises KernelError when they do not fit its parameters."""
    only = _Only(kernel)
    at, by_name = _place_of_tl(only, len(args))
    for place, name in _constexprs(only):
        if place < len(args):
            args = [*args[:place], _plain(kernel, name, args[place]), *args[place + 1 :]]
    given = [*args] if at is None else [*args[:at], tl, *args[at:]]
    return partial(kernel, *given, tl=tl) if by_name else partial(kernel, *given)


@lru_cache(maxsize=4 * _KERNELS)  # a launch binds one kernel on every PE
def _place_of_tl(only: _Only, count: int) -> tuple[int | None, bool]:
    """Where `tl` goes among `count` arguments given by position, if it does, and whether it is given by name."""
    kernel, signature = only.kernel, _signature(only)
    at, by_name, taken = None, False, 0
    for parameter in signature.parameters.values():
        if parameter.name == "tl":
            # Behind a parameter that is left to its default there is no position.
            by_name = parameter.kind is parameter.KEYWORD_ONLY or taken > count
            at = None if by_name else taken
        elif parameter.kind in _POSITIONAL:
            taken += 1
    given = [None] * (count + (at is not None))
    try:
        signature.bind(*given, **({"tl": None} if by_name else {}))
    except TypeError as error:
        raise KernelError(
            f"kernel {getattr(kernel, '__name__', kernel)}{signature} does not take {count} arguments: {error}",
            hint="pass as many tensors and scalars as it has parameters besides tl",
        ) from None
    return at, by_name


@lru_cache(maxsize=_KERNELS)
def _constexprs(only: _Only) -> tuple[tuple[int, str], ...]:
    """The parameters annotated `tl.constexpr`, by their place among a launch's arguments."""
    passed = [p for p in _signature(only).parameters.values() if p.name != "tl" and p.kind in _POSITIONAL]
    return tuple((at, p.name) for at, p in enumerate(passed) if _is_constexpr(p.annotation))


def _is_constexpr(annotation: object) -> bool:
    """Whether it is, or says so: with `from __future__ import annotations` it is text."""
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == "constexpr"
    return annotation is constexpr


def _plain(kernel: Callable[..., object], name: str, arg: object) -> object:
    if isinstance(arg, Address):
        raise KernelError(
            f"kernel {getattr(kernel, '__name__', kernel)}: '{name}' is a constexpr, got the tensor '{arg.base.name}'",
            hint="pass a number there, or take the annotation away",
        )
    return arg.item() if isinstance(arg, np.generic) else arg


def tensor_ranges(kernel: Callable[..., object], args: Sequence[object]) -> tuple[TensorRange, ...]:
    """The addresses of the tensors among a launch's arguments, under the names of the kernel's parameters."""
    names = [p.name for p in signature_of(kernel).parameters.values() if p.name != "tl" and p.kind in _POSITIONAL]
    found: list[TensorRange] = []
    for at, arg in enumerate(args):
        if isinstance(arg, TensorArg):
            found += _ranges(arg, names[at] if at < len(names) else arg.name)
    return tuple(found)


def _ranges(arg: TensorArg, name: str) -> list[TensorRange]:
    """The addresses of a tensor: its virtual range, or those of each of its parts."""
    if arg.va_base is not None:
        return [TensorRange(name, arg.va_base, arg.va_base + arg.span_bytes, arg.dtype)]
    several = len(arg.shards) > 1
    return [
        TensorRange(name, shard.pa, shard.pa + shard.nbytes, arg.dtype, is_one_of_several=several)
        for shard in arg.shards
    ]
