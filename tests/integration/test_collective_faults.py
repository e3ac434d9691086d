"""Collectives that go wrong: a rank dies, never comes, asks for something else, or an algorithm is wrong. Each gives a
report that says who and where, none hangs, and the machine can be used afterwards. None of our algorithms has a race.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracle.collective_cases import ALGORITHMS, PLACEMENTS, Case, Machine, Tray, work

import kernbench
from kernbench.ccl.modules import _from_file
from kernbench.common.errors import (
    CollectiveMismatchError,
    DeadlockError,
    KernBenchError,
    LaunchError,
    SpawnException,
    UnreceivedError,
    UsageError,
)
from kernbench.runtime_api.context import RuntimeContext

RANKS = 3
N = 3000  # f32: more than a slot holds


@pytest.fixture
def tray() -> Tray:
    return Tray(Machine(RANKS, 1, 1, 2))


def tensor(torch: RuntimeContext, value: float = 1.0, n: int = N, dtype: str = "f32") -> Any:
    return torch.from_numpy(np.full(n, value), dtype=dtype)


def split(torch: RuntimeContext) -> Any:
    return torch.from_numpy(np.ones(N, np.float32), dp=PLACEMENTS["rows per PE"])


def run(tray: Tray, worker: Callable[[int], object], ccl: dict[str, object] | None = None) -> None:
    """Ranks in a world of their own, as a PyTorch script has it."""
    dist = tray.torch.distributed

    def whole(rank: int) -> None:
        dist.init_process_group("ahbm", ccl=ccl)
        worker(rank)
        dist.destroy_process_group()

    tray.torch.multiprocessing.spawn(whole, nprocs=RANKS)


def still_works(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> None:
        x = tensor(torch, rank)
        torch.distributed.all_reduce(x)
        assert (x.numpy() == 3).all()

    run(tray, worker)


def faults(tray: Tray, worker: Callable[[int], object]) -> dict[int, BaseException]:
    """What each rank raises."""
    with pytest.raises(SpawnException) as caught:
        run(tray, worker)
    still_works(tray)
    return caught.value.errors


# -------------------------------------------------------------------------------------------------- ranks that go wrong


def test_a_rank_that_dies_ends_the_others_in_the_middle_of_a_collective(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> None:
        torch.distributed.all_reduce(tensor(torch))
        if rank == 1:
            torch.launch("busy", lambda tl: tl.cycles(5000), wait=True)  # the others wait in their kernels by then
            raise RuntimeError("out of luck")
        torch.distributed.all_reduce(tensor(torch))

    errors = faults(tray, worker)
    assert list(errors) == [1]
    assert str(errors[1]) == "out of luck"


@pytest.mark.parametrize("backpressure", ["sleep", "poll"])
def test_a_rank_that_never_comes_is_named_with_the_lines_that_wait_for_it(tray: Tray, backpressure: str) -> None:
    torch = tray.torch

    def worker(rank: int) -> None:
        torch.distributed.all_reduce(tensor(torch))
        if rank != 2:
            torch.distributed.all_reduce(tensor(torch, n=700), "max")

    with pytest.raises(DeadlockError) as caught:
        run(tray, worker, {"defaults": {"backpressure": backpressure}})
    (unmatched,) = caught.value.unmatched
    assert unmatched.startswith("call 2 of group ")
    assert "ranks 0, 1 called all_reduce(f32[700], MAX)" in unmatched
    assert unmatched.endswith("never called by rank 2, whose program has ended")
    assert {kernel.sip for kernel in caught.value.blocked} == {0, 1}
    assert "recv from rank_2" in str(caught.value)
    still_works(tray)


@pytest.mark.parametrize(
    ("different", "says"),
    [
        (lambda torch: torch.distributed.all_reduce(tensor(torch, n=N + 1)), "elements: {} and {}, 3001, 3000"),
        (lambda torch: torch.distributed.all_reduce(tensor(torch, dtype="f16")), "dtype: {} and {}, f16, f32"),
        (lambda torch: torch.distributed.all_reduce(tensor(torch), "max"), "op: {} and {}, MAX, SUM"),
        (lambda torch: torch.distributed.reduce(tensor(torch), 0), "collective: {} and {}, reduce, all_reduce"),
        (lambda torch: torch.distributed.barrier(), "collective: {} and {}, barrier, all_reduce"),
        (
            lambda torch: torch.distributed.all_reduce(split(torch)),
            "placement: {} and {}, cubes 0, PEs 0, 1, parts of 6000 bytes; cubes 0, PEs 0, parts of 12000 bytes",
        ),
    ],
    ids=["size", "dtype", "op", "collective", "barrier", "placement"],
)
def test_a_rank_that_calls_something_else_is_refused_with_both_calls(
    tray: Tray, different: Callable[[RuntimeContext], object], says: str
) -> None:
    torch = tray.torch

    def worker(rank: int) -> None:
        (different if rank == 1 else lambda torch: torch.distributed.all_reduce(tensor(torch)))(torch)

    form, _, values = says.partition(", ")
    one, other = values.split("; " if ";" in values else ", ")
    errors = faults(tray, worker)
    assert all(isinstance(error, CollectiveMismatchError) for error in errors.values())
    text = str(errors.get(1) or next(iter(errors.values())))
    assert form.format(one, other) in text or form.format(other, one) in text
    assert "rank 1 calls" in text or "rank 1 called" in text


def test_a_message_that_is_longer_than_what_waits_for_it_is_refused(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> None:
        if rank == 0:
            torch.distributed.send(tensor(torch, n=N + 5), 1)
        elif rank == 1:
            torch.distributed.recv(tensor(torch), 0)

    (error,) = faults(tray, worker).values()
    assert isinstance(error, CollectiveMismatchError)
    assert "3005" in str(error)
    assert "3000" in str(error)


def test_two_ranks_that_receive_before_they_send_are_reported(tray: Tray) -> None:
    torch = tray.torch

    def worker(rank: int) -> None:
        if rank < 2:
            torch.distributed.recv(tensor(torch), 1 - rank)
            torch.distributed.send(tensor(torch), 1 - rank)

    with pytest.raises(DeadlockError) as caught:
        run(tray, worker)
    assert len(caught.value.unmatched) == 2
    assert "rank 1 never sent it" in str(caught.value)
    still_works(tray)


def test_groups_that_ranks_enter_in_another_order_are_reported(tray: Tray) -> None:
    """Ranks 0 and 1 are in two groups, and wait for each other in different ones, as with NCCL."""
    torch, dist = tray.torch, tray.torch.distributed

    def worker(rank: int) -> None:
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        if rank < 2:
            for group in groups if rank else reversed(groups):
                dist.all_reduce(tensor(torch), group=group)

    with pytest.raises(DeadlockError) as caught:
        run(tray, worker)
    assert len(caught.value.unmatched) == 2
    still_works(tray)


# -------------------------------------------------------------------------------------------- algorithms that go wrong

HEADER = """
def kernel_args(world_size, n_elem, *, cube_w=4, cube_h=4):
    return n_elem, world_size

def kernel(t_ptr, n_elem, n_sips, rank, kind, w, h, *, tl):
    x = tl.load(t_ptr, (n_elem,))
"""


def algorithm(folder: Path, body: str, backpressure: str = "sleep") -> dict[str, object]:
    """A configuration in which the user's module does all_reduce."""
    file = folder / "mine.py"
    file.write_text(HEADER + "".join(f"    {line}\n" for line in body.splitlines()))
    return {
        "defaults": {"algorithm": "mine", "backpressure": backpressure},
        "algorithms": {"mine": {"module": str(file)}},
    }


def reported(tray: Tray, ccl: dict[str, object], n: int = N) -> KernBenchError:
    torch = tray.torch
    with pytest.raises((DeadlockError, SpawnException, UnreceivedError, UsageError)) as caught:
        run(tray, lambda rank: torch.distributed.all_reduce(tensor(torch, n=n)), ccl)
    still_works(tray)
    return caught.value


RIGHT = "tl.send('global_E', x)\ny = tl.recv('global_W', (n_elem,), 'f32')"


@pytest.mark.parametrize("backpressure", ["sleep", "poll"])
@pytest.mark.parametrize(
    ("body", "line", "waits"),
    [
        (f"{RIGHT}\ny = tl.recv('global_W', (n_elem,), 'f32')", 9, "recv from global_W"),
        ("y = tl.recv('global_W', (n_elem,), 'f32')\ntl.send('global_E', x)", 7, "recv from global_W"),
        ("tl.send('global_E', x)\ny = tl.recv('global_E', (n_elem,), 'f32')", 8, "recv from global_E"),
        (f"for _ in range(9):\n    tl.send('global_E', x)\n{RIGHT}", 8, "send to global_E"),
    ],
    ids=["one receive too many", "all receive first", "the wrong side", "more than rings hold"],
)
def test_an_unbalanced_algorithm_is_reported_line_by_line(
    tray: Tray, tmp_path: Path, body: str, line: int, waits: str, backpressure: str
) -> None:
    error = reported(tray, algorithm(tmp_path, body, backpressure))
    assert isinstance(error, DeadlockError)
    assert [kernel.sip for kernel in error.blocked] == list(range(RANKS))
    assert str(error).count(f"mine.py:{line}") == str(error).count(waits) == 1  # for all ranks together
    assert all(f"{kernel.file}:{kernel.line}".endswith(f"mine.py:{line}") for kernel in error.blocked)
    assert len(error.cycle) == RANKS


def test_one_send_too_many_is_reported_by_the_call_that_should_have_received_it(tray: Tray, tmp_path: Path) -> None:
    torch, ended = tray.torch, []

    def worker(rank: int) -> None:
        x = tensor(torch, n=1000)  # which rings hold
        torch.distributed.all_reduce(x)
        x.numpy()
        ended.append(rank)

    with pytest.raises(SpawnException) as caught:
        run(tray, worker, algorithm(tmp_path, f"tl.send('global_E', x)\n{RIGHT}"))
    (unreceived,) = caught.value.errors.values()  # of the rank that ends last: then it is known
    assert isinstance(unreceived, UnreceivedError)
    assert len(unreceived.messages) == RANKS
    assert len(ended) < RANKS
    assert "kernel 'all_reduce.mine' has ended" in str(unreceived)
    assert "mine.py:8" in str(unreceived)  # the second one of each rank
    still_works(tray)


def test_the_next_call_does_not_hide_what_the_one_before_it_left(tray: Tray, tmp_path: Path) -> None:
    torch = tray.torch

    def worker(rank: int) -> None:
        works = [torch.distributed.all_reduce(tensor(torch, n=100), async_op=True) for _ in range(2)]
        for work_ in works:
            work_.wait()

    once = f"{RIGHT}\nif rank == 0:\n    tl.send('global_E', x)"
    with pytest.raises((SpawnException, UnreceivedError)) as caught:
        run(tray, worker, algorithm(tmp_path, once))
    assert "mine.py:10" in str(caught.value)
    still_works(tray)


SEND = "tl.send('global_E', x)\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("tl.send('global_N', x)", "no neighbour 'global_N'"),
        (f"{SEND}tl.recv('global_W', (n_elem + 1,), 'f32')", "expects f32[3001], but f32[3000] was sent"),
        (f"{SEND}tl.recv('global_W', (n_elem,), 'i32')", "expects i32[3000], but f32[3000] was sent"),
        (f"{SEND}tl.recv('global_W', (3, 1000), 'f32')", "expects f32[3, 1000], but f32[3000] was sent"),
        (f"if rank == 1:\n    raise ValueError('a bug')\n{RIGHT}", "ValueError: a bug"),
        ("tl.receive('global_W')", "receive"),
    ],
    ids=["direction", "size", "dtype", "shape", "exception", "name"],
)
def test_a_wrong_kernel_fails_with_its_line(tray: Tray, tmp_path: Path, body: str, says: str) -> None:
    error = reported(tray, algorithm(tmp_path, body))
    assert isinstance(error, SpawnException)
    assert all(isinstance(each, LaunchError) for each in error.errors.values())
    assert says in str(error)
    assert "mine.py:" in str(error)


def test_an_algorithm_that_is_none_is_refused_before_anything_runs(tray: Tray, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    ccl: dict[str, object] = {"defaults": {"algorithm": "mine"}, "algorithms": {"mine": {"module": str(file)}}}
    for text, says in (
        ("x = 1", "has no function 'kernel'"),
        ("x = ", "SyntaxError"),
        ("import nothing_there", "nothing_there"),
    ):
        file.write_text(text)
        file.touch()
        assert says in str(reported(tray, ccl))
        file.unlink()
    assert "there is no file" in str(reported(tray, ccl))


def test_a_kernel_that_does_not_take_what_it_is_given_is_refused_at_its_line(tray: Tray, tmp_path: Path) -> None:
    ccl = algorithm(tmp_path, RIGHT)
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace("n_sips, rank, kind", "n_sips, kind"))
    error = reported(tray, ccl)
    assert "kernel(t_ptr, n_elem, n_sips, kind, w, h, *, tl) of algorithm 'mine' does not take" in str(error)
    assert "mine.py:5" in str(error)
    assert "the 2 values that kernel_args returns, then sip_rank" in str(error)
    assert " at 0x" not in str(error)


@pytest.mark.parametrize(
    ("returned", "says", "hint"),
    [
        ("n_elem", "returns 3000, which is no tuple", "`return 3000,` with a comma"),
        ("None", "returns None, which is no tuple", "def kernel_args("),
        ("1 // 0,", "failed: ZeroDivisionError", "def kernel_args("),
    ],
)
def test_kernel_args_that_are_no_tuple_are_refused_at_their_line(
    tray: Tray, tmp_path: Path, returned: str, says: str, hint: str
) -> None:
    ccl = algorithm(tmp_path, "pass")
    (tmp_path / "mine.py").write_text(HEADER.replace("return n_elem, world_size", f"return {returned}"))
    error = reported(tray, ccl)
    assert f"kernel_args of algorithm 'mine' {says}" in str(error)
    assert "mine.py:" in str(error)
    assert hint in str(error)


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("", 'let it say COLLECTIVES = ("broadcast",)'),
        ("COLLECTIVES = 'broadcast'\n", "give a tuple: COLLECTIVES = ('broadcast',)"),
        ("COLLECTIVES = ('brodcast',)\n", "did you mean 'broadcast'?"),
    ],
)
def test_an_algorithm_that_does_not_name_its_collectives_gets_a_hint(
    tray: Tray, tmp_path: Path, header: str, hint: str
) -> None:
    ccl = algorithm(tmp_path, "pass") | {"collectives": {"broadcast": "mine"}, "defaults": {}}
    (tmp_path / "mine.py").write_text(header + HEADER)
    torch = tray.torch
    with pytest.raises(SpawnException) as caught:
        run(tray, lambda rank: torch.distributed.broadcast(tensor(torch), 0), ccl)
    assert hint in str(caught.value)
    assert str(caught.value).count("hint:") == 1  # once for all ranks


def test_algorithms_of_one_file_name_in_two_folders_are_two_modules(tray: Tray, tmp_path: Path) -> None:
    modules = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        algorithm(tmp_path / folder, "pass")
        modules.append(_from_file(tmp_path / folder / "mine.py"))
    assert modules[0] is not modules[1]
    assert [sys.modules[module.__name__] for module in modules] == modules


# --------------------------------------------------------------------------------------------------------------- races


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
@pytest.mark.parametrize("collective", ALGORITHMS)
def test_no_algorithm_of_ours_has_a_race(collective: str) -> None:
    """Chunks of a few hundred bytes, so that all that can overlap does, on tensors that are split and replicated."""
    machine = Machine(3, 2, 1, 1)
    placements = ("rows per PE", "replicated")

    def program(torch: RuntimeContext) -> None:
        for name in ALGORITHMS[collective]:
            for placement in placements:
                case = Case(
                    collective, name, (300,), "f32", placement=placement, root=1, settings=(("chunk_bytes", 512),)
                )
                if collective == "all_reduce_per_cube" and placement == "replicated":
                    continue  # refused: no addend for each cube
                torch.distributed.init_process_group("ahbm", ccl=case.ccl)

                def worker(rank: int, case: Case = case) -> None:
                    for _ in range(2):  # the second finds what the first has left
                        work(
                            torch.distributed,
                            lambda array, _: torch.from_numpy(array, dp=PLACEMENTS[case.placement]),
                            case,
                            rank,
                            machine.sips,
                            machine.cubes,
                        )

                torch.multiprocessing.spawn(worker, nprocs=machine.sips)
                torch.distributed.destroy_process_group()

    result = kernbench.run(program, machine.graph(), device="whole", check_races=True)
    assert result.races == []


@pytest.mark.parametrize("waits", [True, False])
def test_a_kernel_that_does_not_wait_for_an_async_collective_races_with_it(waits: bool) -> None:
    """So that the test above has something to find."""

    def double(x: Any, tl: Any) -> None:
        tl.store(x, tl.load(x, x.shape) * 2.0)

    def program(torch: RuntimeContext) -> None:
        def worker(rank: int) -> None:
            x = tensor(torch, rank)
            under_way = torch.distributed.all_reduce(x, async_op=True)
            assert under_way is not None
            if waits:
                under_way.wait()
            torch.launch("double", double, x)
            under_way.wait()

        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(worker, nprocs=2)

    result = kernbench.run(program, Machine(2).graph(), device="whole", check_races=True)
    assert bool(result.races) is not waits
