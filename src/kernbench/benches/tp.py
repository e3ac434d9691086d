"""Megatron-style layers over all SIPs of the tray: a perceptron, and a whole transformer layer. A rank is a SIP.

`tp` ranks share a model, all of them for 0; where they are fewer than the tray has, each group of them works on its own
batch. With `sequence_parallel`, tokens between the parallel parts are split over ranks: all-gathers and reduce-scatters
take the place of all-reduces. Every rank's result is compared with the unsharded layer in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

import numpy as np

from kernbench import tp as parallel
from kernbench.benches import _numbers
from kernbench.benches._numbers import FloatName, Seed, Size, Wide, draw, weights, wide
from kernbench.benches.registry import AtLeast, bench
from kernbench.common.array_types import Array
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor

RankCount = Annotated[int, AtLeast(0), "ranks that share a model; 0 for all"]
Cubes = Annotated[int, AtLeast(0), "cubes of each SIP to use; 0 for all"]
SplitsTokens = Annotated[bool, "tokens between parallel parts are split over ranks"]
BenchMlpKind = Literal["gelu", "swiglu"]
RowArray = TypeVar("RowArray", Array, Wide)
ROUNDINGS = 8  # of the tensors' type, between input and output; each adds its tolerance


@dataclass(frozen=True, slots=True)
class _Job:
    """The settings of all ranks."""

    torch: RuntimeContext
    tokens: int
    hidden: int
    dtype: str
    tp: int
    cubes: int
    sequence_parallel: bool
    seed: int
    weights: dict[str, Array] = field(default_factory=dict)

    def start(self, rank: int) -> parallel.Grid:
        """What every rank does first; the cubes and PEs that it uses."""
        self.torch.ahbm.set_device(rank)
        parallel.initialize_model_parallel(self.tp or None, torch=self.torch)
        return parallel.Grid.of(self.torch, self.cubes or None)

    def tokens_of_batch(self) -> Array:
        """All tokens of the rank's group, which has a separate batch."""
        rng = np.random.default_rng([self.seed, parallel.get_data_parallel_rank(self.torch)])
        return draw(rng, self.tokens, self.hidden, dtype=self.dtype)

    def mine(self, rows: RowArray) -> RowArray:
        """The rank's part of what lies between parallel parts."""
        if not self.sequence_parallel:
            return rows
        size = parallel.get_tensor_model_parallel_world_size(self.torch)
        if self.tokens % size:
            raise UsageError(f"tokens is {self.tokens}", hint=f"{size} ranks share them: use a multiple of {size}")
        parts = cast(list[RowArray], np.split(rows, size))
        return parts[parallel.get_tensor_model_parallel_rank(self.torch)]

    def place(self, rows: Array, grid: parallel.Grid) -> Tensor:
        return self.torch.from_numpy(self.mine(rows), dp=grid.rows, name="x")

    def check(self, rank: int, out: Tensor, whole: Wide) -> None:
        tolerance = ROUNDINGS * dtype_of(self.dtype).rtol
        self.torch.check(out, self.mine(whole), name=f"out of rank {rank}", rtol=tolerance, atol=tolerance)


def _run(job: _Job, program: Callable[[int, _Job], None]) -> None:
    """`program(rank, job)` on every SIP."""
    torch = job.torch
    torch.distributed.init_process_group(backend="ahbm")
    torch.multiprocessing.spawn(program, args=(job,), nprocs=torch.ahbm.device_count())
    torch.distributed.destroy_process_group()


def _mlp(x: Wide, fc1: Array, fc2: Array, kind: BenchMlpKind) -> Wide:
    """The unsharded perceptron."""
    product = x @ wide(fc1)
    if kind == "swiglu":
        gate, up = np.split(product, 2, axis=1)
        return (gate / (1.0 + np.exp(-gate)) * up) @ wide(fc2)
    return _numbers.gelu(product) @ wide(fc2)


def _mlp_rank(rank: int, job: _Job, ffn: int, kind: BenchMlpKind) -> None:
    grid = job.start(rank)
    fc1, fc2 = job.weights["fc1"], job.weights["fc2"]
    layer = parallel.ParallelMLP(
        job.hidden, ffn, kind=kind, sequence_parallel=job.sequence_parallel, dtype=job.dtype,
        fc1_init=fc1, fc2_init=fc2, torch=job.torch, grid=grid,
    )  # fmt: skip
    x = job.tokens_of_batch()
    job.check(rank, layer(job.place(x, grid)), _mlp(wide(x), fc1, fc2, kind))


def _fewer_cubes(_cause: str, params: Mapping[str, Any]) -> Mapping[str, object]:
    """One cube of each SIP: a small layer loses more by crossing UCIe than it gains by more PEs."""
    return {"cubes": 1} if params["cubes"] != 1 else {}


@bench(
    name="tp-mlp",
    description="A perceptron, its weights over the SIPs of the tray.",
    devices="whole",
    advice=_fewer_cubes,
)
def tp_mlp(
    torch: RuntimeContext,
    *,
    tokens: Annotated[Size, "rows of the input, of each group of ranks"] = 32,
    hidden: Annotated[Size, "columns of input and output"] = 256,
    ffn: Annotated[Size, "columns between the two layers"] = 1024,
    kind: Annotated[Literal["gelu", "swiglu"], "what is between the two layers"] = "gelu",
    sequence_parallel: SplitsTokens = False,
    tp: RankCount = 0,
    cubes: Cubes = 0,
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> None:
    rng = np.random.default_rng(seed)
    wide_ffn = 2 * ffn if kind == "swiglu" else ffn
    held = {"fc1": weights(rng, hidden, wide_ffn, dtype), "fc2": weights(rng, ffn, hidden, dtype)}
    job = _Job(torch, tokens, hidden, dtype, tp, cubes, sequence_parallel, seed, held)
    _run(job, partial(_mlp_rank, ffn=ffn, kind=kind))


def _norm(x: Wide, gain: Array) -> Wide:
    centred = x - x.mean(axis=1, keepdims=True)
    return cast(Wide, centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * wide(gain))


def _attention(x: Wide, qkv: Array, heads: int, kv_heads: int, batch: int) -> Wide:
    """Of all heads, causal, before the output's product."""
    tokens, hidden = x.shape
    seq, d = tokens // batch, hidden // heads
    parts = np.split(x @ wide(qkv), [heads * d, (heads + kv_heads) * d], axis=1)
    q, k, v = (part.reshape(batch, seq, -1, d).transpose(0, 2, 1, 3) for part in parts)
    k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
    scores = np.where(np.tri(seq, dtype=bool), q @ k.transpose(0, 1, 3, 2) * d**-0.5, -np.inf)
    return cast(Wide, (_numbers.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(tokens, hidden))


def _block(x: Wide, held: Mapping[str, Array], heads: int, kv_heads: int, batch: int, kind: BenchMlpKind) -> Wide:
    """The unsharded transformer layer."""
    normal = _norm(x, held["norm1"])
    middle = x + _attention(normal, held["qkv"], heads, kv_heads, batch) @ wide(held["out"])
    return middle + _mlp(_norm(middle, held["norm2"]), held["fc1"], held["fc2"], kind)


def _block_rank(rank: int, job: _Job, ffn: int, heads: int, kv_heads: int, batch: int, kind: BenchMlpKind) -> None:
    grid = job.start(rank)
    layer = parallel.ParallelTransformerLayer(
        job.hidden, heads, ffn, kv_heads, mlp=kind, sequence_parallel=job.sequence_parallel, dtype=job.dtype,
        weights=job.weights, torch=job.torch, grid=grid,
    )  # fmt: skip
    x = job.tokens_of_batch()
    job.check(rank, layer(job.place(x, grid), batch), _block(wide(x), job.weights, heads, kv_heads, batch, kind))


@bench(
    name="tp-transformer-block",
    description="A transformer layer, heads and weights over the SIPs of the tray.",
    devices="whole",
)
def tp_transformer_block(
    torch: RuntimeContext,
    *,
    batch: Annotated[Size, "sequences of each group of ranks"] = 1,
    seq: Annotated[Size, "tokens of a sequence"] = 32,
    hidden: Annotated[Size, "columns of input and output"] = 256,
    heads: Annotated[Size, "heads, which share the columns"] = 8,
    kv_heads: Annotated[int, AtLeast(0), "heads of keys and values; 0 for as many as heads"] = 0,
    ffn: Annotated[Size, "columns between the perceptron's layers"] = 1024,
    kind: Annotated[Literal["gelu", "swiglu"], "what is between them"] = "gelu",
    sequence_parallel: SplitsTokens = False,
    tp: RankCount = 0,
    cubes: Cubes = 0,
    dtype: FloatName = "f16",
    seed: Seed = 0,
) -> None:
    if hidden % heads or heads % (kv_heads or heads):
        raise UsageError(
            f"hidden {hidden}, {heads} heads, {kv_heads or heads} of them for keys",
            hint="heads divide hidden, and key heads divide heads",
        )
    rng = np.random.default_rng(seed)
    width = hidden // heads * (heads + 2 * (kv_heads or heads))
    held = {
        "norm1": draw(rng, hidden, dtype=dtype),
        "qkv": weights(rng, hidden, width, dtype),
        "out": weights(rng, hidden, hidden, dtype),
        "norm2": draw(rng, hidden, dtype=dtype),
        "fc1": weights(rng, hidden, 2 * ffn if kind == "swiglu" else ffn, dtype),
        "fc2": weights(rng, ffn, hidden, dtype),
    }
    job = _Job(torch, batch * seq, hidden, dtype, tp, cubes, sequence_parallel, seed, held)
    _run(job, partial(_block_rank, ffn=ffn, heads=heads, kv_heads=kv_heads or heads, batch=batch, kind=kind))
