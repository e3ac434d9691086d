"""The page *Rates and rules*: as generated, and its worked examples as the machine takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import kernbench
from kernbench.benches.pe2pe import message_kernel
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report.rates import rates_page
from kernbench.report.rates_examples import examples_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import load_topology
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

PAGE = Path(__file__).parents[3] / "docs/guides/rates-and-rules.md"
SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
OTHER = {  # every rate that the examples use, changed
    "cube.memory_map.hbm_channel_bw_gbs": 40.0,
    "cube.components.router.attrs.overhead_ns": 3.0,
    "cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 3000.0,
    "cube.pe_template.components.pe_math.attrs.lanes_per_ns": 100.0,
    "cube.pe_template.components.pe_scheduler.attrs.overhead_ns": 2.0,
    "cube.pe_template.components.pe_ipcq.attrs.wake_ns": 7.0,
    "cube.pe_template.links.tcm_read_bw_gbs": 400.0,
}


def load(a: TensorPtr, tl: TLContext) -> None:
    tl.load(a, (64, 64))


def dot(a: TensorPtr, b: TensorPtr, tl: TLContext) -> None:
    tl.dot(tl.load(a, (64, 64)), tl.load(b, (64, 64)))


def strided(a: TensorPtr, tl: TLContext) -> None:
    tl.load(a, (64, 128), strides=(256, 1))


def composite(a: TensorPtr, b: TensorPtr, c: TensorPtr, tl: TLContext) -> None:
    left, right = tl.ref(a, (64, 64)), tl.ref(b, (64, 64))
    tl.wait(tl.composite("gemm", left, right, out_ptr=c, epilogue=[{"op": "relu"}]))


KERNELS: dict[str, tuple[Callable[..., None], list[tuple[int, int]]]] = {
    "a load": (load, [(64, 64)]),
    "a dot": (dot, [(64, 64)] * 2),
    "a strided load": (strided, [(64, 256)]),
    "a composite with epilogue": (composite, [(64, 64)] * 3),
}


def bench(torch: RuntimeContext, name: str) -> None:
    if name == "a message":
        torch.install_ipcq()
        kernel = partial(message_kernel, there="intra_1", back="intra_0")
        torch.launch(name, kernel, 1024, target_cubes=(0,), target_pes=(0, 1))
        return
    kernel, shapes = KERNELS[name]
    one = DPPolicy(num_pes=1, num_cubes=1)
    tensors = [torch.zeros(shape, dtype="f16", dp=one, name=f"t{at}") for at, shape in enumerate(shapes)]
    torch.launch(name, kernel, *tensors)


@pytest.mark.needs("n_to_one", reason="figures of the shipped machine")
def test_the_page_in_the_docs_is_the_generated_one() -> None:
    # Hint with: kernbench topology --rates > docs/guides/rates-and-rules.md
    assert PAGE.read_text(encoding="utf-8") == rates_page(load_topology()) + "\n"


ARRAY = {  # 32 x 32 places at 4 GHz, which fill and drain
    "cube.pe_template.components.pe_gemm.attrs.clock_ghz": 4.0,
    "cube.pe_template.components.pe_gemm.impl": "builtin.systolic",
    "cube.pe_template.components.pe_gemm.attrs.rows": 32,
    "cube.pe_template.components.pe_gemm.attrs.columns": 32,
    "cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 4096.0,
}
CHANNELS = {"system.address_model": "la", "cube.memory_map.hbm_mapping_mode": "one_to_one"}


@pytest.mark.parametrize("changed", [{}, OTHER, CHANNELS, ARRAY], ids=["shipped", "other", "channels", "array"])
@pytest.mark.parametrize("name", [*KERNELS, "a message"])
def test_worked_examples_take_what_the_page_says(name: str, changed: dict[str, object]) -> None:
    machine = load_topology(None, {**SMALL, **changed})
    (example,) = [each for each in examples_of(machine) if each.name == name]
    result = kernbench.run(partial(bench, name=name), machine)
    assert result.launches[-1].pe_exec_ns_max == pytest.approx(example.total_ns, abs=1e-3)


@pytest.mark.needs("n_to_one", reason="figures of the shipped machine")
def test_the_shipped_examples_by_hand() -> None:
    """A load: 1 + 13 + 8192 / 256. A product adds 1 + 64^3 / 4096 to two of them."""
    totals = {example.name: example.total_ns for example in examples_of(load_topology())}
    assert totals["a load"] == 1 + 13 + 32
    assert totals["a dot"] == 2 * 46 + 1 + 64
    assert totals["a strided load"] == 1 + 16 * 8 + 4 + 5
    assert totals["a composite with epilogue"] == 1 + 4 * 58 + 16 + 16 + 8 + 4 + 21
    assert totals["a message"] == pytest.approx(16 + 4 + 0.2 + 2.5 + 8 + 10 + 8, abs=1e-5)
