"""Which argument goes to which parameter of a kernel. `tl` goes where the kernel has a parameter of that name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache

from kernbench.common.errors import KernelError
from kernbench.common.launch import TensorArg
from kernbench.triton_emu.tl_core import TensorRange

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@lru_cache(maxsize=256)  # a launch binds one kernel on every PE
def _signature(kernel: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(kernel)


def bind(kernel: Callable[..., object], args: Sequence[object], tl: object) -> Callable[[], object]:
    """The call of a kernel with its arguments; raises KernelError when they do not fit its parameters."""
    signature = _signature(kernel)
    given, keywords, rest = list[object](), dict[str, object](), list(args)
    left_out = False
    for parameter in signature.parameters.values():
        if parameter.name == "tl":
            if parameter.kind is parameter.KEYWORD_ONLY or left_out:
                keywords["tl"] = tl
            else:
                given.append(tl)
        elif parameter.kind in _POSITIONAL:
            if rest:
                given.append(rest.pop(0))
            else:
                left_out = True  # it has a default, or binding says what is missing
    given += rest
    try:
        signature.bind(*given, **keywords)
    except TypeError as error:
        raise KernelError(
            f"kernel {getattr(kernel, '__name__', kernel)}{signature} does not take {len(args)} arguments: {error}",
            mend="pass as many tensors and scalars as it has parameters besides tl",
        ) from None
    return lambda: kernel(*given, **keywords)


def tensor_ranges(kernel: Callable[..., object], args: Sequence[object]) -> tuple[TensorRange, ...]:
    """The addresses of the tensors among a launch's arguments, under the names of the kernel's parameters."""
    names = [p.name for p in _signature(kernel).parameters.values() if p.name != "tl" and p.kind in _POSITIONAL]
    found: list[TensorRange] = []
    for at, arg in enumerate(args):
        if isinstance(arg, TensorArg):
            found += _ranges(arg, names[at] if at < len(names) else arg.name)
    return tuple(found)


def _ranges(arg: TensorArg, name: str) -> list[TensorRange]:
    """The addresses of a tensor: its virtual range, or those of each of its parts."""
    if arg.va_base is not None:
        size = max(shard.offset_bytes + shard.nbytes for shard in arg.shards)
        return [TensorRange(name, arg.va_base, arg.va_base + size, arg.dtype)]
    return [TensorRange(name, shard.pa, shard.pa + shard.nbytes, arg.dtype) for shard in arg.shards]
