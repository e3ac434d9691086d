"""Benches of a user's own: `path/to/file.py[:name]` or `package.module[:name]`.

`name` is a bench's or a function's; without one, the only bench of the file, or its function `run`. A file's folder, or
the current folder for a module, is put on the import path, as Python does for a script.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from kernbench.benches.registry import BenchSpec, registered_in
from kernbench.common.errors import KernBenchError, UsageError


def load_bench(identifier: str) -> BenchSpec:
    """Import what `identifier` names and find the bench in it; raises UsageError when that cannot be done."""
    place, name = _split(identifier)
    module = _load_file(Path(place)) if _is_file(place) else _load_module(place)
    benches = registered_in(module.__name__)
    if name is not None:
        return _named(module, benches, name, place)
    if len(benches) == 1:
        return benches[0]
    if benches:
        names = ", ".join(spec.name for spec in benches)
        raise UsageError(f"{place} has {len(benches)} benches", hint=f"choose one: {place}:NAME with {names}")
    return _function(module, "run", place)


def _split(identifier: str) -> tuple[str, str | None]:
    place, colon, name = identifier.rpartition(":")
    if not colon or os.sep in name or "/" in name:
        return identifier, None
    if not name.strip():
        raise UsageError(f"'{identifier}' ends in a colon", hint="name a bench after it, or leave it out")
    return place, name.strip()


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or os.sep in place


def _named(module: ModuleType, benches: list[BenchSpec], name: str, place: str) -> BenchSpec:
    for spec in benches:
        if name in (spec.name, getattr(spec.run, "__name__", "")):
            return spec
    return _function(module, name, place)


def _function(module: ModuleType, name: str, place: str) -> BenchSpec:
    """A function without @bench, by its own name."""
    found = getattr(module, name, None)
    if callable(found) and not isinstance(found, type):
        about = (found.__doc__ or "").strip().splitlines()
        return BenchSpec(f"{Path(place).stem if _is_file(place) else place}:{name}", about[0] if about else "", found)
    names = [spec.name for spec in registered_in(module.__name__)]
    raise UsageError(
        f"{place} has no bench '{name}'",
        hint=f"it has {', '.join(names)}"
        if names
        else "decorate a function with @bench, or name it run: def run(torch)",
    )


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no file {path}", hint="give the path of a Python file, or kernbench list for names")
    _on_import_path(path.resolve().parent)
    name = f"kernbench_user_{path.stem}"  # its own, so that a file may be named as a library is
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    sys.modules[name] = module
    try:
        # Compiled here, not imported: what was edited a moment ago is what runs, and nothing is written beside it.
        exec(compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_failed(str(path), error) from error
    return module


def _load_module(name: str) -> ModuleType:
    _on_import_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _on_import_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_failed(place: str, error: BaseException) -> KernBenchError:
    if isinstance(error, KernBenchError):
        return error
    where = place
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    else:
        own = [
            f"{f.f_code.co_filename}:{line}"
            for f, line in walk_tb(error.__traceback__)
            if _is_theirs(f.f_code.co_filename)
        ]
        where = own[-1] if own else place
    hint = "check its name, and that it is installed or in the current folder" if where == place else "fix that line"
    return UsageError(f"{place} cannot be imported: {type(error).__name__}: {error}", where=where, hint=hint)


def _is_theirs(file: str) -> bool:
    ours = Path(__file__).parent, Path(importlib.__file__).parent
    return not file.startswith("<") and not any(folder in Path(file).parents for folder in ours)
