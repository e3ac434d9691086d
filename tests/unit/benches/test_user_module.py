"""Benches in a user's own file or module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernbench.benches.registry import resolve
from kernbench.common.errors import UsageError

ONE = """
from kernbench.benches.registry import bench
from beside import NUMBER

@bench(name="softmax", description="Named as a shipped one.")
def run(torch, *, n: int = NUMBER): ...
"""
TWO = """
from kernbench.benches.registry import bench

@bench(name="first", description="One.")
def run_first(torch): ...

@bench(name="second", description="Two.")
def run_second(torch): ...

def undecorated(torch, *, m: int = 3):
    '''A plain function.

    With a longer story.'''
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "pytest-of" not in path])  # of other tests
    for name in ("mine", "beside"):  # of another test
        monkeypatch.delitem(sys.modules, name, raising=False)
    known = set(sys.modules)
    (tmp_path / "beside.py").write_text("NUMBER = 7\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "beside.py").write_text("NUMBER = 9\n")
    (tmp_path / "mine" / "one.py").write_text(ONE)
    (tmp_path / "mine" / "two.py").write_text(TWO)
    (tmp_path / "json.py").write_text("def run(torch): ...\n")
    yield tmp_path
    for name in [name for name in sys.modules if name not in known]:
        del sys.modules[name]


def test_the_only_bench_of_a_file_needs_no_name_and_finds_what_lies_beside_it() -> None:
    spec = resolve("mine/one.py")
    assert (spec.name, spec.description, spec.number) == ("softmax", "Named as a shipped one.", 0)
    assert [param.default for param in spec.params] == [9]
    assert resolve("softmax").number > 0  # the shipped one is still there


def test_a_bench_is_chosen_by_its_own_name_or_its_functions() -> None:
    assert resolve("mine/two.py:second").description == "Two."
    assert resolve("mine/two.py:run_first").name == "first"


def test_a_function_without_the_decorator_will_do() -> None:
    spec = resolve("mine/two.py:undecorated")
    assert (spec.name, spec.description) == ("two:undecorated", "A plain function.")
    assert [param.default for param in spec.params] == [3]


def test_a_file_may_be_named_as_a_library_is() -> None:
    import json

    assert resolve("json.py").name == "json:run"
    assert sys.modules["json"] is json


def test_a_file_that_changed_is_read_again(folder: Path) -> None:
    file = folder / "mine" / "one.py"
    assert resolve(str(file)).description == "Named as a shipped one."
    file.write_text(ONE.replace("Named as a shipped one.", "Changed."))
    assert resolve(str(file)).description == "Changed."


def test_a_module_is_found_from_the_current_folder() -> None:
    assert resolve("mine.two:first").description == "One."


@pytest.mark.parametrize(
    ("identifier", "says"),
    [
        ("mine/two.py", "has 2 benches"),
        ("mine/two.py:third", "has no bench 'third'"),
        ("mine/nowhere.py", "no file mine/nowhere.py"),
        ("mine", "no bench 'mine'"),
        ("./mine", "no file mine"),
        ("mine/two.py:", "ends in a colon"),
        ("beside:run", "has no bench 'run'"),
        ("no.such.module", "cannot be imported: ModuleNotFoundError"),
        (":run", "cannot be imported"),
    ],
)
def test_what_cannot_be_found_is_said(identifier: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve(identifier)
    assert says in refused.value.what
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("x = 1\ndef run(torch:\n", "SyntaxError", 2),
        ("x = 1\n\ny = 1 / 0\n", "ZeroDivisionError", 3),
        ("import sys\nsys.exit(3)\n", "SystemExit", 2),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_its_line(folder: Path, text: str, kind: str, line: int) -> None:
    (folder / "wrong.py").write_text(text)
    with pytest.raises(UsageError, match=f"wrong.py cannot be imported: {kind}") as refused:
        resolve("wrong.py")
    assert str(refused.value.where).endswith(f"wrong.py:{line}")


def test_a_file_that_may_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "closed.py").write_text(ONE)

    def read_bytes(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", read_bytes)  # who tests may read everything
    with pytest.raises(UsageError, match=r"closed.py cannot be read: Permission denied"):
        resolve("closed.py")
