"""PyTorch around Triton programs: what a machine with one accelerator answers, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.frontends.triton_programs import simulated, torch

from kernbench.common.errors import UsageError

_UNDER_DYNAMO = """
import torch, triton, triton.language as tl
import kernbench.triton

@triton.jit
def add_one(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at) + 1)

machine = {"system": {"sips": {"count": 1}}, "sip": {"cube_mesh": {"w": 1, "h": 1}}}
with kernbench.triton.simulate(machine) as sim:
    import torch._dynamo
    import torch.profiler
    from torch.library import triton_op, wrap_triton

    @triton_op("kernbench_test::add_one", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        wrap_triton(add_one)[(1,)](x, out, N=32)
        return out

    @torch.compile
    def twice(x):
        return op(x) * 2

    @torch.compile(fullgraph=True)
    def thrice(x):
        return x * 3

    x = torch.ones(32, device="cuda")
    assert torch.equal(twice(x), x * 4) and torch.equal(thrice(x), x * 3)
assert len(sim.launches) == 1
"""


def test_dynamo_can_be_imported_and_what_is_compiled_runs_as_it_is_written(tmp_path):
    file = tmp_path / "compiled.py"
    file.write_text(_UNDER_DYNAMO)
    subprocess.run([sys.executable, str(file)], check=True, timeout=120)


def test_generators_and_markers_of_the_accelerator_work():
    with simulated():
        generator = torch.Generator(device="cuda").manual_seed(3)
        first = torch.rand(4, generator=generator, device="cuda")
        assert torch.equal(first, torch.rand(4, generator=torch.Generator("cuda").manual_seed(3)))
        torch.cuda.nvtx.range_push("part")
        torch.cuda.nvtx.range_pop()
    assert torch.equal(first, torch.rand(4, generator=torch.Generator().manual_seed(3)))


def test_graphs_of_launches_are_refused():
    with simulated(), pytest.raises(UsageError, match="CUDAGraph"):
        torch.cuda.CUDAGraph()


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.ones(3, device="cuda:1"),
        lambda: torch.ones(3, device=torch.device("cuda", 1)),
        lambda: torch.ones(3, device=1),
        lambda: torch.ones(3).to("cuda:1"),
        lambda: torch.ones(3).cuda(1),
        lambda: torch.cuda.set_device(1),
        lambda: torch.cuda.device(1).__enter__(),
    ],
)
def test_a_second_accelerator_is_refused(use):
    with simulated(), pytest.raises(UsageError, match="cuda:1"):
        use()


def test_the_only_accelerator_has_all_its_names():
    with simulated():
        for device in ("cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 0)):
            assert torch.ones(3, device=device).to(device).cuda(0).device == torch.device("cuda", 0)
        with torch.cuda.device(0):
            torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "product",
    [
        lambda a, b: a @ b,
        torch.matmul,
        lambda a, b: torch.einsum("ij,jk->ik", a, b),
        lambda a, b: torch.einsum("ij,jk->ik", [a, b]),
        lambda a, b: torch.nn.functional.linear(a, b.T),
        lambda a, b: torch.addmm(torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype), a, b),
    ],
)
def test_halves_are_added_up_in_f32_as_accelerators_do(product, dtype):
    """2049 ones: in f16 the sum would stop at 2048, in bf16 at 256. Gradients are sums as well."""
    n = 2049
    with simulated():
        ones = torch.ones(2, n, dtype=dtype, device="cuda", requires_grad=True)
        result = product(ones, torch.ones(n, n, dtype=dtype, device="cuda"))
        result.sum(dtype=torch.float32).backward()
    rounded = torch.tensor(float(n)).to(dtype)
    assert result.dtype == ones.grad.dtype == dtype
    assert torch.equal(result, rounded.expand(2, n))
    assert torch.equal(ones.grad, rounded.expand(2, n))


def test_products_of_different_types_are_refused_as_by_pytorch():
    with simulated(), pytest.raises(RuntimeError, match="same dtype"):
        torch.ones(2, 2, dtype=torch.float16, device="cuda") @ torch.ones(2, 2, device="cuda")
