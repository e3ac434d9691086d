"""Whether a kernel sends, receives or asks for its neighbours: found in its code, so that a launch can give it rings
before it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType, ModuleType

MESSAGE_OPS = frozenset({"send", "send_async", "recv", "recv_async", "recv_no_consume", "directions", "peer"})


def sends(kernel: Callable[..., object]) -> bool:
    """Whether a kernel, or a function that it names, also as `module.function`, mentions an operation on messages."""
    seen: list[CodeType] = []
    return _mentions(kernel, seen)


def _mentions(function: object, seen: list[CodeType]) -> bool:
    while isinstance(function, partial):
        function = function.func
    if not isinstance(function, FunctionType):
        function = getattr(function, "__func__", vars(type(function)).get("__call__"))
    if not isinstance(function, FunctionType) or function.__code__ in seen:
        return False
    return _code_mentions(function.__code__, function, seen)


def _code_mentions(code: CodeType, function: FunctionType, seen: list[CodeType]) -> bool:
    seen.append(code)
    if not MESSAGE_OPS.isdisjoint(code.co_names):
        return True
    if any(_code_mentions(inner, function, seen) for inner in code.co_consts if isinstance(inner, CodeType)):
        return True
    named = [function.__globals__.get(name) for name in code.co_names]
    modules = [module for module in named if isinstance(module, ModuleType)]
    named += [vars(module).get(name) for module in modules for name in code.co_names]
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return any(_mentions(other, seen) for other in (*named, *cells) if isinstance(other, FunctionType | partial))


def _is_filled(cell: object) -> bool:
    try:
        cell.cell_contents  # type: ignore[attr-defined]  # noqa: B018  # an empty one raises
    except ValueError:
        return False
    return True
