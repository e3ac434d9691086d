"""User modules: `path/to/file.py[:name]` or `package.module[:name]`.

A file's folder, or the current folder for a module, is put on the import path, as Python does for a script. The
contents of a module are not checked here.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from zlib import crc32

from kernbench.common.errors import KernBenchError, UsageError

PREFIX = "kernbench_user_"  # of the names of modules loaded from a file


def load_user_module(place: str) -> ModuleType:
    """Import a file, or a module by its name; raises UsageError if that fails."""
    return _load_file(Path(place)) if is_file(place) else _load_module(place)


def split_identifier(identifier: str) -> tuple[str, str | None]:
    """The file or module of an identifier, and the name of the bench or function in it, if there is one."""
    place, colon, name = identifier.rpartition(":")
    if not colon or os.sep in name or "/" in name:
        return identifier, None
    if not name.strip():
        raise UsageError(f"'{identifier}' ends in a colon", hint="name a bench after it, or leave it out")
    return place, name.strip()


def is_file(place: str) -> bool:
    """Whether a place is a path, not the name of a module."""
    return place.endswith(".py") or "/" in place or os.sep in place


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no file {path}", hint="give the path of a Python file, or kernbench list for names")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="give a file that you may read") from error
    _on_import_path(path.resolve().parent)
    full = str(path.resolve())
    # A unique module name, so that a file may have the name of a library, or of a file in another folder.
    name = f"{PREFIX}{path.stem}_{crc32(full.encode()):08x}"
    module = ModuleType(name)
    module.__file__ = full
    sys.modules[name] = module
    try:
        # Compiled here, not imported: recent edits take effect, and no bytecode is written next to the file.
        exec(compile(source, module.__file__, "exec", dont_inherit=True), module.__dict__)
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
    ours = Path(__file__).parents[1], Path(importlib.__file__).parent
    return not file.startswith("<") and not any(folder in Path(file).parents for folder in ours)
