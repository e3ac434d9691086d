"""Collectives against PyTorch's own, on four CPU ranks with the gloo backend: the same function runs on both, over ops,
element types and odd sizes, and leaves the same bits. Where gloo refuses, so do we, or it knows the type less well.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: numpy judges collectives in tests/oracle")

from tests.frontends.gloo_ranks import Result, run_on_gloo
from tests.oracle.collective_cases import ALGORITHMS, OPS, REDUCING, Array, Case, Machine, Tray

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import SpawnException

# The same text runs on PyTorch, which has no per=: rows for each cube are reduced over ranks, and we say so once.
pytestmark = pytest.mark.filterwarnings("ignore:all_reduce of:kernbench.common.errors.KernBenchWarning")
RANKS = 4
MACHINE = Machine(RANKS, 2, 1, 2)
GLOO_TYPES = ("f32", "f16", "bf16", "i8", "u8", "i32", "i64", "bool")
OTHER_TYPES = ("i16", "u16", "u32", "f8e4m3", "f8e5m2")  # gloo: "Invalid scalar type"
SHAPES = ((7,), (333,), (3, 7), (1,), (2, 3, 4), (5000,), (8,))
SHARED = [name for name in ALGORITHMS if name != "all_reduce_per_cube"]  # per="cube" is ours alone


def all_cases() -> list[Case]:
    """Every collective with every op and type; sizes, algorithms, placements and roots go round."""
    shapes, roots, placements = cycle(SHAPES), cycle(range(RANKS)), cycle(("rows per PE", "one PE", "replicated"))
    found = []
    for collective in SHARED:
        algorithms = cycle(ALGORITHMS[collective])
        for dtype in (*GLOO_TYPES, *OTHER_TYPES):
            for op in OPS if collective in REDUCING else ("sum", "sum"):
                found.append(
                    Case(
                        collective,
                        next(algorithms),
                        next(shapes),
                        dtype,
                        op,
                        next(placements),
                        root=next(roots),
                        seed=len(found),
                    )
                )
    return found


CASES = all_cases()


def conversation(dist: Any, make: Callable[[Array], Any], rank: int) -> dict[str, Any]:
    """A program of four ranks, with groups, tags, messages from anybody and work that is waited for later."""
    left: dict[str, Any] = {}
    evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
    three = dist.new_group([3, 0, 1])  # ranks of a group are in the order of their numbers
    mine = evens if rank % 2 == 0 else odds
    left["rank in my group"] = dist.get_rank(mine)
    left["size of my group"] = dist.get_world_size(mine)
    left["rank in the group of three"] = dist.get_rank(three)
    left["ranks of it"] = dist.get_process_group_ranks(three) if rank != 2 else []

    x = make(np.full(5, rank + 1, np.int32))
    dist.all_reduce(x, group=mine)
    left["sum in my group"] = x
    if rank != 2:
        y = make(np.arange(6, dtype=np.float32) * (rank + 1))
        dist.broadcast(y, 3, group=three)
        left["broadcast in three"] = y
        parts = [make(np.zeros(2, np.int32)) for _ in range(3)] if rank == 1 else None
        dist.gather(make(np.array([rank, -rank], np.int32)), parts, 1, group=three)
        left.update({f"gathered {at}": part for at, part in enumerate(parts or ())})

    # Messages with tags overtake each other.
    to, back = (rank + 1) % RANKS, (rank - 1) % RANKS
    first, second = (make(np.zeros(3, np.int32)) for _ in range(2))
    works = [
        dist.isend(make(np.full(3, 10 * rank + 1, np.int32)), to, tag=1),
        dist.isend(make(np.full(3, 10 * rank + 2, np.int32)), to, tag=2),
        dist.irecv(second, back, tag=2),
        dist.irecv(first, back, tag=1),
    ]
    for each in works:
        each.wait()
    left["tag 1"], left["tag 2"] = first, second

    # Rank 0 takes what anybody sends.
    if rank == 0:
        total = np.zeros(2, np.int32)
        senders = []
        for _ in range(RANKS - 1):
            z = make(np.zeros(2, np.int32))
            senders.append(dist.recv(z))
            total = total + z.numpy()
        left["senders"], left["total of all"] = sorted(senders), total
    else:
        dist.send(make(np.array([rank, 100 * rank], np.int32)), 0)

    # Several at once, waited for in another order.
    tensors = [make(np.arange(4, dtype=np.int32) + rank + k) for k in range(3)]
    started = [dist.all_reduce(each, dist.ReduceOp.MAX, async_op=True) for each in tensors]
    for each in reversed(started):
        each.wait()
    left.update({f"maximum {k}": each for k, each in enumerate(tensors)})
    dist.barrier()
    return left


@pytest.fixture(scope="module")
def gloo() -> tuple[list[list[Result]], list[dict[str, Any]]]:
    return run_on_gloo(CASES, RANKS, conversation)


def equal(case: Case, ours: Array, theirs: Array) -> bool:
    if case.dtype == "bool":  # gloo adds the bytes of booleans: any number but 0 is true
        return ours.shape == theirs.shape and bool(((ours.view(np.uint8) != 0) == (theirs.view(np.uint8) != 0)).all())
    if ours.tobytes() == theirs.tobytes() and ours.shape == theirs.shape:
        return True
    step = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}.get(case.dtype, 0.0) if case.op == "avg" else 0.0
    return ours.shape == theirs.shape and bool(
        np.allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=step, atol=0)
    )


@pytest.mark.parametrize("collective", SHARED)
def test_a_collective_leaves_what_gloo_leaves(collective: str, gloo: Any) -> None:
    tray, compared = Tray(MACHINE), 0
    for case, theirs in zip(CASES, gloo[0], strict=True):
        if case.collective != collective:
            continue
        if case.dtype in OTHER_TYPES and collective != "send_recv":
            assert theirs[0] == "Invalid scalar type"
            continue
        if case.op == "avg" and not dtype_of(case.dtype).is_float:
            assert isinstance(theirs[0], str), f"gloo does {case}"
            with pytest.raises(SpawnException, match=r"Cannot use ReduceOp\.AVG"):
                tray.run(case)
            continue
        ours = tray.run(case)
        for rank in range(RANKS):
            assert not isinstance(theirs[rank], str), f"{case}: gloo says {theirs[rank]}"
            assert len(ours[rank]) == len(theirs[rank])
            for got, want in zip(ours[rank], theirs[rank], strict=True):
                assert equal(case, got, want), f"{case}, rank {rank}: {got.ravel()[:9]}, gloo {want.ravel()[:9]}"
        compared += 1
    assert compared >= 2 * len(GLOO_TYPES)


def test_a_program_of_groups_messages_and_async_work_leaves_what_it_does_on_gloo(gloo: Any) -> None:
    tray = Tray(MACHINE)
    torch = tray.torch
    ours: dict[int, dict[str, Any]] = {}

    def worker(rank: int) -> None:
        left = conversation(torch.distributed, torch.from_numpy, rank)
        ours[rank] = {name: value.numpy() if hasattr(value, "numpy") else value for name, value in left.items()}

    torch.distributed.init_process_group("ahbm")
    torch.multiprocessing.spawn(worker, nprocs=RANKS)
    for rank, theirs in enumerate(gloo[1]):
        assert list(ours[rank]) == list(theirs)
        for name, value in theirs.items():
            np.testing.assert_array_equal(ours[rank][name], value, err_msg=f"{name} of rank {rank}")
