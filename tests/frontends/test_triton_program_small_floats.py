"""bf16 and fp8 in Triton programs: the numbers are PyTorch's, which computes in f32 and rounds to nearest even."""

from __future__ import annotations

import pytest
from packaging import version
from tests.frontends.triton_programs import simulated, tl, torch, triton

from kernbench.common.errors import LaunchError

IS_OLD = version.parse(triton.__version__) < version.parse("3.9")
N = 64


@triton.jit
def computed(x, y, out, N: tl.constexpr, OP: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    if OP == "add":
        r = a + b
    elif OP == "times two":
        r = a * 2
    elif OP == "times a third":
        r = a * 0.3333
    elif OP == "plus one":
        r = a + 1
    elif OP == "full":
        r = tl.full((N,), 1.7, tl.bfloat16)
    elif OP == "divide":
        r = a / b
    elif OP == "minus":
        r = -a
    elif OP == "compare":
        r = (a > b).to(tl.bfloat16)
    elif OP == "from integers":
        r = (at * 37).to(tl.bfloat16)
    elif OP == "where":
        r = tl.where(a < 0, 0.0, b)
    elif OP == "fma":
        r = tl.fma(a, b, a)
    elif OP == "sort":
        r = tl.sort(a)
    elif OP == "max":
        r = a + tl.max(a, 0)
    tl.store(out + at, r)


OPS = {
    "add": lambda x, y: x + y,
    "times two": lambda x, y: x * 2,
    "times a third": lambda x, y: x * torch.tensor(0.3333, dtype=torch.bfloat16),
    "plus one": lambda x, y: x + 1,
    "full": lambda x, y: torch.full((N,), 1.7, dtype=torch.bfloat16),
    "divide": lambda x, y: x / y,
    "minus": lambda x, y: -x,
    "compare": lambda x, y: (x > y).bfloat16(),
    "from integers": lambda x, y: (torch.arange(N) * 37).bfloat16(),
    "where": lambda x, y: torch.where(x < 0, 0, y),
    "fma": lambda x, y: (x.double() * y.double() + x.double()).bfloat16(),
    "sort": lambda x, y: x.sort()[0],
    "max": lambda x, y: (x.float() + x.float().max()).bfloat16(),
}


@pytest.mark.parametrize("op", OPS)
def test_bf16_is_computed_in_f32_and_rounded(op):
    x, y = torch.randn(N).bfloat16(), torch.randn(N).bfloat16()
    out = torch.zeros(N, dtype=torch.bfloat16)
    with simulated():
        computed[(1,)](x, y, out, N=N, OP=op)
    assert torch.equal(out, OPS[op](x, y))


@triton.jit
def sums(x, out, last, M: tl.constexpr, N: tl.constexpr):
    block = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out + tl.arange(0, M), tl.sum(block, 1))
    tl.atomic_add(last + tl.arange(0, M) // 2, tl.sum(block, 1).to(tl.bfloat16))


def test_sums_and_atomics_of_bf16():
    x = torch.randint(-4, 5, (8, 16)).bfloat16()  # every partial sum has an exact bf16
    out, last = torch.zeros(8, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.bfloat16)
    with simulated():
        sums[(1,)](x, out, last, M=8, N=16)
    assert torch.equal(out, x.sum(1))
    assert torch.equal(last, x.sum(1).reshape(4, 2).sum(1))


@triton.jit
def product(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_products_of_small_floats(dtype):
    a, b, out = torch.randn(32, 32).to(dtype), torch.randn(32, 32).to(dtype), torch.zeros(32, 32)
    with simulated():
        product[(1,)](a, b, out, N=32)
    torch.testing.assert_close(out, a.float() @ b.float())


@triton.jit
def converted(x, out, back, N: tl.constexpr, T: tl.constexpr):
    at = tl.arange(0, N)
    small = tl.load(x + at).to(T)
    tl.store(out + at, small)
    tl.store(back + at, small.to(tl.float32))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.bfloat16, tl.bfloat16), (torch.float8_e4m3fn, tl.float8e4nv), (torch.float8_e5m2, tl.float8e5)],
)
def test_conversions_round_to_nearest_even_and_carry_into_the_exponent(dtype, kind):
    # 1.999 rounds up to 2, whose exponent is another one; 1 + 2**-8 is a tie between two bf16; the last are subnormal.
    x = torch.cat((torch.randn(500), torch.tensor([1.999, -3.999, 1 + 2**-8, 1 + 3 * 2**-8, 0.0, 1e-3, -3e-5, 1e-9])))
    x = torch.cat((x, torch.randn(4)))
    out, back = torch.zeros(512, dtype=dtype), torch.zeros(512)
    with simulated():
        converted[(1,)](x, out, back, N=512, T=kind)
    assert torch.equal(out.float(), x.to(dtype).float())
    assert torch.equal(back, out.float())


@triton.jit
def lacking(x, OP: tl.constexpr):
    at = tl.arange(0, 32)
    block = tl.load(x + at[:, None] * 32 + at[None, :])
    if OP == "dot_scaled":
        tl.dot_scaled(block, None, "fp16", block, None, "fp16")
    elif OP == "flip":
        tl.store(x + at, tl.flip(tl.load(x + at)))
    else:
        tl.map_elementwise(block, block)


@pytest.mark.parametrize("op", ["dot_scaled", "flip", "map_elementwise"])
def test_what_an_interpreter_lacks_is_refused_by_name(op):
    x = torch.arange(1024).half()
    is_known = not IS_OLD and op != "map_elementwise"
    if not is_known:
        with simulated(), pytest.raises(LaunchError, match=f"tl.{op}") as caught:
            lacking[(1,)](x, OP=op)
        assert caught.value.hint
        return
    with simulated():
        lacking[(1,)](x, OP=op)
    assert op != "flip" or torch.equal(x[:32], torch.arange(32).half().flip(0))


@triton.jit
def scaled_product(x, scale, y, out, K: tl.constexpr, N: tl.constexpr, FORMAT: tl.constexpr):
    rows, columns, deep = tl.arange(0, N), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(x + rows[:, None] * K + deep[None, :])
    scales = tl.load(scale + rows[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
    b = tl.load(y + deep[:, None] * N + columns[None, :])
    tl.store(out + rows[:, None] * N + columns[None, :], tl.dot_scaled(a, scales, FORMAT, b, None, "fp16"))


@pytest.mark.skipif(IS_OLD, reason="the interpreter of Triton 3.7 has no tl.dot_scaled")
@pytest.mark.parametrize(("name", "dtype"), [("e5m2", torch.float8_e5m2), ("e4m3", torch.float8_e4m3fn)])
def test_a_scaled_product_keeps_the_least_numbers_of_its_types(name, dtype):
    """Triton's interpreter alone loses numbers below the normal ones, of fp8 and of f16."""
    bits = torch.arange(32 * 64, dtype=torch.uint8).reshape(32, 64) % 12  # most of them are such
    y = torch.linspace(1, 40, 64 * 32).reshape(64, 32).half() * 2**-20
    scale = torch.full((32, 2), 127 + 3, dtype=torch.uint8)
    out = torch.empty(32, 32)
    with simulated():
        scaled_product[(1,)](bits, scale, y, out, K=64, N=32, FORMAT=name)
    torch.testing.assert_close(out, 8 * bits.view(dtype).float() @ y.float(), rtol=1e-5, atol=0)
