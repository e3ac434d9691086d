"""Triton's tutorials, as they are and with their own checks; only sweeps of benchmarks are cut to nothing.

They are not part of this repository: KERNBENCH_THIRD_PARTY names the folder that has `triton/tutorials`, or it lies in
`../shared/third_party`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.frontends.triton_programs import SMALL, simulated, torch

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("KERNBENCH_THIRD_PARTY", ROOT.parent / "shared" / "third_party")) / "triton" / "tutorials"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason=f"no tutorials in {FOLDER}: set KERNBENCH_THIRD_PARTY to the folder with triton/tutorials",
)


def tutorial(number: str) -> Path:
    return next(FOLDER.glob(f"{number}-*.py"))


def run(number: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "kernbench", "run", "--triton", str(tutorial(number))]
    machine = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]  # one cube: fewer links
    return subprocess.run(
        [*command, *machine, "--benchmarks", "0", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=900,
    )


@pytest.mark.parametrize(
    ("number", "kernels", "says"),
    [
        ("01", {"add_kernel"}, "difference between torch and triton is 0.0"),
        ("02", {"softmax_kernel"}, ""),
        ("03", {"matmul_kernel"}, "Triton and Torch match"),
        ("04", {"_dropout", "_seeded_dropout"}, "output (seed = 123)"),
        ("05", {"_layer_norm_fwd_fused", "_layer_norm_bwd_dx_fused", "_layer_norm_bwd_dwdb"}, ""),
        ("07", {"asin_kernel"}, "difference between torch and triton"),
        pytest.param(
            "08", {"grouped_matmul_kernel"}, "", marks=pytest.mark.slow
        ),  # minutes; not in make test-frontends
    ],
)
def test_a_tutorial_runs_as_it_is(number, kernels, says):
    done = run(number)
    assert done.returncode == 0, done.stderr[-2000:]
    assert says in done.stderr  # with --json, what programs print goes there
    assert "Torch differ" not in done.stderr
    found = json.loads(done.stdout)
    assert {launch["kernel"] for launch in found["launches"]} == kernels
    assert all(launch["ns"] >= launch["roofline"]["bound_ns"] > 0 for launch in found["launches"])


@pytest.mark.parametrize(
    ("number", "says"),
    [("10", "requires GPU support for block scaled matmul"), ("11", "PDL is not supported on this device")],
)
def test_tutorials_for_one_processor_say_so_themselves(number, says):
    assert says in run(number).stderr


def loaded(number: str) -> dict[str, object]:
    """The names of a tutorial that does its work in functions."""
    import runpy

    return runpy.run_path(str(tutorial(number)), run_name="tutorial")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_tutorial_06_forward_and_backward(causal):
    with simulated() as sim:
        loaded("06")["test_op"](1, 2, 128, 64, causal, False, "bwd", "triton-fp16")
    assert {launch.kernel for launch in sim.launches} == {"_attn_fwd", "_attn_bwd_preprocess", "_attn_bwd"}


@pytest.mark.filterwarnings("default")
def test_products_of_tutorial_09(capsys):
    with simulated() as sim:
        loaded("09")["validate"](256, 256, 128, torch.float16)
    said = capsys.readouterr().out
    assert "❌" not in said
    assert said.count("✅") >= 3
    assert {launch.kernel for launch in sim.launches} == {"matmul_kernel", "matmul_kernel_persistent"}
