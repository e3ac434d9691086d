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
from tests.frontends.triton_programs import SMALL, machine, simulated, torch

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
    small = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]  # one cube: fewer links
    return subprocess.run(
        [*command, *small, "--benchmarks", "0", "--json"],
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
        ("04", {"_dropout", "_seeded_dropout"}, "output (seed = 123)"),
        ("05", {"_layer_norm_fwd_fused", "_layer_norm_bwd_dx_fused", "_layer_norm_bwd_dwdb"}, ""),
        ("07", {"asin_kernel"}, "difference between torch and triton"),
        pytest.param(
            "08", {"grouped_matmul_kernel"}, "", marks=pytest.mark.slow
        ),  # minutes; not in make test-frontends
    ],
)
def test_a_tutorial_runs_as_it_is(number, kernels, says):
    launches_of(number, kernels, says)


def launches_of(number: str, kernels: set[str], says: str) -> list[dict[str, object]]:
    """The launches of a tutorial that has run to its end, and printed that its numbers are right."""
    done = run(number)
    assert done.returncode == 0, done.stderr[-2000:]
    assert says in done.stderr  # with --json, what programs print goes there
    assert "Torch differ" not in done.stderr
    found = json.loads(done.stdout)
    assert {launch["kernel"] for launch in found["launches"]} == kernels
    assert all(launch["ns"] >= launch["roofline"]["bound_ns"] > 0 for launch in found["launches"])
    return found["launches"]


def test_the_best_configuration_of_tutorial_03_is_as_fast_as_a_composite():
    """512 x 512 x 512 in f16 on the 8 PEs of a cube: a composite streams tiles from the memory of its PE."""
    launch = launches_of("03", {"matmul_kernel"}, "Triton and Torch match")[0]
    assert launch["ns"] <= 1.3 * composite_ns(512)


def composite_ns(n: int) -> float:
    """The product of two n x n matrices as a composite on every PE: the right one split by columns, the left one in
    the memory of each PE.
    """
    import numpy as np

    import kernbench
    from kernbench.benches.gemm import matmul_kernel
    from kernbench.policy.placement.dp import DPPolicy

    def host(torch):
        columns = DPPolicy(cube="column_wise", pe="column_wise")
        a = torch.from_numpy(np.ones((n, n), np.float16), name="a", dp=DPPolicy())
        b = torch.from_numpy(np.ones((n, n), np.float16), name="b", dp=columns)
        c = torch.empty(n, n, dtype="f16", name="c", dp=columns)
        torch.launch("composite", matmul_kernel, a, b, c, 1, True, target_cubes="all", target_pes="all")

    (launch,) = kernbench.run(host, topology=machine()).launches
    return launch.exec_ns


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
