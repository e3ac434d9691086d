"""numpy's names of arguments, which PyTorch's functions take too: `axis` for `dim`, `keepdims` for `keepdim`.

numpy's own functions use them: `np.sum(x)` calls `x.sum(axis=None, out=None)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from kernbench.common.errors import UsageError

C = TypeVar("C")
NAMES = {"axis": "dim", "keepdims": "keepdim"}


def takes_numpy_names(cls: type[C]) -> type[C]:
    """A class whose methods with a parameter `dim` take numpy's names as well."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and name[0] != "_" and "dim" in parameters_of(method):
            setattr(cls, name, _renaming(method))
    return cls


def parameters_of(method: FunctionType) -> tuple[str, ...]:
    code = method.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _renaming(method: FunctionType) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        for theirs, ours in NAMES.items():
            if theirs in named:
                if ours in named:
                    raise UsageError(
                        f"{method.__name__} got both {ours}= and {theirs}=", hint="give one: they mean the same"
                    )
                named[ours] = named.pop(theirs)
        if named.get("out", method) is None:
            del named["out"]
        return method(*args, **named)

    return call
