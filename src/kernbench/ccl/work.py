"""The assignment of a collective's work on one SIP: the cubes and PEs that take part, and what each of them works on.

PEs work on the parts that they hold, or split a tensor among them (`spread`), which requires that each can address all
of it: with virtual addresses, or if it lies in one place. PEs that hold replicas do not split it: each PE addresses the
replica of its own PE number or cube, and writes that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from kernbench.ccl.calls import CollectiveCall
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.common.launch import SplitBy, TensorArg
from kernbench.topology.spec import MachineSpec

ColumnSplit = tuple[tuple[int, ...], tuple[SplitBy, SplitBy]]  # a shape, and how it is split over cubes and over PEs
ShardElements = tuple[int, int, int, int]  # cube and PE that hold it, its first element and how many there are
Shards = tuple[tuple[ShardElements, ...], tuple[ShardElements, ...]]  # of the input and of the output
Spread = tuple[bool, bool]  # whether the tensor is split over PEs, and over cubes
SPREAD_FROM_BYTES = 16 * 1024  # splitting a smaller tensor costs more than it saves
SPREAD_CUBE_FROM_BYTES = 2 * 1024  # of a cube's part, which is transferred several times
LISTS = {"gather": "outputs", "scatter": "inputs", "all_gather": "outputs", "reduce_scatter": "inputs"}


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    """Where a tensor lies on its SIP."""

    cubes: tuple[int, ...]
    pes: tuple[int, ...]
    pe_replicas: bool  # whether PEs of one cube hold the same part
    cube_replicas: bool  # whether cubes do
    distinct: int  # parts
    shards: tuple[tuple[int, int, int, int], ...]  # cube, PE, offset, bytes
    columns: ColumnSplit | None  # set if columns are split: the elements of a part then depend on the shape

    @classmethod
    def of(cls, tensor: TensorArg) -> TensorPlacement:
        holders: dict[int, list[tuple[int, int]]] = {}
        for shard in tensor.shards:
            holders.setdefault(shard.offset_bytes, []).append((shard.cube, shard.pe))
        return cls(
            tuple(sorted({shard.cube for shard in tensor.shards})),
            tuple(sorted({shard.pe for shard in tensor.shards})),
            any(len({cube for cube, _ in each}) < len(each) for each in holders.values()),
            any(len({cube for cube, _ in each}) > 1 for each in holders.values()),
            len(holders),
            tuple((shard.cube, shard.pe, shard.offset_bytes, shard.nbytes) for shard in tensor.shards),
            (tensor.shape, tensor.split_by) if any(tensor.split_axes) else None,
        )


class PlacementSignature(NamedTuple):
    """What must be equal on every rank, since PEs exchange data with the PEs of the same number."""

    cubes: tuple[int, ...]
    pes: tuple[int, ...]
    n_elem: int
    spread: Spread | None
    replicas: Spread
    shards: Shards | None
    parts: tuple[tuple[int, int, int], ...]  # cube, PE and bytes, where each PE works on the part that it holds
    columns: ColumnSplit | None

    def __str__(self) -> str:
        where = f"cubes {_listed(self.cubes)}, PEs {_listed(self.pes)}"
        sizes = sorted({nbytes for _, _, nbytes in self.parts})
        text = f"{where}, parts of {' and '.join(map(str, sizes))} bytes" if sizes else where
        if self.columns is None:
            return text
        shape, (over_cubes, over_pes) = self.columns
        axes = [f"axis {a} over {n}" for a, n in ((over_cubes, "cubes"), (over_pes, "PEs")) if a is not None]
        return f"{text}, shape {list(shape)} with {' and '.join(axes)}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A collective on one SIP. With addends per cube, `cube_w` x `cube_h` is their rectangle in the mesh, or a row if
    they form none; with addends per rank it is 1 x 1. `n_elem` is the number of elements of a cube's addend, of a block
    of a gather or scatter, or else of a part; 0 for an all_to_all, whose blocks may differ.
    """

    tensor: TensorArg | None  # whose placement selects the cubes and PEs
    cubes: tuple[int, ...]
    pes: tuple[int, ...]
    n_elem: int
    cube_w: int = 1
    cube_h: int = 1
    is_rectangle: bool = True
    spread: Spread | None = None
    replicas: Spread = (False, False)
    shards: Shards | None = None  # set if every PE loads and stores the shards that it holds, of blocks of all ranks

    @property
    def signature(self) -> PlacementSignature:
        at = TensorPlacement.of(self.tensor) if self.tensor is not None else None
        own = tuple((cube, pe, nbytes) for cube, pe, _, nbytes in at.shards) if at and self.spread is None else ()
        columns = at.columns if at else None
        return PlacementSignature(
            self.cubes, self.pes, self.n_elem, self.spread, self.replicas, self.shards, own, columns
        )


def work_of(call: CollectiveCall, spec: MachineSpec, takes: Sequence[str]) -> Assignment:
    """The assignment of a call; `takes` are the names of the kernel's parameters. Raises UsageError for tensors whose
    placement the collective cannot handle.
    """
    if not call.tensors:
        return Assignment(None, (0,), (0,), 0)
    if call.per == "cube":
        return _per_cube(call, spec, takes)
    many = getattr(call, LISTS[call.name]) if call.name in LISTS else ()
    by_blocks = call.name == "all_to_all" or (call.name in ("all_gather", "reduce_scatter") and len(many) == 1)
    if len(many) == call.group.size == 1:  # a list of one, or one block
        by_blocks = TensorPlacement.of(call.inputs[0]) != TensorPlacement.of(call.outputs[0])
    if by_blocks and "spread" in takes:
        found = _by_shards(call, spec) if "shards" in takes else None
        return found if found is not None else _by_blocks(call, spec)
    tensor = _tensor(call)
    if many:
        _check_alike(call, tensor, many)
    return _elementwise(tensor, spec, takes)


def _tensor(call: CollectiveCall) -> TensorArg:
    """The one tensor that every rank has, with the same placement."""
    if call.name in ("scatter", "reduce_scatter", "recv"):
        return call.outputs[0]
    return (call.inputs or call.outputs)[0]


def _elementwise(tensor: TensorArg, spec: MachineSpec, takes: Sequence[str]) -> Assignment:
    at, n_pes = TensorPlacement.of(tensor), spec.cube.n_pes
    n_elem = _elements(tensor, tensor.shards[0].nbytes)
    everyone = tuple(range(n_pes))
    has_replicas = at.pe_replicas or at.cube_replicas
    if has_replicas and "replicas" in takes:
        return Assignment(tensor, at.cubes, at.pes, n_elem, replicas=(at.pe_replicas, at.cube_replicas))
    is_reachable = tensor.va_base is not None or len(tensor.shards) == 1
    is_on_few = not at.pe_replicas and len(at.shards) < len(at.cubes) * n_pes
    if "spread" in takes and is_reachable and is_on_few and tensor.span_bytes >= SPREAD_FROM_BYTES:
        return Assignment(tensor, at.cubes, everyone, n_elem, spread=(True, not at.cube_replicas))
    return Assignment(tensor, at.cubes, at.pes, n_elem)


def _by_blocks(call: CollectiveCall, spec: MachineSpec) -> Assignment:
    """Tensors that are the concatenated blocks of several ranks, found by address: their rows must be contiguous."""
    source, target = call.inputs[0], call.outputs[0]
    for tensor in (source, target):
        at = TensorPlacement.of(tensor)
        if any(tensor.split_axes):
            raise UsageError(
                f"{call.name}: the columns of tensor '{tensor.name}' are split, so its rows do not lie end to end",
                hint="place it row_wise or replicated, or give a list of tensors where the collective takes one",
            )
        if tensor.va_base is None and at.distinct > 1:
            raise UsageError(
                f"{call.name}: tensor '{tensor.name}' is split, and with physical addresses a PE does not reach all "
                "of it",
                hint="set system.address_model to va, do not split it, or give a list of tensors",
            )
    at = TensorPlacement.of(source if _is_within(target, source) else target)
    is_uneven = call.name == "all_to_all"  # sizes may differ between ranks: the assignment must not depend on them
    n_elem = 0 if is_uneven else prod((source if call.name == "all_gather" else target).shape)
    if target.va_base is None and (len(target.shards) > 1 or len(source.shards) > 1):
        _check_covers(call, source, at)
        return Assignment(target, at.cubes, at.pes, n_elem, spread=(False, False))
    is_small = target.span_bytes < SPREAD_FROM_BYTES and not is_uneven
    pes = at.pes if at.pe_replicas or is_small else tuple(range(spec.cube.n_pes))
    cubes = at.cubes if at.cube_replicas or not is_uneven else tuple(range(spec.sip.n_cubes))
    return Assignment(target, cubes, pes, n_elem, spread=(not at.pe_replicas, not at.cube_replicas))


def _is_within(part: TensorArg, whole: TensorArg) -> bool:
    """Whether the output is a block of the input: the blocks of different ranks lie on different PEs then, and the PEs
    of the whole input take part, which are the same on every rank.
    """
    if part.va_base is None or whole.va_base is None:
        return False
    return whole.va_base <= part.va_base and part.va_base + part.span_bytes <= whole.va_base + whole.span_bytes


def _by_shards(call: CollectiveCall, spec: MachineSpec) -> Assignment | None:
    """As `_by_blocks`, where the PEs that hold the input hold the output too, or the other way round, each a part of
    its own: a PE loads and stores what it holds. A block of fewer elements than PEs lies on some of them. None where
    that is not so, where few PEs would move many bytes, or where blocks differ in size, so that no rank knows where
    the others hold them.
    """
    source, target = call.inputs[0], call.outputs[0]
    at, to = TensorPlacement.of(source), TensorPlacement.of(target)
    if any(source.split_axes) or any(target.split_axes) or call.is_uneven:
        return None
    if len(source.shards) != at.distinct or len(target.shards) != to.distinct:
        return None  # replicas
    if source.va_base is None or target.va_base is None:
        return None  # a PE also moves elements within its SIP, from where other PEs hold them
    if _is_within(source, target) or _is_within(target, source):
        return None  # the block of each rank lies on other PEs
    holders, wider, where = {shard[:2] for shard in at.shards}, {shard[:2] for shard in to.shards}, target
    if len(holders) > len(wider):
        holders, wider, where = wider, holders, source
    larger = max(source.span_bytes, target.span_bytes)
    is_on_all = len(holders) == spec.sip.n_cubes * spec.cube.n_pes
    if not holders <= wider or not (is_on_all or larger < SPREAD_FROM_BYTES):
        return None
    item = dtype_of(source.dtype).itemsize
    shards = tuple(
        tuple((cube, pe, offset // item, nbytes // item) for cube, pe, offset, nbytes in each.shards)
        for each in (at, to)
    )
    n_elem = prod((source if call.name == "all_gather" else target).shape)
    if call.name == "all_to_all":
        n_elem //= call.group.size
    on = TensorPlacement.of(where)
    return Assignment(where, on.cubes, on.pes, n_elem, shards=(shards[0], shards[1]))


def _check_covers(call: CollectiveCall, source: TensorArg, target: TensorPlacement) -> None:
    """With physical addresses, PEs that write a replica also hold one of the input, or the input has one shard."""
    at = TensorPlacement.of(source)
    if len(source.shards) > 1 and [shard[:2] for shard in at.shards] != [shard[:2] for shard in target.shards]:
        raise UsageError(
            f"{call.name}: with physical addresses the input must lie where the output does, or in one place",
            hint="place both alike, or set system.address_model to va",
        )


def _check_alike(call: CollectiveCall, tensor: TensorArg, many: Sequence[TensorArg]) -> None:
    expected = TensorPlacement.of(tensor)
    for other in many:
        if TensorPlacement.of(other) != expected or other.space != tensor.space:
            raise UsageError(
                f"{call.name}: tensor '{other.name}' is not placed as '{tensor.name}' is",
                hint="make all tensors of the list with the same shape, DPPolicy and space as the tensor",
            )


def _per_cube(call: CollectiveCall, spec: MachineSpec, takes: Sequence[str]) -> Assignment:
    """Every cube's part is an addend: all must have one size, and lie on the same PE numbers."""
    tensor = call.inputs[0]
    at = TensorPlacement.of(tensor)
    of_cube = {cube: [(pe, nbytes) for c, pe, _, nbytes in at.shards if c == cube] for cube in at.cubes}
    first = of_cube[at.cubes[0]]
    if at.cube_replicas or any(part != first for part in of_cube.values()):
        why = "cubes hold the same part" if at.cube_replicas else "the parts of its cubes differ in size"
        raise UsageError(
            f"all_reduce(per=\"cube\"): tensor '{tensor.name}' has no addend for each cube: {why}",
            hint='give a tensor of shape (cubes, n), placed with DPPolicy(cube="row_wise")',
        )
    nbytes = first[0][1] if at.pe_replicas else sum(size for _, size in first)
    w, h = _rectangle(at.cubes, spec.sip.cube_mesh.w)
    n_elem, is_rectangle = _elements(tensor, nbytes), w * h == len(at.cubes)
    shape = (w, h) if is_rectangle else (len(at.cubes), 1)
    replicas = (at.pe_replicas, False) if "replicas" in takes else (False, False)
    in_order = all(offset == n * nbytes for n, (_, _, offset, _) in enumerate(at.shards))
    is_in_order = tensor.va_base is not None and in_order
    is_reachable = not tensor.is_per_pe if tensor.space == "sram" else is_in_order
    if "spread" in takes and is_reachable and len(at.pes) == 1 and nbytes >= SPREAD_CUBE_FROM_BYTES:
        pes = tuple(range(spec.cube.n_pes))
        return Assignment(tensor, at.cubes, pes, n_elem, *shape, is_rectangle, spread=(True, False))
    return Assignment(tensor, at.cubes, at.pes, n_elem, *shape, is_rectangle, replicas=replicas)


def _rectangle(cubes: Sequence[int], mesh_w: int) -> tuple[int, int]:
    """Width and height of the rectangle of the mesh around some cubes."""
    xs, ys = [cube % mesh_w for cube in cubes], [cube // mesh_w for cube in cubes]
    return max(xs) - min(xs) + 1, max(ys) - min(ys) + 1


def _listed(numbers: Sequence[int]) -> str:
    """`0 to 7`, or `0, 2, 5`."""
    if len(numbers) > 2 and tuple(numbers) == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _elements(tensor: TensorArg, nbytes: int) -> int:
    return nbytes // dtype_of(tensor.dtype).itemsize
