"""A predicate changes nothing: it may be asked again, or not at all, without an effect on the simulation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kernbench

SIMULATED = ("common", "components", "policy", "sim_engine", "triton_emu")
PREDICATES = ("is", "has", "have", "are", "can", "may", "was", "were", "why", "should", "must", "knows", "holds")
CHANGES = {"append", "add", "clear", "pop", "popleft", "put", "update", "insert", "remove", "discard", "component"}


def changed(function: ast.FunctionDef) -> Iterator[str]:
    """What a function assigns, deletes or changes of objects that are not its own variables."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield ast.unparse(node)
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in CHANGES and isinstance(called.value, ast.Attribute):
            yield ast.unparse(called)


def effects(tree: ast.AST) -> list[str]:
    """What functions with the name of a predicate change."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").split("_")[0] in PREDICATES:
            found += [f"{node.name}: {what}" for what in changed(node)]
    return found


def test_no_predicate_has_an_effect() -> None:
    root = Path(kernbench.__file__).parent
    files = [file for folder in SIMULATED for file in sorted((root / folder).rglob("*.py"))]
    assert [what for file in files for what in effects(ast.parse(file.read_text()))] == []


def test_an_effect_is_found() -> None:
    source = "def has_room(self):\n    self.asked += 1\n    self.log.append(1)\n    found = []\n    found.append(2)\n"
    assert effects(ast.parse(source)) == ["has_room: self.asked", "has_room: self.log.append"]
