"""The machines that sets run on ship with the package, and stand among the examples, where guides point to."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE, EXAMPLES = ROOT / "src/kernbench/validation/machines", ROOT / "examples/machines"


def test_machines_of_the_examples_are_those_of_the_package() -> None:
    shipped = {path.name: path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.yaml")}
    examples = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.yaml")}
    assert {name: examples.get(name) for name in shipped} == shipped
