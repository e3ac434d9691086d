"""Which argument goes to which parameter of a kernel. `tl` goes where the kernel has a parameter of that name; one that
is annotated `tl.constexpr` takes a plain Python value, not a tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np

from kernbench.common.errors import KernelError
from kernbench.common.launch import TensorArg
from kernbench.triton_emu.kernel_env import TensorRange
from kernbench.triton_emu.names import constexpr
from kernbench.triton_emu.pointer import Address

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KERNELS = 16  # remembered: few run at a time, and what they hold must not stay alive for long


class _ByIdentity:
    """A kernel as itself: two are never equal, and one that cannot be hashed is remembered like any other."""

    __slots__ = ("kernel",)

    def __init__(self, kernel: Callable[..., object]) -> None:
        self.kernel = kernel

    def __hash__(self) -> int:
        return id(self.kernel)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.kernel is self.kernel


def signature_of(kernel: Callable[..., object]) -> inspect.Signature:
    """The parameters of a kernel; raises KernelError for a callable without a signature, as some builtins are."""
    return _signature(_ByIdentity(kernel))


@lru_cache(maxsize=_KERNELS)
def _signature(wrapped: _ByIdentity) -> inspect.Signature:
    try:
        return inspect.signature(wrapped.kernel)
    except (TypeError, ValueError):
        raise KernelError(
            f"kernel {wrapped.kernel!r} has no signature", hint="write a function that calls it: def k(x, tl)"
        ) from None


def positional_names(kernel: Callable[..., object]) -> list[str]:
    """The parameters that a launch's arguments go to by position, in order."""
    return list(_names(_ByIdentity(kernel)))


@lru_cache(maxsize=_KERNELS)
def _names(wrapped: _ByIdentity) -> tuple[str, ...]:
    parameters = _signature(wrapped).parameters.values()
    return tuple(p.name for p in parameters if p.name != "tl" and p.kind in _POSITIONAL)


def bind(
    kernel: Callable[..., object], args: Sequence[object], tl: object, named: Mapping[str, object] | None = None
) -> Callable[[], object]:
    """The call of a kernel with its arguments by position and by name; raises KernelError when they do not fit its
    parameters.
    """
    wrapped = _ByIdentity(kernel)
    for place, name in _constexprs(wrapped):
        if place < len(args):
            args = [*args[:place], _plain(kernel, name, args[place]), *args[place + 1 :]]
        elif named and name in named:
            named = {**named, name: _plain(kernel, name, named[name])}
    at, tl_by_name = _place_of_tl(wrapped, len(args), tuple(named) if named else ())
    given = [*args] if at is None else [*args[:at], tl, *args[at:]]
    call = partial(kernel, *given, tl=tl) if tl_by_name else partial(kernel, *given)
    return partial(call, **named) if named else call


def name_of(function: object) -> str:
    """A function's name, also of one that has some arguments already; of an object that can be called, its type's.
    Never where it lies in memory.
    """
    inner = getattr(function, "func", function)
    return str(getattr(function, "__name__", None) or getattr(inner, "__name__", None) or type(inner).__name__)


@lru_cache(maxsize=4 * _KERNELS)  # a launch binds one kernel on every PE
def _place_of_tl(wrapped: _ByIdentity, count: int, names: tuple[str, ...]) -> tuple[int | None, bool]:
    """Where `tl` goes among `count` arguments given by position, with those of `names` given by name, if it does, and
    whether it is given by name.
    """
    kernel, signature = wrapped.kernel, _signature(wrapped)
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
        signature.bind(*given, **dict.fromkeys(names), **({"tl": None} if by_name else {}))
    except TypeError as error:
        passed = f"{count} arguments" + (f" and {', '.join(names)}" if names else "")
        raise KernelError(
            f"kernel {name_of(kernel)}{signature} does not take {passed}: {error}",
            hint="pass as many tensors and scalars as it has parameters besides tl",
        ) from None
    return at, by_name


@lru_cache(maxsize=_KERNELS)
def _constexprs(wrapped: _ByIdentity) -> tuple[tuple[int, str], ...]:
    """The parameters annotated `tl.constexpr`, by their place among a launch's arguments."""
    passed = [p for p in _signature(wrapped).parameters.values() if p.name != "tl" and p.kind in _POSITIONAL]
    return tuple((at, p.name) for at, p in enumerate(passed) if _is_constexpr(p.annotation))


def _is_constexpr(annotation: object) -> bool:
    """Whether it is that type, or its name: with `from __future__ import annotations` it is text."""
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == "constexpr"
    return annotation is constexpr


def _plain(kernel: Callable[..., object], name: str, arg: object) -> object:
    if isinstance(arg, Address):
        raise KernelError(
            f"kernel {getattr(kernel, '__name__', kernel)}: '{name}' is a constexpr, got the tensor '{arg.base.name}'",
            hint="pass a plain value there, or take the annotation away",
        )
    return arg.item() if isinstance(arg, np.generic) else arg


def tensor_ranges(
    kernel: Callable[..., object], args: Sequence[object], named: Mapping[str, object] | None = None
) -> tuple[TensorRange, ...]:
    """The addresses of the tensors among a launch's arguments, under the names of the kernel's parameters."""
    names = _names(_ByIdentity(kernel))
    found: list[TensorRange] = []
    for at, arg in enumerate(args):
        if isinstance(arg, TensorArg):
            found += _ranges(arg, names[at] if at < len(names) else arg.name)
    for name, arg in (named or {}).items():
        if isinstance(arg, TensorArg):
            found += _ranges(arg, name)
    return tuple(found)


def _ranges(arg: TensorArg, name: str) -> list[TensorRange]:
    """The addresses of a tensor: its virtual range, or those of each of its parts."""
    if arg.va_base is not None:
        end = arg.va_base + arg.span_bytes
        return [TensorRange(name, arg.va_base, end, arg.dtype, arg.space, layout=arg.layout)]
    several = len(arg.shards) > 1
    return [
        TensorRange(name, shard.pa, shard.pa + shard.nbytes, arg.dtype, arg.space, several, arg.layout)
        for shard in arg.shards
    ]
