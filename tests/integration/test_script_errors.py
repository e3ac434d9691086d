"""Errors of `python script.py`: as short as those of the command, with the script's own lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

SCRIPT = """
import sys

import kernbench

SMALL = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1, "system.sips.count": 3}

def ranks(torch, worker):
    torch.distributed.init_process_group("ahbm")
    torch.multiprocessing.spawn(worker, (torch,), nprocs=3)

def waits_forever(rank, torch):
    x = torch.zeros(64)
    if rank:
        torch.distributed.all_reduce(x)

def differs(rank, torch):
    torch.distributed.all_reduce(torch.zeros(64 + (rank > 0)))

def deadlock(torch):
    ranks(torch, waits_forever)

def mismatch(torch):
    ranks(torch, differs)

def own(torch):
    torch.zeros(3)
    {}["key"]

if __name__ == "__main__":
    kernbench.run(globals()[sys.argv[1]], overrides=SMALL, device="whole")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run_script(script: Path, bench: str) -> list[str]:
    done = subprocess.run([sys.executable, str(script), bench], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()


def run_command(script: Path, bench: str) -> list[str]:
    from kernbench.cli.main import kernbench as command
    from kernbench.common.errors import KernBenchError

    small = ["sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "cube.pe_layout.pe_per_corner=1", "system.sips.count=3"]
    args = [
        "run",
        "--device",
        "whole",
        "--bench",
        f"{script}:{bench}",
        *(part for each in small for part in ("--set", each)),
    ]
    result = CliRunner().invoke(command, args)
    assert isinstance(result.exception, KernBenchError)
    return str(result.exception).splitlines()


@pytest.mark.parametrize(
    ("bench", "error", "frames"),
    [("deadlock", "DeadlockError", 1), ("mismatch", "SpawnException", 3)],
)
def test_a_script_says_what_the_command_says_after_its_own_lines(
    script: Path, bench: str, error: str, frames: int
) -> None:
    """A deadlock is found while no line of the script runs but that which runs the bench."""
    said, wanted = run_script(script, bench), run_command(script, bench)
    assert said[-len(wanted) :] == [f"{error}: {wanted[0]}", *wanted[1:]]
    own = [line for line in said if line.startswith("  File ")]
    assert all(f'File "{script}", line ' in line for line in own)
    assert (len(own), len(said)) == (frames, 1 + 2 * frames + len(wanted))


def test_ranks_that_fail_alike_are_one_entry(script: Path) -> None:
    said = run_script(script, "mismatch")
    (entry,) = [line for line in said if "CollectiveMismatchError" in line]
    assert entry.strip().startswith(
        "ranks 1, 2: CollectiveMismatchError: ranks call different things: this rank calls "
    )


def test_an_error_of_the_script_itself_is_shown_as_python_does(script: Path) -> None:
    said = run_script(script, "own")
    assert said[0] == "Traceback (most recent call last):"
    assert said[-1] == "KeyError: 'key'"


def test_a_hook_of_the_program_is_kept(script: Path) -> None:
    script.write_text("import sys\nsys.excepthook = lambda *_: print('mine', file=sys.stderr)\n" + SCRIPT)
    assert run_script(script, "mismatch")[-1] == "mine"
