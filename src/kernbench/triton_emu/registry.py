"""Kernels by name, to name a kernel once and launch it from several places.

An engine keeps its own table of the kernels launched on it, so two engines are independent; this one is the
process's.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.common.errors import UsageError

Kernel = Callable[..., object]

_kernels: dict[str, Kernel] = {}


def register_kernel(name: str, fn: Kernel) -> None:
    """Remember `fn` as `name`; raises UsageError when another kernel has that name."""
    if not name or not callable(fn):
        raise UsageError(f"register_kernel({name!r}, {fn!r})", hint="give a name and a function")
    if _kernels.setdefault(name, fn) is not fn:
        raise UsageError(f"there is a kernel '{name}' already", hint="choose another name, or clear_registry() first")


def get_kernel(name: str) -> Kernel:
    """The kernel of that name; raises UsageError when there is none."""
    found = _kernels.get(name)
    if found is None:
        known = ", ".join(_kernels) or "none so far"
        raise UsageError(f"no kernel '{name}'", hint=f"register it first; known: {known}")
    return found


def clear_registry() -> None:
    """Forget all kernels."""
    _kernels.clear()
