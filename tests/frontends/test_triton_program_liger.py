"""Liger's kernels, loaded unmodified from its wheel, forward and backward against PyTorch's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.frontends.triton_programs import simulated, torch

WHY = "needs liger-kernel: `make test-frontends` installs it"
pytest.importorskip("liger_kernel", reason=WHY)
F = torch.nn.functional
ROWS, WIDTH, VOCAB = 4, 64, 96


class Case(NamedTuple):
    """An operator: Liger's, PyTorch's, and the inputs that take gradients. `fixed` are inputs that do not."""

    liger: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    fixed: Callable[[], tuple[Any, ...]] = tuple
    tolerance: float = 2e-4


def ops(name: str) -> Callable[..., Any]:
    """A function of Liger's functional interface, looked up when the case runs."""

    def call(*args: Any, **named: Any) -> Any:
        from liger_kernel.transformers import functional

        return getattr(functional, name)(*args, **named)

    return call


def matrix(*shape: int) -> Any:
    return torch.randn(*(shape or (ROWS, WIDTH)))


def labels() -> tuple[Any, ...]:
    return (torch.randint(0, VOCAB, (ROWS,)),)


def probabilities(*shape: int) -> Any:
    return torch.softmax(matrix(*(shape or (ROWS, VOCAB))), -1)


def rms_norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def angles() -> tuple[Any, ...]:
    angle = torch.rand(1, 8, 16).repeat(1, 1, 2)
    return torch.cos(angle), torch.sin(angle)


def jsd(log_p: Any, log_q: Any) -> Any:
    p, q = log_p.exp(), log_q.exp()
    log_m = torch.log(0.5 * p + 0.5 * q)
    return 0.5 * ((q * (log_q - log_m)).sum() + (p * (log_p - log_m)).sum()) / log_p.shape[0]


def sparsemax(x: Any) -> Any:
    ordered, _ = torch.sort(x, descending=True, dim=-1)
    sums = ordered.cumsum(-1)
    count = torch.arange(1, x.shape[-1] + 1)
    support = (1 + count * ordered > sums).sum(-1, keepdim=True)
    tau = (sums.gather(-1, support - 1) - 1) / support
    return torch.clamp(x - tau, min=0)


def poly_norm(x: Any, w: Any, b: Any) -> Any:
    def norm(y: Any) -> Any:
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)

    return w[0] * norm(x**3) + w[1] * norm(x**2) + w[2] * norm(x) + b


def group_norm_inputs() -> tuple[Any, ...]:
    return matrix(2, 4, 32), torch.rand(4), torch.rand(4)


def linear_loss(x: Any, w: Any, target: Any) -> Any:
    return F.cross_entropy(x @ w.T, target)


CASES: dict[str, Case] = {
    "rms_norm": Case(
        lambda x, w: ops("liger_rms_norm")(x, w, 1e-6, in_place=False), rms_norm, lambda: (matrix(), torch.rand(WIDTH))
    ),
    "rms_norm_gemma": Case(
        lambda x, w: ops("liger_rms_norm")(x, w, 1e-6, 1.0, "gemma", False),
        lambda x, w: rms_norm(x, 1 + w),
        lambda: (matrix(), torch.rand(WIDTH)),
    ),
    "fused_add_rms_norm": Case(
        lambda x, r, w: ops("liger_fused_add_rms_norm")(x, r, w, 1e-6, in_place=False)[0],
        lambda x, r, w: rms_norm(x + r, w),
        lambda: (matrix(), matrix(), torch.rand(WIDTH)),
    ),
    "modulated_rms_norm": Case(
        lambda x, w, s, t: ops("liger_modulated_rms_norm")(x, w, s, t, 1e-6, in_place=False),
        lambda x, w, s, t: rms_norm(x, w) * (1 + s) + t,
        lambda: (matrix(), torch.rand(WIDTH), matrix(), matrix()),
    ),
    "layer_norm": Case(
        lambda x, w, b: ops("liger_layer_norm")(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b, 1e-5),
        lambda: (matrix(), torch.rand(WIDTH), torch.rand(WIDTH)),
    ),
    "group_norm": Case(
        lambda x, w, b: ops("liger_group_norm")(x, w, b, 4, 2, 1e-5),
        lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5),
        group_norm_inputs,
    ),
    "poly_norm": Case(
        lambda x, w, b: ops("liger_poly_norm")(x, w, b, 1e-6, False),
        poly_norm,
        lambda: (matrix(), torch.rand(3), torch.rand(())),
    ),
    "dyt": Case(
        ops("liger_dyt"),
        lambda x, alpha, gamma, beta: gamma * torch.tanh(alpha * x) + beta,
        lambda: (matrix(), torch.rand(1), torch.rand(WIDTH), torch.rand(WIDTH)),
    ),
    "swiglu": Case(ops("liger_swiglu"), lambda a, b: F.silu(a) * b, lambda: (matrix(), matrix())),
    "geglu": Case(ops("liger_geglu"), lambda a, b: F.gelu(a, approximate="tanh") * b, lambda: (matrix(), matrix())),
    "relu_squared": Case(ops("liger_relu_squared"), lambda x: F.relu(x) ** 2, lambda: (matrix(),)),
    "softmax": Case(ops("liger_softmax"), lambda x: torch.softmax(x, -1), lambda: (matrix(),)),
    "sparsemax": Case(ops("liger_sparsemax"), sparsemax, lambda: (matrix(),)),
    "cross_entropy": Case(ops("liger_cross_entropy"), F.cross_entropy, lambda: (matrix(ROWS, VOCAB),), labels),
    "cross_entropy_smoothed": Case(
        lambda x, t: ops("liger_cross_entropy")(x, t, label_smoothing=0.1),
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        lambda: (matrix(ROWS, VOCAB),),
        labels,
    ),
    "cross_entropy_weighted": Case(
        lambda x, t, w: ops("liger_cross_entropy")(x, t, w),
        lambda x, t, w: F.cross_entropy(x, t, w),
        lambda: (matrix(ROWS, VOCAB),),
        lambda: (*labels(), torch.rand(VOCAB) + 0.5),
    ),
    "fused_linear_cross_entropy": Case(
        ops("liger_fused_linear_cross_entropy"), linear_loss, lambda: (matrix(), matrix(VOCAB, WIDTH)), labels
    ),
    "kl_div": Case(
        lambda x, t: ops("liger_kl_div")(x, t, reduction="batchmean"),
        lambda x, t: F.kl_div(x, t, reduction="batchmean"),
        lambda: (torch.log_softmax(matrix(ROWS, VOCAB), -1),),
        lambda: (probabilities(),),
    ),
    "jsd": Case(
        ops("liger_jsd"),
        jsd,
        lambda: (torch.log_softmax(matrix(ROWS, VOCAB), -1),),
        lambda: (torch.log_softmax(matrix(ROWS, VOCAB), -1),),
    ),
    "fused_linear_jsd": Case(
        lambda x, w, tx, tw: ops("liger_fused_linear_jsd")(x, w, tx, tw),
        lambda x, w, tx, tw: jsd(torch.log_softmax(x @ w.T, -1), torch.log_softmax(tx @ tw.T, -1)),
        lambda: (matrix(), matrix(VOCAB, WIDTH) / 8),
        lambda: (matrix(), matrix(VOCAB, WIDTH) / 8),
        2e-3,
    ),
    "tvd": Case(
        lambda p, q: ops("liger_tvd")(p, q, reduction="batchmean"),
        lambda p, q: 0.5 * (p - q).abs().sum() / p.shape[0],
        lambda: (probabilities(),),
        lambda: (probabilities(),),
    ),
    "rope": Case(
        lambda q, k, cos, sin: torch.cat([each.reshape(-1) for each in ops("liger_rope")(q, k, cos, sin)]),
        lambda q, k, cos, sin: torch.cat([rotated(each, cos, sin).reshape(-1) for each in (q, k)]),
        lambda: (matrix(1, 2, 8, 32), matrix(1, 1, 8, 32)),
        angles,
    ),
    "attn_res": Case(
        lambda v, q, w: ops("liger_attn_res")(v, q, w),
        lambda v, q, w: _attn_res(v, q, w),
        lambda: (matrix(3, 1, 4, WIDTH), matrix(WIDTH), torch.rand(WIDTH)),
    ),
    "multi_token_attention": Case(
        lambda s, w: ops("liger_multi_token_attention")(s, w, padding=1),
        lambda s, w: _multi_token_attention(s, w),
        lambda: (matrix(1, 2, 16, 16), matrix(2, 2, 3, 3)),
        tolerance=1e-3,
    ),
}


def _attn_res(v: Any, query: Any, weight: Any) -> Any:
    keys = v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    shares = torch.softmax((keys * query).sum(-1), 0)
    return (shares.unsqueeze(-1) * v).sum(0)


def _multi_token_attention(scores: Any, weight: Any) -> Any:
    length = scores.shape[-1]
    later = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    shares = torch.softmax(scores.masked_fill(later, -1e9), -1)
    return F.conv2d(shares, weight, padding=1).masked_fill(later, 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("default")  # of Liger and PyTorch
def test_an_operator_of_liger_gives_what_pytorch_gives_forward_and_backward(name):
    case = CASES[name]
    torch.manual_seed(0)
    inputs, fixed = case.inputs(), case.fixed()
    ours = [x.clone().requires_grad_() for x in inputs]
    theirs = [x.clone().requires_grad_() for x in inputs]
    expected = case.reference(*theirs, *fixed)
    slope = torch.randn_like(expected)
    expected.backward(slope)
    with simulated() as sim:
        found = case.liger(*ours, *fixed)
        found.backward(slope)
        torch.testing.assert_close(found, expected, rtol=case.tolerance, atol=case.tolerance)
        for mine, yours in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.grad, yours.grad, rtol=case.tolerance, atol=case.tolerance)
    assert sim.launches
    assert all(launch.ns > 0 for launch in sim.launches)
