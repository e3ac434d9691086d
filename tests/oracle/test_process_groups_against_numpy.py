"""Several collectives and messages at once, in several groups, against numpy: TP x DP, one after another, both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.collective_cases import (
    ALGORITHMS,
    OPS,
    PLACEMENTS,
    REDUCING,
    Array,
    Case,
    Machine,
    Tray,
    expected,
    is_right,
    work,
)

from kernbench.policy.placement.dp import DPPolicy

EVERY_PE = DPPolicy(cube="row_wise", pe="row_wise")


def spawn(tray: Tray, worker: Any) -> dict[int, Any]:
    """What each rank returns, in a world of its own."""
    returned: dict[int, Any] = {}

    def body(rank: int) -> None:
        returned[rank] = worker(rank)

    tray.torch.distributed.init_process_group("ahbm")
    tray.torch.multiprocessing.spawn(body, nprocs=tray.machine.sips)
    tray.torch.distributed.destroy_process_group()
    return returned


@pytest.mark.parametrize("n", [5, 3000])
def test_tensor_and_data_parallel_groups_work_at_the_same_time(n: int) -> None:
    """Six ranks as 2 x 3: pairs sum what their neighbours have, and every third rank takes the largest."""
    tray = Tray(Machine(6, 2, 1, 2))
    torch, dist = tray.torch, tray.torch.distributed
    pairs, thirds = [[0, 1], [2, 3], [4, 5]], [[0, 2, 4], [1, 3, 5]]

    def numbers(rank: int, k: int) -> Array:
        return np.random.default_rng((rank, k)).integers(-99, 99, n, dtype=np.int32)

    def worker(rank: int) -> list[Array]:
        groups = [dist.new_group(ranks) for ranks in (*pairs, *thirds)]
        tp, dp = (
            next(g for g, ranks in zip(groups, (*pairs, *thirds), strict=True) if rank in ranks and k == len(ranks))
            for k in (2, 3)
        )
        tensors = [torch.from_numpy(numbers(rank, k), dp=EVERY_PE) for k in range(4)]
        works = []
        for k, x in enumerate(tensors):
            works.append(dist.all_reduce(x, "sum" if k % 2 == 0 else "max", group=dp if k % 2 else tp, async_op=True))
        for each in reversed(works):
            each.wait()
        return [x.numpy() for x in tensors]

    found = spawn(tray, worker)
    for rank in range(6):
        pair, third = pairs[rank // 2], thirds[rank % 2]
        for k, got in enumerate(found[rank]):
            addends = [numbers(each, k) for each in (third if k % 2 else pair)]
            np.testing.assert_array_equal(got, np.max(addends, 0) if k % 2 else np.sum(addends, 0, dtype=np.int32))


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
def test_collectives_of_all_kinds_follow_one_another_in_one_group() -> None:
    """Nothing that one leaves in rings, memory or tables reaches another: two rounds of everything."""
    tray = Tray(Machine(3, 2, 1, 2))
    torch, shapes = tray.torch, ((5,), (700,), (3, 4), (900,))
    names = [name for name in ALGORITHMS if name != "all_reduce_per_cube"] * 2
    cases = [
        Case(
            collective,
            "",
            shapes[at % 4],
            ("i32", "f32", "u8")[at % 3],
            OPS[at % 4] if collective in REDUCING else "sum",
            tuple(PLACEMENTS)[at % 6],
            root=at % 3,
            seed=at,
        )
        for at, collective in enumerate(names)
    ]

    def worker(rank: int) -> list[list[Array]]:
        def run(case: Case) -> list[Array]:
            left = work(
                torch.distributed,
                lambda array, _: torch.from_numpy(array, dp=PLACEMENTS[case.placement]),
                case,
                rank,
                3,
            )
            return [tensor.numpy() for tensor in left]

        return [run(case) for case in cases]

    found = spawn(tray, worker)
    for rank in range(3):
        for case, got in zip(cases, found[rank], strict=True):
            for mine, right in zip(got, expected(case, rank, 3), strict=True):
                assert is_right(case, mine, right), f"{case}, rank {rank}"


def test_large_messages_in_both_directions_at_once() -> None:
    """All ranks send to all others, 60 KiB and more, which no ring holds: who sends need not have been received."""
    tray = Tray(Machine(3, 1, 1, 2))
    torch, dist = tray.torch, tray.torch.distributed

    def message(rank: int, to: int) -> Array:
        return np.random.default_rng((rank, to)).integers(0, 2**31, 15000 + 1000 * rank, dtype=np.int32)

    def worker(rank: int) -> list[tuple[int, Array]]:
        others = [each for each in range(3) if each != rank]
        works = [dist.isend(torch.from_numpy(message(rank, each)), each) for each in others]
        inbox = [(each, torch.empty(15000 + 1000 * each, dtype="i32")) for each in others]
        works += [dist.irecv(y, each) for each, y in inbox]
        for under_way in works:
            under_way.wait()
        return [(each, y.numpy()) for each, y in inbox]

    for rank, inbox in spawn(tray, worker).items():
        for sender, got in inbox:
            np.testing.assert_array_equal(got, message(sender, rank))


def test_messages_from_anybody_are_each_taken_once() -> None:
    tray = Tray(Machine(4))
    torch, dist = tray.torch, tray.torch.distributed

    def worker(rank: int) -> list[tuple[int, int]]:
        if rank:
            for k in range(3):
                dist.send(torch.from_numpy(np.full(40 * rank, 10 * rank + k, np.int32)[:40]), 0)
            return []
        found = []
        for _ in range(9):
            y = torch.empty(40, dtype="i32")
            sender = dist.recv(y)
            found.append((sender, int(y.numpy()[0])))
        return found

    found = spawn(tray, worker)[0]
    for rank in (1, 2, 3):  # in the order in which that rank sent them
        assert [value for sender, value in found if sender == rank] == [10 * rank, 10 * rank + 1, 10 * rank + 2]


def test_an_async_all_reduce_overlaps_with_compute() -> None:
    """Together they take less than one after the other, and no less than the longer of the two; both are right."""

    def matmul(a: Any, b: Any, c: Any, tl: Any) -> None:
        x, y = tl.load(a, (128, 128)), tl.load(b, (128, 128))
        for _ in range(12):
            z = tl.dot(x, y)
        tl.store(c, z)

    def took(*, compute: bool, reduce: bool) -> float:
        tray = Tray(Machine(2, 1, 1, 2))
        torch, dist = tray.torch, tray.torch.distributed
        a = np.random.default_rng(0).integers(-2, 3, (128, 128)).astype(np.float16)
        wide = a.astype(np.float32)

        def worker(rank: int) -> float:
            x = torch.from_numpy(np.full(40_000, rank + 1, np.float32), dp=EVERY_PE)
            one, two, out = torch.from_numpy(a), torch.from_numpy(a), torch.zeros(128, 128, dtype="f16")
            dist.barrier()
            start_ns = torch.now_ns
            under_way = dist.all_reduce(x, async_op=True) if reduce else None
            if compute:
                torch.launch("matmul", matmul, one, two, out)
            if under_way is not None:
                under_way.wait()
            end_ns = torch.now_ns
            if reduce:
                np.testing.assert_array_equal(x.numpy(), np.full(40_000, 3, np.float32))
            if compute:
                np.testing.assert_array_equal(out.numpy(), (wide @ wide).astype(np.float16))
            return end_ns - start_ns

        return max(spawn(tray, worker).values())

    both, alone, without = (
        took(compute=True, reduce=True),
        took(compute=True, reduce=False),
        took(compute=False, reduce=True),
    )
    assert max(alone, without) <= both < 0.8 * (alone + without)
