"""The numbers of a layer as values: whole weights by name, and each PE's part of them.

Nothing is computed or copied here. A weight is a constant, or random numbers by position; a rank's part of it, and the
contents of a PE's slice, are values that the data pass computes when a kernel's result needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from numpy.typing import ArrayLike

from kernbench.common.dtypes import dtype_of
from kernbench.models.shapes import ModelShape
from kernbench.policy.placement.dp import Range, ShardSpec
from kernbench.runtime_api.tensor_store import Contents
from kernbench.values.bytes_of import Patch
from kernbench.values.graph import Value, ValueGraph

SEEDS = 64  # a layer has fewer tensors


def random_weights(
    graph: ValueGraph, model: ModelShape, batch: int, context: int, dtype: str, seed: int
) -> dict[str, Value]:
    """Random weights of a whole layer, and a cache for `context` earlier tokens where there are any. Products of them
    with numbers of deviation 1 have deviation 1 again.
    """
    h, f, e = model.hidden, model.ffn, model.experts
    unused = {"norm1_shift": model.norm == "rmsnorm", "norm2_shift": model.norm == "rmsnorm",
              "up": not model.is_gated, "router": not model.has_experts}  # fmt: skip
    shapes: dict[str, tuple[tuple[int, ...], float]] = {
        "norm1": ((h,), 1.0), "norm2": ((h,), 1.0), "norm1_shift": ((h,), 1.0), "norm2_shift": ((h,), 1.0),
        "qkv": ((h, model.queries + 2 * model.keys), h**-0.5), "out": ((model.queries, h), model.queries**-0.5),
        "gate": ((e, h, f), h**-0.5), "up": ((e, h, f), h**-0.5), "down": ((e, f, h), f**-0.5),
        "router": ((h, e), h**-0.5),
    }  # fmt: skip
    if context:
        cache = batch, model.kv_heads, context, model.head_dim
        shapes |= {"keys": (cache, 1.0), "values": (cache, 1.0)}
    return {
        name: random_rows(graph, shape, dtype, seed * SEEDS + at, scale)
        for at, (name, (shape, scale)) in enumerate(shapes.items())
        if not unused.get(name)
    }


def random_rows(graph: ValueGraph, shape: Sequence[int], dtype: str, seed: int, scale: float = 1.0) -> Value:
    return graph.apply("random", (), shape=tuple(shape), seed=seed, scale=scale, dtype=dtype_of(dtype))


def input_rows(graph: ValueGraph, rows: int, model: ModelShape, dtype: str, seed: int, replica: int) -> Value:
    """The layer's input on the `replica`-th group of ranks; seeds follow those of the weights."""
    return random_rows(graph, (rows, model.hidden), dtype, seed * SEEDS + SEEDS // 2 + replica)


def cut(graph: ValueGraph, whole: Value, axis: int, ranges: Sequence[Range]) -> Value:
    """Ranges along an axis, one after the other."""
    found: list[Value] = []
    for first, end in ranges:
        starts, stops = [0] * len(whole.shape), list(whole.shape)
        starts[axis], stops[axis] = first, end
        found.append(graph.apply("slice", (whole,), starts=tuple(starts), stops=tuple(stops)))
    return found[0] if len(found) == 1 else graph.apply("concat", found, axis=axis)


def by_expert(graph: ValueGraph, weights: Value) -> Value:
    """A weight (K, N) as one of a single expert; one for each of several as it is."""
    return weights if len(weights.shape) == 3 else graph.apply("reshape", (weights,), shape=(1, *weights.shape))


def parts_by_box(graph: ValueGraph, whole: Value) -> Contents:
    """Each part holds its own rows and columns; replicas of a part share a value."""
    shared: dict[int, Value] = {}

    def contents(part: ShardSpec) -> Value:
        if part.offset_bytes not in shared:
            starts, stops = zip(*part.box, strict=True)
            same = part.local_shape == whole.shape
            shared[part.offset_bytes] = whole if same else graph.apply("slice", (whole,), starts=starts, stops=stops)
        return shared[part.offset_bytes]

    return contents


def parts_by_patches(graph: ValueGraph, whole: Value, patches_of: Callable[[int, int], list[Patch]]) -> Contents:
    """Each part holds the bytes of `whole` that `patches_of(row, offset)` puts to rows of it, and zeros elsewhere."""

    def contents(part: ShardSpec) -> Value:
        first, end = part.box[0]
        type_ = graph.type_of(part.local_shape, whole.dtype)
        row_bytes = type_.nbytes // max(1, end - first)
        patches = [patch for row in range(first, end) for patch in patches_of(row, (row - first) * row_bytes)]
        if not patches:
            return graph.full(type_.shape, 0, type_.dtype)
        return graph.gather(type_, [whole] * len(patches), patches)

    return contents


def constants(graph: ValueGraph, arrays: Mapping[str, ArrayLike]) -> dict[str, Value]:
    """Arrays as values."""
    return {name: graph.constant(array) for name, array in arrays.items()}
