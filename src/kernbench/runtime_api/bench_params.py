"""Parameters of a bench as its function declares them: their names, and the least value of those that have one.

`Annotated` adds a least value and a description to a parameter's type:
`m: Annotated[int, AtLeast(1), "rows of the result"] = 128`. The text is shown by `kernbench list`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from numbers import Real
from typing import Annotated, get_args, get_origin, get_type_hints

from kernbench.common.errors import UsageError
from kernbench.common.frozen import frozen
from kernbench.common.nearest import nearest

PARAMETER = "parameter"  # prefix of `where` in errors about a parameter's value


@frozen
class AtLeast:
    """The least value of a parameter."""

    low: float

    def __str__(self) -> str:
        return f"{self.low:g} or more"

    def allows(self, value: object) -> bool:
        return isinstance(value, Real) and float(value) >= self.low


def notes_of(annotation: object) -> tuple[object, ...]:
    """The metadata of an annotation besides the type."""
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def least_of(annotation: object) -> AtLeast | None:
    return next((note for note in notes_of(annotation) if isinstance(note, AtLeast)), None)


def check_least(name: str, annotation: object, default: object, where: str) -> None:
    """Raise UsageError for a parameter whose least value cannot be one; `default` is None where it has none."""
    found = [note for note in notes_of(annotation) if isinstance(note, AtLeast)]
    if not found:
        return
    least, kind = found[0], get_args(annotation)[0]
    if len(found) > 1:
        what, hint = f"{len(found)} least values", "give one AtLeast"
    elif kind not in (int, float):
        what, hint = f"a least value, which {getattr(kind, '__name__', kind)} has not", "AtLeast is for int and float"
    elif isinstance(least.low, bool) or not isinstance(least.low, Real) or not isfinite(least.low):
        what, hint = f"the least value {least.low!r}", "give AtLeast a number"
    elif default is not None and not least.allows(default):
        what, hint = f"the default {default!r}, less than it may be", f"give {least}"
    else:
        return
    raise UsageError(f"parameter '{name}' has {what}", where=where, hint=hint)


@contextmanager
def faults_of_param(name: str) -> Iterator[None]:
    """Have errors about a parameter's value point to the parameter instead of a line of the bench."""
    try:
        yield
    except UsageError as error:
        error.where = error.where or f"{PARAMETER} '{name}'"
        raise


def no_such_param(name: str, known: Mapping[str, str], where: str | None = None) -> UsageError:
    """The error for an unknown parameter; `known` has the type of each parameter by name."""
    close = nearest(name, known)
    suggestion = f"; did you mean '{close}'?" if close else ""
    listed = ", ".join(f"{param} ({kind})" if kind else param for param, kind in known.items()) or "none"
    what = f"no parameter '{name[:40]}'{suggestion}"
    return UsageError(what, where=where, hint=f"parameters of this bench: {listed}")


def check_names(fn: Callable[..., object], params: Collection[str]) -> None:
    """Raise UsageError when `fn(torch, **params)` cannot be called with parameters of these names."""
    try:
        arguments = list(inspect.signature(fn).parameters.values())[1:]
    except (TypeError, ValueError):
        return  # a callable without a signature
    named = [arg for arg in arguments if arg.kind in (arg.KEYWORD_ONLY, arg.POSITIONAL_OR_KEYWORD)]
    takes_any = any(arg.kind is arg.VAR_KEYWORD for arg in arguments)
    known = {arg.name: "" for arg in named}
    for name in params:
        if name not in known and not takes_any:
            raise no_such_param(str(name), known)
    for arg in named:
        if arg.default is arg.empty and arg.name not in params:
            raise UsageError(f"parameter '{arg.name}' has no value", hint=f"params={{'{arg.name}': ...}}")


def check_params(fn: Callable[..., object], params: Mapping[str, object]) -> None:
    """Raise UsageError when `fn(torch, **params)` cannot be called, or a value is less than the function allows."""
    check_names(fn, params)
    for name, least in _least(fn).items():
        if name in params and not least.allows(params[name]):
            raise UsageError(f"{name} is {params[name]!r}", where=f"params['{name}']", hint=f"give {least}")


def _least(fn: Callable[..., object]) -> dict[str, AtLeast]:
    try:
        hints = get_type_hints(fn, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError):
        return {}  # annotations that cannot be evaluated here are not checked
    found = {name: least_of(annotation) for name, annotation in hints.items()}
    return {name: least for name, least in found.items() if least is not None}
