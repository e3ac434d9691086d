"""Kernels that say of themselves that they may be run more than once for one PE, or only followed (see followed.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

AnyKernel = TypeVar("AnyKernel", bound=Callable[..., object])

_MARK = "__kernbench_repeatable__"


def repeatable(kernel: AnyKernel) -> AnyKernel:
    """Marks a kernel whose `tl` calls depend on its arguments and its place in the grid only, and which leaves nothing
    behind but what `tl` does: where the course of a launch is known already, it need not run on every PE.
    """
    setattr(kernel, _MARK, True)
    return kernel


def is_repeatable(kernel: object) -> bool:
    """Whether a kernel is marked so, also one that has some of its arguments already."""
    return getattr(base_of(kernel), _MARK, False) is True


def base_of(kernel: object) -> object:
    """The function itself, of a kernel that has some of its arguments already."""
    while isinstance(kernel, partial):
        kernel = kernel.func
    return kernel
