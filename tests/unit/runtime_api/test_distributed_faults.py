"""`torch.distributed` called wrongly: arguments, groups, ranks that call different things, and ranks that never come.

Every refusal is also of the class that PyTorch raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.runtime_api.tray import RANKS, Tray, machine

from kernbench.common.errors import (
    CollectiveMismatchError,
    DeadlockError,
    DistributedError,
    DistributedTypeError,
    KernBenchWarning,
    NotModelledError,
    ProcessGroupError,
    SpawnException,
    UsageError,
)
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine


@pytest.fixture
def tray() -> Iterator[Tray]:
    made = Tray()
    with made.torch:
        yield made


class Rank:
    """What a rank has at hand: tensors of 6 (x), 18 (big) and 2 (small) numbers, and lists of them."""

    def __init__(self, tray: Tray) -> None:
        self.torch, self.dist = tray.torch, tray.dist
        self.x = self.empty(6, "x")
        self.y = self.empty(6, "y")
        self.big = self.empty(18, "big")
        self.small = self.empty(2, "small")
        self.half = self.torch.empty(6, dtype="f16", name="half")
        self.whole = self.torch.empty(6, dtype="i32", name="whole")
        self.flag = self.torch.empty(6, dtype="bool", name="flag")
        self.xs = [self.empty(6, f"x{at}") for at in range(RANKS)]

    def empty(self, n: int, name: str) -> Any:
        return self.torch.empty(n, dtype="f32", name=name)


def without_lines(text: str | None) -> str:
    """A report with LINE in place of every line of this file."""
    return re.sub(rf"{re.escape(__file__)}:\d+", "LINE", text or "")


def line_with(text: str) -> str:
    """`file:line` of the only line of this file that ends so."""
    lines = Path(__file__).read_text().splitlines()
    (at,) = [number for number, line in enumerate(lines, 1) if line.endswith(text)]
    return f"{__file__}:{at}"


# ---- arguments

WRONG: list[tuple[Callable[[Rank], object], type[BaseException], str]] = [
    (lambda r: r.dist.all_reduce(np.ones(3)), TypeError, "Expected parameter `tensor` of type torch.Tensor"),
    (lambda r: r.dist.all_reduce(r.x, op="xor"), TypeError, "op is 'xor'"),
    (lambda r: r.dist.all_reduce(r.x, op=3), TypeError, "op is 3"),
    (lambda r: r.dist.all_reduce(r.whole, op="avg"), ValueError, "Cannot use ReduceOp.AVG with i32"),
    (lambda r: r.dist.all_reduce(r.flag, op="avg"), RuntimeError, "Cannot use ReduceOp.AVG with bool"),
    (lambda r: r.dist.all_reduce(r.x, per="pe"), ValueError, "per is 'pe'"),
    (lambda r: r.dist.all_reduce(r.x, group=3), TypeError, "group is 3"),
    (lambda r: r.dist.reduce(r.x, dst=3), ValueError, "dst: global rank 3 is not part of group 'world'"),
    (lambda r: r.dist.broadcast(r.x, src=-1), ValueError, "src: global rank -1 is not part of"),
    (lambda r: r.dist.broadcast(r.x, src="0"), TypeError, "src is '0'"),
    (lambda r: r.dist.all_gather(r.x, r.x), TypeError, r"`tensor_list` of type List\[torch.Tensor\]"),
    (lambda r: r.dist.all_gather([r.x, 3, 4], r.x), TypeError, "with elements of type"),
    (lambda r: r.dist.all_gather(r.xs[:2], r.x), ValueError, "`tensor_list` has 2 tensors, and the group has 3 ranks"),
    (lambda r: r.dist.all_gather([r.small] * 3, r.x), ValueError, "'small' f32.2. has 2 elements, and needs 6"),
    (lambda r: r.dist.all_gather([r.xs[0]] * 3, r.x), ValueError, "'x0' f32.6. is an output and passed a second time"),
    (lambda r: r.dist.all_gather([*r.xs[:2], r.half], r.x), ValueError, "different dtypes. Found f32"),
    (lambda r: r.dist.all_gather_into_tensor(r.y, r.x), ValueError, "'y' f32.6. has 6 elements, and needs 18"),
    (lambda r: r.dist.all_gather_into_tensor(r.big, r.half), ValueError, "Found f16"),
    (lambda r: r.dist.reduce_scatter(r.x, r.xs[:1]), ValueError, "`input_list` has 1 tensors"),
    (lambda r: r.dist.reduce_scatter(r.xs[1], r.xs), ValueError, "'x1' f32.6. is an output and passed a second time"),
    (lambda r: r.dist.reduce_scatter_tensor(r.y, r.x), RuntimeError, "'x' f32.6. has 6 elements, and needs 18"),
    (lambda r: r.dist.all_to_all_single(r.x, r.x), ValueError, "'x' f32.6. is an output and passed a second time"),
    (lambda r: r.dist.all_to_all_single(r.empty(7, "odd"), r.x), RuntimeError, "7 rows do not divide equally over 3"),
    (lambda r: r.dist.all_to_all_single(r.y, r.x, [3, 3]), RuntimeError, "has 2 numbers, and the group has 3"),
    (lambda r: r.dist.all_to_all_single(r.y, r.x, [3, 3, 1]), RuntimeError, "7 rows together, and tensor 'y'"),
    (lambda r: r.dist.all_to_all_single(r.y, r.x, [7, -1, 0]), TypeError, "output_split_sizes is"),
    (lambda r: r.dist.gather(r.x, dst=r.dist.get_rank()), ValueError, "``gather_list`` must be specified on dest"),
    (lambda r: r.dist.gather(r.x, r.xs, dst=(r.dist.get_rank() + 1) % 3), ValueError, "must NOT be specified on non-d"),
    (lambda r: r.dist.scatter(r.x, src=r.dist.get_rank()), ValueError, "``scatter_list`` must be specified on source"),
    (lambda r: r.dist.scatter(r.x, r.xs, src=(r.dist.get_rank() + 1) % 3), ValueError, "must NOT be specified on non"),
    (lambda r: r.dist.send(r.x, dst=r.dist.get_rank()), ValueError, "Invalid destination rank"),
    (lambda r: r.dist.recv(r.x, src=r.dist.get_rank()), ValueError, "Invalid source rank"),
    (lambda r: r.dist.isend(r.x, dst=(r.dist.get_rank() + 1) % 3, tag=-1), TypeError, "tag is -1"),
    (lambda r: r.dist.irecv(r.x, src=None), ValueError, "irecv needs a source"),
    (lambda r: r.dist.recv(3), TypeError, "Expected parameter `tensor`"),
    (lambda r: r.dist.new_group("01"), TypeError, "ranks is '01'"),
    (lambda r: r.dist.new_group([0, 0]), ValueError, r"ranks is \[0, 0\]"),
    (lambda r: r.dist.new_group([0, 3]), ValueError, "should be within the world_size"),
    (lambda r: r.dist.new_group([0, 1], backend="nccl"), ValueError, "Unsupported backend 'nccl'"),
    (lambda r: r.dist.get_global_rank(None, 3), ValueError, "Group rank 3 is not part of"),
    (lambda r: r.dist.get_group_rank(None, 3), ValueError, "Global rank 3 is not part of"),
    (lambda r: r.dist.init_process_group(), ValueError, "trying to initialize the default process group twice!"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "what"), WRONG, ids=[what[:30] for _, _, what in WRONG])
def test_wrong_arguments_are_refused_as_pytorch_does(
    tray: Tray, call: Callable[[Rank], object], kind: type[BaseException], what: str
) -> None:
    def worker(rank: int) -> None:
        has = Rank(tray)
        with pytest.raises(UsageError, match=what) as caught:
            call(has)
        assert isinstance(caught.value, kind)
        assert isinstance(caught.value, DistributedError | DistributedTypeError)
        assert caught.value.hint

    tray.spawn(worker)
    assert tray.started == []


def test_a_tensor_elsewhere_is_refused(tray: Tray) -> None:
    def worker(rank: int) -> None:
        tray.torch.ahbm.set_device(0)
        x = tray.torch.zeros(4, name="x")
        if rank:
            message = rf"tensor 'x' f16\[4\] is on SIP 0, and rank {rank} of the world is on SIP {rank}"
            with pytest.raises(ValueError, match=message) as caught:
                tray.dist.all_reduce(x)
            assert "set_device(rank)" in str(caught.value)

    tray.spawn(worker)


def test_a_tensor_of_another_context_is_refused(tray: Tray) -> None:
    with RuntimeContext(GraphEngine(machine())) as other:
        x = other.zeros(4)
        errors = tray.error(lambda rank: tray.dist.all_reduce(x), nprocs=1)
    assert "belongs to another context" in str(errors[0])


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("all_reduce_coalesced", "call the collective for each tensor"),
        ("TCPStore", "without a store"),
        ("split_group", "new_group"),
    ],
)
def test_a_name_of_pytorch_that_is_not_modelled_says_what_to_use(tray: Tray, name: str, instead: str) -> None:
    with pytest.raises(NotModelledError, match=f"torch.distributed.{name} is not modelled") as caught:
        getattr(tray.dist, name)
    assert instead in str(caught.value.hint)
    assert not hasattr(tray.dist, name)


def test_a_name_that_no_rank_has_is_refused_with_the_nearest(tray: Tray) -> None:
    with pytest.raises(AttributeError, match=r"torch.distributed has no 'all_redcue' .did you mean 'all_reduce'?"):
        tray.dist.all_redcue(None)  # type: ignore[attr-defined]  # the mistake


def test_an_op_of_pytorch_that_is_not_modelled_says_so(tray: Tray) -> None:
    for name in ("BAND", "BOR", "BXOR", "PREMUL_SUM"):
        with pytest.raises(NotModelledError, match=f"ReduceOp.{name} is not modelled"):
            getattr(tray.dist.ReduceOp, name)
        assert not hasattr(tray.dist.ReduceOp, name)
    with pytest.raises(NotModelledError, match=r"there is no ReduceOp.MEDIAN") as caught:
        tray.dist.ReduceOp.MEDIAN  # type: ignore[attr-defined]  # noqa: B018  # the mistake
    assert "SUM, PRODUCT, MIN, MAX, AVG" in str(caught.value.hint)


# ---- process groups


@pytest.mark.parametrize(
    "call",
    [
        lambda tray: tray.dist.get_rank(),
        lambda tray: tray.dist.get_world_size(),
        lambda tray: tray.dist.get_backend(),
        lambda tray: tray.dist.barrier(),
        lambda tray: tray.dist.all_reduce(tray.torch.zeros(3)),
        lambda tray: tray.dist.new_group([0]),
        lambda tray: tray.dist.destroy_process_group(),
    ],
)
def test_nothing_works_without_a_process_group(tray: Tray, call: Callable[[Tray], object]) -> None:
    message = "Default process group has not been initialized, please make sure to call init_process_group."
    with pytest.raises(ProcessGroupError, match=re.escape(message)) as caught:
        call(tray)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RuntimeError)
    assert "init_process_group('ahbm') before spawn, or in every rank" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"backend": "nccl"}, "Unsupported backend 'nccl'"),
        ({"world_size": "4"}, "world_size is '4'"),
        ({"rank": True}, "rank is True"),
        ({"init_method": 3}, "init_method is 3"),
        ({"timeout": 30}, "timeout is 30"),
    ],
)
def test_a_process_group_that_cannot_be_is_refused(tray: Tray, given: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        tray.dist.init_process_group(**given)
    assert not tray.dist.is_initialized()


def test_a_size_or_rank_that_the_caller_does_not_have_is_ignored_with_a_warning(tray: Tray) -> None:
    def worker(rank: int) -> None:
        with pytest.warns(KernBenchWarning) as caught:
            tray.dist.init_process_group(world_size=3, rank=1 - rank)
        assert [str(each.message).partition(" is ignored: ")[2] for each in caught] == [
            "there are 2 ranks, one for each SIP or spawned program; leave world_size out",
            f"the caller is rank {rank}; leave rank out",
        ]
        assert (tray.dist.get_world_size(), tray.dist.get_rank()) == (2, rank)

    tray.workers(worker, nprocs=2)


def test_there_is_one_world_at_a_time(tray: Tray) -> None:
    tray.dist.init_process_group()
    with pytest.raises(ValueError, match="twice"):
        tray.dist.init_process_group()


def test_spawn_starts_as_many_ranks_as_the_process_group_has(tray: Tray) -> None:
    tray.dist.init_process_group()
    with pytest.raises(ProcessGroupError, match="spawn starts 2 ranks, and the process group has 3") as caught:
        tray.torch.multiprocessing.spawn(lambda rank: None, nprocs=2)
    assert "init_process_group(world_size=2)" in str(caught.value)


def test_the_main_program_is_no_rank(tray: Tray) -> None:
    tray.dist.init_process_group()
    with pytest.raises(ProcessGroupError, match="the main program is no rank of group 'world'"):
        tray.dist.barrier()


def test_who_is_not_in_a_group_cannot_call_its_collectives(tray: Tray) -> None:
    def worker(rank: int, given: Any) -> None:
        mine = tray.dist.new_group([1, 2])
        if rank == 0:
            with pytest.raises(ProcessGroupError, match="not in this group"):
                tray.dist.barrier(mine)
            with pytest.raises(ProcessGroupError, match=r"rank 0 is not in group 'world/1', which has ranks \[1, 2\]"):
                tray.dist.barrier(given)

    tray.dist.init_process_group()
    given = tray.dist.new_group([1, 2])
    tray.spawn(worker, given)


def test_ranks_make_the_same_groups_in_the_same_order(tray: Tray) -> None:
    errors = tray.error(lambda rank: tray.dist.new_group([0, 1] if rank < 2 else [1, 2]))
    assert [*errors] == [2]
    assert "rank 2 calls new_group([1, 2]), another rank called new_group([0, 1])" in str(errors[2])
    assert "where: rank 2 at LINE; another rank at LINE" in without_lines(str(errors[2]))


def test_after_a_failure_the_process_group_is_no_more(tray: Tray) -> None:
    """Its ranks stopped in the middle of something: the next ones begin anew."""

    def worker(rank: int, fails: bool) -> None:
        if fails and rank == 2:
            raise ValueError("no good")
        tray.dist.barrier()

    tray.dist.init_process_group()
    with pytest.raises(SpawnException):
        tray.workers(worker, True)
    assert not tray.dist.is_initialized()
    tray.spawn(worker, False)


# ---- ranks that call different things


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda r, rank: r.dist.all_reduce(r.x, op="max" if rank == 1 else "sum"),
            "rank 1 calls all_reduce(f32[6], MAX), rank 0 called all_reduce(f32[6], SUM)\n"
            "  call 1 of group 'world': op: MAX and SUM",
        ),
        (
            lambda r, rank: r.dist.all_reduce(r.small if rank == 1 else r.x),
            "rank 1 calls all_reduce(f32[2], SUM), rank 0 called all_reduce(f32[6], SUM)\n"
            "  call 1 of group 'world': elements: 2 and 6",
        ),
        (
            lambda r, rank: r.dist.all_reduce(r.half if rank == 1 else r.x),
            "call 1 of group 'world': dtype: f16 and f32",
        ),
        (
            lambda r, rank: r.dist.all_reduce(r.x, per="cube" if rank == 1 else "rank"),
            "rank 1 calls all_reduce(f32[6], SUM, per='cube'), rank 0 called all_reduce(f32[6], SUM)\n"
            "  call 1 of group 'world': per: cube and rank",
        ),
        (
            lambda r, rank: r.dist.barrier() if rank == 1 else r.dist.broadcast(r.x, 0),
            "rank 1 calls barrier(), rank 0 called broadcast(f32[6], src=0)\n"
            "  call 1 of group 'world': collective: barrier and broadcast",
        ),
        (
            lambda r, rank: r.dist.broadcast(r.x, src=rank if rank < 2 else 0),
            "root: rank 1 and rank 0",
        ),
        (
            lambda r, rank: r.dist.all_gather_into_tensor(r.torch.empty(3, 2, dtype="f32"), r.small)
            if rank == 1
            else r.dist.all_gather(r.xs, r.x),
            "rank 1 calls all_gather_into_tensor(f32[2]), rank 0 called all_gather(f32[6])",
        ),
    ],
)  # fmt: skip
def test_a_rank_that_calls_something_else_is_refused(
    tray: Tray, call: Callable[[Rank, int], object], text: str
) -> None:
    def worker(rank: int) -> None:
        has = Rank(tray)
        tray.torch.ranks.wait([tray.torch.engine.env.timeout(1000 * rank)])
        call(has, rank)

    errors = tray.error(worker)
    assert [*errors] == [1]
    assert isinstance(errors[1], CollectiveMismatchError)
    assert isinstance(errors[1], RuntimeError)
    assert "ranks call different things" in str(errors[1])
    assert text in str(errors[1])
    assert without_lines(errors[1].where) == "rank 1 at LINE; rank 0 at LINE"


def test_a_mismatch_names_the_line_of_both_ranks(tray: Tray) -> None:
    def worker(rank: int) -> None:
        x = tray.torch.zeros(4)
        if rank == 0:
            tray.dist.all_reduce(x)  # the first line
        else:
            tray.torch.ranks.wait([tray.torch.engine.env.timeout(1000 * rank)])
            tray.dist.all_reduce(x, op="max")  # the second line

    where = f"rank 1 at {line_with('# the second line')}; rank 0 at {line_with('# the first line')}"
    (error,) = tray.error(worker).values()
    assert f"\n  where: {where}\n" in str(error)


def test_a_message_that_is_received_as_another_names_both_lines(tray: Tray) -> None:
    def worker(rank: int) -> None:
        if rank == 0:
            tray.dist.send(tray.torch.zeros(4), dst=1)  # sends four
        if rank == 1:
            tray.torch.ranks.wait([tray.torch.engine.env.timeout(50_000)])
            tray.dist.recv(tray.torch.zeros(6), src=0)  # receives six

    (error,) = tray.error(worker).values()
    assert isinstance(error, CollectiveMismatchError)
    assert error.where == f"rank 1 at {line_with('# receives six')}; rank 0 at {line_with('# sends four')}"


def test_a_wrong_argument_names_the_line_of_the_call_once_for_all_ranks(tray: Tray) -> None:
    def worker(rank: int) -> None:
        tray.dist.all_reduce(tray.torch.zeros(4), op="xor")  # no such op

    with pytest.raises(SpawnException) as caught:
        tray.spawn(worker)
    line = line_with("# no such op")
    assert {getattr(error, "where", "").partition("  ")[0] for error in caught.value.errors.values()} == {line}
    assert str(caught.value).count("op is 'xor'") == 1
    assert f"all {RANKS} ranks failed: DistributedTypeError: op is 'xor'\n    where: {line}  " in str(caught.value)


def test_parts_that_do_not_fit_are_refused(tray: Tray) -> None:
    def worker(rank: int) -> None:
        has = Rank(tray)
        if rank == 1:
            tray.torch.ranks.wait([tray.torch.engine.env.timeout(1000)])
            tray.dist.all_to_all_single(has.y, has.x, [1, 2, 3], [2, 2, 2])
        tray.dist.all_to_all_single(has.y, has.x)

    errors = tray.error(worker)
    assert "rank 1 sends 2 rows to rank 0, which expects 2, and expects 1 from it, which sends 2" in str(errors[1])


def test_what_the_backend_needs_to_be_equal_is_compared_too(tray: Tray) -> None:
    def worker(rank: int) -> None:
        tray.backends[0].agrees = {"placement": f"{rank + 1} cubes" if rank < 2 else "1 cubes"}
        tray.dist.barrier()

    errors = tray.error(worker)
    assert "call 1 of group 'world': placement: 2 cubes and 1 cubes" in str(errors[1])


def test_what_the_backend_refuses_is_refused_before_any_rank_is_notified(tray: Tray) -> None:
    def worker(rank: int) -> None:
        tray.backends[0].refuses = "all_reduce"
        tray.dist.barrier()
        with pytest.raises(UsageError, match="columns are split"):
            tray.dist.all_reduce(tray.torch.zeros(3))
        tray.dist.barrier()

    tray.spawn(worker)
    assert [call.name for call in tray.started] == ["barrier"] * 2 * RANKS


def test_a_message_is_received_as_it_was_sent(tray: Tray) -> None:
    def worker(rank: int, tag: int, n: int) -> None:
        if rank == 0:
            tray.dist.send(tray.torch.zeros(4), dst=1, tag=3)
        if rank == 1:
            tray.torch.ranks.wait([tray.torch.engine.env.timeout(50_000)])
            tray.dist.recv(tray.torch.zeros(n), src=0, tag=tag)

    tray.spawn(worker, 3, 4)
    with pytest.raises(SpawnException) as caught:
        tray.spawn(worker, 3, 6)
    error = str(caught.value.errors[1])
    assert "rank 1 calls recv(f16[6], src=0, tag=3), rank 0 called send(f16[4], dst=1, tag=3)" in error
    assert "group 'world': elements: 6 and 4" in error


def test_a_message_with_a_tag_that_is_not_asked_for_is_reported(tray: Tray) -> None:
    def worker(rank: int) -> None:
        if rank == 0:
            tray.dist.send(tray.torch.zeros(4), dst=1, tag=3)
        if rank == 1:
            tray.dist.recv(tray.torch.zeros(4), src=0, tag=5)

    error = without_lines(str(deadlock(tray, worker)))
    assert "the host waits for: rank 0: the other end of send(f16[4], dst=1, tag=3) at LINE; rank 1: the" in error
    assert "rank 0 called send(f16[4], dst=1, tag=3) at LINE; rank 1 never received it" in error
    assert "rank 1 called recv(f16[4], src=0, tag=5) at LINE; rank 0 never sent it" in error


def test_messages_with_other_tags_overtake_each_other(tray: Tray) -> None:
    """Both receives are posted in the other order than the sends, and both exchanges are posted before any wait."""

    def worker(rank: int) -> None:
        torch, dist, other = tray.torch, tray.dist, 1 - rank
        if rank > 1:
            return
        first, second = torch.full((4,), rank + 1), torch.full((4,), rank + 10)
        into_first, into_second = torch.zeros(4), torch.zeros(4)
        work = [dist.isend(first, other, tag=1), dist.isend(second, other, tag=2)]
        work += [dist.irecv(into_second, other, tag=2), dist.irecv(into_first, other, tag=1)]
        for each in work:
            each.wait()
        assert into_first.numpy().tolist() == [other + 1] * 4
        assert into_second.numpy().tolist() == [other + 10] * 4

    tray.spawn(worker)


# ---- ranks that never come


def deadlock(tray: Tray, worker: Callable[[int], object]) -> DeadlockError:
    tray.dist.init_process_group()
    with pytest.raises(DeadlockError) as caught:
        tray.torch.multiprocessing.spawn(worker, nprocs=RANKS)
    return caught.value


def test_a_rank_that_never_comes_is_named(tray: Tray) -> None:
    def worker(rank: int) -> None:
        tray.dist.barrier()
        if rank != 1:
            tray.dist.all_reduce(tray.torch.zeros(8, dtype="f32"))

    error = deadlock(tray, worker)
    assert without_lines(error.where) == "the host waits for: rank 0, rank 2: kernel 'all_reduce' at LINE"
    (text,) = error.unmatched
    assert without_lines(text) == (
        "call 2 of group 'world': ranks 0, 2 called all_reduce(f32[8], SUM) at LINE; never called by rank 1, whose "
        "program has ended"
    )
    assert f"  unmatched: {text}\n" in str(error)


def test_every_group_says_who_never_came(tray: Tray) -> None:
    def worker(rank: int) -> None:
        first, second = tray.dist.new_group([0, 1]), tray.dist.new_group([1, 2])
        if rank == 0:
            tray.dist.barrier(first)
        elif rank == 2:
            tray.dist.barrier(second)
        else:
            tray.dist.barrier()

    assert [without_lines(text) for text in deadlock(tray, worker).unmatched] == [
        "call 1 of group 'world': rank 1 called barrier() at LINE; never called by rank 0, rank 2",
        "call 1 of group 'world/1': rank 0 called barrier() at LINE; never called by rank 1",
        "call 1 of group 'world/2': rank 2 called barrier() at LINE; never called by rank 1",
    ]


def test_a_rank_that_is_calls_behind_is_named(tray: Tray) -> None:
    def worker(rank: int) -> None:
        for _ in range(1 if rank == 2 else 3):
            tray.dist.all_reduce(tray.torch.zeros(2), async_op=True)
        if rank == 2:
            tray.torch.ranks.wait([tray.torch.engine.env.event()], "a letter")

    assert [text.partition("; ")[2] for text in deadlock(tray, worker).unmatched] == [
        "never called by rank 2",
        "never called by rank 2, which has made 1 calls",
    ]


def test_a_message_that_is_not_received_is_named(tray: Tray) -> None:
    def worker(rank: int) -> None:
        if rank == 0:
            tray.dist.send(tray.torch.zeros(4), dst=2)
        if rank == 1:
            tray.dist.recv(tray.torch.zeros(4), src=2, tag=1)
        if rank == 2:
            tray.dist.recv(tray.torch.zeros(4), tag=9)

    error = deadlock(tray, worker)
    assert [without_lines(text) for text in error.unmatched] == [
        "message of group 'world': rank 0 called send(f16[4], dst=2, tag=0) at LINE; rank 2 never received it",
        "message of group 'world': rank 1 called recv(f16[4], src=2, tag=1) at LINE; rank 2 never sent it",
    ]
    assert "rank 2: recv: a message from any rank with tag 9" in str(error)


def test_ranks_that_end_without_having_called_what_others_did_are_named(
    tray: Tray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a backend's part of one rank can end without the others."""

    def worker(rank: int) -> None:
        if rank == 0:
            monkeypatch.setattr(tray.backends[0], "_meet", lambda part: part.done.succeed())
            tray.dist.broadcast(tray.torch.zeros(4), src=0)

    with pytest.raises(CollectiveMismatchError, match="all ranks have ended") as caught:
        tray.spawn(worker)
    called = "rank 0 called broadcast(f16[4], src=0) at LINE; never called by rank 1, whose program has ended"
    assert called in without_lines(str(caught.value))
    assert not tray.dist.is_initialized()
