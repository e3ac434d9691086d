"""Kernels that are declared as repeatable: run more than once for one PE, or only compared with a recording."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import TypeVar

from kernbench.common.errors import UsageError

AnyKernel = TypeVar("AnyKernel", bound=Callable[..., object])

_MARK = "__kernbench_repeatable__"


def repeatable(kernel: AnyKernel) -> AnyKernel:
    """Marks a kernel whose `tl` calls depend on its arguments and its place in the grid only, and which leaves nothing
    behind but what `tl` does: where a launch repeats a recorded one, it need not run on every PE.

    Raises UsageError for what cannot be a kernel.
    """
    if not callable(kernel):
        raise UsageError(f"repeatable marks a kernel, not {kernel!r}", hint="give the function")
    setattr(kernel.__func__ if isinstance(kernel, MethodType) else kernel, _MARK, True)
    return kernel


def is_repeatable(kernel: object) -> bool:
    """Whether a kernel is marked so, before or after it was given some of its arguments."""
    while isinstance(kernel, partial) and not hasattr(kernel, _MARK):
        kernel = kernel.func
    return getattr(kernel, _MARK, False) is True


def base_of(kernel: object) -> object:
    """The function itself, of a kernel that has some of its arguments already."""
    while isinstance(kernel, partial):
        kernel = kernel.func
    return kernel
