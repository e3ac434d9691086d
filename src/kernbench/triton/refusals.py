"""Errors of Triton programs, at the user's line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from kernbench.common.errors import LaunchError
from kernbench.triton.internals import Builder, CompilationError, InterpreterError, language
from kernbench.triton_emu.call_site import kernel_error


class TritonKernelError(LaunchError, InterpreterError, CompilationError):  # type: ignore[misc]  # Triton has no types
    """A kernel broke a rule of Triton's language, or raised: a LaunchError that Triton's programs catch as theirs, as
    the interpreter raises it and as the compiler does.
    """

    def __init__(self, error: LaunchError) -> None:
        LaunchError.__init__(self, error.what, error.failures, where=error.where, hint=error.hint)
        self.error_message = self.message = error.what
        self.src = self.node = None

    __str__ = LaunchError.__str__


def refuse(what: str, hint: str) -> NoReturn:
    """Raise a KernelError at the line of the Triton kernel."""
    raise kernel_error(what, hint)


_NEWER = "the interpreter of this release of Triton lacks it: install triton 3.9 or newer"


def refused_functions() -> Iterator[tuple[str, Callable[..., object]]]:
    """Functions of the language that the interpreter lacks, by name, as they are while kernels run."""
    if not hasattr(Builder, "create_map_elementwise"):
        yield "map_elementwise", _refusing("tl.map_elementwise", "use operations on blocks, and tl.where for branches")
    if not hasattr(Builder, "create_dot_scaled"):
        yield "dot_scaled", _refusing("tl.dot_scaled", _NEWER)
        plain = language.flip

        def flip(x: Any, dim: Any = None) -> Any:
            return refuse("tl.flip without dim", f"give dim; {_NEWER}") if dim is None else plain(x, dim)

        yield "flip", flip


def _refusing(name: str, hint: str) -> Callable[..., object]:
    return lambda *_, **__: refuse(f"{name} is not supported by the simulator", hint)
