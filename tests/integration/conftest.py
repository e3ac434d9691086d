"""Runs that were saved once, for all tests that look at saved runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.cli.main import kernbench
from kernbench.report import open_run
from kernbench.report.runs.saved_run import SavedRun

ONE_SIP = ("--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1")
TWO_CUBES = ("--set", "sip.cube_mesh.w=2", "--set", "sip.cube_mesh.h=1")
VIRTUAL = ("--set", "system.address_model=va")  # physical addresses reach no other PE's part
RUNS = {
    "ccl": ("ccl-allreduce", *TWO_CUBES),  # a collective on 2 SIPs
    "flash": ("flash-attention", *ONE_SIP, "--param", "pes=0", "--param", "seq_k=128"),
    "qkv": ("qkv-gemm-multi-pe", *ONE_SIP, "--param", "seq=32"),
    "shifted": ("va-offset-verify", *TWO_CUBES, *VIRTUAL, "--device", "sip:0"),  # the same over UCIe
    "va": ("va-offset-verify", *ONE_SIP, *VIRTUAL),  # every PE reads another PE's part
}


def save_run(folder: Path, *args: str) -> SavedRun:
    """`kernbench run --bench ARGS --save FOLDER`."""
    done = CliRunner().invoke(kernbench, ["run", "--bench", *args, "--save", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"wrote {folder}" in done.output
    return open_run(folder)


@pytest.fixture(scope="session")
def saved_runs(tmp_path_factory) -> dict[str, SavedRun]:
    """The runs of RUNS, by name, in one folder."""
    root = tmp_path_factory.mktemp("runs")
    return {name: save_run(root / name, *args) for name, args in RUNS.items()}
