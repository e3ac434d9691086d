"""Checks of a collective's arguments, as in PyTorch: types, sizes, lists, ops, and tensors on the rank's SIP.

Sizes are compared by number of elements, not by shape, as in PyTorch's backends: a collective moves a tensor's elements
in order. Sums and products of booleans are `or` and `and`, as in NCCL.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import Enum

from kernbench.ccl.calls import ReduceOp
from kernbench.common.errors import DistributedError, DistributedTypeError, KernBenchWarning
from kernbench.runtime_api.host_line import host_line
from kernbench.runtime_api.tensor import Tensor

OPS = {"sum": ReduceOp.SUM, "product": ReduceOp.PRODUCT, "prod": ReduceOp.PRODUCT, "min": ReduceOp.MIN}
OPS |= {"max": ReduceOp.MAX, "avg": ReduceOp.AVG, "mean": ReduceOp.AVG}
BOOL_OPS = {ReduceOp.SUM: ReduceOp.MAX, ReduceOp.PRODUCT: ReduceOp.MIN}


def one_tensor(value: object, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    raise DistributedTypeError(
        f"Invalid function argument. Expected parameter `{name}` of type torch.Tensor but got {type(value)} instead.",
        hint="give a tensor of this context: torch.from_numpy makes one of an array",
    )


def warn_of_row_per_cube(tensor: Tensor) -> bool:
    """Warn of an all_reduce without `per` where the tensor has one row for each of several cubes; returns whether it
    does.
    """
    rows = {(shard.cube, shard.box[0]) for shard in tensor.placement if shard.box}
    cubes = {cube for cube, _ in rows}
    if (
        not tensor.shape
        or not 1 < len(cubes) == len(rows) == tensor.shape[0]
        or any(end - first != 1 for _, (first, end) in rows)
    ):
        return False
    warnings.warn(
        f"all_reduce of '{tensor.name}', which has one row for each of {len(cubes)} cubes, at {host_line()}: rows are "
        'reduced over SIPs, each by itself. To reduce over cubes and SIPs, give per="cube"; if this is what you mean, '
        'per="sip".',
        KernBenchWarning,
        stacklevel=3,
    )
    return True


def tensor_list(value: object, name: str, size: int) -> tuple[Tensor, ...]:
    """A list with a tensor for each rank of a group."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, Tensor) for each in value):
        of = f" with elements of type {[type(each) for each in value]}" if isinstance(value, list | tuple) else ""
        raise DistributedTypeError(
            f"Invalid function argument. Expected parameter `{name}` of type List[torch.Tensor] but got "
            f"{type(value)}{of} instead.",
            hint=f"give a list of {size} tensors, one for each rank of the group",
        )
    if len(value) != size:
        raise DistributedError(
            f"`{name}` has {len(value)} tensors, and the group has {size} ranks", hint=f"give {size}, one for each rank"
        )
    return tuple(value)


def same_dtype(*tensors: Tensor) -> None:
    for other in tensors[1:]:
        if other.dtype != tensors[0].dtype:
            raise DistributedError(
                f"Invalid usage of tensors with different dtypes. Found {tensors[0].dtype} ({_named(tensors[0])}) and "
                f"{other.dtype} ({_named(other)})",
                hint="make them with one dtype",
            )


def same_numel(tensors: Sequence[Tensor], numel: int, what: str) -> None:
    """Check that each tensor has `numel` elements; `what` is the reason, for the error."""
    for tensor in tensors:
        if tensor.numel() != numel:
            raise DistributedError(
                f"{_named(tensor)} has {tensor.numel()} elements, and needs {numel}: {what}",
                hint=f"give a tensor of {numel} elements",
            )


def different_tensors(outputs: Sequence[Tensor], inputs: Sequence[Tensor], own: int | None = None) -> None:
    """Check that no element of an output is written twice or is also an input; the output of the rank itself (`own`)
    may be its input, but not a part of it.
    """
    for at, output in enumerate(outputs):
        read = [each for each in inputs if at != own or each.layout.offset != output.layout.offset]
        if any(_overlap(output, other) for other in (*outputs[:at], *read)):
            raise DistributedError(
                f"{_named(output)} is an output and passed a second time",
                hint="pass a separate tensor for each output: torch.empty(...)",
            )


def is_block(part: Tensor, whole: Tensor, rank: int) -> bool:
    """Whether a tensor is the block of one rank in another one that holds the blocks of all ranks: a collective may
    then work in place.
    """
    if part.storage is not whole.storage:
        return False
    return part.layout.offset == whole.layout.offset + rank * part.numel()


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors, whose elements follow one another, share some."""
    if one.storage is not other.storage:
        return False
    first, second = one.layout.offset, other.layout.offset
    return first < second + other.numel() and second < first + one.numel()


def on_sip(tensors: Sequence[Tensor], sip: int) -> None:
    for tensor in tensors:
        if tensor.allocation.sip != sip:
            raise DistributedError(
                f"{_named(tensor)} is on SIP {tensor.allocation.sip}, and rank {sip} of the world is on SIP {sip}",
                hint="call torch.ahbm.set_device(rank) before making tensors for a rank's collectives",
            )


def reduce_op(value: object, tensor: Tensor) -> ReduceOp:
    """The op for a tensor's elements, given by name or as ReduceOp."""
    text = value.value if isinstance(value, Enum) else value
    op = OPS.get(text.lower()) if isinstance(text, str) else None
    if op is None:
        names = ", ".join(each.name for each in ReduceOp)
        raise DistributedTypeError(
            f"op is {value!r}", hint=f"use torch.distributed.ReduceOp.X, or its name as a string, of {names}"
        )
    if tensor.dtype == "bool":
        op = BOOL_OPS.get(op, op)
    if op is ReduceOp.AVG and not tensor.element.is_float:
        raise DistributedError(
            f"Cannot use ReduceOp.AVG with {tensor.dtype} inputs: an average of integers need not be an integer",
            hint="use SUM and divide, or a float dtype",
        )
    return op


def row_splits(tensor: Tensor, asked: object, size: int, name: str) -> tuple[int, ...]:
    """How many rows of a tensor belong to each rank: as asked, or equally many."""
    if not tensor.shape:
        raise DistributedError(f"{_named(tensor)} has no axis to cut", hint="give a tensor of one axis or more")
    rows = tensor.shape[0]
    if asked is None or (isinstance(asked, list | tuple) and not asked):
        if rows % size:
            raise DistributedError(
                f"{_named(tensor)}: {rows} rows do not divide equally over {size} ranks", hint=f"give {name} as well"
            )
        return (rows // size,) * size
    if not isinstance(asked, list | tuple) or not all(_is_count(each) for each in asked):
        raise DistributedTypeError(f"{name} is {asked!r}", hint=f"give a list of {size} whole numbers, 0 or more")
    if len(asked) != size:
        raise DistributedError(f"{name} has {len(asked)} numbers, and the group has {size} ranks", hint=f"give {size}")
    if sum(asked) != rows:
        raise DistributedError(
            f"{name} is {list(asked)}, {sum(asked)} rows together, and {_named(tensor)} has {rows}",
            hint="let the numbers add up to the size of axis 0",
        )
    return tuple(asked)


def rank_in(value: object, ranks: Sequence[int], name: str, title: str) -> int:
    """The group rank of a global rank."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DistributedTypeError(f"{name} is {value!r}", hint=f"give a rank, one of {list(ranks)}")
    if value not in ranks:
        raise DistributedError(
            f"{name}: global rank {value} is not part of {title}",
            hint=f"give a global rank, one of {list(ranks)}",
        )
    return ranks.index(value)


def another_rank(peer: int, rank: int, kind: str) -> None:
    if peer == rank:
        raise DistributedError(
            f"Invalid {kind} rank: {kind} rank should not be the same as the rank of the current process.",
            hint="copy within a rank with a kernel, or with y.copy_(x)",
        )


def whole_number(value: object, name: str) -> int:
    if not _is_count(value):
        raise DistributedTypeError(f"{name} is {value!r}", hint="give a whole number, 0 or more")
    assert isinstance(value, int)
    return value


def described(tensors: Sequence[Tensor]) -> str:
    """`f16[4, 8]`, or `2 x f16[8]` for a list."""
    if not tensors:
        return ""
    first = f"{tensors[0].dtype}{list(tensors[0].shape)}"
    return first if len(tensors) == 1 else f"{len(tensors)} x {first}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _named(tensor: Tensor) -> str:
    return f"tensor '{tensor.name}' {tensor.dtype}{list(tensor.shape)}"
