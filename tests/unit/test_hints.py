"""Every key of a machine that a message tells people to change is one that `--set` takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import yaml

import kernbench
from kernbench.cli.options import load_machine

SOURCE = Path(kernbench.__file__).parent
MACHINE = yaml.safe_load((files("kernbench.topology") / "default.yaml").read_text())
APART = ("topology", "fabric")  # the loader finds out the keys it names; the fabric is configured in Python
SAY = ("_fail", "kernel_error", "require")  # their second text says how to fix it
KEY = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)*")


def leaves(node: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value of a description by its full key."""
    if not isinstance(node, dict):
        yield path, node
        return
    for key, below in node.items():
        yield from leaves(below, f"{path}.{key}" if path else str(key))


def hints() -> Iterator[tuple[str, str]]:
    """Where, and what: the texts that say how to fix something."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.parent.name in APART:
            continue
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            said = [word.value for word in call.keywords if word.arg == "hint"]
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name in SAY:
                said += call.args[1:]
            for text in (part for one in said for part in ast.walk(one) if isinstance(part, ast.Constant)):
                if isinstance(text.value, str):
                    yield f"{path.relative_to(SOURCE)}:{text.lineno}", text.value


def test_keys_that_messages_name_are_full_and_can_be_set() -> None:
    values = dict(leaves(MACHINE))
    short = {key.rpartition(".")[2] for key in values if "_" in key.rpartition(".")[2]}
    named: dict[str, str] = {}
    for where, text in hints():
        for key in KEY.findall(text):
            if key.rpartition(".")[2] in short:
                named[key] = where
    assert "cube.memory_map.tcm_mb_per_pe" in named  # so messages are found at all
    for key, where in named.items():
        assert key in values, f"{where} names {key}, which is no key of a machine"
        load_machine(None, (f"{key}={'null' if values[key] is None else values[key]}",))
