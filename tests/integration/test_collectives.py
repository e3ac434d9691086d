"""Every collective algorithm on real machines against numpy: worlds, meshes, placements and sizes. Every op and type:
`tests/oracle/test_collectives_against_numpy.py`.

Numbers are small whole ones, so that every order of adding gives the same, unless a test says otherwise. "tiny" rings
hold a single slot of 256 bytes, and chunks are short: whatever can get stuck does so there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.collectives import Array, Machine, World, contents, one_each, only, total

from kernbench.ccl.algorithms import hierarchical_all_pes
from kernbench.ccl.algorithms.exchanges import direct_in_rows
from kernbench.ccl.algorithms.hierarchical_all_pes import is_sent_whole
from kernbench.ccl.algorithms.parts import parts_of
from kernbench.ccl.calls import CollectiveName
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy

ALGORITHMS = (
    "lrab_hierarchical_allreduce",
    "ring_allreduce",
    "recursive_doubling",
    "tree",
    "hierarchical_all_pes",
)
TINY = {"defaults": {"chunk_bytes": 512, "slot_size": 256, "n_slots": 1}}
PER_CUBE = DPPolicy(cube="row_wise", num_pes=1)
PLACEMENTS = {
    "one PE": None,
    "PEs": DPPolicy(pe="row_wise", num_cubes=1),
    "columns and rows": DPPolicy(cube="column_wise", pe="row_wise"),
    "everywhere": DPPolicy(),
    "cubes, replicated on PEs": DPPolicy(cube="row_wise"),
    "PEs, replicated on cubes": DPPolicy(pe="row_wise"),
    "cubes and PEs, unevenly": DPPolicy(cube="row_wise", pe="row_wise"),
}
BY_ROWS = {name: dp for name, dp in PLACEMENTS.items() if name != "columns and rows"}


def whole(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-4, 5, shape).astype(np.float16)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(8)


def assert_all(got: Sequence[Array], expected: Array) -> None:
    for each in got:
        np.testing.assert_array_equal(each, expected)


# -------------------------------------------------------------------------------------------------------- all_reduce


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_all_reduce_adds_over_worlds_of_any_size(algorithm: str, n: int, rng: np.random.Generator) -> None:
    world = World(Machine(sips=n), ccl=TINY)
    arrays = [whole(rng, 401) for _ in range(n)]
    assert_all(world.all_reduce(arrays, algorithm=algorithm), total(arrays))


@pytest.mark.parametrize(
    ("algorithm", "w", "h"),
    [  # to the others a mesh is as many tiles as it has cubes
        *product(("lrab_hierarchical_allreduce", "hierarchical_all_pes"), (1,), (1, 3)),
        *product(("lrab_hierarchical_allreduce", "hierarchical_all_pes"), (3,), (3,)),
        *product(("ring_allreduce", "recursive_doubling", "tree"), (1,), (1, 3)),
        ("ring_allreduce", 2, 2),
        ("recursive_doubling", 2, 2),
        ("tree", 2, 2),
    ],
)
def test_all_reduce_per_cube_adds_over_all_cubes_of_all_ranks(
    algorithm: str, w: int, h: int, rng: np.random.Generator
) -> None:
    world = World(Machine(sips=2, cube_w=w, cube_h=h), ccl=TINY)
    arrays = [whole(rng, w * h, 333) for _ in range(2)]
    expected = np.broadcast_to(sum(a.sum(0, dtype=np.float16) for a in arrays), (w * h, 333))
    assert_all(world.all_reduce(arrays, PER_CUBE, per="cube", algorithm=algorithm), expected)


@pytest.mark.parametrize(("n", "rows", "count"), [(6, 7, 130), (6, 7, 600), (5, 8, 300), (15, 10, 130)])
def test_sips_that_are_too_many_to_exchange_directly_do_so_in_rows_and_columns(
    n: int, rows: int, count: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rows` rings are enough for rows and columns beside the mesh's four, and too few for all; 5 has no rows."""
    asked: list[int] = []
    monkeypatch.setattr(hierarchical_all_pes, "direct_in_rows", lambda *a: asked.append(1) or direct_in_rows(*a))
    rings = {"n_slots": 4, "ring_bytes": (rows + 5) * 1024}  # five are for other collectives
    world = World(Machine(sips=n, cube_w=2), ccl={"defaults": {**TINY["defaults"], **rings}})
    arrays = [rng.standard_normal((2, count)).astype(np.float32) for _ in range(n)]
    got = world.all_reduce(arrays, PER_CUBE, per="cube", algorithm="hierarchical_all_pes")
    np.testing.assert_allclose(got[0][0], sum(a.sum(0, dtype=np.float64) for a in arrays), rtol=1e-4, atol=1e-4)
    assert_all([each[cube] for each in got for cube in (0, 1)], got[0][0])  # the same bits on all
    assert bool(asked) == (n != 5)


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
@pytest.mark.parametrize("algorithm", ["ring_allreduce", "tree", "hierarchical_all_pes"])
def test_a_large_addend_of_a_cube_is_carried_by_all_of_its_pes(algorithm: str, rng: np.random.Generator) -> None:
    world = World(Machine(sips=2, cube_w=2, cube_h=2))
    arrays = [whole(rng, 4, 8200) for _ in range(2)]  # 16,400 bytes
    expected = np.broadcast_to(sum(a.sum(0, dtype=np.float16) for a in arrays), (4, 8200))
    assert_all(world.all_reduce(arrays, PER_CUBE, per="cube", algorithm=algorithm), expected)
    assert world.plans[0].target_pes == (0, 1, 2, 3)


@pytest.mark.parametrize("topology", ["torus_2d", "mesh_2d_no_wrap"])
@pytest.mark.parametrize(("w", "h"), [(1, 3), (3, 2), (2, 2), (4, 1)])
def test_the_hierarchical_all_reduce_goes_by_the_grid_of_sips(
    topology: str, w: int, h: int, rng: np.random.Generator
) -> None:
    machine = Machine(sips=w * h, cube_w=2, cube_h=1, topology=topology, sip_w=w, sip_h=h)
    arrays = [whole(rng, 2, 300) for _ in range(w * h)]
    expected = np.broadcast_to(sum(a.sum(0, dtype=np.float16) for a in arrays), (2, 300))
    for ccl in (None, TINY):
        world = World(machine, ccl=ccl)
        got = world.all_reduce(arrays, PER_CUBE, per="cube", algorithm="lrab_hierarchical_allreduce")
        assert_all(got, expected)


@pytest.mark.parametrize("per", ["rank", "cube"])
def test_tensors_in_sram_are_reduced_too(per: str, rng: np.random.Generator) -> None:
    for algorithm in ALGORITHMS:
        world = World(Machine(sips=2, cube_w=2))
        count = 8300 if algorithm in ("ring_allreduce", "hierarchical_all_pes") else 530  # 16,600 bytes go to all PEs
        arrays = [whole(rng, 2, count) for _ in range(2)]
        expected = total(arrays) if per == "rank" else np.broadcast_to(total(a.sum(0) for a in arrays), (2, count))
        got = world.all_reduce(arrays, PER_CUBE, per=per, algorithm=algorithm, space="sram")
        assert_all(got, expected)


@pytest.mark.parametrize("root", ["center", "corner"])
def test_the_root_of_the_cube_mesh_is_a_setting(root: str, rng: np.random.Generator) -> None:
    world = World(Machine(sips=2, cube_w=3, cube_h=2), ccl={"defaults": {"root": root}})
    arrays = [whole(rng, 6, 40) for _ in range(2)]
    expected = np.broadcast_to(sum(a.sum(0, dtype=np.float16) for a in arrays), (6, 40))
    assert_all(world.all_reduce(arrays, PER_CUBE, per="cube", algorithm="lrab_hierarchical_allreduce"), expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_mean_divides_the_sum_once_and_cuts_integers_towards_zero(algorithm: str) -> None:
    world = World(Machine(sips=3))
    floats = [np.array([1, 2, -3], np.float32) * k for k in (1, 2, 4)]
    assert_all(world.all_reduce(floats, op="avg", algorithm=algorithm), np.float32([7, 14, -21]) / np.float32(3))
    whole_numbers = [np.array([1, 2, -3, -1], np.int32) * k for k in (1, 2, 4)]
    # sums are 7, 14, -21 and -7; a third of each, cut towards zero
    assert_all(world.all_reduce(whole_numbers, op="avg", algorithm=algorithm), np.int32([2, 4, -7, -2]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("per", ["rank", "cube"])
def test_all_ranks_end_with_the_same_bits_and_so_does_a_second_run(
    algorithm: str, per: str, rng: np.random.Generator
) -> None:
    arrays = [rng.standard_normal((2, 301)).astype(np.float16) for _ in range(5)]
    runs = []
    for _ in range(2):
        world = World(Machine(sips=5, cube_w=2))
        runs.append((world.all_reduce(arrays, PER_CUBE, per=per, algorithm=algorithm), world.time_ns))
    (first, first_ns), (second, second_ns) = runs
    assert first_ns == second_ns
    assert_all([*first, *second], first[0])
    if per == "cube":
        assert_all(list(first[0]), first[0][0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_groups_of_some_ranks_in_any_order(algorithm: str, rng: np.random.Generator) -> None:
    world = World(Machine(sips=5), ranks=(4, 0, 2))
    arrays = [whole(rng, 100) for _ in range(3)]
    assert_all(world.all_reduce(arrays, algorithm=algorithm), total(arrays))


# ---------------------------------------------------------------------------------------------- the other collectives


@pytest.mark.parametrize(
    ("algorithm", "placement", "root"),
    [  # every algorithm with every root, and every placement with one of them
        (("tree", "chain", "two_rounds")[number % 3], (*PLACEMENTS, "columns and rows", "everywhere")[number], root)
        for number, root in enumerate((0, 0, 0, 1, 1, 1, 2, 2, 2))
    ],
)
def test_broadcast_and_reduce_from_and_to_every_rank(
    algorithm: str, placement: str, root: int, rng: np.random.Generator
) -> None:
    world = World(Machine(sips=3, cube_w=2), ccl=TINY)
    dp = PLACEMENTS[placement]
    arrays = [whole(rng, 5, 53) for _ in range(3)]
    t = world.tensors(arrays, dp)
    world.run("broadcast", only(root, [t[root]], 3), one_each(t), root=root, algorithm=algorithm)
    assert_all([contents(each) for each in t], arrays[root])
    t = world.tensors(arrays, dp)
    world.run("reduce", one_each(t), only(root, [t[root]], 3), root=root, op="max", algorithm=algorithm)
    expected = [np.max(arrays, 0) if r == root else arrays[r] for r in range(3)]
    for each, wanted in zip(t, expected, strict=True):
        np.testing.assert_array_equal(contents(each), wanted)


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
@pytest.mark.parametrize(
    ("n", "shape", "placement"),
    [
        *((3, (5, 3), placement) for placement in BY_ROWS),
        *((2, (6, 1500), placement) for placement in ("PEs", "cubes, replicated on PEs", "cubes and PEs, unevenly")),
        (2, (5, 3), "PEs, replicated on cubes"),
        (1, (5, 3), "cubes and PEs, unevenly"),
    ],
)
def test_all_gather_and_reduce_scatter_of_blocks(
    n: int, shape: tuple[int, int], placement: str, rng: np.random.Generator
) -> None:
    world = World(Machine(sips=n, cube_w=2), ccl=TINY if shape == (5, 3) else None)
    dp = BY_ROWS[placement]
    rows, cols = shape
    arrays = [whole(rng, *shape) for _ in range(n)]
    t, out = world.tensors(arrays, dp), world.tensors([np.zeros((n * rows, cols), np.float16)] * n, dp)
    world.run("all_gather", one_each(t), one_each(out))
    assert_all([contents(each) for each in out], np.concatenate(arrays))
    blocks = [whole(rng, n * rows, cols) for _ in range(n)]
    big, small = world.tensors(blocks, dp), world.tensors([np.zeros(shape, np.float16)] * n, dp)
    world.run("reduce_scatter", one_each(big), one_each(small), op="sum")
    for each, wanted in zip(small, np.split(total(blocks), n), strict=True):
        np.testing.assert_array_equal(contents(each), wanted)


# ---------------------------------------------------------------------------------------------- logical addresses

LOGICAL = Machine(sips=3, cube_w=2, address_model="la")
ROWS = DPPolicy(cube="row_wise", pe="row_wise")


@pytest.mark.parametrize("cols", [1, 103, 1500])
def test_blocks_that_lie_in_several_parts_are_moved_with_logical_addresses(cols: int, rng: np.random.Generator) -> None:
    """8 PEs hold 5 rows, or 15, of up to 3,000 bytes: a PE's share of a block crosses parts, which a load does not."""
    world = World(LOGICAL, ccl=TINY if cols < 1500 else None)
    arrays = [whole(rng, 5, cols) for _ in range(3)]
    out = world.tensors([np.zeros((15, cols), np.float16)] * 3, ROWS)
    world.run("all_gather", one_each(world.tensors(arrays, ROWS)), one_each(out))
    assert_all([contents(each) for each in out], np.concatenate(arrays))
    blocks = [whole(rng, 15, cols) for _ in range(3)]
    small = world.tensors([np.zeros((5, cols), np.float16)] * 3, ROWS)
    world.run("reduce_scatter", one_each(world.tensors(blocks, ROWS)), one_each(small), op="avg")
    for each, wanted in zip(small, np.split(total(blocks), 3), strict=True):
        np.testing.assert_allclose(contents(each), wanted / 3, rtol=2.0**-10, atol=2.0**-10)


@pytest.mark.parametrize("cols", [3, 1500])
def test_a_collective_in_place_crosses_parts_with_logical_addresses(cols: int, rng: np.random.Generator) -> None:
    """The block of each rank is a part of the tensor with the blocks of all."""
    world = World(LOGICAL)
    arrays = [whole(rng, 15, cols) for _ in range(3)]
    t = world.tensors(arrays, ROWS)
    mine = [each[5 * rank : 5 * rank + 5] for rank, each in enumerate(t)]
    world.run("all_gather", one_each(mine), one_each(t))
    gathered = np.concatenate([a[5 * rank : 5 * rank + 5] for rank, a in enumerate(arrays)])
    assert_all([contents(each) for each in t], gathered)
    world.run("reduce_scatter", one_each(t), one_each(mine), op="sum")
    for rank, each in enumerate(mine):
        np.testing.assert_array_equal(each.numpy(), 3 * gathered[5 * rank : 5 * rank + 5])


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "tree", "hierarchical_all_pes"])
def test_pes_that_hold_nothing_share_the_work_with_logical_addresses(algorithm: str, rng: np.random.Generator) -> None:
    """Three PEs hold 7,000 bytes each, and four share 21,000: no share is a part."""
    world = World(LOGICAL, ccl={"defaults": {"work_bytes": 64 * 1024}})
    arrays = [whole(rng, 3, 3500) for _ in range(3)]
    dp = DPPolicy(pe="row_wise", num_cubes=1, num_pes=3)
    assert_all(world.all_reduce(arrays, dp, algorithm=algorithm), total(arrays))
    assert world.plans[0].target_pes == (0, 1, 2, 3)
    assert world.tcm_peak_bytes <= 64 * 1024


# --------------------------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize(
    ("placement", "model"),
    [*((name, "va") for name in PLACEMENTS if name != "everywhere"), ("everywhere", "pa")],
)
def test_lists_of_tensors_work_with_every_placement(placement: str, model: str, rng: np.random.Generator) -> None:
    world, dp = World(Machine(sips=3, cube_w=2, address_model=model), ccl=TINY), PLACEMENTS[placement]
    a = [[whole(rng, 5, 53) for _ in range(3)] for _ in range(3)]  # of rank r, for or from rank k
    lists = [world.tensors([a[r][k] for r in range(3)], dp) for k in range(3)]  # by k, then by r
    one = world.tensors([np.zeros((5, 53), np.float16)] * 3, dp)
    world.run("reduce_scatter", [[lists[k][r] for k in range(3)] for r in range(3)], one_each(one), op="sum")
    for r in range(3):
        np.testing.assert_array_equal(contents(one[r]), sum(a[q][r] for q in range(3)))
    world.run("scatter", only(1, [lists[k][1] for k in range(3)], 3), one_each(one), root=1)
    for r in range(3):
        np.testing.assert_array_equal(contents(one[r]), a[1][r])
    world.run("all_gather", one_each(one), [[lists[k][r] for k in range(3)] for r in range(3)])
    for r in range(3):
        for k in range(3):
            np.testing.assert_array_equal(contents(lists[k][r]), a[1][k])
    again = world.tensors([a[2][k] for k in range(3)], dp)
    world.run("gather", one_each(again), only(0, [lists[k][0] for k in range(3)], 3), root=0)
    for k in range(3):
        np.testing.assert_array_equal(contents(lists[k][0]), a[2][k])


@pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
@pytest.mark.parametrize("placement", ["PEs", "cubes, replicated on PEs", "cubes and PEs, unevenly"])
def test_all_to_all_with_equal_and_with_unequal_splits(placement: str, rng: np.random.Generator) -> None:
    world, dp, n = World(Machine(sips=3, cube_w=2), ccl=TINY), BY_ROWS[placement], 3
    splits = np.array([[1, 0, 4], [2, 3, 0], [5, 1, 7]])  # from rank r to rank k
    for rows in (np.full((n, n), 2), splits):
        arrays = [whole(rng, int(rows[r].sum()), 31) for r in range(n)]
        t = world.tensors(arrays, dp)
        out = world.tensors([np.zeros((int(rows[:, r].sum()), 31), np.float16) for r in range(n)], dp)
        calls = {
            r: {"input_splits": tuple(map(int, rows[r])), "output_splits": tuple(map(int, rows[:, r]))}
            for r in range(n)
        }
        world.run("all_to_all", one_each(t), one_each(out), calls=calls if rows is splits else None)
        blocks = [np.split(arrays[r], np.cumsum(rows[r])[:-1]) for r in range(n)]
        for r in range(n):
            np.testing.assert_array_equal(contents(out[r]), np.concatenate([blocks[k][r] for k in range(n)]))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_send_and_recv(placement: str, rng: np.random.Generator) -> None:
    world = World(Machine(sips=3, cube_w=2), ranks=(2, 0))
    arrays = [whole(rng, 5, 1003) for _ in range(2)]
    t = world.tensors(arrays, PLACEMENTS[placement])
    world.run(("send", "recv"), only(0, t[:1], 2), only(1, t[1:], 2), calls={0: {"peer": 1}, 1: {"peer": 0}})
    np.testing.assert_array_equal(contents(t[1]), arrays[0])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_a_barrier_takes_time_for_every_round(n: int) -> None:
    times = {}
    for count in (n, 2 * n):
        world = World(Machine(sips=count))
        world.run("barrier", [()] * count, [()] * count)
        times[count] = world.time_ns
    assert times[n] < times[2 * n]  # one round more


# --------------------------------------------------------------------------------------------------- what is refused


def refused(world: World, dp: DPPolicy | None, name: CollectiveName, **facts: Any) -> UsageError:
    t = world.tensors([np.zeros((4, 8), np.float16)] * len(world.sips), dp)
    out = world.tensors([np.zeros((8, 8), np.float16)] * len(world.sips), dp)
    outputs = out if name == "all_gather" else t
    with pytest.raises(UsageError) as caught:
        world.run(name, one_each(t), one_each(outputs), **facts)
    return caught.value


def test_blocks_of_tensors_with_split_columns_are_refused() -> None:
    error = refused(World(Machine(sips=2)), DPPolicy(pe="column_wise"), "all_gather")
    assert "columns of tensor" in error.what
    assert "row_wise" in (error.hint or "")


def test_blocks_of_split_tensors_need_virtual_addresses() -> None:
    error = refused(World(Machine(sips=2, address_model="pa")), DPPolicy(pe="row_wise"), "all_gather")
    assert "physical addresses" in error.what


@pytest.mark.parametrize("dp", [DPPolicy(), DPPolicy(cube="row_wise", num_cubes=3)])
def test_addends_per_cube_need_a_part_of_one_size_on_every_cube(dp: DPPolicy) -> None:
    error = refused(World(Machine(sips=2, cube_w=3)), dp, "all_reduce", op="sum", per="cube")
    assert "no addend for each cube" in error.what


def test_an_algorithm_refuses_cubes_that_are_no_rectangle_and_others_do_not(rng: np.random.Generator) -> None:
    machine, dp = Machine(sips=2, cube_w=2, cube_h=2), DPPolicy(cube="row_wise", num_pes=1, num_cubes=3)
    arrays = [whole(rng, 3, 20) for _ in range(2)]
    with pytest.raises(UsageError, match="no rectangle of the cube mesh"):
        World(machine).all_reduce(arrays, dp, per="cube", algorithm="lrab_hierarchical_allreduce")
    expected = np.broadcast_to(sum(a.sum(0, dtype=np.float16) for a in arrays), (3, 20))
    for algorithm in ("ring_allreduce", "recursive_doubling", "tree"):
        assert_all(World(machine).all_reduce(arrays, dp, per="cube", algorithm=algorithm), expected)


def test_a_collective_that_an_algorithm_does_not_do_is_refused() -> None:
    error = refused(World(Machine(sips=2)), None, "all_reduce", op="sum", algorithm="chain")
    assert "does no all_reduce" in error.what


def test_auto_finds_an_algorithm_for_cubes_that_are_no_rectangle() -> None:
    """Three cubes of a 2 x 2 mesh: the hierarchical ones refuse them, and a ring does not mind."""
    world = World(Machine(sips=2, cube_w=2, cube_h=2), ccl={"defaults": {"algorithm": "auto"}})
    tiles = [np.arange(3 * 8, dtype=np.float32).reshape(3, 8) + rank for rank in range(2)]
    placed = DPPolicy(cube="row_wise", num_cubes=3, num_pes=1)
    found = world.all_reduce(tiles, placed, per="cube")
    total = np.sum(tiles, axis=(0, 1))
    assert all((np.asarray(each) == total).all() for each in found)


def test_auto_refuses_an_algorithm_of_its_table_that_cannot_be_loaded_instead_of_taking_another() -> None:
    broken = {"auto": {"all_reduce": [{"algorithm": "mine"}]}, "algorithms": {"mine": {"module": "nowhere.at_all"}}}
    error = refused(World(Machine(sips=2), ccl=broken), None, "all_reduce", op="sum")
    assert "algorithm 'mine' cannot be loaded" in error.what


@pytest.mark.parametrize(
    ("nbytes", "n_sips", "n_pes", "whole"),
    # 24 KiB >= (nbytes - piece) x PEs x (n - 2), with pieces of whole bursts; two SIPs send as many bytes either way
    [
        (1024, 2, 96, True),  # 512 x 96 x 0
        (1026, 2, 1, False),
        (256, 8, 128, True),  # one piece: two rounds send it as often over the busiest link
        (258, 4, 128, True),
        (512, 4, 128, False),  # pieces of 256
        (512, 8, 16, True),
        (512, 8, 17, False),
    ],
)
def test_few_bytes_go_to_all_sips_whole_as_long_as_their_links_take_no_longer_than_a_round(
    nbytes: int, n_sips: int, n_pes: int, whole: bool
) -> None:
    piece = max(2 * count for _, count in parts_of(nbytes // 2, n_sips, itemsize=2))
    assert is_sent_whole(nbytes, piece, n_sips, n_pes) is whole


def test_bools_are_not_added() -> None:
    world = World(Machine(sips=2))
    with pytest.raises(UsageError, match="bool"):
        world.all_reduce([np.zeros(4, bool)] * 2)


# ------------------------------------------------------------------------------------------------------- cost and room


@pytest.mark.parametrize(
    ("n", "algorithm"), [(2, "ring_allreduce"), (2, "hierarchical_all_pes"), *((5, name) for name in ALGORITHMS)]
)
def test_however_much_is_reduced_the_tcm_that_is_kept_for_it_suffices(n: int, algorithm: str) -> None:
    world = World(Machine(sips=n), ccl={"defaults": {"chunk_bytes": 1 << 20, "work_bytes": 64 * 1024}})
    world.all_reduce([np.zeros(17_000, np.float32)] * n, algorithm=algorithm)  # 68,000 bytes
    assert 8 * 1024 < world.tcm_peak_bytes <= 64 * 1024


@pytest.mark.parametrize("algorithm", ["lrab_hierarchical_allreduce", "hierarchical_all_pes"])
def test_the_tcm_suffices_for_the_root_of_a_mesh_that_has_four_children(algorithm: str) -> None:
    world = World(Machine(sips=2, cube_w=3, cube_h=3), ccl={"defaults": {"work_bytes": 64 * 1024}})
    arrays = [np.ones((9, 4000), np.float16)] * 2  # 8,000 bytes: 4 chunks of 2,048
    assert_all(world.all_reduce(arrays, PER_CUBE, per="cube", algorithm=algorithm), np.full((9, 4000), 18))
    assert 8 * 1024 < world.tcm_peak_bytes <= 48 * 1024  # messages between ranks have the rest


@pytest.mark.parametrize("n", [2, 3])
def test_long_messages_go_one_at_a_time_from_many_pes(
    n: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hierarchical_all_pes, "LONG_PIECE_BYTES", 1024)
    monkeypatch.setattr(hierarchical_all_pes, "MANY_PES", 8)
    world = World(Machine(sips=n, cube_w=2), ccl={"defaults": {"work_bytes": 16 * 1024}})  # chunks of 1,228 bytes
    arrays = [whole(rng, 8, 3001) for _ in range(n)]
    split = DPPolicy(cube="row_wise", pe="row_wise")
    assert_all(world.all_reduce(arrays, split, algorithm="long_messages_all_pes"), total(arrays))


@pytest.mark.parametrize(("count", "rings"), [(8 * 512 - 64, {}), (8 * 1024, {"n_slots": 2, "slot_size": 256})])
def test_long_messages_of_replicas_keep_their_chunks_for_what_they_give_each_other(
    count: int, rings: dict[str, int], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas differ by a burst: some of them are long enough for one chunk at a time, and others are not."""
    monkeypatch.setattr(hierarchical_all_pes, "LONG_PIECE_BYTES", 1024)
    monkeypatch.setattr(hierarchical_all_pes, "MANY_PES", 8)
    world = World(Machine(sips=2, cube_w=2), ccl={"defaults": {"work_bytes": 16 * 1024, **rings}})
    arrays = [whole(rng, count).astype(np.float32) for _ in range(2)]
    assert_all(world.all_reduce(arrays, DPPolicy(), algorithm="hierarchical_all_pes"), total(arrays))


@pytest.mark.parametrize(
    ("n_rings", "way"), [(11, "direct"), (10, "direct_in_rows"), (5, "direct_in_rows"), (4, "ring_pieces")]
)
def test_the_exchange_of_twelve_sips_has_the_fewest_rounds_that_rings_allow(n_rings: int, way: str) -> None:
    assert hierarchical_all_pes.exchange_plan(12, n_rings).exchange.__name__ == way


@pytest.mark.parametrize("count", [40, 3000])
def test_ranks_exchange_in_rows_and_columns_too(count: int, rng: np.random.Generator) -> None:
    rings = {"n_slots": 4, "ring_bytes": (3 + 5) * 1024}
    world = World(Machine(sips=6), ccl={"defaults": {**TINY["defaults"], **rings}})
    assert hierarchical_all_pes.exchange_plan(6, 3).exchange is direct_in_rows
    arrays = [whole(rng, count) for _ in range(6)]
    assert_all(world.all_reduce(arrays, algorithm="hierarchical_all_pes"), total(arrays))


@pytest.mark.parametrize(
    ("algorithm", "sips"), [("tree", 2), ("lrab_hierarchical_allreduce", 4), ("recursive_doubling", 2)]
)
def test_chunks_overlap_what_one_message_does_in_turn(algorithm: str, sips: int) -> None:
    times = []
    for chunk_bytes in (8192, 65536):
        world = World(Machine(sips, cube_w=3), ccl={"defaults": {"chunk_bytes": chunk_bytes, "work_bytes": 1 << 20}})
        arrays = [np.zeros((3, 30_000), np.float16)] * sips  # 30,000 bytes per PE: one chunk, or 4
        dp = DPPolicy(cube="row_wise", pe="column_wise", num_pes=2)
        world.all_reduce(arrays, dp, per="cube", algorithm=algorithm)
        times.append(world.time_ns)
    assert times[0] < 0.95 * times[1]


# ------------------------------------------------------------------------------------------- an algorithm of the user's

OWN = '''
"""All-reduce of the cubes' rows to cube 0 of SIP 0 and back, one after the other: a kernel of a user's own."""

TOPO_NAME_TO_KIND = {"ring_1d": 0}


def kernel_args(world_size, n_elem, *, cube_w=4, cube_h=4):
    return n_elem, cube_w, cube_h, world_size


def row_all_reduce(t_ptr, n_elem, cube_w, cube_h, n_sips, sip_rank, kind, sip_topo_w, sip_topo_h, *, times=1, tl):
    cube = tl.program_id(1)
    mine = t_ptr + cube * n_elem * 2
    acc = tl.load(mine, shape=(n_elem,), dtype="f16") * times
    if cube < cube_w - 1:
        acc = acc + tl.recv("E", shape=(n_elem,), dtype="f16")
    if cube > 0:
        tl.send("W", acc)
        acc = tl.recv("W", shape=(n_elem,), dtype="f16")
    else:
        for step in range(n_sips - 1):
            own = acc if step == 0 else got
            tl.send("global_E", own)
            got = tl.recv("global_W", shape=(n_elem,), dtype="f16")
            total = got if step == 0 else total + got
        acc = acc + total
    if cube < cube_w - 1:
        tl.send("E", acc)
    tl.store(mine, acc)


kernel = row_all_reduce
'''


@pytest.mark.needs("addresses", reason="its kernel reads the parts of other PEs")
def test_an_algorithm_in_a_file_of_its_own(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "ccl.yaml").write_text(
        "defaults: { algorithm: mine }\nalgorithms:\n  mine: { module: mine.py, params: { times: 2 } }\n"
    )
    world = World(Machine(sips=3, cube_w=3), ccl=tmp_path / "ccl.yaml")
    arrays = [whole(rng, 3, 50) for _ in range(3)]
    expected = np.broadcast_to(2 * sum(a.sum(0, dtype=np.float16) for a in arrays), (3, 50))
    assert_all(world.all_reduce(arrays, PER_CUBE, per="cube"), expected)
    with pytest.raises(UsageError, match="can only sum, not MAX"):
        world.all_reduce(arrays, PER_CUBE, per="cube", op="max")
    grid = Machine(sips=4, cube_w=2, topology="torus_2d", sip_w=2, sip_h=2)
    with pytest.raises(UsageError, match="does not know SIPs in a torus_2d"):
        World(grid, ccl=tmp_path / "ccl.yaml").all_reduce([whole(rng, 2, 8)] * 4, PER_CUBE, per="cube")
