"""Every collective, by every algorithm that does it, against numpy: over machine shapes, placements, ops, element types
and odd sizes. A call is right to the bit, or refused for the reason that is expected here; nothing else is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import TypeVar

import numpy as np
import pytest
from tests.oracle.collective_cases import (
    ALGORITHMS,
    BY_BLOCKS,
    DTYPES,
    OPS,
    PLACEMENTS,
    REDUCING,
    Case,
    Machine,
    Tray,
    cube_parts,
    numbers,
)

from kernbench.ccl.config import load_ccl_config
from kernbench.common.commands import Space
from kernbench.common.dtypes import dtype_of
from kernbench.policy.placement.dp import ShardSpec, resolve_dp_policy

# Tensors with one row for each cube are reduced over SIPs here, as PyTorch does; the warning asks which one is meant.
pytestmark = pytest.mark.filterwarnings("ignore:all_reduce of:kernbench.common.errors.KernBenchWarning")

MACHINES = (
    Machine(2),
    Machine(3, 3, 1, 2),
    Machine(5, 1, 1, 2),
    Machine(6, 1, 1, 2, "torus_2d", (2, 3)),
    Machine(6, 1, 1, 1, "mesh_2d_no_wrap", (2, 3)),
    Machine(2, 1, 1, 8),
    Machine(2, 2, 2, 2, address_model="pa"),
    Machine(3, 2, 1, 3, address_model="la"),
    Machine(1, 2, 1, 2, address_model="va"),
)
T = TypeVar("T")
SHAPES = ((7,), (333,), (1,), (700,), (8,), (2,), (3, 7), (20, 31), (7, 3), (2, 3, 4))
SPACES: tuple[Space, ...] = ("sram", "hbm", "tcm")
PE_SPACES: tuple[Space, ...] = ("hbm", "tcm")  # PEs of a cube share one SRAM
RINGS: tuple[tuple[tuple[str, object], ...], ...] = (
    (),
    (("n_slots", 1), ("slot_size", 256), ("chunk_bytes", 256)),
    (),
    (("buffer_kind", "sram"), ("backpressure", "poll")),
    (("buffer_kind", "hbm"), ("chunk_bytes", 1024), ("root", "corner")),
)


def cases(machine: Machine, collective: str) -> Iterator[Case]:
    """Every algorithm with every second to fourth placement, the others on the next machines. All else goes round, from
    another start for each machine and collective.
    """
    index = MACHINES.index(machine)
    start = 4 * index + 4 * list(ALGORITHMS).index(collective)

    def turning(values: tuple[T, ...]) -> Iterator[T]:
        return islice(cycle(values), start % len(values), None)

    shapes, dtypes, ops, rings = turning(SHAPES), turning(DTYPES), turning(OPS), turning(RINGS)
    others, spaces, pe_spaces, roots = (
        turning((None, *PLACEMENTS)),
        turning(SPACES),
        turning(PE_SPACES),
        turning((0, 1, 2)),
    )
    placements = list(PLACEMENTS) if machine.cubes * machine.pes > 1 else ["one PE", "columns per PE"]
    step = 2 if collective in REDUCING else 3 if collective in BY_BLOCKS else 4
    for number, algorithm in enumerate(ALGORITHMS[collective], index):
        for placement in placements[number % step :: step]:
            other = next(others) if collective in BY_BLOCKS else None
            splits_pes = any(PLACEMENTS[each].pe != "replicate" for each in (placement, other) if each)
            yield Case(
                collective,
                algorithm,
                next(shapes),
                next(dtypes),
                next(ops) if collective in REDUCING else "sum",
                placement,
                other,
                next(pe_spaces if splits_pes else spaces),
                next(roots) % machine.sips,
                start,
                next(rings),
            )


# ---------------------------------------------------------------------------------------------- what cannot be done


def shards(case: Case, machine: Machine, placement: str, shape: tuple[int, ...]) -> list[ShardSpec]:
    policy = PLACEMENTS[placement]
    if case.space == "sram":
        policy = replace(policy, num_pes=1)
    itemsize = dtype_of(case.dtype).itemsize
    return resolve_dp_policy(
        policy, shape=shape, itemsize=itemsize, num_pe=machine.pes, num_cubes=machine.cubes, target_sip=0
    )


def refusal(case: Case, machine: Machine) -> str | None:
    """Words of the reason why a case is refused; None for one that must be done."""
    if case.op == "avg" and not dtype_of(case.dtype).is_float:
        return "Cannot use ReduceOp.AVG"
    if case.collective == "all_reduce_per_cube":
        return _refusal_per_cube(case, machine)
    return _refusal_of_blocks(case, machine) if case.collective in BY_BLOCKS else None


def _refusal_per_cube(case: Case, machine: Machine) -> str | None:
    """Cubes hold the same, or parts of several sizes; some algorithms want a rectangle of cubes."""
    policy, shape = PLACEMENTS[case.placement], (machine.cubes, *case.shape)
    if policy.cube == "replicate" and policy.num_cubes != 1 and machine.cubes > 1:
        return "has no addend for each cube"
    parts = cube_parts(case, numbers(case, 0, shape), machine.cubes)
    if len({part.size for part in parts}) > 1:
        return "has no addend for each cube"
    is_rectangle = len(parts) <= machine.cube_w or len(parts) % machine.cube_w == 0
    needs_one = case.algorithm in ("lrab_hierarchical_allreduce", "hierarchical_all_pes")
    return None if is_rectangle or not needs_one else "no rectangle of the cube mesh"


def _refusal_of_blocks(case: Case, machine: Machine) -> str | None:
    """Rows must lie end to end, and without virtual addresses a PE reaches only what lies in one place, or its own."""
    small = case.placement, case.shape
    large = case.other_placement or case.placement, (machine.sips * case.shape[0], *case.shape[1:])
    ends = {"all_gather_into_tensor": (small, large), "reduce_scatter_tensor": (large, small)}
    source, target = ends.get(case.collective, (large, large))
    if machine.sips == 1 and source == target and "all_to_all" not in case.collective:
        return None  # a copy of parts
    for placement, shape in (source, target):
        policy = PLACEMENTS[placement]
        if any(policy.split_axes(len(shape))):
            return "columns of tensor"
        if machine.model == "pa" and len({s.offset_bytes for s in shards(case, machine, placement, shape)}) > 1:
            return "with physical addresses a PE does not reach all of it"
    if machine.model == "pa":
        holders = [[(s.cube, s.pe) for s in shards(case, machine, *each)] for each in (source, target)]
        if len(holders[0]) > 1 and holders[0] != holders[1]:
            return "with physical addresses the input must lie where the output does"
    return None


# ------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("collective", ALGORITHMS)
@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_a_collective_leaves_what_numpy_has_or_says_why_not(machine: Machine, collective: str) -> None:
    if collective == "send_recv" and machine.sips == 1:
        return  # a rank has no other to send to
    tray = Tray(machine)
    for case in cases(machine, collective):
        why, outcome = refusal(case, machine), tray.outcome(case)
        if why is None:
            assert outcome == "right", f"{case} on {machine}: {outcome}"
        else:
            assert why in outcome, f"{case} on {machine}: {outcome}, not: {why}"


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
def test_together_the_cases_have_every_algorithm_with_every_op_type_and_placement() -> None:
    """Of what is not refused, so that the test above cannot become hollow."""
    done = [
        case
        for machine in MACHINES
        for collective in ALGORITHMS
        for case in cases(machine, collective)
        if refusal(case, machine) is None
    ]
    for collective, algorithms in ALGORITHMS.items():
        for algorithm in algorithms:
            mine = [case for case in done if (case.collective, case.algorithm) == (collective, algorithm)]
            by_blocks, per_cube = collective in BY_BLOCKS, collective == "all_reduce_per_cube"
            assert len({case.dtype for case in mine}) >= len(DTYPES) - 2
            assert {case.op for case in mine} == set(OPS if collective in REDUCING else ("sum",))
            assert len({case.shape for case in mine}) >= len(SHAPES) - 2
            assert {case.space for case in mine} == {"hbm", "tcm", "sram"}
            assert len({case.placement for case in mine}) >= len(PLACEMENTS) - (2 if by_blocks or per_cube else 0)


def test_every_module_of_algorithms_that_moves_numbers_is_among_the_cases() -> None:
    shipped = load_ccl_config({}).algorithms
    judged = {shipped[name]["module"] for algorithms in ALGORITHMS.values() for name in algorithms}
    assert {entry["module"] for entry in shipped.values()} - judged == {"kernbench.ccl.algorithms.dissemination"}


# --------------------------------------------------------------------------------------------------------------- means


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        (collective, algorithm)
        for collective in ("all_reduce", "all_reduce_per_cube", "reduce", "reduce_scatter_tensor")
        for algorithm in ALGORITHMS[collective]
    ],
)
def test_a_mean_is_right_though_the_sum_is_more_than_the_type_holds(collective: str, algorithm: str) -> None:
    """f16 holds 65504 at most, and 11 bits: a sum is rounded by up to 2**-11 of itself with every addend."""
    sips, case = 3, Case(collective, algorithm, (40,), "f16", op="avg")
    machine = Machine(sips, 2, 1, 1)
    blocks, per_cube = collective == "reduce_scatter_tensor", collective == "all_reduce_per_cube"
    shape = (sips * 40,) if blocks else (2, 40) if per_cube else (40,)
    given = [60000 - 32 * np.random.default_rng(rank).integers(0, 64, shape).astype(np.float64) for rank in range(sips)]
    addends = [row for each in given for row in each] if per_cube else given
    right = np.mean(addends, axis=0)
    tray = Tray(machine)
    torch, found = tray.torch, dict[int, np.ndarray]()

    def worker(rank: int) -> None:
        dist = torch.distributed
        dist.init_process_group("ahbm", ccl=case.ccl)
        x = torch.from_numpy(given[rank], dtype="f16", dp=PLACEMENTS["rows per cube"])
        if collective == "reduce":
            dist.reduce(x, 0, "avg")
        elif blocks:
            out = torch.empty(40, dtype="f16", dp=PLACEMENTS["rows per cube"])
            dist.reduce_scatter_tensor(out, x, "avg")
            x = out
        else:
            dist.all_reduce(x, "avg", per="cube" if per_cube else "rank")
        found[rank] = x.numpy().astype(np.float64)
        dist.destroy_process_group()

    torch.multiprocessing.spawn(worker, nprocs=sips)
    for rank in [0] if collective == "reduce" else range(sips):
        want = right[40 * rank : 40 * (rank + 1)] if blocks else right
        assert np.allclose(found[rank], want, rtol=len(addends) * 2.0**-11, atol=0)
