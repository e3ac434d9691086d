"""Parallel layers give what the unsharded layer gives, for every number of ranks. Collectives are numpy's here."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.tp.numpy_ranks import machine, run_ranks

from kernbench import tp
from kernbench.common.errors import LaunchError, UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor

Wide = NDArray[np.float64]
WORLDS = [1, 2, 4]


def numbers(seed: int, *shape: int, scale: float = 1.0) -> NDArray[np.float16]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float16)


def wide(array: NDArray[np.generic]) -> Wide:
    return array.astype(np.float64)


def gelu(x: Wide) -> Wide:
    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def silu(x: Wide) -> Wide:
    return x / (1 + np.exp(-x))


def softmax(x: Wide) -> Wide:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def close(actual: object, wanted: Wide, tolerance: float = 4e-3) -> bool:
    assert isinstance(actual, np.ndarray)
    assert actual.shape == wanted.shape
    return np.allclose(wide(actual), wanted, rtol=tolerance, atol=tolerance)


def placed(torch: RuntimeContext, array: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(array, dp=tp.Grid.of(torch).rows)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(("world", "m"), [(1, 5), (2, 40), (4, 1)])
def test_column_parallel_linear_gives_each_rank_its_columns(world: int, m: int) -> None:
    x, w, b = numbers(1, m, 24), numbers(2, 24, 56, scale=0.2), numbers(3, 56)
    wanted = wide(x) @ wide(w) + wide(b)

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.ColumnParallelLinear(24, 56, bias=True, init=w, bias_init=b, torch=torch)
        return layer(placed(torch, x)).numpy()

    for rank, found in enumerate(run_ranks(world, body, check_races=True)):
        assert close(found, np.split(wanted, world, axis=1)[rank])


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("world", [1, 4])
def test_gather_output_gives_every_rank_all_columns(world: int) -> None:
    x, w = numbers(1, 5, 24), numbers(2, 24, 40, scale=0.2)

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.ColumnParallelLinear(24, 40, gather_output=True, activation="gelu", init=w, torch=torch)
        return layer(placed(torch, x)).numpy()

    assert all(close(found, gelu(wide(x) @ wide(w))) for found in run_ranks(world, body, check_races=True))


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(("world", "input_is_parallel"), [(1, False), (2, True), (4, True), (4, False)])
def test_row_parallel_linear_adds_the_bias_once(world: int, input_is_parallel: bool) -> None:
    x, w, b, r = numbers(1, 9, 32), numbers(2, 32, 20, scale=0.2), numbers(3, 20), numbers(4, 9, 20)
    wanted = wide(x) @ wide(w) + wide(b) + wide(r)

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.RowParallelLinear(
            32, 20, bias=True, init=w, bias_init=b, input_is_parallel=input_is_parallel, torch=torch
        )
        mine = np.split(x, world, axis=1)[rank] if input_is_parallel else x
        return layer.forward(placed(torch, mine), residual=placed(torch, r)).numpy()

    assert all(close(found, wanted, 6e-3) for found in run_ranks(world, body, check_races=True))


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("world", "sequence_parallel", "kind"),
    [(1, True, "swiglu"), (2, False, "swiglu"), (2, True, "gelu"), (4, False, "gelu"), (4, True, "swiglu")],
)
def test_mlp_equals_the_unsharded_one(world: int, sequence_parallel: bool, kind: tp.blocks.MlpKind) -> None:
    x = numbers(1, 16, 32)
    w1, w2 = numbers(2, 32, 96 if kind == "swiglu" else 48, scale=0.2), numbers(3, 48, 32, scale=0.15)
    product = wide(x) @ wide(w1)
    hidden = silu(product[:, :48]) * product[:, 48:] if kind == "swiglu" else gelu(product)
    wanted = hidden @ wide(w2)

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.ParallelMLP(
            32, 48, kind=kind, sequence_parallel=sequence_parallel, fc1_init=w1, fc2_init=lambda _: w2, torch=torch
        )
        mine = np.split(x, world)[rank] if sequence_parallel else x
        return layer(placed(torch, mine)).numpy()

    for rank, found in enumerate(run_ranks(world, body, check_races=True)):
        assert close(found, np.split(wanted, world)[rank] if sequence_parallel else wanted, 1e-2)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_embedding_looks_up_every_id_in_the_rank_that_has_it(world: int, sequence_parallel: bool) -> None:
    table, ids = numbers(1, 24, 10), np.array([0, 23, 5, 5, 11, 12, 6, 17], np.int32)

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.VocabParallelEmbedding(24, 10, init=table, sequence_parallel=sequence_parallel, torch=torch)
        return layer(torch.from_numpy(ids)).numpy()

    for rank, found in enumerate(run_ranks(world, body, check_races=True)):
        wanted = wide(table[ids])
        assert close(found, np.split(wanted, world)[rank] if sequence_parallel else wanted, 0)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_an_id_outside_the_vocabulary_is_an_error_that_names_it() -> None:
    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.VocabParallelEmbedding(8, 4, torch=torch)
        return layer(torch.from_numpy(np.array([3, 8], np.int32)))

    with pytest.raises(LaunchError, match="token 1 has id 8"):
        run_ranks(2, body)


def attention(x: Wide, w: Wide, heads: int, kv_heads: int, batch: int, causal: bool) -> Wide:
    """Of every head, before the output projection."""
    d, (tokens, _) = x.shape[1] // heads, x.shape
    seq = tokens // batch
    q, k, v = np.split(x @ w, [heads * d, (heads + kv_heads) * d], axis=1)
    q, k, v = (part.reshape(batch, seq, -1, d).transpose(0, 2, 1, 3) for part in (q, k, v))
    k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * d**-0.5
    if causal:
        scores = np.where(np.tri(seq, dtype=bool), scores, -np.inf)
    return (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(tokens, heads * d)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("world", "kv_heads", "batch", "causal"),
    [(1, 1, 2, False), (1, 4, 1, True), (2, 2, 2, True), (2, 4, 2, False), (4, 1, 1, True), (4, 2, 2, False)],
)
def test_attention_equals_all_heads_on_one_rank(world: int, kv_heads: int, batch: int, causal: bool) -> None:
    heads, d, tokens = 4, 8, 36
    x = numbers(1, tokens, 32)
    w, o = numbers(2, 32, (heads + 2 * kv_heads) * d, scale=0.2), numbers(3, 32, 32, scale=0.2)
    wanted = attention(wide(x), wide(w), heads, kv_heads, batch, causal) @ wide(o)

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.ParallelAttention(32, heads, kv_heads, causal=causal, qkv_init=w, out_init=o, torch=torch)
        return layer(placed(torch, x), batch).numpy()

    assert all(close(found, wanted, 8e-3) for found in run_ranks(world, body, check_races=True))


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize("bias", [{"bias": True}, {"qkv_bias": True}])
def test_attention_adds_the_bias_of_its_projections(bias: dict[str, bool]) -> None:
    """A bias is a row of weights for an input of 1: so it can be judged by the same attention."""
    x, w, o = numbers(1, 20, 32), numbers(2, 32, 64, scale=0.2), numbers(3, 32, 32, scale=0.2)
    b, c = numbers(4, 64), numbers(5, 32)
    with_one, with_bias = np.hstack([wide(x), np.ones((20, 1))]), np.vstack([wide(w), wide(b)])
    wanted = attention(with_one, with_bias, 4, 2, 1, True) @ wide(o) + (wide(c) if "bias" in bias else 0)

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.ParallelAttention(
            32, 4, 2, **bias, qkv_init=w, qkv_bias_init=b, out_init=o, out_bias_init=c, torch=torch
        )
        return layer(placed(torch, x)).numpy()

    assert all(close(found, wanted, 8e-3) for found in run_ranks(2, body))


def normal(x: Wide, gain: Wide, *, centred: bool) -> Wide:
    x = x - x.mean(axis=1, keepdims=True) if centred else x
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * gain


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("world", "sequence_parallel", "norm"), [(1, True, "rmsnorm"), (2, False, "rmsnorm"), (2, True, "layernorm")]
)
def test_a_transformer_layer_equals_the_unsharded_one(
    world: int, sequence_parallel: bool, norm: tp.blocks.Norm
) -> None:
    x = numbers(1, 24, 32)
    weights = {
        "norm1": numbers(2, 32), "qkv": numbers(3, 32, 64, scale=0.2), "out": numbers(4, 32, 32, scale=0.2),
        "norm2": numbers(5, 32), "fc1": numbers(6, 32, 64, scale=0.2), "fc2": numbers(7, 64, 32, scale=0.1),
    }  # fmt: skip
    full = {name: wide(w) for name, w in weights.items()}
    centred = norm == "layernorm"
    first = normal(wide(x), full["norm1"], centred=centred)
    middle = wide(x) + attention(first, full["qkv"], 4, 2, 2, True) @ full["out"]
    wanted = middle + gelu(normal(middle, full["norm2"], centred=centred) @ full["fc1"]) @ full["fc2"]

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.ParallelTransformerLayer(
            32, 4, 64, 2, norm=norm, sequence_parallel=sequence_parallel, weights=weights, torch=torch
        )
        mine = np.split(x, world)[rank] if sequence_parallel else x
        return layer(placed(torch, mine), 2).numpy()

    for rank, found in enumerate(run_ranks(world, body, check_races=True)):
        assert close(found, np.split(wanted, world)[rank] if sequence_parallel else wanted, 3e-2)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_every_init_names_the_full_weight_and_each_rank_takes_its_part() -> None:
    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        made = [tp.ColumnParallelLinear(6, 8, init=init, torch=torch) for init in ("zeros", "ones", "pattern")]
        rows = tp.RowParallelLinear(6, 8, init="pattern", torch=torch)
        return [layer.weight.numpy() for layer in (*made, rows)]

    whole: Any = run_ranks(1, body)[0]
    halves: list[Any] = run_ranks(2, body)
    for at, axis in enumerate((1, 1, 1, 0)):
        assert (np.concatenate([half[at] for half in halves], axis) == whole[at]).all()
    zeros, ones, pattern, _ = whole
    assert not zeros.any()
    assert (ones == 1).all()
    assert len(np.unique(pattern)) > 40  # of 48


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_weights_lie_over_as_many_cubes_as_there_is_enough_for_and_activations_over_all() -> None:
    """2 cubes of 4 PEs: 8 PEs are worth 256 columns of 32, or 512 KiB of 64 KiB; 32 columns are worth one."""

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        few, many = (tp.ColumnParallelLinear(16, n, torch=torch) for n in (64, 512))
        tall = tp.RowParallelLinear(2 * 8192, 32, torch=torch)
        assert few.weight.local_shape == (16, 8)  # 32 columns a rank over the 4 PEs of a cube
        assert many.weight.local_shape == (16, 32)
        assert tall.weight.local_shape == (8192, 4)  # 512 KiB a rank
        assert {part.sip for part in few.weight.placement} == {rank}
        y = few(placed(torch, numbers(1, 16, 16)))
        assert y.local_shape == (2, 32)  # 16 rows over 8 PEs
        small = tp.ColumnParallelLinear(16, 512, torch=torch, grid=tp.Grid.of(torch, cubes=1, pes=2))
        assert small.weight.local_shape == (16, 128)
        assert len(small(placed(torch, numbers(1, 16, 16))).placement) == 2
        return None

    run_ranks(2, body)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda torch: tp.ColumnParallelLinear(8, 9, torch=torch), "out_features is 9"),
        (lambda torch: tp.RowParallelLinear(9, 8, torch=torch), "in_features is 9"),
        (lambda torch: tp.ColumnParallelLinear(8, 8, init="ons", torch=torch), "no init 'ons'"),
        (lambda torch: tp.ColumnParallelLinear(8, 8, init=np.zeros((8, 4)), torch=torch), r"shape \(8, 4\)"),
        (lambda torch: tp.ColumnParallelLinear(8, 8, activation="tan", torch=torch), "no activation 'tan'"),
        (
            lambda torch: tp.ColumnParallelLinear(8, 8, gather_output=True, sequence_parallel=True, torch=torch),
            "gather_output with sequence_parallel",
        ),
        (
            lambda torch: tp.RowParallelLinear(8, 8, input_is_parallel=False, sequence_parallel=True, torch=torch),
            "every rank has all of",
        ),
        (lambda torch: tp.ParallelAttention(32, 4, 3, torch=torch), "4 heads, 3 of them for keys"),
        (lambda torch: tp.ParallelMLP(8, 8, kind="elu", torch=torch), "no kind 'elu'"),
        (lambda torch: tp.ColumnParallelLinear(8, 8, torch=torch)(torch.zeros(4, 6)), r"shape \(4, 6\)"),
        (lambda torch: tp.ColumnParallelLinear(8, 8, torch=torch)(np.zeros((4, 8))), "got a ndarray"),
        (
            lambda torch: tp.ColumnParallelLinear(8, 8, torch=torch)(torch.zeros(4, 8, dtype="f32")),
            "got f32 activations, and its weights are f16",
        ),
        (
            lambda torch: tp.ColumnParallelLinear(8, 8, torch=torch)(torch.zeros(4, 8, dp=tp.Grid.of(torch).columns)),
            "columns of 't[0-9]+' are split",
        ),
        (
            lambda torch: tp.RowParallelLinear(8, 8, torch=torch)(torch.zeros(4, 8)),
            "the input has all 8 features, and with input_is_parallel=True the layer takes this rank's 4",
        ),
        (
            lambda torch: tp.RowParallelLinear(8, 8, input_is_parallel=False, torch=torch)(torch.zeros(4, 4)),
            "the input has this rank's 4 features, and with input_is_parallel=False the layer takes all 8",
        ),
        (lambda torch: tp.Grid.of(torch, cubes=3), "cubes is 3"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(make: Callable[..., object], match: str) -> None:
    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        return make(torch)

    with pytest.raises(UsageError, match=match):
        run_ranks(2, body)


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_large_products_go_through_tcm_in_blocks_and_share_rows_within_a_cube() -> None:
    """600 rows of 1024 f16 are 1.2 MB, more than half of a PE's 1 MB; so there are several blocks."""
    x, w = numbers(1, 600, 1024), numbers(2, 1024, 24, scale=0.03)  # 48 KiB of weights: one cube's

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        plan = tp.launches.LinearPlan(torch, tp.Grid.of(torch, cubes=1), 600, 1024, 24, 2)
        assert (plan.row_parts, plan.in_tcm) == (4, True)  # 6 columns a PE: 4 * 600 / 4 + 6 * 4 is the least
        assert plan.block_rows < 600
        layer = tp.ColumnParallelLinear(1024, 24, init=w, torch=torch)
        return layer(placed(torch, x)).numpy()

    assert close(run_ranks(1, body, check_races=True)[0], wide(x) @ wide(w))
    assert machine(1).spec.cube.tcm_allocatable_bytes == 1 << 20


@pytest.mark.needs("addresses", reason="a layer of parallel layers")
def test_a_weight_of_many_columns_lies_over_cubes_and_rows_too_long_for_tcm_are_streamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """518 columns over 8 PEs come out uneven: 65 and 64. With 4 KiB to count on, 20 rows of 256 f16 do not fit."""
    x, w, b = numbers(1, 20, 256), numbers(2, 256, 518, scale=0.06), numbers(3, 518)
    wanted = wide(x) @ wide(w) + wide(b)

    def body(rank: int, torch: RuntimeContext) -> object:
        tp.initialize_model_parallel(torch=torch)
        layer = tp.ColumnParallelLinear(256, 518, bias=True, init=w, bias_init=b, torch=torch)
        assert sorted({shape[1] for shape in layer.weight.local_shapes.values()}) == [64, 65]
        return layer(placed(torch, x)).numpy()

    assert close(run_ranks(1, body, check_races=True)[0], wanted)
    monkeypatch.setattr(tp.launches, "tcm_budget", lambda torch: 4096)
    plans: list[bool] = []
    made = tp.launches.LinearPlan.__init__

    def noting(self: tp.launches.LinearPlan, *args: Any) -> None:
        made(self, *args)
        plans.append(self.in_tcm)

    monkeypatch.setattr(tp.launches.LinearPlan, "__init__", noting)
    assert close(run_ranks(1, body, check_races=True)[0], wanted)
    assert plans == [False]
