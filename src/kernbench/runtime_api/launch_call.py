"""A call of `torch.launch`, parsed: the kernel, its arguments by position and by name, and the options of the launch.

    torch.launch("scale", scale, x, y, alpha=2.0, target_pes=(0, 1))

A keyword that names a launch option (`LaunchOptions`) is that option, every other one is a parameter of the kernel.
Parameters that are not passed keep the kernel's defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from numbers import Integral, Real
from typing import Literal

import numpy as np

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import DataError, UsageError
from kernbench.common.frozen import frozen
from kernbench.common.launch import PlainValue
from kernbench.common.messages import ConstArg, FailurePolicy, KernelArg, LaunchStream, ScalarArg, Targets
from kernbench.runtime_api.tensor import Tensor
from kernbench.triton_emu.binding import positional_names, signature_of
from kernbench.triton_emu.registry import Kernel


@frozen
class LaunchOptions:
    """Where a launch runs, in which stream, how it fails and whether to wait for it; None where the caller leaves it
    open.
    """

    wait: bool = True
    sips: Targets | None = None
    target_cubes: Targets | None = None
    target_pes: Targets | None = None
    failure_policy: FailurePolicy = "fail_fast"
    communicator: str = "world"
    tag: int = 0
    stream: LaunchStream = "compute"

    @classmethod
    def of(cls, given: Mapping[str, object]) -> LaunchOptions:
        """The options of a call; raises UsageError for invalid ids."""
        plain = ("wait", "failure_policy", "communicator", "tag", "stream")
        return cls(**{name: v if name in plain else _ids(name, v) for name, v in given.items()})  # type: ignore[arg-type]  # messages check the values


OPTIONS = tuple(field.name for field in fields(LaunchOptions))


@frozen
class LaunchCall:
    """A kernel, what it is called with, and the options of its launch."""

    name: str
    kernel: Kernel
    args: tuple[object, ...]
    named: Mapping[str, object]
    options: LaunchOptions

    @classmethod
    def of(cls, name: object, args: Sequence[object], given: Mapping[str, object]) -> LaunchCall:
        """Separate a kernel's arguments from options; a launch without a name has that of its kernel function.

        Raises UsageError if there is no kernel, and for names that are neither an option nor a parameter, or both.
        """
        if not isinstance(name, str):
            name, args = _function_name(name), (name, *args)
        if not args:
            raise UsageError(f"launch of '{name}' has no kernel", hint="torch.launch(name, kernel, *args)")
        kernel, *rest = args
        _check_kernel(name, kernel)
        assert callable(kernel)
        named = _named(name, kernel, len(rest), given)
        options = LaunchOptions.of({key: value for key, value in given.items() if key not in named})
        return cls(name, kernel, tuple(rest), named, options)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the arguments."""
        return tuple(arg for arg in (*self.args, *self.named.values()) if isinstance(arg, Tensor))

    def positional_args(self) -> Iterator[KernelArg]:
        """Positional arguments as a launch message carries them; raises UsageError for unsupported types."""
        names = positional_names(self.kernel)
        for at, arg in enumerate(self.args):
            yield _as_arg(self.name, f"'{names[at]}'" if at < len(names) else str(at), arg)

    def named_args(self) -> dict[str, KernelArg]:
        """Arguments passed by name, as a launch message carries them."""
        return {name: _as_arg(self.name, f"'{name}'", arg) for name, arg in self.named.items()}


def _function_name(kernel: object) -> str:
    while isinstance(kernel, partial):
        kernel = kernel.func
    return str(getattr(kernel, "__name__", type(kernel).__name__))


def _check_kernel(name: str, kernel: object) -> None:
    if not callable(kernel):
        raise UsageError(
            f"kernel '{name}' is {kernel!r}", hint="give a function: torch.launch(name, kernel, *args), the name if any"
        )
    if _is_deferred(kernel):
        raise UsageError(
            f"kernel '{name}' is a generator or a coroutine, whose body a call does not run",
            hint="write a plain function: tl waits by itself, without yield and await",
        )


def _is_deferred(kernel: Kernel) -> bool:
    """Whether a call only makes a generator or a coroutine; of a callable object, its `__call__` decides."""
    while isinstance(kernel, partial):
        kernel = kernel.func
    functions = (kernel, type(kernel).__call__)
    return any(isgeneratorfunction(fn) or iscoroutinefunction(fn) or isasyncgenfunction(fn) for fn in functions)


def _named(name: str, kernel: Kernel, by_position: int, given: Mapping[str, object]) -> dict[str, object]:
    """The keywords of a call that are arguments of the kernel."""
    parameters = signature_of(kernel).parameters
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    known = [p.name for p in parameters.values() if p.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)]
    taken = positional_names(kernel)[:by_position]
    found: dict[str, object] = {}
    for key, value in given.items():
        if key in OPTIONS and key in known:
            raise UsageError(
                f"'{key}' is an option of launch and a parameter of kernel '{name}'",
                hint=f"pass the parameter '{key}' by position, or rename it; the option cannot be set for this kernel",
            )
        if key in OPTIONS:
            continue
        if key == "tl":
            raise UsageError(f"tl is passed to kernel '{name}'", hint="leave it out: every PE gives its kernel its own")
        if key in taken:
            raise UsageError(f"parameter '{key}' of kernel '{name}' is given twice", hint="by position or by name")
        if key not in known and not takes_any:
            listed = ", ".join(each for each in known if each != "tl") or "none"
            raise UsageError(
                f"launch has no option '{key}', and kernel '{name}' no parameter of that name",
                hint=f"options: {', '.join(OPTIONS)}; parameters of the kernel: {listed}",
            )
        found[key] = value
    return found


def _ids(name: str, value: object) -> object:
    """Ids as a tuple of integers: the caller may pass one number, a range or a list."""
    if value is None or (isinstance(value, str) and value == "all"):
        return value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Integral) and not isinstance(value, bool):
        return (int(value),)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return tuple(value)
    raise UsageError(f"launch option {name} is {value!r}", hint="give one number, several, or 'all'")


def _as_arg(kernel: str, which: str, arg: object) -> KernelArg:
    if isinstance(arg, Tensor):
        return arg.as_arg()
    if isinstance(arg, bool | np.bool_):
        return ScalarArg("bool", arg)  # type: ignore[arg-type]  # as it was passed
    if isinstance(arg, Integral):
        dtype: Literal["i32", "i64"] = "i32" if -(2**31) <= int(arg) < 2**31 else "i64"
        return ScalarArg(dtype, arg)  # type: ignore[arg-type]  # as it was passed
    if isinstance(arg, Real):
        return ScalarArg("fp32", arg)  # type: ignore[arg-type]  # as it was passed
    return ConstArg(_constant(kernel, which, arg))


def _constant(kernel: str, which: str, arg: object) -> PlainValue:
    """A plain value as the kernel gets it: element types become those of tl, numpy scalars Python numbers."""
    if isinstance(arg, tuple):
        return tuple(_constant(kernel, which, item) for item in arg)
    if isinstance(arg, np.generic):
        arg = arg.item()
    if arg is None or isinstance(arg, str | bool | int | float):
        return arg
    if isinstance(arg, type | np.dtype) or type(arg).__name__ == "dtype":  # a Python type, numpy's, or PyTorch's
        try:
            return dtype_of(arg)
        except DataError:
            pass
    raise UsageError(
        f"argument {which} of kernel '{kernel}' is a {type(arg).__name__}",
        hint="give tensors, numbers, text, None, element types and tuples of these, without tensors in them; "
        "torch.from_numpy makes a tensor of an array",
    )
