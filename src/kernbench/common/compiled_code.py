"""Functions compiled by numba, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast
from zlib import crc32


def compiled(function: Callable[..., Any], *, sources: tuple[str, ...] = (), **options: Any) -> Any:
    """Compiled when first called; the outcome is kept on disk where there is a place for it.

    numba drops kept code when the file of the function has changed. What it calls may lie in other files: `sources`.
    """
    from numba import njit

    if sources:
        function.__qualname__ = f"{function.__name__}_{_version(sources)}"
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside its file nor among the user's files
        return njit(**options)(function)


def compiled_with_calls(
    function: Callable[..., Any],
    modules: Sequence[ModuleType],
    options_of: Callable[[str], Mapping[str, Any]],
    **options: Any,
) -> Any:
    """A function of plain Python, compiled as it stands, in a namespace of its own in which the functions of `modules`
    that it calls are compiled too, each with the options of its name. None where numba is not installed.
    """
    try:
        from numba import njit
    except ImportError:  # it is an extra
        return None
    names = {name: value for module in modules for name, value in vars(module).items()}
    own = {module.__name__ for module in modules}
    for name, value in names.items():
        if isinstance(value, FunctionType) and value.__module__ in own:
            names[name] = njit(**options_of(name))(FunctionType(value.__code__, names))
    made = FunctionType(cast(FunctionType, function).__code__, names)
    return compiled(made, sources=tuple(str(module.__file__) for module in modules), **options)


@cache
def _version(sources: tuple[str, ...]) -> str:
    return f"{crc32(b''.join(Path(source).read_bytes() for source in sources)):08x}"
