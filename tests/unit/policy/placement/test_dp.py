"""Placement: which part of a tensor each PE gets, where it stands in the address range, and the rule for remainders."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import SPLITS, DPPolicy, ShardSpec, Split, parts_of, resolve_dp_policy


def place(policy: DPPolicy, shape: tuple[int, ...], pes: int = 2, cubes: int = 1, itemsize: int = 2) -> list[ShardSpec]:
    return resolve_dp_policy(policy, shape=shape, itemsize=itemsize, num_pe=pes, num_cubes=cubes, target_sip=0)


def test_columns_over_pes_follow_one_another_in_the_address_range() -> None:
    # 4 x 6 of f16 over 2 PEs: 4 x 3 each, 24 bytes each.
    assert place(DPPolicy(pe="column_wise"), (4, 6)) == [ShardSpec(0, 0, 0, 0, 24), ShardSpec(0, 0, 1, 24, 24)]


def test_columns_are_boxes_of_the_whole_tensor() -> None:
    first, second = place(DPPolicy(pe="column_wise"), (4, 6))
    assert first.box == ((0, 4), (0, 3))
    assert second.box == ((0, 4), (3, 6))
    assert second.local_shape == (4, 3)
    assert np.arange(24).reshape(4, 6)[second.index][0].tolist() == [3, 4, 5]


def test_the_first_parts_take_the_remainder() -> None:
    assert list(parts_of(10, 4)) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    rows = place(DPPolicy(pe="row_wise"), (10, 4), pes=4)
    assert [s.local_shape for s in rows] == [(3, 4), (3, 4), (2, 4), (2, 4)]
    assert [s.offset_bytes for s in rows] == [0, 24, 48, 64]


def test_a_part_of_nothing_is_no_shard() -> None:
    assert [(s.pe, s.nbytes) for s in place(DPPolicy(pe="row_wise"), (3, 1), pes=8)] == [(0, 2), (1, 2), (2, 2)]


def test_replicas_share_one_offset() -> None:
    shards = place(DPPolicy(cube="replicate", pe="replicate"), (4, 4), pes=2, cubes=2)
    assert [(s.cube, s.pe, s.offset_bytes, s.nbytes) for s in shards] == [
        (0, 0, 0, 32),
        (0, 1, 0, 32),
        (1, 0, 0, 32),
        (1, 1, 0, 32),
    ]


def test_rows_over_cubes_and_columns_over_pes() -> None:
    # 4 x 4 of f16: a cube has 2 rows (16 bytes), a PE of it 2 columns (8 bytes).
    shards = place(DPPolicy(cube="row_wise", pe="column_wise"), (4, 4), pes=2, cubes=2)
    assert [(s.cube, s.pe, s.offset_bytes) for s in shards] == [(0, 0, 0), (0, 1, 8), (1, 0, 16), (1, 1, 24)]
    assert shards[3].box == ((2, 4), (2, 4))


def test_split_over_cubes_and_replicated_over_pes() -> None:
    shards = place(DPPolicy(cube="column_wise", pe="replicate"), (2, 4), pes=2, cubes=2)
    assert [(s.cube, s.pe, s.offset_bytes, s.nbytes) for s in shards] == [
        (0, 0, 0, 8),
        (0, 1, 0, 8),
        (1, 0, 8, 8),
        (1, 1, 8, 8),
    ]


def test_a_policy_takes_the_first_cubes_and_pes() -> None:
    shards = place(DPPolicy(pe="row_wise", num_pes=2, num_cubes=1), (4,), pes=8, cubes=16)
    assert [(s.cube, s.pe) for s in shards] == [(0, 0), (0, 1)]


def test_rows_of_a_one_dimensional_tensor_are_its_columns() -> None:
    assert place(DPPolicy(pe="row_wise"), (5,)) == place(DPPolicy(pe="column_wise"), (5,))


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 2, 2, 2, 2), (2, -1), (2.0, 2)])
def test_a_shape_that_cannot_be_placed_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="cannot be placed"):
        place(DPPolicy(), shape)


def test_a_policy_that_wants_more_than_there_is_is_refused() -> None:
    with pytest.raises(UsageError, match="wants 9 PEs, the machine has 8"):
        place(DPPolicy(num_pes=9), (8,), pes=8)
    with pytest.raises(UsageError, match=r"DPPolicy.cube is 'diagonal'"):
        DPPolicy(cube="diagonal")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(UsageError, match=r"DPPolicy.num_pes is 0"):
        DPPolicy(num_pes=0)


def test_a_policy_does_not_cross_sips() -> None:
    with pytest.raises(TypeError):
        DPPolicy(sip="row_wise")  # type: ignore[call-arg]  # the mistake
    assert not hasattr(ShardSpec(0, 0, 0, 0, 1), "pe_index")


splits = st.sampled_from(SPLITS)


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    cube=splits,
    pe=splits,
    cubes=st.integers(1, 4),
    pes=st.integers(1, 5),
    itemsize=st.sampled_from([1, 2, 4]),
)
def test_shards_cover_the_tensor_once_and_the_range_without_gaps(
    shape: tuple[int, ...], cube: Split, pe: Split, cubes: int, pes: int, itemsize: int
) -> None:
    policy = DPPolicy(cube=cube, pe=pe)
    try:
        shards = place(policy, shape, pes, cubes, itemsize)
    except UsageError:
        assert "tiled" in cube + pe  # the only splits that want a part for each PE
        reject()
    copies = (cubes if cube == "replicate" else 1) * (pes if pe == "replicate" else 1)
    seen = np.zeros(shape, int)
    for shard in shards:
        seen[shard.index] += 1
        assert prod(shard.local_shape) * itemsize == shard.nbytes
    assert (seen == copies).all()
    ranges = sorted({(s.offset_bytes, s.nbytes) for s in shards})
    assert [start for start, _ in ranges] == [sum(n for _, n in ranges[:i]) for i in range(len(ranges))]
    assert sum(n for _, n in ranges) == prod(shape) * itemsize


@given(n=st.integers(1, 1000), parts=st.integers(1, 50))
def test_parts_are_in_order_and_differ_by_at_most_one(n: int, parts: int) -> None:
    sizes = [end - first for first, end in parts_of(n, parts)]
    assert sum(sizes) == n
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    cubes=st.integers(1, 4),
    pes=st.integers(1, 5),
)
def test_rows_over_both_levels_are_the_plain_row_major_tensor(shape: tuple[int, ...], cubes: int, pes: int) -> None:
    whole = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    laid = np.zeros(whole.nbytes, np.uint8)
    for shard in place(DPPolicy(cube="row_wise", pe="row_wise"), shape, pes, cubes, itemsize=4):
        laid[shard.offset_bytes :][: shard.nbytes] = np.frombuffer(whole[shard.index].tobytes(), np.uint8)
    assert laid.tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    ("policy", "rank", "axes"),
    [
        (DPPolicy(), 2, ()),
        (DPPolicy(pe="row_wise"), 2, (0,)),
        (DPPolicy(cube="column_wise"), 3, (2,)),
        (DPPolicy("column_wise", "row_wise"), 3, (0, 2)),
        (DPPolicy("column_wise", "row_wise"), 1, (0,)),  # one axis is both
    ],
)
def test_the_axes_that_a_policy_splits(policy: DPPolicy, rank: int, axes: tuple[int, ...]) -> None:
    assert policy.split_axes(rank) == axes
