"""Collectives are replayed, too: the launches of all ranks together, where these are in step. No result changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from tests.integration.test_replayed_launches import (
    SPLIT,
    Program,
    Run,
    ask_who_waits,
    look_at_counters,
    look_at_the_log,
    machine,
    outcome,
    products,
    read_of_another_sip,
    read_of_host,
    read_of_its_pe,
    same,
    uneven,
    write_of_host,
)

from kernbench import repeatable
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.memo import launch_recordings
from kernbench.sim_engine.memo.launch_recordings import LaunchRecordings
from kernbench.topology import TopologyGraph

Rank = Callable[["Run", int], object]
SHAPE = (64, 64)


@pytest.fixture(autouse=True)
def recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when a collective comes for the second time."""
    monkeypatch.setattr(LaunchRecordings, "_is_new", lambda self, launch: False)


@cache
def four(**changes: object) -> TopologyGraph:
    """Four SIPs of one cube."""
    return machine(**{"system.sips.count": 4, "sip.cube_mesh.w": 1, **changes})


def ranks(body: Rank, count: int = 2, **ccl: Any) -> Program:
    """A program in which every rank does the same, and whose collectives are its launches, too."""

    def program(run: Run) -> None:
        def rank(number: int) -> None:
            run.torch.ahbm.set_device(number)
            run.torch.distributed.init_process_group("ahbm", **({"ccl": {"defaults": ccl}} if ccl else {}))
            body(run, number)

        try:
            run.torch.multiprocessing.spawn(rank, nprocs=count)
        finally:
            run.launches = list(run.torch.launches)

    return program


def tensor(run: Run, shape: tuple[int, ...] = SHAPE, dp: DPPolicy = SPLIT) -> Tensor:
    made: Tensor = run.torch.empty(*shape, dp=dp)
    return made


def some_all_reduces(run: Run, _: int, times: int = 3) -> None:
    x = tensor(run)
    for _ in range(times):
        run.torch.distributed.all_reduce(x)


# ---- in step


def test_all_reduces_in_step() -> None:
    assert same(ranks(some_all_reduces)) == 3


def test_ranks_of_four_sips() -> None:
    assert same(ranks(some_all_reduces, 4), four()) == 3


@pytest.mark.parametrize("kind", ["sram", "hbm"])
def test_rings_in_other_memories_are_not_known(kind: str) -> None:
    assert same(ranks(some_all_reduces, buffer_kind=kind)) == 0


@pytest.mark.parametrize("rings", [{"n_slots": 1}, {"n_slots": 2, "slot_size": 256, "backpressure": "poll"}])
def test_small_rings(rings: dict[str, Any]) -> None:
    assert same(ranks(some_all_reduces, **rings)) >= 1


@pytest.mark.parametrize(
    "algorithm",
    ["lrab_hierarchical_allreduce", "ring_allreduce", "recursive_doubling", "tree", "long_messages_all_pes"],
)
def test_algorithms_of_all_reduce(algorithm: str) -> None:
    same(ranks(some_all_reduces, algorithm=algorithm))


def test_other_tensors_at_other_addresses() -> None:
    """Also such whose parts lie otherwise among channels, or over fewer PEs."""

    def body(run: Run, _: int) -> None:
        held = []
        for shape in (SHAPE, (8, 24), SHAPE, (37, 48), SHAPE, (8, 24)):
            held.append(tensor(run, shape))
            run.torch.distributed.all_reduce(held[-1])
            held.append(tensor(run, (3, 17)))

    assert same(ranks(body)) >= 4


def test_kernels_between_collectives() -> None:
    def body(run: Run, number: int) -> None:
        x, y = tensor(run, (64, 256)), tensor(run, (64, 256))
        for _ in range(2):
            for kernel in (uneven, products):
                run.launch(kernel, x, y, sips=(number,))
            run.torch.distributed.all_reduce(x)

    assert same(ranks(body)) >= 2


def test_one_that_takes_more_than_all_the_room_is_replayed_after_other_recordings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large collective comes again after kernels that do something else: none of them drops its recording."""

    sizes: list[int] = []

    def body(run: Run, number: int) -> None:
        x, y = tensor(run, (64, 256)), tensor(run, (64, 256))
        run.torch.distributed.all_reduce(x)
        for kernel in (uneven, products):
            run.launch(kernel, x, y, sips=(number,))
        run.torch.distributed.all_reduce(x)
        known = run.engine.launch_replayer
        if known is not None and known._recordings.recorded:
            kept = sorted((one.nbytes, one.messages is not None) for _, one in known._recordings._kept.values())
            sizes[:] = [nbytes for nbytes, _ in kept]
            assert [is_collective for _, is_collective in kept] == [False, False, True]
            assert known._recordings.recorded == 3

    outcome(ranks(body), machine())
    assert len(sizes) == 3
    monkeypatch.setattr(launch_recordings, "MOST_BYTES", sizes[-1] - 1)
    assert same(ranks(body)) == 2 + 2 * 2 * 2  # collectives; kernels on cubes of SIPs


def test_barriers() -> None:
    def body(run: Run, _: int) -> None:
        for _ in range(4):
            run.torch.distributed.barrier()

    assert same(ranks(body)) >= 2


def test_no_kernel_is_run_when_all_is_known_before() -> None:
    """The first is run once for every PE, elsewhere; those after it are followed."""
    counts = [outcome(ranks(lambda run, rank, n=n: some_all_reduces(run, rank, n)), machine()) for n in (1, 5)]
    assert [run.copied for run in counts] == [1, 5]
    ipcqs = [name for name in machine().nodes if name.endswith("pe_ipcq")]
    for run in counts:
        used = [run.engine.component_so_far(name) for name in ipcqs]
        assert not any(queue._users for queue in used if queue is not None)


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
def test_collectives_of_all_kinds() -> None:
    def body(run: Run, number: int) -> None:
        dist, x, y = run.torch.distributed, tensor(run), tensor(run, (128, 64))
        parts = [tensor(run), tensor(run)]
        for _ in range(2):
            dist.all_gather_into_tensor(y, x)
            dist.reduce_scatter_tensor(x, y)
            dist.all_to_all_single(parts[0], parts[1])
            dist.broadcast(x, 0)
            dist.reduce(x, 1)
            dist.gather(x, parts if number == 0 else None, 0)
            dist.scatter(x, parts if number == 1 else None, 1)
            dist.all_gather(parts, x)

    assert same(ranks(body)) >= 1


# ---- out of step, and with interference


@pytest.mark.parametrize("late_ns", [1.0, 100.0, 5000.0])
def test_a_rank_that_is_late(late_ns: float) -> None:
    """What is out of step is run."""

    @repeatable
    def waits(cycles: int, tl: Any) -> None:
        tl.cycles(int(cycles))

    def body(run: Run, number: int) -> None:
        x = tensor(run)
        for turn in range(3):
            if turn == 1 and number == 1:
                run.launch(waits, int(late_ns), sips=(1,), target_cubes=0, target_pes=0)
            run.torch.distributed.all_reduce(x)

    assert same(ranks(body)) >= 1


def two_all_reduces(run: Run, rank: int) -> None:
    kept = [tensor(run, (64, 256)), tensor(run, (64, 256))]
    if rank == 1:
        run.kept = kept
    some_all_reduces(run, rank, 2)


@cache
def instants() -> list[float]:
    """Begins and ends of the kernels of an all-reduce, the host's answer, and some in between."""
    run = outcome(ranks(two_all_reduces), machine(), fast=False)
    found = sorted({t for launch in run.launches for pe in launch.pes for t in (pe.start_ns, pe.end_ns)})
    found += [(a + b) / 2 + 0.0625 for a, b in pairwise(found)]
    last = max(found)
    return sorted([*found, *(last + 20.0 * step for step in range(1, 5))])


def launch_there(run: Run) -> None:
    run.launch(uneven, *run.kept, sips=(1,), wait=False, target_cubes=1)


INTERFERING = [
    write_of_host, read_of_host, read_of_its_pe, read_of_another_sip, look_at_the_log, look_at_counters,
    ask_who_waits, launch_there,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(INTERFERING)), ids=[access.__name__ for access in INTERFERING])
def test_an_interfering_access_changes_nothing(number: int) -> None:
    access = INTERFERING[number]
    copied: list[int] = []
    for after_ns in instants()[number :: len(INTERFERING)][number % 3 :: 4]:

        def program(run: Run, after_ns: float = after_ns) -> None:
            run.happens(after_ns, lambda: access(run))
            ranks(two_all_reduces)(run)
            run.torch.wait_all()

        copied.append(same(program))
    assert min(copied) < 2


def test_compute_and_collectives_at_the_same_time() -> None:
    def body(run: Run, number: int) -> None:
        x, y, z = (tensor(run, (64, 256)) for _ in range(3))
        for _ in range(4):
            work = run.torch.distributed.all_reduce(x, async_op=True)
            run.launch(uneven, y, z, sips=(number,))
            work.wait()
        run.torch.distributed.all_reduce(y)

    same(ranks(body))


def test_collectives_that_wait_for_each_other() -> None:
    def body(run: Run, _: int) -> None:
        x, y = tensor(run), tensor(run)
        for _ in range(2):
            works = [run.torch.distributed.all_reduce(each, async_op=True) for each in (x, y, x)]
            for work in works:
                work.wait()
        run.torch.distributed.all_reduce(x)

    same(ranks(body))


# ---- groups


@pytest.mark.parametrize(("groups", "copied"), [(((0, 1), (2, 3)), 6), (((3, 2), (1, 0)), 6), (((3, 0), (2, 1)), 0)])
def test_two_groups_at_the_same_time(groups: tuple[tuple[int, ...], ...], copied: int) -> None:
    """Those that come in turns are run: which of their ranks is first at one instant is not known."""

    def body(run: Run, number: int) -> None:
        made = [run.torch.distributed.new_group(list(group)) for group in groups]
        own = next(group for group, members in zip(made, groups, strict=True) if number in members)
        x = tensor(run)
        for _ in range(3):
            run.torch.distributed.all_reduce(x, group=own)

    assert same(ranks(body, 4), four()) == copied


def test_groups_and_the_world_one_after_the_other() -> None:
    def body(run: Run, number: int) -> None:
        made = [run.torch.distributed.new_group(group) for group in ([0, 1], [2, 3], [0, 2])]
        x = tensor(run)
        for _ in range(2):
            run.torch.distributed.all_reduce(x)
            run.torch.distributed.all_reduce(x, group=made[number // 2])
            if number in (0, 2):
                run.torch.distributed.all_reduce(x, group=made[2])

    assert same(ranks(body, 4), four()) >= 2


def test_a_collective_of_another_group_interferes() -> None:
    """Over the same SIPs and PEs, while one is under way: in a stream they come one after the other; other PEs do not
    wait.
    """

    def body(run: Run, number: int) -> None:
        pair = run.torch.distributed.new_group([0, 1])
        x, y = tensor(run), tensor(run, (4, 4), DPPolicy(num_cubes=1, num_pes=1))
        for _ in range(2):
            works = [run.torch.distributed.all_reduce(x, async_op=True)]
            if number < 2:
                works.append(run.torch.distributed.all_reduce(y, group=pair, async_op=True))
            for work in works:
                work.wait()

    same(ranks(body, 4), four())


# ---- by chance


@pytest.mark.parametrize("seed", range(3))  # `make fuzz-exact` has more
def test_random_collectives(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([2, 2, 4])
    algorithm = rng.choice(["auto", "tree", "ring_allreduce", "recursive_doubling", "lrab_hierarchical_allreduce"])
    steps = [
        (
            rng.choice(["all_reduce", "all_reduce", "all_reduce", "gather", "broadcast", "kernel", "barrier", "later"]),
            rng.choice([(64, 64), (64, 64), (16, 40), (5, 9)]),
            rng.random() < 0.2,
        )
        for _ in range(5)
    ]

    def body(run: Run, number: int) -> None:
        dist, x, y = run.torch.distributed, tensor(run, (64, 256)), tensor(run, (64, 256))
        kept, works = {}, []
        for what, shape, is_async in [*steps, *steps]:
            z = kept.setdefault(shape, tensor(run, shape))
            if what == "all_reduce":
                works.append(dist.all_reduce(z, async_op=is_async))
            elif what == "gather":
                works.append(dist.all_gather([tensor(run, shape) for _ in range(count)], z, async_op=is_async))
            elif what == "broadcast":
                works.append(dist.broadcast(z, count - 1, async_op=is_async))
            elif what == "barrier":
                dist.barrier()
            elif what == "kernel" or number == 0:
                run.launch(rng.choice([uneven, products]) if what == "later" else uneven, x, y, sips=(number,))
        for work in works:
            if work is not None:
                work.wait()

    state = rng.getstate()

    def program(run: Run) -> None:
        rng.setstate(state)
        ranks(body, count, **({} if algorithm == "auto" else {"algorithm": algorithm}))(run)

    same(program, four(**{"sip.cube_mesh.w": 2}) if count == 4 else machine())


def test_rings_that_are_made_anew_while_a_collective_uses_them() -> None:
    """That is refused, known or not; once it is over, later ones do not meet what was left."""

    def anew(run: Run) -> None:
        try:
            run.torch.install_ipcq(n_slots=2)
            run.notes.append("made")
        except UsageError as wrong:
            run.notes.append(str(wrong))

    def body(run: Run, number: int) -> None:
        (x, y), options = [tensor(run), tensor(run)], {"sips": (number,), "stream": "communication"}
        for _ in range(3):
            run.launch(exchange, x, y, number, **options)

    for after_ns in (150.0, 700.0):

        def program(run: Run, after_ns: float = after_ns) -> None:
            run.happens(after_ns, lambda: anew(run))
            ranks(body)(run)

        same(program)


@repeatable
def exchange(x: Any, y: Any, rank: int, tl: Any) -> None:
    """Over the world's rings, in the stream of collectives."""
    other, own = f"rank_{1 - int(rank)}", tl.load(x.local, (4, 64))
    for _ in range(6):
        sent = tl.send_async(other, own)
        own = own + tl.recv(other, (4, 64))
        tl.wait(sent)
    tl.store(y.local, own)
