"""The provenance of a row besides its point: digests of the simulator's source, of user modules, and of `ccl.yaml`.

User modules are the file of the bench and every module that it imports, directly or not, outside of the standard
library, installed packages and KernBench. Imports are read from the source, including those inside functions; a module
that is named at run time (`import_module(name)`), and a data file that a bench opens, are not covered.
"""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType

from kernbench.ccl.config import load_ccl_config
from kernbench.ccl.config_spec import CclConfig

PACKAGE = Path(__file__).parents[1]
NOT_SIMULATED = ("cli", "web")  # they display rows; the import contract ensures that no row depends on them
SUFFIXES = (".py", ".yaml")


@cache
def simulator_digest() -> str:
    """The digest of KernBench's source, including its benches and machine files; computed once per process."""
    digest = sha256()
    for file in sorted(PACKAGE.rglob("*")):
        name = file.relative_to(PACKAGE)
        if file.suffix in SUFFIXES and name.parts[0] not in NOT_SIMULATED:
            data = file.read_bytes()
            digest.update(f"{name.as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]


def ccl_digest(config: CclConfig) -> str:
    """The digest of a merged configuration, with the table of `auto: FILE`."""
    return _short(json.dumps(config.tree.plain(), sort_keys=True, default=str).encode())


def function_digest(fn: Callable[..., object]) -> str:
    """The digest of a function's file, or of its code if it has none."""
    file = function_file(fn)
    if file is not None:
        return _short(file.read_bytes())
    code = getattr(fn, "__code__", None)
    named = getattr(fn, "__qualname__", type(fn).__qualname__)
    return _short(repr(_code_parts(code) if isinstance(code, CodeType) else named).encode())


def function_file(fn: Callable[..., object]) -> Path | None:
    file = Path(getattr(getattr(fn, "__code__", None), "co_filename", ""))
    return file if file.is_file() else None


def modules_digest(fns: Iterable[Callable[..., object]], values: Iterable[object], config: CclConfig) -> str:
    """`helper=1a2b..., pkg.util=...` of user modules: those that `fns` import, that `values` name (a component as
    `module:Class`, a file as `FILE` or `FILE:NAME`), and algorithms of collectives; empty where there are none.
    """
    seen: dict[Path, str] = {}
    waiting: list[tuple[str, Path]] = []
    for fn in fns:
        file = function_file(fn)
        if file is not None and _is_users(file):
            seen[file.resolve()] = ""  # it has a separate digest
            waiting += _imported(file, str(getattr(fn, "__module__", None) or ""))
    for named in _texts(values):
        place = named.rpartition(":")[0] or named
        if place.endswith((".py", ".yaml", ".yml")):
            waiting.append((Path(place).name, Path(place)))
        elif place != named:
            waiting += _found(place)
    for settings in config.algorithms.values():
        named = str(settings["module"])
        waiting += [(Path(named).name, Path(named))] if named.endswith(".py") else _found(named)
    while waiting:
        module, file = waiting.pop()
        if file.resolve() not in seen and file.is_file() and _is_users(file):
            seen[file.resolve()] = f"{module}={_short(file.read_bytes())}"
            waiting += _imported(file, module) if file.suffix == ".py" else []
    return ", ".join(sorted(text for text in seen.values() if text))


def differing_modules(there: str, now: str) -> list[str]:
    """The names in two results of `modules_digest` that are not of the same text, or in one only."""
    before, after = ({part.rpartition("=")[0]: part for part in text.split(", ")} for text in (there, now))
    return [name for name in sorted({**before, **after}) if name and before.get(name) != after.get(name)]


def source_here(config: CclConfig | None = None) -> dict[str, str]:
    """The digests of this process: of the simulator and of the configuration of collectives."""
    return {"simulator": simulator_digest(), "ccl": ccl_digest(config or load_ccl_config())}


def _texts(values: Iterable[object]) -> Iterator[str]:
    """The texts of values, of nested ones too."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, list | tuple):
            yield from _texts(value)


def _short(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


def _code_parts(code: CodeType) -> list[object]:
    """The instructions, names and constants of a function without a file."""
    constants = [_code_parts(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return [code.co_code, code.co_names, constants]


def _is_users(file: Path) -> bool:
    """Whether a file is neither KernBench's, nor the standard library's, nor of a package that was installed."""
    full = file.resolve()
    library = Path(sysconfig.get_path("stdlib")).resolve()
    installed = any(part in ("site-packages", "dist-packages") for part in full.parts)
    return not installed and not full.is_relative_to(PACKAGE) and not full.is_relative_to(library)


def _imported(file: Path, module: str) -> Iterator[tuple[str, Path]]:
    """Modules that a file imports, by name, as far as Python finds their files."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):
        return  # importing it raises the error
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            yield from _found(name)


def _found(module: str) -> list[tuple[str, Path]]:
    """The files of a module and of the packages that it is in, without importing any; none for what is no module."""
    if not all(part.isidentifier() for part in module.split(".")) or module.partition(".")[0] in (
        *sys.stdlib_module_names,
        "kernbench",
    ):
        return []
    files: list[tuple[str, Path]] = []
    path: list[str] | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            break
        if spec.origin is not None and spec.has_location:
            files.append((name, Path(spec.origin)))
        if spec.submodule_search_locations is None:
            break
        path = _folders(spec.submodule_search_locations)
    return files


def _folders(locations: Iterable[str]) -> list[str]:
    try:
        return list(locations)
    except KeyError:  # a folder without __init__.py, in a package that is not imported: Python cannot say yet
        return []
