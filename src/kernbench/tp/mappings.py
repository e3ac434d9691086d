"""Conversions between replicated and partitioned tensors of a tensor-parallel group. Forward only.

| function | forward |
|---|---|
| copy_to | the tensor itself, which is replicated |
| reduce_from | the sum over ranks, in place |
| scatter_to | this rank's columns |
| gather_from | all ranks' columns side by side |
| scatter_to_sequence, gather_from_sequence | the same along the first dimension |
| reduce_scatter_to_sequence | this rank's rows of the sum over ranks |

In a group of one all of them return the tensor itself. Tensors are (tokens, features), rows over the PEs of the rank.
Without `torch` the context is the one that the calling rank was initialised for last.
"""

from __future__ import annotations

from kernbench.common.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp import launches
from kernbench.tp.parallel_state import model_parallel
from kernbench.tp.placement import Grid, check_activation


def divide(n: int, parts: int, what: str) -> int:
    """n over `parts` ranks; raises UsageError if it does not divide evenly."""
    if n % parts:
        raise UsageError(f"{what} is {n}, which {parts} ranks cannot share evenly", hint=f"use a multiple of {parts}")
    return n // parts


def copy_to_tensor_model_parallel_region(x: Tensor, torch: RuntimeContext | None = None) -> Tensor:
    """The tensor itself."""
    model_parallel(torch)
    return x


def reduce_from_tensor_model_parallel_region(x: Tensor, torch: RuntimeContext | None = None) -> Tensor:
    """The sum over ranks, in x itself."""
    state = model_parallel(torch)
    if state.tensor.size > 1:
        state.torch.distributed.all_reduce(x, group=state.tensor.handle, per="sip")
    return x


def scatter_to_tensor_model_parallel_region(
    x: Tensor, torch: RuntimeContext | None = None, grid: Grid | None = None
) -> Tensor:
    """This rank's columns."""
    state = model_parallel(torch)
    if state.tensor.size == 1:
        return x
    check_activation(state.torch, x, None, "scatter_to_tensor_model_parallel_region")
    count = divide(x.shape[1], state.tensor.size, "the number of columns")
    return launches.take_columns(state.torch, grid or Grid.of(state.torch), x, state.tensor.rank * count, count)


def gather_from_tensor_model_parallel_region(
    x: Tensor, torch: RuntimeContext | None = None, grid: Grid | None = None
) -> Tensor:
    """All ranks' columns side by side: gathered one below the other, and joined by a kernel."""
    state = model_parallel(torch)
    size = state.tensor.size
    if size == 1:
        return x
    check_activation(state.torch, x, None, "gather_from_tensor_model_parallel_region")
    used = grid or Grid.of(state.torch)
    return launches.join_columns(state.torch, used, _stacked(x, state.torch, used), size)


def scatter_to_sequence_parallel_region(
    x: Tensor, torch: RuntimeContext | None = None, grid: Grid | None = None
) -> Tensor:
    """This rank's rows."""
    state = model_parallel(torch)
    if state.tensor.size == 1:
        return x
    check_activation(state.torch, x, None, "scatter_to_sequence_parallel_region")
    count = divide(x.shape[0], state.tensor.size, "the number of rows")
    return launches.take_rows(state.torch, grid or Grid.of(state.torch), x, state.tensor.rank * count, count)


def gather_from_sequence_parallel_region(
    x: Tensor, torch: RuntimeContext | None = None, grid: Grid | None = None
) -> Tensor:
    """All ranks' rows one below the other."""
    state = model_parallel(torch)
    if state.tensor.size == 1:
        return x
    check_activation(state.torch, x, None, "gather_from_sequence_parallel_region")
    return _stacked(x, state.torch, grid or Grid.of(state.torch))


def reduce_scatter_to_sequence_parallel_region(
    x: Tensor, torch: RuntimeContext | None = None, grid: Grid | None = None
) -> Tensor:
    """This rank's rows of the sum over ranks."""
    state = model_parallel(torch)
    if state.tensor.size == 1:
        return x
    check_activation(state.torch, x, None, "reduce_scatter_to_sequence_parallel_region")
    count = divide(x.shape[0], state.tensor.size, "the number of rows")
    used = grid or Grid.of(state.torch)
    out = state.torch.empty(count, x.shape[1], dtype=x.dtype, dp=used.rows, name=f"{x.name}.reduced")
    state.torch.distributed.reduce_scatter_tensor(out, x, group=state.tensor.handle)
    return out


def _stacked(x: Tensor, torch: RuntimeContext, grid: Grid) -> Tensor:
    group = model_parallel(torch).tensor
    out = torch.empty(group.size * x.shape[0], x.shape[1], dtype=x.dtype, dp=grid.rows, name=f"{x.name}.gathered")
    torch.distributed.all_gather_into_tensor(out, x, group=group.handle)
    return out


copy_to_tp_region = copy_to_tensor_model_parallel_region
reduce_from_tp_region = reduce_from_tensor_model_parallel_region
scatter_to_tp_region = scatter_to_tensor_model_parallel_region
gather_from_tp_region = gather_from_tensor_model_parallel_region
