"""Errors of Triton programs, at the user's line."""

from __future__ import annotations

from typing import NoReturn

from kernbench.common.errors import LaunchError
from kernbench.triton.internals import CompilationError, InterpreterError
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
