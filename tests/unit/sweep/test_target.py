"""Functions by name, for other processes."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from kernbench.common.errors import UsageError
from kernbench.runtime_api.user_module import load_user_module
from kernbench.sweep.cost import default_cost
from kernbench.sweep.target import Target, read_target, target_of


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # a bench's folder is put on it


def travelled(target: Target) -> Target:
    """As another process has it."""
    return pickle.loads(pickle.dumps(target))


def test_a_function_of_a_module_is_found_by_its_name() -> None:
    target = travelled(target_of(default_cost))
    assert str(target) == "kernbench.sweep.cost:default_cost"
    assert target.load() is default_cost


def test_a_function_of_a_file_is_found_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "swept.py"
    file.write_text("def run(torch):\n    return 5\n")
    fn = load_user_module(str(file)).run
    load_user_module(str(file))  # again, so that `fn` is not the one that the module has now
    target = travelled(target_of(fn))
    assert (target.place, str(target)) == (str(file), "swept.py:run")
    assert target.load()(None) == 5
    assert read_target(f"{file}:run").load()(None) == 5


def test_the_digest_changes_with_the_text_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "swept.py"
    file.write_text("def run(torch):\n    return 5\n")
    before = target_of(load_user_module(str(file)).run).digest()
    assert target_of(load_user_module(str(file)).run).digest() == before
    file.write_text("def run(torch):\n    return 6\n")
    assert target_of(load_user_module(str(file)).run).digest() != before


def test_functions_without_a_name_are_local() -> None:
    def inside() -> None: ...

    assert [target_of(fn).is_local for fn in (lambda: None, inside)] == [True, True]
    assert target_of(inside).load() is inside


@pytest.mark.parametrize(
    "text", ["swept.py", "kernbench.sweep.cost:nothing", "no.such.module:fn", "kernbench.sweep.cost:WEIGHTS"]
)
def test_what_is_no_function_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_target(text)
