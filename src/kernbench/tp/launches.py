"""The kernels as calls on tensors: outputs are placed, block sizes chosen to fit TCM, kernels launched on a grid.

Block sizes use the TCM that is not reserved for communication: concurrent collectives use the reserved part.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Literal

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import CapacityError
from kernbench.common.units import format_bytes
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp import kernels
from kernbench.tp.placement import Grid

Activation = Literal["gelu", "silu", "relu"]
ACTIVATIONS: tuple[Activation, ...] = ("gelu", "silu", "relu")
TILE_ROWS = 32  # of the native tile: products of fewer rows at a time would stream their weights more often
WIDE_BYTES = 4  # f32, in which rows are added and normalised
BLOCK_KEYS = 64
FAR = 4  # cost of an activation byte relative to a weight byte, which is in the same cube: activations come over the
# connections between cubes, where a PE gets about a quarter of its own link's bandwidth


class LinearPlan:
    """How a product of (m, k) by (k, n) is divided among PEs: see `kernels`."""

    def __init__(self, torch: RuntimeContext, grid: Grid, m: int, k: int, n: int, itemsize: int) -> None:
        columns = -(-n // grid.size)
        splits = [parts for parts in range(1, grid.pes + 1) if grid.pes % parts == 0]
        self.row_parts = min(splits, key=lambda parts: (FAR * -(-m // parts) + columns * parts, parts))
        most = -(-m // self.row_parts)
        results = columns * (2 * itemsize + 2 * WIDE_BYTES)  # two blocks in flight, and the factors of a gated product
        budget = tcm_budget(torch)
        fitting = budget // (k * itemsize + results)
        self.in_tcm = fitting >= min(most, TILE_ROWS)
        self.block_rows = max(1, min(most, fitting if self.in_tcm else budget // results))


def tcm_budget(torch: RuntimeContext) -> int:
    """The TCM of a compute kernel on every PE of this rank's SIP, given the current reservation for communication and
    no tensors in TCM. Raises CapacityError if none is left.
    """
    cube = min((cube for cube, _ in torch.spec.cubes_of()), key=lambda cube: cube.tcm_allocatable_bytes)
    kept = torch.engine.communication_tcm_bytes(torch.ahbm.current_device())
    left = cube.tcm_allocatable_bytes - kept
    if left <= 0:
        raise CapacityError(
            f"a TCM of {format_bytes(cube.tcm_bytes)} leaves kernels nothing: the scheduler has "
            f"{format_bytes(cube.tcm_reserved_bytes)} of it, and {format_bytes(kept)} are kept for collectives",
            where="cube.memory_map.tcm_mb_per_pe",
            hint="lower cube.memory_map.tcm_scheduler_reserved_mb, or make the TCM larger",
        )
    return left


def rows_at_once(torch: RuntimeContext, width: int, copies: int = 6) -> int:
    """How many rows of `width` elements fit a kernel's TCM at a time, with `copies` of them in f32."""
    return max(1, min(128, tcm_budget(torch) // (width * WIDE_BYTES * copies)))


@cache
def _linear(activation: Activation | None) -> partial[None]:
    return partial(kernels.linear, activation=activation)


@cache
def _gated(activation: Activation) -> partial[None]:
    return partial(kernels.gated_linear, activation=activation)


def linear(
    torch: RuntimeContext,
    grid: Grid,
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    name: str = "linear",
) -> Tensor:
    """activation(x @ weight + bias), rows over the grid; computed by the PEs that hold the weight."""
    (m, k), n = x.shape, weight.shape[1]
    out = torch.empty(m, n, dtype=x.dtype, dp=grid.rows, name=f"{name}.out")
    workers = Grid.holding(weight)
    plan = LinearPlan(torch, workers, m, k, n, dtype_of(x.dtype).itemsize)
    given = {} if bias is None else {"bias": bias}
    workers.launch(
        torch, name, _linear(activation), x, weight, out, plan.row_parts, plan.block_rows, plan.in_tcm, **given
    )
    return out


def gated_linear(
    torch: RuntimeContext, grid: Grid, x: Tensor, gate: Tensor, up: Tensor, activation: Activation, name: str
) -> Tensor:
    """activation(x @ gate) * (x @ up), rows over the grid; both weights have the same placement."""
    (m, k), n = x.shape, gate.shape[1]
    out = torch.empty(m, n, dtype=x.dtype, dp=grid.rows, name=f"{name}.out")
    workers = Grid.holding(gate)
    plan = LinearPlan(torch, workers, m, k, n, dtype_of(x.dtype).itemsize)
    workers.launch(torch, name, _gated(activation), x, gate, up, out, plan.row_parts, plan.block_rows, plan.in_tcm)
    return out


def add_to_rows(
    torch: RuntimeContext, grid: Grid, y: Tensor, bias: Tensor | None, residual: Tensor | None, name: str = "add"
) -> Tensor:
    """y itself, with bias and residual added to it."""
    given = {key: value for key, value in (("bias", bias), ("residual", residual)) if value is not None}
    if given:
        grid.launch(torch, name, kernels.add_to_rows, y, rows_at_once(torch, y.shape[1]), **given)
    return y


def norm_rows(
    torch: RuntimeContext, grid: Grid, x: Tensor, gain: Tensor, shift: Tensor | None, eps: float, name: str
) -> Tensor:
    out = torch.empty(*x.shape, dtype=x.dtype, dp=grid.rows, name=f"{name}.out")
    given = {} if shift is None else {"shift": shift}
    grid.launch(torch, name, kernels.norm_rows, x, gain, out, rows_at_once(torch, x.shape[1], 8), eps, **given)
    return out


def take_rows(torch: RuntimeContext, grid: Grid, x: Tensor, first: int, count: int) -> Tensor:
    out = torch.empty(count, x.shape[1], dtype=x.dtype, dp=grid.rows, name=f"{x.name}.rows")
    grid.launch(torch, "take_rows", kernels.take_rows, x, out, first, rows_at_once(torch, x.shape[1]))
    return out


def take_columns(torch: RuntimeContext, grid: Grid, x: Tensor, first: int, count: int) -> Tensor:
    out = torch.empty(x.shape[0], count, dtype=x.dtype, dp=grid.rows, name=f"{x.name}.columns")
    grid.launch(torch, "take_columns", kernels.take_columns, x, out, first, rows_at_once(torch, count))
    return out


def join_columns(torch: RuntimeContext, grid: Grid, stacked: Tensor, parts: int) -> Tensor:
    """`parts` matrices, concatenated by rows in `stacked`, concatenated by columns."""
    rows, width = stacked.shape[0] // parts, stacked.shape[1] * parts
    out = torch.empty(rows, width, dtype=stacked.dtype, dp=grid.rows, name=f"{stacked.name}.joined")
    grid.launch(torch, "join_columns", kernels.join_columns, stacked, out, parts, rows_at_once(torch, width))
    return out


def embed_rows(torch: RuntimeContext, grid: Grid, ids: Tensor, table: Tensor, first: int, total: int) -> Tensor:
    out = torch.empty(ids.shape[0], table.shape[1], dtype=table.dtype, dp=grid.rows, name="embedding.out")
    at_once = rows_at_once(torch, table.shape[1], 2)
    grid.launch(torch, "embedding", kernels.embed_rows, ids, table, out, first, total, at_once)
    return out


def attend(
    torch: RuntimeContext, grid: Grid, qkv: Tensor, batch: int, heads: int, kv_heads: int, causal: bool
) -> Tensor:
    """Attention of `heads` heads; `qkv` has their queries, keys and values side by side."""
    d = qkv.shape[1] // (heads + 2 * kv_heads)
    tokens = qkv.shape[0]
    out = torch.empty(tokens, heads * d, dtype=qkv.dtype, dp=grid.rows, name="attention.heads")
    most = max(1, tcm_budget(torch) // (WIDE_BYTES * (6 * d + 4 * BLOCK_KEYS)))
    enough = -(-tokens * heads // grid.size)  # queries per PE
    block_q = max(1, min(most, 2 * TILE_ROWS, max(enough, TILE_ROWS // 4)))
    grid.launch(
        torch, "attention", kernels.attend, qkv, out, batch, heads, kv_heads, block_q, BLOCK_KEYS, causal
    )  # fmt: skip
    return out
