"""No module needs itself: imports go one way within a package too.

Every import counts, wherever it stands: at the top, inside a function, or for the type checker only. An import of
names from a package counts for the package itself, unless the name is a module of it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PACKAGES = ["kernbench"]

Imports = dict[str, list[str]]  # by module: the modules that it imports


def module_name(file: Path, source: Path) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: Path, package: str) -> Imports:
    """The imports between modules of a package."""
    files = {module_name(file, source): file for file in sorted((source / package.replace(".", "/")).rglob("*.py"))}
    return {name: imported_by(file, files.keys()) for name, file in files.items()}


def imported_by(file: Path, known: Collection[str]) -> list[str]:
    """Which of the known modules a file imports, each once."""
    found: dict[str, None] = {}
    for statement in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{file}: imports are absolute"
            base = statement.module or ""
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in statement.names]
        else:
            continue
        found |= dict.fromkeys(name for name in names if name in known)
    return list(found)


def circle_in(imports: Imports) -> list[str]:
    """One circle, its first module at the end again; nothing when there is none."""
    done: set[str] = set()
    for start in imports:
        path = [] if start in done else [start]
        to_follow = [iter(imports[module]) for module in path]
        while path:
            following = next(to_follow[-1], None)
            if following is None:
                to_follow.pop()
                done.add(path.pop())
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                to_follow.append(iter(imports[following]))
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    imports = imports_of(SOURCE, package)
    assert sum(map(len, imports.values())) > 5  # it has looked
    assert circle_in(imports) == []


@pytest.mark.parametrize(
    "second",
    [
        "from p.a import X",
        "from p import a",
        "import p.a",
        "def f():\n    from p.a import X",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import X",
    ],
)
def test_a_circle_is_found_however_it_is_closed(tmp_path: Path, second: str) -> None:
    package = tmp_path / "p"
    package.mkdir()
    for name, text in {"__init__": "", "a": "from p.b import Y", "b": "import p.c", "c": second}.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    assert circle_in(imports_of(tmp_path, "p")) == ["p.a", "p.b", "p.c", "p.a"]


def test_two_ways_to_one_module_are_no_circle() -> None:
    assert circle_in({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) == []
