"""A function by name, so that another process can import it: a module or a file, and the name in it.

A function that is written in a notebook, a lambda, or one inside another function has no such name. It can only be
called in the process that made it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

from kernbench.common.errors import UsageError
from kernbench.runtime_api.user_module import PREFIX, is_file, load_user_module, split_identifier
from kernbench.sweep.provenance import function_digest

Function = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Target:
    """`place` is a module or the path of a file, or empty when the function cannot be found by name; `folder` is where
    the module's package lies. The function itself is `held` where it is known, and stays behind when a target travels.
    """

    place: str
    name: str
    folder: str = ""
    held: Function | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[Target], tuple[str, str, str]]:
        return Target, (self.place, self.name, self.folder)

    @property
    def is_local(self) -> bool:
        """Whether only this process can call it."""
        return not self.place

    def __str__(self) -> str:
        place = Path(self.place).name if is_file(self.place) else self.place
        return f"{place}:{self.name}"

    def load(self) -> Function:
        """The function; raises UsageError when it is not there."""
        if self.held is not None:
            return self.held
        try:
            found = reduce(getattr, self.name.split("."), self._module())
        except AttributeError:
            found = None
        if not callable(found):
            raise UsageError(f"{self.place} has no function '{self.name}'", hint="name a function of that file")
        return found

    def _module(self) -> object:
        if is_file(self.place):
            return load_user_module(self.place)
        try:
            return importlib.import_module(self.place)
        except ModuleNotFoundError:
            if not self.folder or self.folder in sys.path:
                raise
            sys.path.append(self.folder)
            return importlib.import_module(self.place)

    def digest(self) -> str:
        """Of the file that the function is written in: rows made by another text are not this one's."""
        return function_digest(self.load())


def target_of(fn: Function) -> Target:
    """The name of a function, or a local target where it has none. Raises UsageError for what cannot be called."""
    if not callable(fn):
        raise UsageError(f"a sweep runs a function of torch, not {fn!r}", hint="give the function itself")
    module = str(getattr(fn, "__module__", None) or "")
    name = str(getattr(fn, "__qualname__", ""))
    place, folder = "", ""
    if module == "__main__" or module.startswith(PREFIX):
        file = getattr(fn, "__globals__", {}).get("__file__")
        place = str(Path(file).resolve()) if file and file.endswith(".py") else ""
    elif _found(sys.modules.get(module), name) is fn:
        place, folder = module, _folder_of(module)
    if not name or "<" in name:  # a lambda, or one inside another function
        place = ""
    return Target(place, name or repr(fn), folder, fn)


def read_target(text: str) -> Target:
    """The function that `FILE.py:NAME` or `package.module:NAME` says."""
    place, name = split_identifier(text)
    if name is None:
        raise UsageError(f"'{text}' names no function", hint="write FILE.py:NAME or package.module:NAME")
    where = str(Path(place).resolve()) if is_file(place) else place
    module = load_user_module(place)
    target = Target(where, name, "" if is_file(place) else _folder_of(module.__name__))
    return replace(target, held=target.load())


def _found(module: object, name: str) -> object:
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        return None


def _folder_of(module: str) -> str:
    """Where the top package of a module lies."""
    top = sys.modules.get(module.partition(".")[0])
    file = getattr(top, "__file__", None)
    if not file:
        return ""
    path = Path(file).resolve()
    return str(path.parents[1] if path.name == "__init__.py" else path.parent)
