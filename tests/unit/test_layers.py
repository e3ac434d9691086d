"""The picture of the house is true: imports go down only, and starting up loads nothing heavy."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from tests.package import SOURCE

ROOT = Path(__file__).parents[2]
HEAVY = "matplotlib rustworkx networkx pandas scipy torch starlette uvicorn pyarrow distributed optuna"
NOT_AT_THE_DOOR = "numpy ml_dtypes rich yaml simpy greenlet"


def loaded_after(statement: str, names: str) -> list[str]:
    """Which of `names` a fresh interpreter has loaded after `statement`."""
    script = f"import sys\n{statement}\nprint(*(name for name in {names.split()!r} if name in sys.modules))"
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("statement", ["import kernbench", "import kernbench.cli.main"])
def test_starting_up_loads_neither_heavy_nor_needless_libraries(statement: str) -> None:
    assert loaded_after(statement, f"{HEAVY} {NOT_AT_THE_DOOR}") == []


def test_a_small_run_loads_only_what_it_needs() -> None:
    statement = """
import contextlib, io
from kernbench.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["run", "--json", "--bench", "gemm-single-pe"])"""
    ours = "benches.softmax evaluation.run sweep report.runs.saved_run ccl.config runtime_api.distributed models tp"
    needless = " ".join(f"kernbench.{name}" for name in ours.split())
    found = loaded_after(statement, f"{HEAVY} concurrent.futures statistics {needless} kernbench.benches.gemm")
    assert found == ["kernbench.benches.gemm"]


@pytest.mark.parametrize(
    "statement",
    [
        "from kernbench.topology import load_topology; load_topology()",
        "import kernbench.sim_engine.fabric",
        "from kernbench.policy.routing.router import PathRouter",
        "import kernbench.components.base, kernbench.components.table",
        "import kernbench.sweep, kernbench.sweep.local_pool, kernbench.sweep.cluster_pool, kernbench.cli.sweep",
    ],
)
def test_the_machine_needs_no_plotting_web_or_graph_library(statement: str) -> None:
    assert loaded_after(statement, HEAVY) == []


def test_the_fabric_stands_on_its_own() -> None:
    ours = "kernbench.topology kernbench.policy kernbench.components yaml numpy"
    assert loaded_after("import kernbench.sim_engine.fabric", ours) == []


def test_imports_go_down_only() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, env=env, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_modules_of_tl_import_in_one_direction() -> None:
    """Those for type checkers only count too: a circle of types is a circle."""
    package = "kernbench.triton_emu"
    below: dict[str, set[str]] = {}
    for file in (ROOT / "src/kernbench/triton_emu").glob("*.py"):
        found = [node.module for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        below[f"{package}.{file.stem}"] = {name for name in found if name and name.startswith(package)}
    order = [*TopologicalSorter(below).static_order()]  # raises CycleError for a circle
    assert order.index(f"{package}.handle") < order.index(f"{package}.tl_context")
