"""Every example runs as a user would run it, and prints what its expected text says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {"custom_components": EXAMPLES / "custom_components" / "run.py"} | {
    script.stem: script for script in sorted(EXAMPLES.glob("*.py"))
}


def run(*args: str, cwd: Path, **env: str) -> str:
    source = str(EXAMPLES.parent / "src")
    path = os.pathsep.join(part for part in (env.pop("PYTHONPATH", ""), source) if part)
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, env={**os.environ, **env, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_expected_text_has_its_example() -> None:
    assert sorted(path.stem for path in (EXAMPLES / "expected").glob("*.txt")) == sorted(SCRIPTS)


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    assert run(str(SCRIPTS[name]), cwd=tmp_path) == (EXAMPLES / "expected" / f"{name}.txt").read_text()
    assert list(tmp_path.iterdir()) == []


def test_mesh_takes_a_trace_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"transfers": [{"src": [0, 0], "dst": [0, 0], "nbytes": 64, "at_ns": 1}]}')
    # In at 32 GB/s, one router of 2 ns, out at 48 GB/s.
    out = run(str(EXAMPLES / "plain_mesh.py"), "mine.json", cwd=tmp_path)
    assert out.splitlines()[-1] == f"all done at {1 + 2 + 2 + 64 / 48:.2f} ns"


@pytest.mark.parametrize(
    ("row", "more_ns"),
    [
        # 16 flits pass each router; the last is a fourth one, and pays 6 ns more at every router on its way.
        ("its own HBM slice, one router", 1 * 6),
        ("the far corner's HBM slice", 11 * 6),
        ("SRAM, alone", 4 * 6 + 4096 / 64),
    ],
)
def test_custom_blocks_cost_what_their_rules_say(row: str, more_ns: float) -> None:
    text = (EXAMPLES / "expected" / "custom_components.txt").read_text()
    line = next(line for line in text.splitlines() if line.startswith(row))
    shipped, custom = (float(cell) for cell in line[len(row) :].split())
    assert custom == pytest.approx(shipped + more_ns)


def test_custom_machine_works_from_yaml_alone(tmp_path: Path) -> None:
    script = (
        "from kernbench.topology import load_topology; from kernbench.sim_engine.engine import GraphEngine\n"
        f"engine = GraphEngine(load_topology({str(EXAMPLES / 'custom_components' / 'machine.yaml')!r}))\n"
        "print(*(type(engine.component(f'sip0.cube0.{name}')).__module__ for name in ('noc.r0c0', 'sram')))"
    )
    out = run("-c", script, cwd=tmp_path, PYTHONPATH=str(EXAMPLES / "custom_components"))
    assert out.split() == ["my_blocks.slow_router", "my_blocks.banked_sram"]
