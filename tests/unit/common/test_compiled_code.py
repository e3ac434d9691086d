"""Compiled code that numba keeps on disk is not taken for other sources."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numba")

from kernbench.common.compiled_code import compiled


def name_of(*sources: Path) -> str:
    def function(x: int) -> int:
        return x + 1

    made = compiled(function, sources=tuple(map(str, sources)))
    assert made(1) == 2
    return str(made.py_func.__qualname__)


def test_a_change_of_any_source_gives_the_function_another_name(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.py", "b.py", "changed.py")]
    for file, text in zip(files, ("x = 1", "y = 2", "y = 3"), strict=True):
        file.write_text(text)
    a, b, changed = files
    assert name_of(a, b) != name_of(a, changed)
    assert name_of(a, b).startswith("function_")


def test_a_function_of_one_file_keeps_its_name() -> None:
    assert name_of().endswith("function")
