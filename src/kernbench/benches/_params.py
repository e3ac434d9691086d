"""A bench's parameters: the typed arguments after `torch`, read from text.

A parameter is an int, float, str, bool or a Literal of strings or ints; without an annotation its default says which.
`Annotated` adds what it means and the least value that will do: `rows: Annotated[int, AtLeast(1), "rows of x"] = 64`.
Its value is what the caller gives, else its environment variable where it has one, else its default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Literal, get_args, get_origin, get_type_hints

from kernbench.ccl.config_spec import ParamValue
from kernbench.common.errors import UsageError
from kernbench.common.frozen import frozen
from kernbench.runtime_api.bench_params import AtLeast, check_least, least_of, no_such_param, notes_of

KINDS: tuple[type[ParamValue], ...] = (bool, int, float, str)
WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
WANTS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


@frozen
class Param:
    """One parameter. `default` is None where a value must be given; `choices` is empty where any will do."""

    name: str
    kind: type[ParamValue]
    default: ParamValue | None
    choices: tuple[ParamValue, ...] = ()
    env: str | None = None
    least: AtLeast | None = None
    meaning: str = ""

    @property
    def type_name(self) -> str:
        """`int`, or what there is to choose from: `load | load-ref | ref`."""
        return " | ".join(str(choice) for choice in self.choices) or self.kind.__name__

    def read(self, text: str, where: str) -> ParamValue:
        """The value that `text` says; raises UsageError."""
        value = self.parse(text, where)
        if self.least is not None and not self.least.allows(value):
            raise self._wrong(text, where)
        return value

    def parse(self, text: str, where: str) -> ParamValue:
        """The same, however small it is."""
        word = text.strip()
        value = self._parse(word)
        if value is not None and self.choices and value not in self.choices:
            value = value.replace("_", "-") if isinstance(value, str) else value
            value = value if value in self.choices else None
        if value is None:
            raise self._wrong(text, where)
        return value

    def _wrong(self, text: str, where: str) -> UsageError:
        wants = f"one of {', '.join(map(str, self.choices))}" if self.choices else WANTS[self.kind.__name__]
        least = f", {self.least}" if self.least is not None else ""
        return UsageError(f"{self.name} is '{text.strip()[:40]}'", where=where, hint=f"give {wants}{least}")

    def _parse(self, word: str) -> ParamValue | None:
        if self.kind is bool:
            return WORDS.get(word.lower())
        if self.kind is str:
            return word
        try:
            value = self.kind(word.replace("_", "")) if word.isascii() else None
        except ValueError:
            return None
        return None if isinstance(value, float) and not isfinite(value) else value

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "type": self.kind.__name__,
            "default": self.default,
            "choices": list(self.choices),
            "env": self.env,
            "least": self.least.low if self.least is not None else None,
            "meaning": self.meaning,
        }


def params_of(fn: Callable[..., object], env: str | None = None, bench: str | None = None) -> tuple[Param, ...]:
    """The parameters of a bench, whose name is `bench`; raises UsageError for a function that cannot be one."""
    code = getattr(fn, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(fn)
    where += f"  bench '{bench}'" if bench else ""
    arguments = list(inspect.signature(fn).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not arguments or arguments[0].kind not in positional:
        raise UsageError("a bench takes `torch`", where=where, hint="write def run(torch, *, m: int = 128)")
    try:
        hints = get_type_hints(fn, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise UsageError(
            f"an annotation cannot be read: {error}", where=where, hint="use int, float, str, bool"
        ) from None
    return tuple(_param(argument, hints, where, env) for argument in arguments[1:])


def _param(argument: inspect.Parameter, hints: Mapping[str, object], where: str, env: str | None) -> Param:
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    default = None if argument.default is inspect.Parameter.empty else argument.default
    noted = hints.get(argument.name, type(default))
    annotation = get_args(noted)[0] if notes_of(noted) else noted
    meaning = next((note for note in notes_of(noted) if isinstance(note, str)), "")
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    kind = type(choices[0]) if choices else annotation
    fits = kind in KINDS and all(type(choice) is kind for choice in choices)
    given = default is None or isinstance(default, float | int if kind is float else KINDS)
    if argument.kind not in named or not fits or not given:
        raise UsageError(
            f"a bench cannot have the parameter '{argument}'",
            where=where,
            hint="parameters are int, float, str, bool, or Literal of one of these",
        )
    check_least(argument.name, noted, default, where)
    variable = f"{env}_{argument.name.upper()}" if env else None
    return Param(
        argument.name,
        kind,  # type: ignore[arg-type]  # one of KINDS, see above
        default,
        choices,
        variable,
        least_of(noted),
        meaning,
    )


def read_params(params: Sequence[Param], settings: Sequence[str], environ: Mapping[str, str]) -> dict[str, ParamValue]:
    """The value of every parameter, from `name=value` texts, variables and defaults.

    Raises UsageError for a name that does not exist, a value of another type, and a value that is missing.
    """
    given: dict[str, str] = {}
    known = {param.name: param for param in params}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise UsageError(f"--param takes NAME=VALUE, not '{setting[:40]}'", hint="write for example --param m=512")
        if name not in known:
            raise no_such_param(name, {param.name: param.type_name for param in params})
        given[name] = text
    found: dict[str, ParamValue] = {}
    for param in params:
        if param.name in given:
            found[param.name] = param.read(given[param.name], f"--param {param.name}={given[param.name]}"[:80])
        elif param.env is not None and environ.get(param.env, "").strip():
            found[param.name] = param.read(environ[param.env], f"environment variable {param.env}")
        elif param.default is not None:
            found[param.name] = param.default
        else:
            raise UsageError(f"parameter '{param.name}' has no value", hint=f"--param {param.name}={param.type_name}")
    return found
