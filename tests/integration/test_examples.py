"""Every example runs as a user would run it, and prints what its expected text says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.test_docs import import_path, in_process
from tests.package import SOURCE

pytestmark = pytest.mark.needs("shipped", reason="their expected text is of the shipped machine")

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {script.parent.name: script for script in sorted(EXAMPLES.glob("*/run.py"))} | {
    script.stem: script for script in sorted(EXAMPLES.glob("*.py"))
}


def run(*args: str, cwd: Path, **env: str) -> str:
    source = SOURCE
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


def test_special_function_unit_costs_what_its_rule_says() -> None:
    rows = [line[31:].split()[-4:] for line in (EXAMPLES / "expected" / "pe_sfu.txt").read_text().splitlines()[1:]]
    softmax, softmax_sfu, scores, scores_sfu = ([float(cell) for cell in row] for row in rows)
    # Exponents of 64 x 512 f32: on 256 / 2 lanes of MATH, or at 512 / 2 per ns. Every step waits for the one before it.
    assert softmax[2] - softmax_sfu[2] == 64 * 512 / 128
    assert softmax_sfu[3] == 64 * 512 / 256
    assert softmax[0] - softmax_sfu[0] == 64 * 512 / 128 - 64 * 512 / 256
    # 64 tiles of 32 x 32 in f32. Without the unit the slot is taken for GEMM and MATH; with it the exponents of all
    # tiles but the last are taken while GEMM and MATH work.
    assert (scores[2], scores_sfu[2], scores_sfu[3]) == (64 * 16, 64 * 8, 64 * 4)
    assert scores[0] - scores_sfu[0] >= 60 * 8


ONE_CUBE = ("--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1")


def test_engine_of_a_users_own_shows_in_every_output(tmp_path: Path) -> None:
    def kernbench(command: str, *args: str) -> str:
        with import_path(str(EXAMPLES / "pe_sfu")):
            code, out = in_process([command, "--topology", str(EXAMPLES / "pe_sfu" / "machine.yaml"), *ONE_CUBE, *args])
        assert code == 0, out
        return out

    done = json.loads(kernbench("run", "--bench", "softmax", "--json"))
    # 256 x 512 elements in f32 at 512 / 2 per ns, over 8 PEs.
    assert done["launches"][0]["engines"]["pe_sfu"]["busy_ns"] == 256 * 512 / 256
    assert "pe_sfu" in kernbench("run", "--bench", "softmax")
    assert "sip0.cube0.pe0.pe_sfu" in kernbench("topology", "--nodes")
    kernbench("topology", "--emit", str(tmp_path / "pictures"))
    assert ">pe_sfu<" in (tmp_path / "pictures" / "pe_view.svg").read_text()
