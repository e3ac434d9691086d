"""Batches of messages, lists of different sizes, objects, subgroups, futures; numpy is the judge."""

from __future__ import annotations

import pytest
from tests.frontends import rank_programs
from tests.unit.runtime_api.tray import Tray

from kernbench.common.errors import CollectiveMismatchError, DistributedError, NotModelledError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology


@pytest.fixture
def tray() -> Tray:
    return Tray()


def test_a_batch_of_messages_crosses_without_a_deadlock(tray: Tray) -> None:
    torch, dist = tray.torch, tray.dist

    def worker(rank: int) -> list[float]:
        x, y = torch.full((2,), rank, dtype="f32"), torch.empty(2, dtype="f32")
        ops = [dist.P2POp(dist.isend, x, (rank + 1) % 3), dist.P2POp(dist.irecv, y, group_peer=(rank + 2) % 3)]
        assert all(work.wait() for work in dist.batch_isend_irecv(ops))
        return y.tolist()  # type: ignore[return-value]  # of one axis

    assert tray.spawn(worker) == {0: [2, 2], 1: [0, 0], 2: [1, 1]}


def test_lists_may_have_different_sizes(tray: Tray) -> None:
    torch, dist = tray.torch, tray.dist

    def worker(rank: int) -> list[object]:
        parts = [torch.empty(size, dtype="f32") for size in range(3)]  # of rank 0 there is nothing
        dist.all_gather(parts, torch.full((rank,), rank, dtype="f32"))
        given = [torch.full((at + rank,), 10 * rank + at, dtype="f32") for at in range(3)]
        into = [torch.empty(at + rank, dtype="f32") for at in range(3)]
        dist.all_to_all(into, given)
        out = torch.empty(rank + 1, dtype="f32")
        work = dist.reduce_scatter(
            out, [torch.full((at + 1,), rank + 1, dtype="f32") for at in range(3)], async_op=True
        )
        assert work is not None
        return [[each.tolist() for each in some] for some in (parts, into, work.result())]

    for rank, (parts, into, reduced) in tray.spawn(worker).items():
        assert parts == [[], [1], [2, 2]]
        assert into == [[10 * at + rank] * (at + rank) for at in range(3)]
        assert reduced == [[1 + 2 + 3] * (rank + 1)]


def test_lists_whose_sizes_do_not_fit_each_other_are_reported(tray: Tray) -> None:
    torch, dist = tray.torch, tray.dist

    def worker(rank: int) -> None:
        parts = [torch.empty(2 + (rank == 2 and at == 0)) for at in range(3)]
        dist.all_to_all(parts, [torch.zeros(2) for _ in range(3)])

    errors = tray.error(worker)
    assert any(isinstance(error, CollectiveMismatchError) for error in errors.values())
    assert any("and expects 3 from it, which sends 2" in str(error) for error in errors.values())


def test_objects_travel_and_take_time(tray: Tray) -> None:
    torch, dist = tray.torch, tray.dist

    def worker(rank: int) -> tuple[object, ...]:
        before = torch.now_ns
        everyone: list[object] = [None] * 3
        dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank})
        assert torch.now_ns > before
        shared: list[object] = [{"lr": 1}, "two"] if rank == 1 else [None, None]
        dist.broadcast_object_list(shared, src=1)
        gathered: list[object] | None = [None] * 3 if rank == 2 else None
        dist.gather_object(rank, gathered, dst=2)
        own: list[object] = [None]
        dist.scatter_object_list(own, ["a", "bb", "ccc"] if rank == 0 else None, src=0)
        if rank == 0:
            dist.send_object_list([(1, 2)], dst=1)
        elif rank == 1:
            assert dist.recv_object_list(received := [None], src=0) == 0
            assert received == [(1, 2)]
        return everyone, shared, gathered, own

    for rank, found in tray.spawn(worker).items():
        everyone = [{"rank": at, "text": "x" * at} for at in range(3)]
        assert found == (everyone, [{"lr": 1}, "two"], [0, 1, 2] if rank == 2 else None, [["a", "bb", "ccc"][rank]])


def test_work_has_a_future_a_result_and_no_exception(tray: Tray) -> None:
    torch, dist = tray.torch, tray.dist

    def worker(rank: int) -> None:
        x = torch.ones(4, dtype="f32")
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        doubled = work.get_future().then(lambda done: done.value()[0] * 2)
        assert doubled.wait().tolist() == [6] * 4
        assert work.wait(timeout=None)
        assert (work.is_completed(), work.is_success(), work.exception()) == (True, True, None)
        with pytest.raises(NotModelledError, match="use wait"):
            work.block_current_stream()  # type: ignore[attr-defined]  # the mistake

    tray.spawn(worker)


def test_subgroups_and_what_means_nothing_here(tray: Tray) -> None:
    torch, dist = tray.torch, tray.dist

    def worker(rank: int) -> list[object]:
        dist.barrier(device_ids=[rank])
        dist.monitored_barrier()
        own, every = dist.new_subgroups(group_size=1)
        pair = dist.new_group([1, 2], use_local_synchronization=False, group_desc="pair", device_id=torch.device(rank))
        x = torch.full((1,), rank, dtype="f32")
        if rank:
            dist.broadcast(x, group=pair, group_src=1)
        return [dist.get_world_size(own), len(every), x.item(), dist.get_node_local_rank()]

    assert tray.spawn(worker) == {0: [1, 3, 0, 0], 1: [1, 3, 2, 1], 2: [1, 3, 2, 2]}


def test_names_of_multiprocessing_that_are_not_there_say_what_to_use(tray: Tray) -> None:
    with pytest.raises(NotModelledError, match="spawn"):
        tray.torch.multiprocessing.Process  # type: ignore[attr-defined]  # noqa: B018  # the mistake
    with pytest.raises(NotModelledError, match="did you mean 'spawn'"):
        tray.torch.multiprocessing.spwan  # type: ignore[attr-defined]  # noqa: B018  # the mistake


@pytest.mark.parametrize("program", [rank_programs.ring_of_the_tutorial, rank_programs.ring_attention])
def test_programs_of_pytorch_users_run_on_the_devices(program) -> None:
    # Their results are compared with PyTorch's in tests/frontends.
    small = {"system.sips.count": 2, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    with RuntimeContext(GraphEngine(load_topology(None, small))) as torch:
        torch.distributed.init_process_group("ahbm")
        torch.multiprocessing.spawn(lambda rank: program(torch, rank, 2), nprocs=2, daemon=False)
        assert {"send.p2p", "recv.p2p"} <= {launch.name for launch in torch.launches}


def test_the_own_part_is_copied_between_views_of_one_buffer(tray: Tray) -> None:
    torch, dist = tray.torch, tray.dist

    def worker(rank: int) -> list[object]:
        buf = torch.full((10,), -1, dtype="f32")
        own = buf[6 : 7 + rank]
        own.fill_(rank)
        parts = [buf[0:1], buf[1:3], buf[3:6]]
        dist.all_gather(parts, own)
        both = torch.full((6,), rank, dtype="f32")
        dist.all_to_all([both[at : at + 1] for at in range(3)], [both[at : at + 1] for at in range(3, 6)])
        return [buf[:6].tolist(), both.tolist()]

    for rank, found in tray.spawn(worker).items():
        assert found == [[0, 1, 1, 2, 2, 2], [0, 1, 2, rank, rank, rank]]


def test_an_own_part_that_overlaps_its_input_in_part_is_refused(tray: Tray) -> None:
    torch, dist = tray.torch, tray.dist

    def worker(rank: int) -> None:
        buf = torch.zeros(20, dtype="f32")
        parts = [buf[0:3], buf[3:7], buf[7:12]]
        with pytest.raises(DistributedError, match="passed a second time"):
            dist.all_gather(parts, buf[sum((3, 4, 5)[:rank]) + 1 :][: 3 + rank])

    tray.spawn(worker)


def test_a_misspelt_argument_of_subgroups_is_refused(tray: Tray) -> None:
    def worker(rank: int) -> None:
        with pytest.raises(TypeError, match="groupsize"):
            tray.dist.new_subgroups(groupsize=1)  # type: ignore[call-arg]  # what the test is about

    tray.spawn(worker)
