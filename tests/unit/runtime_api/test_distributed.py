"""`torch.distributed` on the host: what each collective is asked to do, by whom, and how it is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.unit.runtime_api.host_backend import PART_NS, HostBackend
from tests.unit.runtime_api.tray import RANKS, Tray, machine

from kernbench.ccl.calls import CollectiveCall
from kernbench.ccl.plans import LaunchPlan, plan
from kernbench.common.errors import LaunchError, ProcessGroupError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api import ahbm
from kernbench.runtime_api.bench_runner import run
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.distributed import DistributedContext, Work
from kernbench.sim_engine.engine import GraphEngine


@pytest.fixture
def tray() -> Iterator[Tray]:
    made = Tray()
    with made.torch:
        yield made


def numbers(rank: int, n: int = 6) -> np.ndarray:
    return np.arange(n, dtype=np.float32) + 10 * rank


# ---- what collectives do


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("SUM", numbers(0) + numbers(1) + numbers(2)),
        ("PRODUCT", numbers(0) * numbers(1) * numbers(2)),
        ("MIN", numbers(0)),
        ("MAX", numbers(2)),
        ("AVG", numbers(1)),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_all_reduce_leaves_the_op_over_all_ranks_on_every_rank(tray: Tray, op: str, want: Any, named: bool) -> None:
    def worker(rank: int) -> Any:
        x = tray.torch.from_numpy(numbers(rank), dp=DPPolicy(cube="row_wise", num_cubes=2, num_pes=1))
        given = op.lower() if named else getattr(tray.dist.ReduceOp, op)
        assert tray.dist.all_reduce(x, op=given) is None
        return x.numpy()

    for got in tray.spawn(worker).values():
        np.testing.assert_array_equal(got, want)


def test_reduce_leaves_the_result_on_one_rank(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x = tray.torch.from_numpy(numbers(rank))
        tray.dist.reduce(x, dst=1)
        return x.numpy()

    np.testing.assert_array_equal(tray.spawn(worker)[1], 3 * numbers(1))
    outputs = {call.rank: len(call.outputs) for call in tray.started}
    assert outputs == {0: 0, 1: 1, 2: 0}
    assert {call.root for call in tray.started} == {1}


def test_broadcast_gives_all_the_tensor_of_one(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x = tray.torch.from_numpy(numbers(rank)) if rank == 2 else tray.torch.empty(6, dtype="f32")
        tray.dist.broadcast(x, src=2)
        return x.numpy()

    for got in tray.spawn(worker).values():
        np.testing.assert_array_equal(got, numbers(2))


def test_all_gather_gives_everybody_everything(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x = tray.torch.from_numpy(numbers(rank))
        listed = [tray.torch.empty(6, dtype="f32") for _ in range(RANKS)]
        tray.dist.all_gather(listed, x)
        whole = tray.torch.empty(3, 6, dtype="f32")
        tray.dist.all_gather_into_tensor(whole, x)
        return [each.numpy() for each in listed], whole.numpy()

    want = np.stack([numbers(rank) for rank in range(RANKS)])
    for listed, whole in tray.spawn(worker).values():
        np.testing.assert_array_equal(np.stack(listed), want)
        np.testing.assert_array_equal(whole, want)


def test_reduce_scatter_gives_each_rank_its_part_of_the_sum(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        whole, parts = tray.torch.from_numpy(numbers(rank)), numbers(rank).reshape(3, 2)
        one, other = tray.torch.empty(2, dtype="f32"), tray.torch.empty(2, dtype="f32")
        tray.dist.reduce_scatter_tensor(one, whole)
        tray.dist.reduce_scatter(other, [tray.torch.from_numpy(part) for part in parts], op=tray.dist.ReduceOp.MAX)
        return one.numpy(), other.numpy()

    for rank, (one, other) in tray.spawn(worker).items():
        own = slice(2 * rank, 2 * rank + 2)
        np.testing.assert_array_equal(one, 3 * numbers(1)[own])
        np.testing.assert_array_equal(other, numbers(2)[own])


def test_all_to_all_exchanges_parts(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x, y = tray.torch.from_numpy(numbers(rank)), tray.torch.empty(6, dtype="f32")
        tray.dist.all_to_all_single(y, x)
        return y.numpy()

    for rank, got in tray.spawn(worker).items():  # two elements from each
        want = np.concatenate([numbers(other)[2 * rank : 2 * rank + 2] for other in range(RANKS)])
        np.testing.assert_array_equal(got, want)


def test_all_to_all_takes_parts_of_different_sizes(tray: Tray) -> None:
    gives = [[0, 1, 2], [1, 1, 0], [2, 0, 3]]  # rows from each rank to each

    def worker(rank: int) -> Any:
        takes = [row[rank] for row in gives]
        x = tray.torch.from_numpy(np.full((sum(gives[rank]), 4), rank, np.float32))
        y = tray.torch.empty(sum(takes), 4, dtype="f32")
        tray.dist.all_to_all_single(y, x, takes, gives[rank])
        return y.numpy()[:, 0].tolist()

    assert tray.spawn(worker) == {0: [1, 2, 2], 1: [0, 1], 2: [0, 0, 2, 2, 2]}


def test_gather_and_scatter_are_each_others_reverse(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x, y = tray.torch.from_numpy(numbers(rank)), tray.torch.empty(6, dtype="f32")
        held = [tray.torch.empty(6, dtype="f32") for _ in range(RANKS)] if rank == 1 else None
        tray.dist.gather(x, held, dst=1)
        tray.dist.scatter(y, held[::-1] if held else None, src=1)
        return y.numpy()

    for rank, got in tray.spawn(worker).items():
        np.testing.assert_array_equal(got, numbers(RANKS - 1 - rank))


def test_messages_go_from_rank_to_rank(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x, y = tray.torch.from_numpy(numbers(rank)), tray.torch.empty(6, dtype="f32")
        work = tray.dist.isend(x, dst=(rank + 1) % RANKS)
        assert tray.dist.recv(y, src=(rank - 1) % RANKS) == (rank - 1) % RANKS
        assert work.wait()
        return y.numpy()

    for rank, got in tray.spawn(worker).items():
        np.testing.assert_array_equal(got, numbers((rank - 1) % RANKS))


def test_receiving_from_anybody_takes_who_sends_first(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        if rank == 0:
            y, senders = tray.torch.empty(6, dtype="f32"), []
            for _ in range(2):
                senders.append(tray.dist.recv(y, tag=7))
                np.testing.assert_array_equal(y.numpy(), numbers(senders[-1]))
            return senders
        x = tray.torch.from_numpy(numbers(rank))
        if rank == 1:
            tray.torch.ranks.wait([tray.torch.engine.env.timeout(50_000)])
        return tray.dist.send(x, dst=0, tag=7)

    assert tray.spawn(worker)[0] == [2, 1]


def test_a_barrier_ends_when_the_last_rank_has_come(tray: Tray) -> None:
    def worker(rank: int) -> tuple[float, float]:
        tray.torch.ranks.wait([tray.torch.engine.env.timeout(10_000 * (rank + 1))])
        came = tray.torch.now_ns
        tray.dist.barrier()
        return came, tray.torch.now_ns

    times = tray.spawn(worker)
    last = max(came for came, _ in times.values())
    assert {went for _, went in times.values()} == {last + PART_NS}  # and it costs time


def test_booleans_are_summed_as_nccl_does(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        either = tray.torch.from_numpy(np.array([rank == 1, False]))
        both = tray.torch.from_numpy(np.array([rank < 3, rank < 2]))
        tray.dist.all_reduce(either)
        tray.dist.all_reduce(both, op="prod")
        return either.numpy().tolist(), both.numpy().tolist()

    assert set(map(str, tray.spawn(worker).values())) == {"([True, False], [True, False])"}


def test_what_is_asked_per_cube_reaches_the_backend(tray: Tray) -> None:
    def worker(rank: int) -> None:
        x = tray.torch.from_numpy(np.ones((2, 4), np.float32), dp=DPPolicy(cube="row_wise", num_cubes=2, num_pes=1))
        tray.dist.all_reduce(x, per="cube")

    tray.spawn(worker)
    assert [call.per for call in tray.started] == ["cube"] * RANKS
    assert [[shard.cube for shard in call.inputs[0].shards] for call in tray.started] == [[0, 1]] * RANKS


# ---- waiting


def test_an_async_collective_returns_at_once_and_is_waited_for(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x = tray.torch.from_numpy(numbers(rank))
        before = tray.torch.now_ns
        work = tray.dist.all_reduce(x, async_op=True)
        assert isinstance(work, Work)
        assert tray.torch.now_ns == before
        assert not work.is_completed()
        assert repr(work) == "Work('all_reduce', under way)"
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert tray.torch.now_ns >= before + PART_NS
        return x.numpy()

    for got in tray.spawn(worker).values():
        np.testing.assert_array_equal(got, 3 * numbers(1))


def test_a_host_read_waits_for_an_async_collective(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x = tray.torch.from_numpy(numbers(rank))
        tray.dist.all_reduce(x, async_op=True)
        return x.numpy()

    for got in tray.spawn(worker).values():
        np.testing.assert_array_equal(got, 3 * numbers(1))


def test_ranks_run_while_one_waits_in_a_collective(tray: Tray) -> None:
    log: list[str] = []

    def worker(rank: int) -> None:
        x = tray.torch.from_numpy(numbers(rank))
        log.append(f"{rank} calls")
        tray.dist.all_reduce(x)
        log.append(f"{rank} goes on")

    tray.spawn(worker)
    assert sorted(log[:RANKS]) == [f"{rank} calls" for rank in range(RANKS)]


def slow(x: Any, *, tl: Any) -> None:
    tl.cycles(100_000)
    tl.store(x, tl.load(x, x.local_shape) + 1)


def test_a_collective_waits_for_launches_that_have_its_tensors(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x, other = tray.torch.from_numpy(numbers(rank)), tray.torch.from_numpy(numbers(rank))
        launch = tray.torch.launch("slow", slow, x, wait=False)
        tray.dist.all_reduce(other)
        assert not launch.is_done  # which has others
        tray.dist.all_reduce(x)
        assert launch.is_done
        return x.numpy()

    for got in tray.spawn(worker).values():
        np.testing.assert_array_equal(got, 3 * (numbers(1) + 1))


def test_a_barrier_waits_for_all_that_its_rank_has_running(tray: Tray) -> None:
    def worker(rank: int) -> None:
        launch = tray.torch.launch("slow", slow, tray.torch.from_numpy(numbers(rank)), wait=False)
        tray.dist.barrier()
        assert launch.is_done

    tray.spawn(worker)


def test_a_launch_that_failed_is_reported_by_the_collective_on_its_tensor(tray: Tray) -> None:
    def fails(x: Any) -> None:
        raise ValueError("no good")

    def worker(rank: int) -> None:
        x = tray.torch.from_numpy(numbers(rank))
        if rank == 1:
            tray.torch.launch("fails", fails, x, wait=False)
        tray.dist.all_reduce(x)

    errors = tray.error(worker)
    assert list(errors) == [1]
    assert isinstance(errors[1], LaunchError)


# ---- groups


def test_a_group_has_ranks_of_its_own(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        dist = tray.dist
        pair = dist.new_group([2, 0])  # in the order of their numbers
        if rank == 1:
            assert pair is dist.GroupMember.NON_GROUP_MEMBER
            assert (dist.get_rank(pair), dist.get_world_size(pair)) == (-1, -1)
            return None
        assert (dist.get_rank(pair), dist.get_world_size(pair)) == ({0: 0, 2: 1}[rank], 2)
        assert (pair.rank(), pair.size(), pair.ranks) == (dist.get_rank(pair), 2, (0, 2))
        assert dist.get_process_group_ranks(pair) == [0, 2]
        assert (dist.get_group_rank(pair, 2), dist.get_global_rank(pair, 1)) == (1, 2)
        x = tray.torch.from_numpy(numbers(rank))
        dist.all_reduce(x, group=pair)
        dist.broadcast(x, src=2, group=pair)  # ranks of the world count
        return x.numpy()

    got = tray.spawn(worker)
    np.testing.assert_array_equal(got[0], numbers(0) + numbers(2))
    assert [
        (call.name, call.group.sips, call.rank, call.root) for call in tray.started if call.name == "broadcast"
    ] == [
        ("broadcast", (0, 2), 0, 1),
        ("broadcast", (0, 2), 1, 1),
    ]
    assert [group.name for group in tray.backends[0].opened] == ["world", "world/1"]


def test_groups_are_counted_apart(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        pair = tray.dist.new_group([0, 1])
        x = tray.torch.from_numpy(numbers(rank))
        for _ in range(2 if rank < 2 else 0):
            tray.dist.all_reduce(x, group=pair)
        tray.dist.all_reduce(x)
        return x.numpy()

    want = 4 * (numbers(0) + numbers(1)) + numbers(2)  # two ranks bring twice their sum, twice
    for got in tray.spawn(worker).values():
        np.testing.assert_array_equal(got, want)


def test_a_main_program_makes_groups_for_its_ranks(tray: Tray) -> None:
    dist = tray.dist
    dist.init_process_group()
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, RANKS, "ahbm")
    pair = dist.new_group([1, 2])
    assert (dist.get_world_size(pair), dist.get_rank(pair)) == (2, -1)

    def worker(rank: int) -> int:
        return dist.get_rank(pair)

    assert tray.spawn(worker) == {0: -1, 1: 0, 2: 1}


def test_the_world_has_a_name(tray: Tray) -> None:
    assert tray.dist.group.WORLD is None
    tray.dist.init_process_group()
    assert tray.dist.group.WORLD is tray.dist.GroupMember.WORLD
    assert repr(tray.dist.group.WORLD) == "ProcessGroup('world', ranks [0, 1, 2])"
    assert tray.dist.get_world_size(tray.dist.group.WORLD) == RANKS


def test_ranks_make_the_world_themselves_as_under_pytorch(tray: Tray) -> None:
    def worker(rank: int, size: int) -> Any:
        dist = tray.dist
        assert not dist.is_initialized()
        dist.init_process_group("ahbm", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=size)
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        x = tray.torch.from_numpy(numbers(rank))
        dist.all_reduce(x)
        dist.destroy_process_group()
        assert not dist.is_initialized()
        return x.numpy()

    for got in tray.workers(worker, 2, nprocs=2).values():
        np.testing.assert_array_equal(got, numbers(0) + numbers(1))
    assert len(tray.backends) == 1
    assert [group.sips for group in tray.backends[0].closed] == [(0, 1)]
    assert not tray.dist.is_initialized()


def test_ranks_may_make_another_world_when_they_have_left_the_first(tray: Tray) -> None:
    def worker(rank: int) -> Any:
        x = tray.torch.from_numpy(numbers(rank))
        for _ in range(2):
            tray.dist.init_process_group()
            tray.dist.all_reduce(x)
            tray.dist.destroy_process_group()  # the first to leave makes the next world while others are still here
        return x.numpy()

    for got in tray.workers(worker).values():
        np.testing.assert_array_equal(got, 9 * numbers(1))
    assert [group.name for backend in tray.backends for group in backend.opened] == ["world", "world#2"]
    assert [len(backend.closed) for backend in tray.backends] == [1, 1]


def test_worlds_that_ranks_made_end_with_them(tray: Tray) -> None:
    tray.workers(lambda rank: tray.dist.init_process_group())
    assert [len(backend.closed) for backend in tray.backends] == [1]
    tray.workers(lambda rank: tray.dist.init_process_group())


def test_the_world_of_a_main_program_serves_several_teams(tray: Tray) -> None:
    def worker(rank: int) -> None:
        tray.dist.barrier()

    tray.spawn(worker)
    tray.spawn(worker)
    assert tray.dist.is_initialized()
    tray.dist.destroy_process_group()
    assert not tray.dist.is_initialized()
    assert [len(backend.closed) for backend in tray.backends] == [1]


def test_a_lone_rank_needs_no_spawn() -> None:
    tray = Tray(1)
    with tray.torch:
        tray.dist.init_process_group(rank=0, world_size=1)
        x = tray.torch.from_numpy(numbers(4))
        tray.dist.all_reduce(x)
        np.testing.assert_array_equal(x.numpy(), numbers(4))


def test_destroying_a_group_leaves_the_world(tray: Tray) -> None:
    def worker(rank: int) -> None:
        pair = tray.dist.new_group([0, 1])
        if rank < 2:
            tray.dist.destroy_process_group(pair)
            with pytest.raises(ProcessGroupError, match="group 'world/1' has been destroyed"):
                tray.dist.barrier(pair)
        tray.dist.barrier()

    tray.spawn(worker)
    assert [group.name for group in tray.backends[0].closed] == ["world/1"]


def test_a_bench_on_all_devices_is_a_rank_of_each() -> None:
    """As programs that torchrun starts."""
    ranks: list[tuple[int, int, int]] = []

    def bench(torch: RuntimeContext) -> None:
        torch.zeros(1)
        torch.distributed._make_backend = lambda _: HostBackend(torch)
        torch.distributed.init_process_group()
        torch.distributed.barrier()
        ranks.append((torch.distributed.get_rank(), torch.distributed.get_world_size(), torch.ahbm.current_device()))

    assert run(bench, machine()).ok
    assert sorted(ranks) == [(0, 3, 0), (1, 3, 1), (2, 3, 2)]


def test_a_bench_that_spawns_drives_the_whole_tray() -> None:
    ranks: list[int] = []

    def bench(torch: RuntimeContext) -> None:
        torch.distributed._make_backend = lambda _: HostBackend(torch)
        torch.distributed.init_process_group("ahbm")

        def worker(rank: int, dist: DistributedContext) -> None:
            dist.barrier()
            ranks.append(dist.get_rank())

        size = torch.distributed.get_world_size()
        torch.multiprocessing.spawn(worker, args=(torch.distributed,), nprocs=size)

    assert run(bench, machine(), device="whole").ok
    assert sorted(ranks) == [0, 1, 2]


def test_a_call_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []

    def counted(call: CollectiveCall, *others: Any, **named: Any) -> LaunchPlan:
        planned.append(f"{call.name} of rank {call.rank}")
        return plan(call, *others, **named)

    monkeypatch.setattr(ahbm, "plan", counted)
    with RuntimeContext(GraphEngine(machine(2))) as torch:

        def worker(rank: int) -> None:
            torch.distributed.barrier()

        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(worker, nprocs=2)
    assert planned == ["barrier of rank 0", "barrier of rank 1"]
