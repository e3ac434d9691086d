"""Collectives on small machines against numpy: a case is one collective, and its result is worked out by numpy from the
inputs of all ranks, without a thought to who holds what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.common.commands import Space
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import SpawnException, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

Array = NDArray[Any]

# Every collective as it can be called, with every algorithm that does it.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": (
        "lrab_hierarchical_allreduce",
        "ring_allreduce",
        "recursive_doubling",
        "tree",
        "hierarchical_all_pes",
    ),
    "all_reduce_per_cube": (
        "lrab_hierarchical_allreduce",
        "ring_allreduce",
        "recursive_doubling",
        "tree",
        "hierarchical_all_pes",
    ),
    "reduce": ("tree", "chain", "two_rounds", "direct"),
    "broadcast": ("tree", "chain", "two_rounds", "direct"),
    "all_gather": ("ring_all_gather", "direct"),
    "all_gather_into_tensor": ("ring_all_gather", "direct"),
    "reduce_scatter": ("ring_reduce_scatter", "direct"),
    "reduce_scatter_tensor": ("ring_reduce_scatter", "direct"),
    "all_to_all_single": ("direct",),
    "all_to_all_uneven": ("direct",),
    "gather": ("direct",),
    "scatter": ("direct",),
    "send_recv": ("p2p",),
}
REDUCING = ("all_reduce", "all_reduce_per_cube", "reduce", "reduce_scatter", "reduce_scatter_tensor")
BY_BLOCKS = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "all_to_all_uneven")
OPS = ("sum", "product", "min", "max", "avg")
DTYPES = ("f32", "f16", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "f8e4m3", "f8e5m2", "bool")
COUNTS = (1, 2, 7, 8, 333, 5000)
PLACEMENTS: dict[str, DPPolicy] = {
    "one PE": DPPolicy(num_cubes=1, num_pes=1),
    "rows per cube": DPPolicy(cube="row_wise", num_pes=1),
    "rows per PE": DPPolicy(cube="row_wise", pe="row_wise"),
    "replicated": DPPolicy(),
    "rows per cube, replicated in it": DPPolicy(cube="row_wise"),
    "replicated, rows per PE in each cube": DPPolicy(pe="row_wise"),
    "columns per PE": DPPolicy(cube="row_wise", pe="column_wise"),
    "columns per cube": DPPolicy(cube="column_wise", pe="row_wise"),
}


@dataclass(frozen=True)
class Machine:
    """SIPs of a few cubes, each of a few PEs."""

    sips: int = 2
    cube_w: int = 1
    cube_h: int = 1
    pes: int = 1
    topology: str = "ring_1d"
    grid: tuple[int, int] | None = None
    address_model: str | None = None  # None: as the default machine has it

    @property
    def cubes(self) -> int:
        return self.cube_w * self.cube_h

    def __str__(self) -> str:
        grid = f" {self.grid[0]}x{self.grid[1]}" if self.grid else ""
        return (
            f"{self.sips} SIPs {self.topology}{grid}, {self.cube_w}x{self.cube_h} cubes, {self.pes} PEs, "
            f"{self.address_model or 'default addresses'}"
        )

    @property
    def model(self) -> str:
        return self.graph().spec.system.address_model

    @cache  # noqa: B019  # frozen, and there are few
    def graph(self) -> TopologyGraph:
        corners = ("NW", "NE", "SW", "SE")[: min(self.pes, 4)]
        w, h = self.grid or (None, None)
        return load_topology(
            None,
            {
                "system.sips.count": self.sips,
                "system.sips.topology": self.topology,
                "system.sips.w": w,
                "system.sips.h": h,
                "sip.cube_mesh.w": self.cube_w,
                "sip.cube_mesh.h": self.cube_h,
                "cube.pe_layout.corners": corners,
                "cube.pe_layout.pe_per_corner": max(self.pes // 4, 1),
                **({"system.address_model": self.address_model} if self.address_model else {}),
            },
        )


@dataclass(frozen=True)
class Case:
    """One collective. `shape` is that of a rank's tensor, of a block where it has one for each rank; of an addend for
    addends per cube.
    """

    collective: str
    algorithm: str
    shape: tuple[int, ...]
    dtype: str = "f32"
    op: str = "sum"
    placement: str = "one PE"
    other_placement: str | None = None  # of the larger tensor, where there are two
    space: Space = "hbm"
    root: int = 0
    seed: int = 0
    settings: tuple[tuple[str, object], ...] = ()

    @property
    def ccl(self) -> dict[str, object]:
        name = self.collective.removesuffix("_per_cube").removesuffix("_into_tensor").removesuffix("_tensor")
        name = name.removesuffix("_single").removesuffix("_uneven")
        if name == "send_recv":
            return {"defaults": dict(self.settings)}
        if name == "all_reduce":
            return {"defaults": {"algorithm": self.algorithm, **dict(self.settings)}}
        return {"collectives": {name: self.algorithm}, "defaults": dict(self.settings)}


# ------------------------------------------------------------------------------------------------------- what is right


def numbers(case: Case, rank: int, shape: Sequence[int]) -> Array:
    """What a rank puts in. Floats are small whole numbers that every type adds and multiplies exactly, so that order
    does not matter; integers are all that the type holds, and wrap around.
    """
    element, n = dtype_of(case.dtype), prod(shape)
    rng = np.random.default_rng((case.seed, rank, n))
    if case.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if element.is_float:
        if case.op == "product":
            return rng.choice([-1.0, 1.0, 1.0, 2.0 if rank < 2 else 1.0], shape).astype(element.numpy)
        largest = 1 if element.itemsize == 1 else 4
        return rng.integers(-largest, largest + 1, shape).astype(element.numpy)
    bounds = np.iinfo(element.numpy)
    return rng.integers(bounds.min, bounds.max, shape, dtype=element.numpy, endpoint=True)


def reduced(case: Case, addends: Sequence[Array]) -> Array:
    """The op over several arrays, one after the other."""
    if case.op in ("min", "max") or case.dtype == "bool":
        smallest = case.op == "min" or (case.dtype == "bool" and case.op == "product")
        return (np.minimum if smallest else np.maximum).reduce([*addends])
    result = addends[0].astype(np.float64) if dtype_of(case.dtype).is_float else addends[0]
    with np.errstate(over="ignore"):
        for addend in addends[1:]:
            result = result * addend if case.op == "product" else result + addend
        if case.op == "avg":
            result = result / len(addends)
    return result.astype(dtype_of(case.dtype).numpy)


def uneven(rank: int, peer: int, rows: int) -> int:
    """How many rows one rank sends another in an all_to_all with split sizes: different numbers, and some none."""
    return (rank * 2 + peer + rows) % 4 + (rank == peer)


def blocks(case: Case, rank: int, ranks: int) -> list[Array]:
    """A rank's block for each rank."""
    return list(numbers(case, rank, (ranks, *case.shape)))


def rows_between(case: Case, rank: int, peer: int, ranks: int) -> Array:
    """What one rank sends another in an all_to_all with split sizes."""
    return numbers(case, rank * ranks + peer, (uneven(rank, peer, case.shape[0]), *case.shape[1:]))


def cube_parts(case: Case, whole: Array, cubes: int) -> list[Array]:
    """What each cube holds of a tensor, where cubes hold different parts."""
    split = PLACEMENTS[case.placement].cube
    if split == "replicate":
        return [whole]
    parts = np.array_split(whole, cubes, 0 if split == "row_wise" else -1)
    return [part for part in parts if part.size]


def expected(case: Case, rank: int, ranks: int, cubes: int = 1) -> list[Array]:
    """What a rank has afterwards, one array for each of its outputs."""
    name, shape, everyone = case.collective, case.shape, range(ranks)
    if name in ("all_reduce", "reduce"):
        is_here = name == "all_reduce" or rank == case.root
        return [reduced(case, [numbers(case, each, shape) for each in everyone])] if is_here else []
    if name == "all_reduce_per_cube":
        addends = [part for each in everyone for part in cube_parts(case, numbers(case, each, (cubes, *shape)), cubes)]
        own = len(addends) // ranks
        axis = 0 if PLACEMENTS[case.placement].cube == "row_wise" else -1
        return [np.concatenate([reduced(case, addends)] * own, axis)]
    if name == "broadcast":
        return [numbers(case, case.root, shape)]
    if name in ("all_gather", "gather"):
        is_here = name == "all_gather" or rank == case.root
        return [numbers(case, each, shape) for each in everyone] if is_here else []
    if name == "all_gather_into_tensor":
        return [np.concatenate([numbers(case, each, shape) for each in everyone])]
    if name in ("reduce_scatter", "reduce_scatter_tensor"):
        return [reduced(case, [blocks(case, each, ranks)[rank] for each in everyone])]
    if name == "all_to_all_single":
        return [np.concatenate([blocks(case, each, ranks)[rank] for each in everyone])]
    if name == "all_to_all_uneven":
        return [np.concatenate([rows_between(case, each, rank, ranks) for each in everyone])]
    if name == "scatter":
        return [blocks(case, case.root, ranks)[rank]]
    assert name == "send_recv"
    return [numbers(case, (rank - 1) % ranks, shape)]


def is_right(case: Case, found: Array, right: Array) -> bool:
    """To the bit; a mean of floats to a unit in the last place, since its order of rounding is the algorithm's."""
    if found.shape == right.shape and found.dtype == right.dtype and found.tobytes() == right.tobytes():
        return True
    if found.shape != right.shape or found.dtype != right.dtype or case.op != "avg":
        return False
    step = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7, "f8e4m3": 2.0**-3, "f8e5m2": 2.0**-2}[case.dtype]
    return bool(np.allclose(found.astype(np.float64), right.astype(np.float64), rtol=step, atol=0.0))


# ------------------------------------------------------------------------------------------------------------ one rank


def work(dist: Any, make: Callable[[Array, bool], Any], case: Case, rank: int, ranks: int, cubes: int = 1) -> list[Any]:
    """A rank's call of a collective, as a PyTorch program makes it, and the tensors that it leaves. `dist` is
    torch.distributed, ours or PyTorch's; `make` makes a tensor of an array, and is given whether it is of blocks.
    """
    name, shape, root = case.collective, case.shape, case.root
    op = getattr(dist.ReduceOp, case.op.upper())
    numpy_type = dtype_of(case.dtype).numpy
    wide = (ranks * shape[0], *shape[1:])

    def given(n: Sequence[int] = shape) -> Any:
        return make(numbers(case, rank, n), False)

    def empty(n: Sequence[int] = shape, is_large: bool = False) -> Any:
        return make(np.ones(n, numpy_type), is_large)

    if name == "all_reduce":
        x = given()
        dist.all_reduce(x, op)
        return [x]
    if name == "all_reduce_per_cube":
        x = given((cubes, *shape))
        dist.all_reduce(x, op, per="cube")
        return [x]
    if name == "reduce":
        x = given()
        dist.reduce(x, root, op)
        return [x] if rank == root else []
    if name == "broadcast":
        x = given()
        dist.broadcast(x, root)
        return [x]
    if name == "all_gather":
        parts = [empty() for _ in range(ranks)]
        dist.all_gather(parts, given())
        return parts
    if name == "all_gather_into_tensor":
        y = empty(wide, True)
        dist.all_gather_into_tensor(y, given())
        return [y]
    if name == "reduce_scatter":
        y = empty()
        dist.reduce_scatter(y, [make(block, False) for block in blocks(case, rank, ranks)], op)
        return [y]
    if name == "reduce_scatter_tensor":
        y = empty()
        dist.reduce_scatter_tensor(y, make(np.concatenate(blocks(case, rank, ranks)), True), op)
        return [y]
    if name == "all_to_all_single":
        y = empty(wide, True)
        dist.all_to_all_single(y, make(np.concatenate(blocks(case, rank, ranks)), True))
        return [y]
    if name == "all_to_all_uneven":
        gives = [uneven(rank, each, shape[0]) for each in range(ranks)]
        takes = [uneven(each, rank, shape[0]) for each in range(ranks)]
        x = make(np.concatenate([rows_between(case, rank, each, ranks) for each in range(ranks)]), True)
        y = empty((sum(takes), *shape[1:]), True)
        dist.all_to_all_single(y, x, takes, gives)
        return [y]
    if name == "gather":
        parts = [empty() for _ in range(ranks)] if rank == root else []
        dist.gather(given(), parts or None, root)
        return parts
    if name == "scatter":
        y = empty()
        dist.scatter(y, [make(block, False) for block in blocks(case, root, ranks)] if rank == root else None, root)
        return [y]
    assert name == "send_recv"
    y = empty()
    works = [dist.isend(given(), (rank + 1) % ranks), dist.irecv(y, (rank - 1) % ranks)]
    for each in works:
        each.wait()
    return [y]


# ------------------------------------------------------------------------------------------------------ a whole machine


def copy(source: Any, target: Any, tl: Any) -> None:
    """A kernel: every PE copies the part that it holds. The host does not reach TCM."""
    tl.store(target.local, tl.load(source.local, source.local_shape))


class Tray:
    """A machine on which cases run one after the other, each in a process group of its own."""

    def __init__(self, machine: Machine, *, check_races: bool = False) -> None:
        self.machine = machine
        self.engine = GraphEngine(machine.graph(), check_races=check_races)
        self.torch = RuntimeContext(self.engine)

    def run(self, case: Case) -> dict[int, list[Array]]:
        """What each rank has afterwards. Raises SpawnException where ranks refuse."""
        torch, ranks, cubes = self.torch, self.machine.sips, self.machine.cubes
        found: dict[int, list[Array]] = {}

        def make(array: Array, is_large: bool) -> Tensor:
            dp = PLACEMENTS[case.other_placement if is_large and case.other_placement else case.placement]
            if case.space != "tcm":
                return torch.from_numpy(array, dp=dp, space=case.space)
            inside = torch.empty(*array.shape, dtype=case.dtype, dp=dp, space="tcm")
            torch.launch("fill", copy, torch.from_numpy(array, dp=dp), inside)
            return inside

        def read(tensor: Tensor) -> Array:
            if case.space != "tcm":
                return tensor.numpy()
            outside = torch.empty(*tensor.shape, dtype=case.dtype, dp=tensor.dp)
            torch.launch("read", copy, tensor, outside)
            return outside.numpy()

        def worker(rank: int) -> None:
            left = work(torch.distributed, make, case, rank, ranks, cubes)
            found[rank] = [read(tensor) for tensor in left]

        torch.distributed.init_process_group("ahbm", ccl=case.ccl)
        torch.multiprocessing.spawn(worker, nprocs=ranks)
        torch.distributed.destroy_process_group()
        return found

    def outcome(self, case: Case) -> str:
        """ "right", or why it was refused. Raises AssertionError for a result that is wrong, and whatever else happens
        but a refusal.
        """
        try:
            found = self.run(case)
        except SpawnException as error:
            reasons = list(error.errors.values())
            if not all(isinstance(each, UsageError) and each.hint for each in reasons):
                raise
            return str(reasons[0])
        for rank, arrays in found.items():
            right = expected(case, rank, self.machine.sips, self.machine.cubes)
            assert len(arrays) == len(right), f"{case} on {self.machine}: rank {rank} has {len(arrays)} results"
            for at, (got, want) in enumerate(zip(arrays, right, strict=True)):
                assert is_right(case, got, want), (
                    f"{case} on {self.machine}: result {at} of rank {rank} is wrong\n"
                    f"found {got.ravel()[:12]}\nright {want.ravel()[:12]}"
                )
        return "right"
