"""Tensor parallelism as in Megatron: layers whose weights are partitioned over SIPs, and their building blocks."""

from kernbench.tp.blocks import LayerNorm, ParallelAttention, ParallelMLP, ParallelTransformerLayer, RMSNorm
from kernbench.tp.layers import ColumnParallelLinear, Linear, RowParallelLinear, VocabParallelEmbedding
from kernbench.tp.mappings import (
    copy_to_tensor_model_parallel_region,
    copy_to_tp_region,
    gather_from_sequence_parallel_region,
    gather_from_tensor_model_parallel_region,
    gather_from_tp_region,
    reduce_from_tensor_model_parallel_region,
    reduce_from_tp_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
    scatter_to_tensor_model_parallel_region,
    scatter_to_tp_region,
)
from kernbench.tp.parallel_state import (
    destroy_model_parallel,
    get_data_parallel_group,
    get_data_parallel_rank,
    get_data_parallel_world_size,
    get_tensor_model_parallel_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    initialize_model_parallel,
    model_parallel_is_initialized,
)
from kernbench.tp.placement import Grid

__all__ = [
    "ColumnParallelLinear",
    "Grid",
    "LayerNorm",
    "Linear",
    "ParallelAttention",
    "ParallelMLP",
    "ParallelTransformerLayer",
    "RMSNorm",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "copy_to_tensor_model_parallel_region",
    "copy_to_tp_region",
    "destroy_model_parallel",
    "gather_from_sequence_parallel_region",
    "gather_from_tensor_model_parallel_region",
    "gather_from_tp_region",
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_tensor_model_parallel_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_world_size",
    "initialize_model_parallel",
    "model_parallel_is_initialized",
    "reduce_from_tensor_model_parallel_region",
    "reduce_from_tp_region",
    "reduce_scatter_to_sequence_parallel_region",
    "scatter_to_sequence_parallel_region",
    "scatter_to_tensor_model_parallel_region",
    "scatter_to_tp_region",
]
