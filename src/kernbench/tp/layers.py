"""Layers whose weights are partitioned over the ranks of a tensor-parallel group, as in Megatron. Forward only.

Every rank makes the same layer and holds its part of the weight on its own SIP. Inputs and outputs are (tokens,
features), rows over the PEs of the rank. Rounding: a product is summed in f32 and rounded once per rank; the sum over
ranks is the collective's.

With `sequence_parallel`, activations between layers are split over ranks by tokens: a column-parallel layer gathers its
input, a row-parallel one reduce-scatters its output instead of an all-reduce.
"""

from __future__ import annotations

from typing import Any

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.device_mesh import DeviceMesh
from kernbench.runtime_api.dtensor_api import ColwiseParallel, ParallelStyle, RowwiseParallel
from kernbench.runtime_api.dtensor_placement import Replicate, Shard
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp import launches
from kernbench.tp.launches import ACTIVATIONS, Activation
from kernbench.tp.mappings import (
    copy_to_tensor_model_parallel_region,
    divide,
    gather_from_sequence_parallel_region,
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_tensor_model_parallel_region,
)
from kernbench.tp.parallel_state import model_parallel
from kernbench.tp.parameters import Init, WeightIndex, make_parameter
from kernbench.tp.placement import Grid, check_activation, check_device

ALL = slice(None)


def own(index: int, count: int) -> slice:
    """Part `index` of equal parts of `count`."""
    return slice(index * count, (index + 1) * count)


class ParallelLayer:
    """Common to the layers of a rank: its context, its group, and the cubes and PEs it uses."""

    def __init__(self, dtype: str, torch: RuntimeContext | None, grid: Grid | None, name: str) -> None:
        state = model_parallel(torch)
        self.torch = state.torch
        self.group = state.tensor
        self.grid = grid or Grid.of(self.torch)
        self.dtype = dtype
        self.name = name

    def _check_mesh(self, mesh: DeviceMesh | None) -> None:
        """Raise UsageError for a mesh of other ranks than those of the tensor-parallel group."""
        ranks = self.group.ranks if mesh is None else tuple(mesh.mesh.reshape(-1).tolist())
        if ranks != self.group.ranks:
            raise UsageError(
                f"{self.name}: {mesh!r}, and the tensor-parallel group has ranks {list(self.group.ranks)}",
                hint="call initialize_model_parallel with the size of the mesh's dimension, and give mesh['tp']",
            )

    def _columns(
        self, init: Init, shape: tuple[int, int], part: WeightIndex, local: tuple[int, int], name: str
    ) -> Tensor:
        """A rank's part, of shape `local`, of a weight."""
        dp = self.grid.for_weight(*local, self.dtype).columns
        return make_parameter(self.torch, init, shape, part, self.dtype, dp, f"{self.name}.{name}")

    def _everywhere(self, init: Init, size: int, name: str) -> Tensor:
        dp = self.grid.everywhere
        return make_parameter(self.torch, init, (size,), (ALL,), self.dtype, dp, f"{self.name}.{name}")

    def _checked(self, x: Tensor, features: int) -> Tensor:
        check_activation(self.torch, x, features, self.name)
        if x.element is not dtype_of(self.dtype):
            raise UsageError(
                f"{self.name}: got {x.dtype} activations, and its weights are {dtype_of(self.dtype)}",
                hint=f'give both the same: the layer dtype="{x.dtype}", or the tensor dtype="{dtype_of(self.dtype)}"',
            )
        return x

    def _gathered(self, x: Tensor, sequence_parallel: bool) -> Tensor:
        """The input of a column-parallel layer: all tokens."""
        if sequence_parallel:
            return gather_from_sequence_parallel_region(x, self.torch, self.grid)
        return copy_to_tensor_model_parallel_region(x, self.torch)

    def _reduced(self, y: Tensor, sequence_parallel: bool) -> Tensor:
        """The output of a layer that has a part of every sum: all tokens, or this rank's."""
        if sequence_parallel:
            return reduce_scatter_to_sequence_parallel_region(y, self.torch, self.grid)
        return reduce_from_tensor_model_parallel_region(y, self.torch)


class Linear(ParallelLayer):
    """y = activation(x @ weight + bias), all of it on every rank.
    `torch.distributed.tensor.parallel.parallelize_module` replaces it by a parallel layer with the same weight.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        activation: Activation | None = None,
        dtype: str = "f16",
        init: Init = "zeros",
        bias_init: Init = "zeros",
        torch: RuntimeContext | None = None,
        grid: Grid | None = None,
        name: str = "linear",
    ) -> None:
        super().__init__(dtype, torch, grid, name)
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self._contents = (init, bias_init, bias)
        shape = (in_features, out_features)
        self.weight = self._columns(init, shape, (ALL, ALL), shape, "weight")
        self.bias = None
        if bias:
            dp = self.weight.dp
            self.bias = make_parameter(self.torch, bias_init, (out_features,), (ALL,), dtype, dp, f"{name}.bias")

    def forward(self, x: Tensor) -> Tensor:
        """(tokens, in_features) to (tokens, out_features)."""
        self._checked(x, self.in_features)
        return launches.linear(
            self.torch, self.grid, x, self.weight, bias=self.bias, activation=self.activation, name=self.name
        )

    __call__ = forward

    def parallelize(self, style: ParallelStyle, mesh: DeviceMesh | None) -> ColumnParallelLinear | RowParallelLinear:
        """The same layer, divided among the ranks of a mesh."""
        self._check_mesh(mesh)
        init, bias_init, bias = self._contents
        where: Any = {"dtype": self.dtype, "init": init, "bias_init": bias_init, "torch": self.torch, "grid": self.grid}
        by_tokens = Shard(0) in (style.input_layouts, style.output_layouts)
        sizes = (self.in_features, self.out_features)
        if isinstance(style, ColwiseParallel):
            whole = style.output_layouts == Replicate()
            return ColumnParallelLinear(
                *sizes, bias=bias, gather_output=whole, sequence_parallel=by_tokens, activation=self.activation,
                name=self.name, **where,
            )  # fmt: skip
        if isinstance(style, RowwiseParallel) and self.activation is None:
            is_split = style.input_layouts != Replicate()
            return RowParallelLinear(
                *sizes, bias=bias, input_is_parallel=is_split, sequence_parallel=by_tokens, name=self.name, **where
            )
        raise UsageError(
            f"{self.name}: a linear layer{' with an activation' if self.activation else ''} and {type(style).__name__}",
            hint="use ColwiseParallel, or RowwiseParallel without an activation",
        )


class ColumnParallelLinear(ParallelLayer):
    """y = activation(x @ weight + bias); each rank has some of the outputs. `gather_output`: every rank gets all."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        gather_output: bool = False,
        sequence_parallel: bool = False,
        activation: Activation | None = None,
        dtype: str = "f16",
        init: Init = "zeros",
        bias_init: Init = "zeros",
        torch: RuntimeContext | None = None,
        grid: Grid | None = None,
        name: str = "column_parallel",
    ) -> None:
        super().__init__(dtype, torch, grid, name)
        if gather_output and sequence_parallel:
            raise UsageError(f"{name}: gather_output with sequence_parallel", hint="take one of them")
        if activation is not None and activation not in ACTIVATIONS:
            raise UsageError(f"{name}: no activation {activation!r}", hint=f"use one of {', '.join(ACTIVATIONS)}")
        self.in_features, self.out_features = in_features, out_features
        self.out_features_per_rank = divide(out_features, self.group.size, f"{name}: out_features")
        self.gather_output, self.sequence_parallel = gather_output, sequence_parallel
        self.activation = activation
        part, local = own(self.group.rank, self.out_features_per_rank), (in_features, self.out_features_per_rank)
        self.weight = self._columns(init, (in_features, out_features), (ALL, part), local, "weight")
        self.bias = None
        if bias:
            dp = self.weight.dp
            self.bias = make_parameter(self.torch, bias_init, (out_features,), (part,), dtype, dp, f"{name}.bias")

    def forward(self, x: Tensor) -> Tensor:
        """(tokens, in_features), the same on every rank, to (tokens, this rank's or all out_features)."""
        self._checked(x, self.in_features)
        rows = self._gathered(x, self.sequence_parallel)
        y = launches.linear(
            self.torch, self.grid, rows, self.weight, bias=self.bias, activation=self.activation, name=self.name
        )
        return gather_from_tensor_model_parallel_region(y, self.torch, self.grid) if self.gather_output else y

    __call__ = forward


class RowParallelLinear(ParallelLayer):
    """y = x @ weight + bias; each rank has some of the inputs, and outputs are summed over ranks. The bias is added
    once, after the sum.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        input_is_parallel: bool = True,
        sequence_parallel: bool = False,
        dtype: str = "f16",
        init: Init = "zeros",
        bias_init: Init = "zeros",
        torch: RuntimeContext | None = None,
        grid: Grid | None = None,
        name: str = "row_parallel",
    ) -> None:
        super().__init__(dtype, torch, grid, name)
        if sequence_parallel and not input_is_parallel:
            raise UsageError(
                f"{name}: sequence_parallel with an input that every rank has all of",
                hint="give it the output of a column-parallel layer, with input_is_parallel=True",
            )
        self.in_features, self.out_features = in_features, out_features
        self.in_features_per_rank = divide(in_features, self.group.size, f"{name}: in_features")
        self.input_is_parallel, self.sequence_parallel = input_is_parallel, sequence_parallel
        part, local = own(self.group.rank, self.in_features_per_rank), (self.in_features_per_rank, out_features)
        self.weight = self._columns(init, (in_features, out_features), (part, ALL), local, "weight")
        self.bias = self._everywhere(bias_init, out_features, "bias") if bias else None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(tokens, this rank's or all in_features) to (tokens, out_features) on every rank, or with sequence_parallel
        to this rank's tokens. A `residual` of the output's shape is added together with the bias.
        """
        self._check_input(x)
        if not self.input_is_parallel:
            x = scatter_to_tensor_model_parallel_region(x, self.torch, self.grid)
        y = self._reduced(
            launches.linear(self.torch, self.grid, x, self.weight, name=self.name), self.sequence_parallel
        )
        if residual is not None:
            self._checked(residual, self.out_features)
            if residual.shape != y.shape:
                raise UsageError(f"{self.name}: residual has shape {residual.shape}", hint=f"give shape {y.shape}")
        return launches.add_to_rows(self.torch, self.grid, y, self.bias, residual, f"{self.name}.add")

    def _check_input(self, x: Tensor) -> None:
        """Raise UsageError for another number of features, e.g. all of them where the rank's part is expected."""
        wants, other = self.in_features_per_rank, self.in_features
        if not self.input_is_parallel:
            wants, other = other, wants
        if isinstance(x, Tensor) and x.ndim == 2 and x.shape[1] == other != wants:
            has, takes = ("all", "this rank's") if self.input_is_parallel else ("this rank's", "all")
            raise UsageError(
                f"{self.name}: the input has {has} {other} features, and with "
                f"input_is_parallel={self.input_is_parallel} the layer takes {takes} {wants}",
                hint=f"input_is_parallel={not self.input_is_parallel}"
                + ("; or the output of a column-parallel layer" if self.input_is_parallel else ""),
            )
        self._checked(x, wants)

    __call__ = forward


class VocabParallelEmbedding(ParallelLayer):
    """Rows of a table by token id; each rank has some of the vocabulary, and gives zeros for the rest."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        sequence_parallel: bool = False,
        dtype: str = "f16",
        init: Init = "zeros",
        torch: RuntimeContext | None = None,
        grid: Grid | None = None,
        name: str = "embedding",
    ) -> None:
        super().__init__(dtype, torch, grid, name)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.sequence_parallel = sequence_parallel
        count = divide(num_embeddings, self.group.size, f"{name}: num_embeddings")
        self.vocab_range = self.group.rank * count, (self.group.rank + 1) * count
        self.weight = make_parameter(
            self.torch,
            init,
            (num_embeddings, embedding_dim),
            (own(self.group.rank, count), ALL),
            dtype,
            self.grid.rows,
            f"{name}.weight",
        )

    def forward(self, ids: Tensor) -> Tensor:
        """(tokens,) ids to (tokens, embedding_dim) on every rank, or with sequence_parallel to this rank's tokens.

        An id that is not in the vocabulary is an error of the launch.
        """
        if not isinstance(ids, Tensor) or ids.ndim != 1 or ids.element.is_float:
            raise UsageError(f"{self.name}: ids are {ids!r}"[:200], hint="give a tensor of integers of shape (tokens,)")
        check_device(self.torch, ids, self.name)
        y = launches.embed_rows(self.torch, self.grid, ids, self.weight, self.vocab_range[0], self.num_embeddings)
        return self._reduced(y, self.sequence_parallel)

    __call__ = forward
