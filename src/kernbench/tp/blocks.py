"""The blocks of a transformer layer: norms, attention with its heads over ranks, an MLP, and the whole layer.

Every rank computes norms of all tokens, or with sequence parallelism of its own tokens. Attention and MLP are each a
column-parallel layer followed by a row-parallel one: one reduction each. Attention is over whole sequences: there is no
KV cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from kernbench.common.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.device_mesh import DeviceMesh
from kernbench.runtime_api.dtensor_api import ParallelStyle, SequenceParallel
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp import launches
from kernbench.tp.layers import ALL, ColumnParallelLinear, ParallelLayer, RowParallelLinear, own
from kernbench.tp.mappings import divide
from kernbench.tp.parameters import Init, full_weight, make_parameter
from kernbench.tp.placement import Grid

Norm = Literal["layernorm", "rmsnorm"]
MlpKind = Literal["gelu", "relu", "swiglu"]


class LayerNorm(ParallelLayer):
    """(x - mean) / sqrt(variance + eps) * weight + bias, over each row."""

    has_bias = True

    def __init__(
        self,
        hidden: int,
        *,
        eps: float = 1e-5,
        dtype: str = "f16",
        init: Init = "ones",
        bias_init: Init = "zeros",
        torch: RuntimeContext | None = None,
        grid: Grid | None = None,
        name: str = "norm",
    ) -> None:
        super().__init__(dtype, torch, grid, name)
        self.hidden, self.eps = hidden, eps
        self.weight = self._everywhere(init, hidden, "weight")
        self.bias = self._everywhere(bias_init, hidden, "bias") if self.has_bias else None

    def parallelize(self, style: ParallelStyle, mesh: DeviceMesh | None) -> LayerNorm:
        """The layer itself: with SequenceParallel it gets this rank's tokens, and rows are normed each by itself."""
        self._check_mesh(mesh)
        if not isinstance(style, SequenceParallel):
            raise UsageError(f"{self.name}: a norm and {type(style).__name__}", hint="use SequenceParallel")
        return self

    def forward(self, x: Tensor) -> Tensor:
        self._checked(x, self.hidden)
        return launches.norm_rows(self.torch, self.grid, x, self.weight, self.bias, self.eps, self.name)

    __call__ = forward


class RMSNorm(LayerNorm):
    """x / sqrt(mean square + eps) * weight, over each row."""

    has_bias = False


class ParallelMLP(ParallelLayer):
    """fc2(activation(fc1(x))). For "swiglu", fc1's full weight has the columns of the gate, then those of `up`:
    fc2(silu(x @ gate) * (x @ up)).
    """

    def __init__(
        self,
        hidden: int,
        ffn: int,
        *,
        kind: MlpKind = "gelu",
        bias: bool = False,
        sequence_parallel: bool = False,
        dtype: str = "f16",
        fc1_init: Init = "zeros",
        fc2_init: Init = "zeros",
        fc1_bias_init: Init = "zeros",
        fc2_bias_init: Init = "zeros",
        torch: RuntimeContext | None = None,
        grid: Grid | None = None,
        name: str = "mlp",
    ) -> None:
        super().__init__(dtype, torch, grid, name)
        self.hidden, self.ffn, self.kind, self.sequence_parallel = hidden, ffn, kind, sequence_parallel
        here = self.torch, self.grid
        if kind == "swiglu":
            if bias:
                raise UsageError(f"{name}: swiglu has no bias", hint="leave bias out")
            count = divide(ffn, self.group.size, f"{name}: ffn")
            shape, rank = (hidden, 2 * ffn), self.group.rank
            init = fc1_init if isinstance(fc1_init, str) else full_weight(fc1_init, shape, name)  # evaluated once
            self.gate = self._columns(init, shape, (ALL, own(rank, count)), (hidden, count), "gate")
            self.up = self._columns(init, shape, (ALL, own(self.group.size + rank, count)), (hidden, count), "up")
        elif kind in ("gelu", "relu"):
            self.fc1 = ColumnParallelLinear(
                hidden, ffn, bias=bias, sequence_parallel=sequence_parallel, activation=kind, dtype=dtype,
                init=fc1_init, bias_init=fc1_bias_init, torch=here[0], grid=here[1], name=f"{name}.fc1",
            )  # fmt: skip
        else:
            raise UsageError(f"{name}: no kind {kind!r}", hint="use gelu, relu or swiglu")
        self.fc2 = RowParallelLinear(
            ffn, hidden, bias=bias, sequence_parallel=sequence_parallel, dtype=dtype,
            init=fc2_init, bias_init=fc2_bias_init, torch=here[0], grid=here[1], name=f"{name}.fc2",
        )  # fmt: skip

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(tokens, hidden) to the same; `residual` is added."""
        if self.kind != "swiglu":
            return self.fc2(self.fc1(x), residual)
        self._checked(x, self.hidden)
        rows = self._gathered(x, self.sequence_parallel)
        name = f"{self.name}.fc1"
        return self.fc2(launches.gated_linear(self.torch, self.grid, rows, self.gate, self.up, "silu", name), residual)

    __call__ = forward


class ParallelAttention(ParallelLayer):
    """Self-attention, heads over ranks. With fewer key heads than query heads (grouped queries), several query heads
    share a key head; with fewer key heads than ranks, ranks hold copies.

    `bias` applies to both projections, that of queries, keys and values and that of the output; `qkv_bias` overrides it
    for the former. The full weight, and bias, of queries, keys and values has the columns of all query heads, then of
    all key heads, then of all value heads.
    """

    def __init__(
        self,
        hidden: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        *,
        causal: bool = True,
        bias: bool = False,
        qkv_bias: bool | None = None,
        sequence_parallel: bool = False,
        dtype: str = "f16",
        qkv_init: Init = "zeros",
        qkv_bias_init: Init = "zeros",
        out_init: Init = "zeros",
        out_bias_init: Init = "zeros",
        torch: RuntimeContext | None = None,
        grid: Grid | None = None,
        name: str = "attention",
    ) -> None:
        super().__init__(dtype, torch, grid, name)
        kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.hidden, self.n_heads, self.n_kv_heads, self.causal = hidden, n_heads, kv_heads, causal
        size, rank = self.group.size, self.group.rank
        if hidden % n_heads or n_heads % kv_heads:
            raise UsageError(
                f"{name}: hidden {hidden}, {n_heads} heads, {kv_heads} of them for keys",
                hint="heads divide hidden, and key heads divide heads",
            )
        self.head_dim = hidden // n_heads
        self.heads_per_rank = divide(n_heads, size, f"{name}: n_heads")
        if kv_heads % size and size % kv_heads:
            raise UsageError(
                f"{name}: {kv_heads} key heads over {size} ranks", hint=f"use a multiple or a divisor of {size}"
            )
        self.kv_heads_per_rank = max(1, kv_heads // size)
        self.first_kv_head = rank * kv_heads // size
        part = self._part_of_qkv()
        width = (n_heads + 2 * kv_heads) * self.head_dim
        self.sequence_parallel = sequence_parallel
        self.qkv = self._columns(qkv_init, (hidden, width), (ALL, part), (hidden, len(part)), "qkv")
        self.qkv_bias = None
        if bias if qkv_bias is None else qkv_bias:
            at = self.qkv.dp
            self.qkv_bias = make_parameter(self.torch, qkv_bias_init, (width,), (part,), dtype, at, f"{name}.qkv_bias")
        self.out = RowParallelLinear(
            hidden, hidden, bias=bias, sequence_parallel=sequence_parallel, dtype=dtype,
            init=out_init, bias_init=out_bias_init, torch=self.torch, grid=self.grid, name=f"{name}.out",
        )  # fmt: skip

    def _part_of_qkv(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The columns of the full weight that this rank has: its query heads, its key heads, its value heads."""
        heads, kv_heads = self.n_heads, self.n_kv_heads
        queries = np.arange(self.heads_per_rank) + self.group.rank * self.heads_per_rank
        keys = np.arange(self.kv_heads_per_rank) + self.first_kv_head
        chosen = np.concatenate([queries, heads + keys, heads + kv_heads + keys])
        return (chosen[:, None] * self.head_dim + np.arange(self.head_dim)).reshape(-1)

    def forward(self, x: Tensor, batch: int = 1, residual: Tensor | None = None) -> Tensor:
        """(tokens, hidden) to the same: `batch` sequences of equal length, one after the other. `residual` is added."""
        self._checked(x, self.hidden)
        rows = self._gathered(x, self.sequence_parallel)
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1 or rows.shape[0] % batch:
            raise UsageError(
                f"{self.name}: {rows.shape[0]} tokens in {batch!r} sequences", hint="batch divides the tokens"
            )
        qkv = launches.linear(self.torch, self.grid, rows, self.qkv, bias=self.qkv_bias, name=f"{self.name}.qkv")
        heads, kv_heads = self.heads_per_rank, self.kv_heads_per_rank
        attended = launches.attend(self.torch, self.grid, qkv, batch, heads, kv_heads, self.causal)
        return self.out(attended, residual)

    __call__ = forward


class ParallelTransformerLayer(ParallelLayer):
    """x + attention(norm(x)), then the same with the MLP. `weights` gives the init of each weight: norm1, qkv, out,
    norm2, fc1, fc2; by default norms are ones and the others zeros.
    """

    NAMES = ("norm1", "qkv", "out", "norm2", "fc1", "fc2")

    def __init__(
        self,
        hidden: int,
        n_heads: int,
        ffn: int,
        n_kv_heads: int | None = None,
        *,
        causal: bool = True,
        mlp: MlpKind = "gelu",
        norm: Norm = "layernorm",
        sequence_parallel: bool = False,
        dtype: str = "f16",
        weights: Mapping[str, Init] | None = None,
        torch: RuntimeContext | None = None,
        grid: Grid | None = None,
        name: str = "layer",
    ) -> None:
        super().__init__(dtype, torch, grid, name)
        given = dict(weights or {})
        unknown = [key for key in given if key not in self.NAMES]
        if unknown or norm not in ("layernorm", "rmsnorm"):
            what = f"no weight {unknown[0]!r}" if unknown else f"no norm {norm!r}"
            raise UsageError(f"{name}: {what}", hint=f"weights: {', '.join(self.NAMES)}; norms: layernorm, rmsnorm")
        kind = LayerNorm if norm == "layernorm" else RMSNorm
        here, at = self.torch, self.grid
        self.norm1, self.norm2 = (
            kind(hidden, dtype=dtype, init=given.get(which, "ones"), torch=here, grid=at, name=f"{name}.{which}")
            for which in ("norm1", "norm2")
        )
        self.attention = ParallelAttention(
            hidden, n_heads, n_kv_heads, causal=causal, sequence_parallel=sequence_parallel, dtype=dtype,
            qkv_init=given.get("qkv", "zeros"), out_init=given.get("out", "zeros"),
            torch=here, grid=at, name=f"{name}.attention",
        )  # fmt: skip
        self.mlp = ParallelMLP(
            hidden, ffn, kind=mlp, sequence_parallel=sequence_parallel, dtype=dtype,
            fc1_init=given.get("fc1", "zeros"), fc2_init=given.get("fc2", "zeros"),
            torch=here, grid=at, name=f"{name}.mlp",
        )  # fmt: skip

    def forward(self, x: Tensor, batch: int = 1) -> Tensor:
        """(tokens, hidden) to the same, of all tokens or with sequence_parallel of this rank's."""
        x = self.attention(self.norm1(x), batch, residual=x)
        return self.mlp(self.norm2(x), residual=x)

    __call__ = forward
