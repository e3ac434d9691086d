"""What a kernel reads besides its arguments and `tl`: globals, variables of enclosing functions, default arguments,
what a partial or a bound method carries, and the same of functions and methods that it names.

Kernels that may be replayed are run at other moments than in a run that simulates all of them, so none of these values
may change meanwhile. Plain data is compared by value: numbers, strings, small arrays, containers and objects of plain
data. Functions, classes and modules are not data; of modules and classes the attributes are looked at that the code
names. Nothing is known of anything else, such as a random generator, an iterator or an open file: such a kernel is
not replayed. Not seen: what code reaches through local variables, `getattr` or an instance of a library.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import re
import sys
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, cached_property, partial
from numbers import Number
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import NamedTuple

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.errors import KernelError
from kernbench.triton_emu.call_signatures import MOST_ELEMENTS
from kernbench.triton_emu.call_site import definition_of
from kernbench.triton_emu.registry import Kernel
from kernbench.triton_emu.repeatable import base_of

CHANGING = frozenset(("datetime", "numpy.random", "random", "secrets", "time", "uuid"))  # modules
SEEDED = frozenset(("random.Random", "numpy.random.Generator", "numpy.random.PCG64", "numpy.random.SeedSequence"))
LIBRARIES = frozenset((*sys.stdlib_module_names, "ml_dtypes", "numpy")) - {"__main__"}
_PLAIN = (type(None), bool, int, str, bytes, complex, type(Ellipsis), range, Enum, DType, np.dtype, re.Pattern)
_CALLED = (*_PLAIN, np.ufunc, property)  # compared by identity or equality; nothing inside can change
MOST_LEVELS = 32  # of containers and objects in each other; a cycle has more
_MISSING = object()


class UnknowableError(Exception):
    """A kernel reads something that cannot be compared; the message names it."""


class NameRead(NamedTuple):
    """A name that code reads, and the attributes that it takes of that."""

    name: str
    attributes: tuple[str, ...]


class CodeReads(NamedTuple):
    """What code, with that of functions inside, reads and assigns from outside of it."""

    outside: tuple[NameRead, ...]  # globals and variables of enclosing functions
    imports: tuple[NameRead, ...]
    assigned: tuple[str, ...]  # globals
    assigned_cells: tuple[str, ...]
    names: frozenset[str]  # all, also those of attributes


def outside_values(kernel: object) -> dict[str, Hashable]:
    """What a kernel reads from outside, by name, in a form that can be compared with a later one; raises
    UnknowableError.
    """
    reader = _Reader()
    reader.read("the kernel", kernel, frozenset(("__call__",)))
    return reader.found


class OutsideValues:
    """What some kernels read from outside when a launch begins. Raises UnknowableError."""

    def __init__(self, kernels: Iterable[Kernel]) -> None:
        self._before = [(kernel, outside_values(kernel)) for kernel in kernels]

    def check(self) -> None:
        """Raise KernelError where one of the values has changed since."""
        for kernel, before in self._before:
            try:
                now = outside_values(kernel)
            except UnknowableError:
                now = {}
            changed = [name for name, value in before.items() if now.get(name, _MISSING) != value]
            if changed:
                raise _changed(base_of(kernel), changed[0])


def _changed(kernel: object, what: str) -> KernelError:
    file, line, source = definition_of(kernel) if callable(kernel) else ("<kernel>", 0, "")
    name = getattr(kernel, "__name__", type(kernel).__name__)
    return KernelError(
        f"kernel '{name}' is @kernbench.repeatable, and '{what}', which it reads, changed while it ran",
        where=f"{file}:{line}  {source}",
        hint="pass it as an argument, keep what was computed before with functools.cache, or remove "
        "@kernbench.repeatable",
    )


@cache
def reads_of(code: CodeType) -> CodeReads:
    """What code reads, found in its instructions."""
    outside: dict[NameRead, None] = {}
    imports: dict[NameRead, None] = {}
    assigned: dict[str, None] = {}
    cells: dict[str, None] = {}
    names = set(code.co_names)
    steps = [step for step in dis.get_instructions(code) if step.opname != "COPY"]
    for at, step in enumerate(steps):
        name = str(step.argval)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            outside[NameRead(name, tuple(_attributes(steps, at + 1)))] = None
        elif step.opname == "IMPORT_NAME":
            imports[NameRead(name, tuple(_attributes(steps, at + 1)))] = None
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            assigned[name] = None
        elif step.opname in ("STORE_DEREF", "DELETE_DEREF"):
            cells[name] = None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found = reads_of(inner)
            outside.update(dict.fromkeys(found.outside))
            imports.update(dict.fromkeys(found.imports))
            assigned.update(dict.fromkeys(found.assigned))
            cells.update(dict.fromkeys(found.assigned_cells))
            names |= found.names
    return CodeReads(tuple(outside), tuple(imports), tuple(assigned), tuple(cells), frozenset(names))


def _attributes(steps: list[dis.Instruction], at: int) -> Iterator[str]:
    for step in steps[at:]:
        if step.opname not in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            return
        yield str(step.argval)


def _is_library(module: object) -> bool:
    return str(module).partition(".")[0] in LIBRARIES


class _Reader:
    """Goes through what one kernel reads."""

    def __init__(self) -> None:
        self.found: dict[str, Hashable] = {}
        self._functions: set[FunctionType] = set()
        self._items = 0  # of containers

    def read(self, label: str, x: object, names: frozenset[str]) -> None:
        """Note a value that code reads; `names` are those that this code mentions."""
        form = self._form(label, x, names, 0)
        if self.found.setdefault(label, form) != form:
            self.found[f"{label} ({len(self.found)})"] = form  # another of that name

    # ---- functions

    def _function(self, function: FunctionType) -> None:
        if function in self._functions:
            return
        self._functions.add(function)
        if _is_library(function.__module__):
            if function.__module__ in CHANGING:
                raise UnknowableError(f"{function.__module__}.{function.__qualname__}")
            return
        reads = reads_of(function.__code__)
        for name in reads.assigned:
            raise UnknowableError(f"'{name}', a global that {function.__name__} assigns")
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for name in reads.assigned_cells:
            if name in cells:
                raise UnknowableError(f"'{name}', a variable outside {function.__name__} that it assigns")
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for number, value in enumerate(defaults):
            self.read(f"default {number} of {function.__name__}", value, reads.names)
        for name, attributes in reads.outside:
            value = _cell(cells[name]) if name in cells else self._global(function, name)
            self._chain(name, value, attributes, reads.names)
        for name, attributes in reads.imports:
            self._chain(name, sys.modules.get(name, _MISSING), attributes, reads.names)

    def _global(self, function: FunctionType, name: str) -> object:
        return function.__globals__.get(name, getattr(builtins, name, _MISSING))

    def _chain(self, label: str, x: object, attributes: tuple[str, ...], names: frozenset[str]) -> None:
        """Note what `x.a.b` is: of modules and classes only the attribute that the code names."""
        for attribute in attributes:
            if isinstance(x, ModuleType):
                x = getattr(x, attribute, _MISSING)
            elif isinstance(x, type) and not _is_library(x.__module__):
                x = inspect.getattr_static(x, attribute, _MISSING)
            else:
                break
            label = f"{label}.{attribute}"
        if x is not _MISSING:
            self.read(label, x, names)

    # ---- values

    def _form(self, label: str, x: object, names: frozenset[str], depth: int) -> Hashable:
        """A value in a form that equals that of a later look if nothing has changed."""
        self._items += 1
        if depth > MOST_LEVELS or self._items > MOST_ELEMENTS:
            raise UnknowableError(f"'{label}', which holds more than can be compared")
        if isinstance(x, _CALLED):
            return type(x), x
        if isinstance(x, float | np.generic):
            return type(x), np.asarray(x).tobytes()
        if isinstance(x, np.ndarray):
            if x.size > MOST_ELEMENTS or x.dtype.hasobject:
                raise UnknowableError(f"'{label}', an array of {x.size} elements")
            return str(x.dtype), x.shape, x.tobytes()
        if isinstance(x, list | tuple | set | frozenset | deque):
            forms = [self._form(label, item, names, depth + 1) for item in x]
            return type(x), frozenset(forms) if isinstance(x, set | frozenset) else tuple(forms)
        if isinstance(x, Mapping):
            pairs = [
                (self._form(label, a, names, depth + 1), self._form(label, b, names, depth + 1)) for a, b in x.items()
            ]
            return type(x), tuple(pairs)
        return self._form_of_code(label, x, names, depth)

    def _form_of_code(self, label: str, x: object, names: frozenset[str], depth: int) -> Hashable:
        """Of what can be called, and of modules."""
        if isinstance(x, FunctionType):
            self._function(x)
            return x
        if isinstance(x, type | ModuleType):
            name = x.__name__ if isinstance(x, ModuleType) else x.__module__
            if name in CHANGING and not (isinstance(x, type) and f"{name}.{x.__name__}" in SEEDED):
                raise UnknowableError(f"'{label}' of the module {name}")
            if isinstance(x, type):
                self._methods(x, names | {"__init__", "__post_init__"})
            return x
        wrapped = inspect.getattr_static(x, "__wrapped__", None)  # of `functools.cache` and its like
        if isinstance(wrapped, FunctionType):
            return "wrapped", self._form(label, wrapped, names, depth + 1)
        if isinstance(x, partial):
            return "partial", self._form(label, [x.func, x.args, x.keywords], names, depth + 1)
        if isinstance(x, MethodType):
            return "method", self._form(label, [x.__func__, x.__self__], names, depth + 1)
        if isinstance(x, BuiltinFunctionType):
            owner = x.__self__
            return x.__name__, None if owner is None else self._form(label, owner, names, depth + 1)
        return self._form_of_object(label, x, names, depth)

    def _form_of_object(self, label: str, x: object, names: frozenset[str], depth: int) -> Hashable:
        kind = type(x)
        if isinstance(x, Number) or kind.__module__ in ("typing", "types"):
            return kind, hash(x)
        if _is_library(kind.__module__):
            raise UnknowableError(f"'{label}', a {kind.__module__}.{kind.__qualname__}")
        self._methods(kind, names)
        fields = {**_slots(x), **getattr(x, "__dict__", {})}
        kept = {
            name: value
            for name, value in fields.items()
            if not isinstance(inspect.getattr_static(kind, name, None), cached_property)
        }
        return kind, self._form(label, kept, names, depth + 1)

    def _methods(self, kind: type, names: frozenset[str]) -> None:
        """Look at methods of a class that code may call: those that it mentions."""
        for base in kind.__mro__:
            if not _is_library(base.__module__):
                for name, member in vars(base).items():
                    if name in names and isinstance(member, FunctionType):
                        self._function(member)


def _slots(x: object) -> dict[str, object]:
    names = [name for base in type(x).__mro__ for name in vars(base).get("__slots__", ())]
    return {name: getattr(x, name) for name in names if not name.startswith("__") and hasattr(x, name)}


def _cell(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _MISSING
