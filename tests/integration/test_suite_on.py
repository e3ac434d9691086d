"""`scripts/suite-on`: tests on a machine of another address model and channel mapping, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = """
import pytest
from kernbench.topology import load_spec


def test_the_default_machine_is_the_one_that_was_named():
    spec = load_spec()
    assert (spec.system.address_model, spec.cube.memory_map.hbm_mapping_mode) == ("la", "one_to_one")
    assert load_spec(None, {"system.address_model": "pa"}).system.address_model == "pa"


@pytest.mark.needs("addresses", reason="logical ones will do")
def test_that_holds_here():
    pass


@pytest.mark.needs("shipped", reason="a figure of the shipped machine")
def test_that_does_not():
    raise AssertionError
"""


def suite_on(*args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command, env = [ROOT / "scripts/suite-on", *args], {**os.environ, "PATH": path}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)


def copies() -> list[Path]:
    return sorted((ROOT / ".pytest_cache").glob("suite-on-*"))


def test_tests_see_the_machine_that_is_named_and_those_that_need_another_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    before = copies()
    here = ("-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-p", "tests.conftest")
    done = suite_on("la,one_to_one", str(tmp_path), *here)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 skipped" in done.stdout
    assert "needs shipped: a figure of the shipped machine" in done.stdout
    assert copies() == before


@pytest.mark.parametrize(("name", "says"), [("xa", "no address model 'xa'"), ("la,two", "no mapping mode 'two'")])
def test_a_machine_that_does_not_exist_is_refused(name: str, says: str) -> None:
    done = suite_on(name)
    assert done.returncode == 2
    assert says in done.stderr
