"""`torch.multiprocessing.spawn`: ranks side by side, their devices, and what happens when some fail."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.unit.runtime_api.tray import RANKS, Tray, machine

from kernbench.common.errors import DeadlockError, LaunchError, SpawnException, UsageError
from kernbench.runtime_api.bench_runner import run
from kernbench.runtime_api.context import RuntimeContext


@pytest.fixture
def tray() -> Iterator[Tray]:
    made = Tray()
    with made.torch:
        yield made


def wait_ns(torch: RuntimeContext, ns: float) -> None:
    torch.ranks.wait([torch.engine.env.timeout(ns)], f"{ns} ns to pass")


def never(torch: RuntimeContext, what: str) -> None:
    torch.ranks.wait([torch.engine.env.event()], what)


def line_of_never() -> str:
    return f"{__file__}:{never.__code__.co_firstlineno + 1}"


# ---- what runs


def test_each_rank_gets_its_number_and_the_arguments(tray: Tray) -> None:
    got: list[tuple[int, str, int]] = []
    tray.torch.multiprocessing.spawn(lambda rank, a, b: got.append((rank, a, b)), args=("x", 2), nprocs=2)
    assert got == [(0, "x", 2), (1, "x", 2)]


def test_a_rank_works_on_the_device_of_its_number_until_it_chooses_another(tray: Tray) -> None:
    def worker(rank: int) -> list[str]:
        devices = [tray.torch.zeros(4).device]
        tray.torch.ahbm.set_device((rank + 1) % RANKS)
        devices.append(tray.torch.zeros(4).device)
        with tray.torch.accelerator.device_index(0):
            devices.append(tray.torch.zeros(4).device)
        return [*devices, tray.torch.zeros(4).device]

    assert tray.workers(worker)[1] == ["sip:1", "sip:2", "sip:0", "sip:2"]
    assert tray.torch.ahbm.current_device() == 0


def test_ranks_share_the_time(tray: Tray) -> None:
    """Two ranks that take a while take it together."""
    before = tray.torch.now_ns
    tray.workers(lambda rank: wait_ns(tray.torch, 1000), nprocs=2)
    assert tray.torch.now_ns == before + 1000


def slow(x: Any, *, tl: Any) -> None:
    tl.cycles(10_000)
    tl.store(x, tl.load(x, x.local_shape) + 1)


def test_spawn_returns_when_all_that_ranks_issued_is_done(tray: Tray) -> None:
    tray.workers(lambda rank: tray.torch.launch("slow", slow, tray.torch.zeros(4), wait=False))
    assert all(launch.is_done for launch in tray.torch.launches)


def test_synchronize_waits_for_a_device(tray: Tray) -> None:
    torch = tray.torch
    here = torch.launch("slow", slow, torch.zeros(4), wait=False)
    torch.ahbm.set_device(1)
    there = torch.launch("slow", slow, torch.zeros(4), wait=False)
    torch.accelerator.synchronize(0)
    assert here.is_done
    torch.ahbm.synchronize()
    assert there.is_done


def test_a_rank_that_exits_with_zero_has_ended_well(tray: Tray) -> None:
    tray.workers(lambda rank: sys.exit(0))
    with pytest.raises(SpawnException, match="rank 1: SystemExit: 3"):
        tray.workers(lambda rank: sys.exit(3 if rank == 1 else None))


# ---- what cannot be


@pytest.mark.parametrize(
    ("given", "what", "hint"),
    [
        ({"nprocs": 4}, "nprocs is 4, and the machine has 3 SIPs", "use 1 to 3"),
        ({"nprocs": 0}, "nprocs is 0", "use 1 to 3"),
        ({"nprocs": 2.0}, "nprocs is 2.0", "use 1 to 3"),
        ({"join": False}, "join is False", "leave join out"),
        ({"args": 7}, "args is 7", r"args=\(7,\)"),
        ({"args": "abc"}, "args is 'abc'", r"args=\('abc',\)"),
        ({"fn": 3}, "fn is 3", "give a function"),
        (
            {"args": (1,)},
            r"\(rank\) cannot be called with a rank and 1 further argument: too many",
            r"calls fn\(rank, \*args\)",
        ),
        (
            {"fn": lambda rank, context: None},
            "called with a rank: missing a required argument: 'context'",
            r"args=\(torch,\)",
        ),
    ],
)
def test_wrong_arguments_are_refused(tray: Tray, given: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        tray.torch.multiprocessing.spawn(**{"fn": lambda rank: None, **given})
    assert re.search(hint, caught.value.hint or "")


def test_a_rank_spawns_no_ranks(tray: Tray) -> None:
    errors = tray.error(lambda rank: tray.torch.multiprocessing.spawn(lambda rank: None))
    assert sorted(errors) == [0, 1, 2]


def test_a_program_that_spawns_runs_once_and_one_that_lets_another_spawn_says_so() -> None:
    started: list[int] = []

    def spawn(torch: RuntimeContext) -> None:
        torch.multiprocessing.spawn(started.append, nprocs=2)

    run(spawn, machine())
    assert sorted(started) == [0, 1]
    with pytest.raises(UsageError, match="a rank itself") as caught:
        run(lambda torch: spawn(torch), machine())
    assert "--device whole" in str(caught.value)


def test_a_kernel_is_no_rank(tray: Tray) -> None:
    def kernel() -> None:
        tray.dist.get_rank()

    with pytest.raises(LaunchError, match="a kernel asks the host which rank it is"):
        tray.torch.launch("kernel", kernel)


# ---- failures


def test_one_rank_that_fails_ends_all(tray: Tray) -> None:
    cleaned: list[int] = []

    def worker(rank: int) -> None:
        if rank == 1:
            wait_ns(tray.torch, 5)
            raise ValueError("no good")
        try:
            wait_ns(tray.torch, 1000)
        finally:
            cleaned.append(rank)

    with pytest.raises(SpawnException) as caught:
        tray.torch.multiprocessing.spawn(worker, nprocs=RANKS)
    assert cleaned == [0, 2]
    assert tray.torch.now_ns == 5
    assert [*caught.value.errors] == [1]
    assert isinstance(caught.value.errors[1], ValueError)
    assert caught.value.__cause__ is caught.value.errors[1]
    assert isinstance(caught.value, RuntimeError)  # as what PyTorch raises
    lines = str(caught.value).splitlines()
    assert lines[:2] == ["rank 1 of 3 failed; the others were ended", "  rank 1: ValueError: no good"]
    assert "test_multiprocessing.py" in lines[2]
    assert lines[2].endswith('raise ValueError("no good")')


def test_ranks_that_fail_at_one_instant_are_all_named(tray: Tray) -> None:
    def worker(rank: int) -> None:
        wait_ns(tray.torch, 6 if rank == 1 else 5)
        raise ValueError(f"rank {rank} is tired")

    with pytest.raises(SpawnException) as caught:
        tray.torch.multiprocessing.spawn(worker, nprocs=RANKS)
    assert sorted(caught.value.errors) == [0, 2]  # and rank 1 never came to it
    assert str(caught.value).startswith("ranks 0, 2 of 3 failed; the others were ended\n")
    assert "rank 0: ValueError: rank 0 is tired" in str(caught.value)
    assert "rank 2: ValueError: rank 2 is tired" in str(caught.value)


def test_ranks_that_fail_before_any_time_passes_are_all_named(tray: Tray) -> None:
    errors = tray.error(lambda rank: 1 // 0)
    assert sorted(errors) == [0, 1, 2]


def test_the_same_holds_within_a_bench() -> None:
    def worker(rank: int, torch: RuntimeContext) -> None:
        wait_ns(torch, 6 if rank == 1 else 5)
        raise ValueError(f"rank {rank} is tired")

    def bench(torch: RuntimeContext) -> None:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=RANKS)

    with pytest.raises(SpawnException, match="ranks 0, 2 of 3 failed"):
        run(bench, machine(), device="whole")


def test_what_a_rank_raises_while_it_is_ended_is_no_failure_of_its_own(tray: Tray) -> None:
    log: list[str] = []

    def worker(rank: int) -> None:
        if rank == 0:
            wait_ns(tray.torch, 5)
            raise ValueError("no good")
        try:
            wait_ns(tray.torch, 1000)
        finally:
            if rank == 1:
                raise KeyError("while cleaning up")
            wait_ns(tray.torch, 1000)  # who is ended waits no more
            log.append("not here")

    assert [*tray.error(worker)] == [0]
    assert log == []
    assert tray.torch.now_ns == 5


def test_a_kernel_that_fails_is_the_failure_of_its_rank(tray: Tray) -> None:
    def fails(x: Any) -> None:
        raise ValueError("no good")

    def worker(rank: int) -> None:
        x = tray.torch.zeros(4)
        if rank == 2:
            tray.torch.launch("fails", fails, x, wait=False)  # and it is not waited for

    with pytest.raises(SpawnException, match="rank 2 of 3 failed") as caught:
        tray.torch.multiprocessing.spawn(worker, nprocs=RANKS)
    assert isinstance(caught.value.errors[2], LaunchError)
    assert "rank 2: LaunchError: kernel 'fails' failed on sip 2, cube 0, pe 0: ValueError: no good" in str(caught.value)


def test_what_ended_ranks_have_running_is_stopped_and_the_context_goes_on(tray: Tray) -> None:
    def forever(x: Any, *, tl: Any) -> None:
        while True:
            tl.cycles(1000)

    def worker(rank: int) -> None:
        x = tray.torch.zeros(4)
        if rank:
            tray.torch.launch("forever", forever, x)
        wait_ns(tray.torch, 50_000)
        raise ValueError("no good")

    assert [*tray.error(worker)] == [0]
    tray.torch.wait_all()
    np.testing.assert_array_equal(tray.torch.full(3, 2.0).numpy(), [2, 2, 2])


def test_what_interrupts_a_rank_is_no_failure_of_it(tray: Tray) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            raise KeyboardInterrupt
        never(tray.torch, "another")

    with pytest.raises(KeyboardInterrupt):
        tray.torch.multiprocessing.spawn(worker, nprocs=RANKS)


# ---- waiting for what never happens


def test_a_deadlock_says_what_each_rank_waits_for(tray: Tray) -> None:
    def worker(rank: int) -> None:
        if rank:
            never(tray.torch, f"letter {rank}")

    with pytest.raises(DeadlockError) as caught:
        tray.torch.multiprocessing.spawn(worker, nprocs=RANKS)
    line = line_of_never()
    assert caught.value.where == f"the host waits for: rank 1: letter 1 at {line}; rank 2: letter 2 at {line}"


def test_a_deadlock_within_a_bench_is_raised_as_one() -> None:
    def bench(torch: RuntimeContext) -> None:
        torch.multiprocessing.spawn(lambda rank: never(torch, "a letter"), nprocs=2)

    with pytest.raises(DeadlockError) as caught:
        run(bench, machine(), device="whole")
    assert caught.value.where == f"the host waits for: rank 0, rank 1: a letter at {line_of_never()}"


# ---- what ranks print


def test_lines_of_ranks_do_not_mix(tray: Tray, capsys: pytest.CaptureFixture[str]) -> None:
    def worker(rank: int) -> None:
        print("rank", rank, end=" ")
        wait_ns(tray.torch, 5 - rank)  # others run meanwhile
        print("is", "done")
        print("and", rank, end="")

    tray.torch.multiprocessing.spawn(worker, nprocs=RANKS)
    assert capsys.readouterr().out == "rank 2 is done\nrank 1 is done\nrank 0 is done\nand 2and 1and 0"


def test_a_flush_writes_what_a_rank_has_begun(tray: Tray, capsys: pytest.CaptureFixture[str]) -> None:
    def worker(rank: int) -> None:
        print(f"<{rank}", end="", flush=True)
        wait_ns(tray.torch, 5)
        print(">")

    before = sys.stdout
    tray.torch.multiprocessing.spawn(worker, nprocs=2)
    assert capsys.readouterr().out == "<0<1>\n>\n"
    assert sys.stdout is before


def test_an_error_in_a_call_names_the_line_of_the_program_not_of_pythons_library(tray: Tray) -> None:
    def worker(rank: int) -> None:
        x = tray.torch.zeros(4, 4)
        tray.dist.all_reduce(x.t())

    tray.dist.init_process_group("ahbm", world_size=RANKS)
    with pytest.raises(SpawnException) as caught:
        tray.torch.multiprocessing.spawn(worker, nprocs=RANKS)
    for error in caught.value.errors.values():
        assert isinstance(error, UsageError)
        assert error.where == f"{__file__}:{worker.__code__.co_firstlineno + 2}  tray.dist.all_reduce(x.t())"
