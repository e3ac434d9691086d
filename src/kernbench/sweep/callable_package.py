"""A package that is a function too: `kernbench.sweep(...)` and `from kernbench.sweep.rows import SweepRow` both work.

Importing a module of a package sets its name in the parent, so the two cannot be different things of one name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType


def install(name: str, function: Callable[..., object]) -> None:
    """Let calls of the package `name` be calls of `function`."""

    class CallablePackage(ModuleType):
        def __call__(self, *args: object, **kwargs: object) -> object:
            return function(*args, **kwargs)

    package = sys.modules[name]
    package.__class__ = CallablePackage
    package.__doc__ = f"{package.__doc__}\n{function.__doc__ or ''}"
