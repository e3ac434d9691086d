"""What an object calls is given to its constructor, or joins a list of observers: no other object assigns it.

An attribute that the last one to assign takes would drop the observer before without a word. Nor does an attribute that
holds a method of another object stand in for a definition, which readers and checkers look for in the class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import kernbench
from kernbench.components.base import Context
from kernbench.sim_engine.engine import GraphEngine

SIMULATED = ("common", "components", "policy", "sim_engine", "triton_emu", "triton", "runtime_api")
# A packet is given what is called with its answer when it is sent. Spans have an `end`, too: a number.
DATA = {"answer", "end"}


def callables(tree: ast.AST) -> Iterator[str]:
    """Names of attributes that are annotated as something to call, and of fields where that may be there or not."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.AnnAssign) or not (noted := ast.unparse(node.annotation)).startswith("Callable["):
            continue
        if isinstance(node.target, ast.Attribute):
            yield node.target.attr
        elif noted.endswith(" | None"):
            yield ast.unparse(node.target)


def assigned(tree: ast.AST) -> Iterator[str]:
    """Names of attributes that code assigns to objects other than `self`, but for None."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or (isinstance(node.value, ast.Constant) and node.value.value is None):
            continue
        for target in (each for group in node.targets for each in ast.walk(group)):
            is_stored = isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
            if is_stored and ast.unparse(target.value) != "self":
                yield target.attr


def slots(trees: list[ast.Module]) -> set[str]:
    """Attributes to call that are assigned from outside."""
    return {name for tree in trees for name in callables(tree)} & {name for tree in trees for name in assigned(tree)}


def test_no_object_assigns_what_another_one_calls() -> None:
    root = Path(kernbench.__file__).parent
    files = [file for folder in SIMULATED for file in sorted((root / folder).rglob("*.py"))]
    assert sorted(slots([ast.parse(file.read_text()) for file in files]) - DATA) == []


def test_a_slot_is_found() -> None:
    watched = "class Log:\n    def __init__(self):\n        self.on_read: Callable[[], None] | None = None\n"
    machine = "def watch(log, on_read):\n    log.on_read = on_read\n"
    assert slots([ast.parse(watched), ast.parse(machine)]) == {"on_read"}


def test_a_machine_defines_what_its_blocks_call() -> None:
    called = [name for name, member in vars(Context).items() if isinstance(member, FunctionType) and name[0] != "_"]
    assert "at" in called
    assert [name for name in called if not isinstance(getattr(GraphEngine, name, None), FunctionType)] == []
