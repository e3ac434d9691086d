"""One meaning per name: no two modules define classes of one name, so that a name is enough to say which is meant."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def test_no_two_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for statement in ast.parse(file.read_text()).body:
            if isinstance(statement, ast.ClassDef):
                places.setdefault(statement.name, []).append(str(file.relative_to(SOURCE)))
    assert "FlitEngine" in places  # the package was found
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
