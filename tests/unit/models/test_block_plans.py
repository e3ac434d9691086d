"""Products by blocks: every weight and every input has one place in a group, every result is computed once, and a
layer with such products and with scores in TCM has numpy's numbers.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.unit.models.test_layer import PUBLIC, names, verified

from kernbench.models import mapper
from kernbench.models.block_plans import BlocksPlan, Chunks, most_columns
from kernbench.models.chunk_rounds import ChunkRound, crowded_links
from kernbench.models.plans import SipShape

KIB = 1024
SIP = SipShape(2, 2, 8, 512 * KIB)


def plan_of(sip: SipShape = SIP, groups: int = 2, row_parts: int = 4, passes: int = 0) -> BlocksPlan:
    found = BlocksPlan(
        sip, rows=70, k=50, n=45, groups=groups, row_parts=row_parts, block_rows=5, block_columns=4, block_k=7
    )
    return replace(found, passes=passes)


@pytest.mark.parametrize("passes", [0, 1])
@pytest.mark.parametrize(("groups", "row_parts"), [(1, 1), (1, 32), (2, 4), (4, 2)])
def test_every_result_is_computed_once_and_every_weight_lies_once_in_a_group(
    groups: int, row_parts: int, passes: int
) -> None:
    plan = plan_of(groups=groups, row_parts=row_parts, passes=passes)
    results, weights = np.zeros((70, 45), int), np.zeros((groups, 50, 45), int)
    for cube in range(4):
        for pe in range(8):
            group, row, column = plan.place_of(cube, pe)
            assert plan.number_of(group, row, column) == cube * 8 + pe
            for rows in plan.row_blocks(group, row):
                assert rows[1] - rows[0] <= 5
                for columns in plan.column_blocks(column):
                    results[slice(*rows), slice(*columns)] += 1
            for k, columns in plan.blocks_of(cube, pe):
                weights[group, slice(*k), slice(*columns)] += 1
    assert (results == 1).all()
    assert (weights == 1).all()


@pytest.mark.parametrize("passes", [0, 1])
def test_weights_are_where_the_plan_says(passes: int) -> None:
    plan = plan_of(passes=passes)
    for cube in range(4):
        for pe in range(8):
            _, row, column = plan.place_of(cube, pe)
            at, places = 0, dict[tuple[object, object], int]()
            for k, columns in plan.blocks_of(cube, pe):
                places[k, columns] = at
                at += (k[1] - k[0]) * (columns[1] - columns[0])
            for block, columns in enumerate(plan.column_blocks(column)):
                for chunk, k in enumerate(plan.chunks):
                    owner, offset = plan.weight_at(column, block, chunk)
                    assert owner != row or places[k, columns] == offset


@pytest.mark.parametrize(("groups", "row_parts"), [(1, 1), (1, 32), (2, 4), (4, 2)])
def test_chunks_give_every_input_one_place_in_the_memory_of_its_grid_row(groups: int, row_parts: int) -> None:
    plan = plan_of(groups=groups, row_parts=row_parts)
    layout = Chunks(plan)
    places: dict[int, tuple[int, int]] = {}
    for piece in layout.pieces((0, 70), (0, 50)):
        for at, row in enumerate(range(*piece.rows)):
            for offset, column in enumerate(range(*piece.columns)):
                place = piece.at + at * piece.stride + offset
                assert place not in places
                places[place] = row, column
                group, grid_row, _ = plan.place_of(*divmod(place // layout.room, 8))
                assert any(first <= row < end for first, end in plan.row_blocks(group, grid_row))
    assert sorted(places.values()) == [(row, column) for row in range(70) for column in range(50)]


def test_pes_of_a_grid_row_or_column_use_different_chunks_at_a_time() -> None:
    plan = plan_of()  # 8 chunks, 4 by 4 PEs
    for fixed in range(4):
        for orders in ([plan.order_of(fixed, at) for at in range(4)], [plan.order_of(at, fixed) for at in range(4)]):
            assert all(sorted(order) == list(range(8)) for order in orders)
            assert all(len(set(step)) == 4 for step in zip(*orders, strict=True))


@pytest.mark.parametrize(("groups", "row_parts"), [(1, 1), (1, 32), (2, 4), (4, 2), (1, 16), (2, 2)])
def test_pes_that_pass_on_receive_what_their_neighbours_used_a_step_before(groups: int, row_parts: int) -> None:
    """x from the next PE of the grid row, weights from the next one of the grid column, each of the cube. What a PE
    passes on in a step, the other one receives in the next.
    """
    plan = plan_of(groups=groups, row_parts=row_parts, passes=1)
    for pe in range(8):
        _, row, column = plan.place_of(3, pe)
        place = plan.place_in_cube(row, column)
        assert plan.pe_at(*place) == pe
        for turn in plan.rounds_of(row, column):
            for step in range(turn.count):
                for kind, source in enumerate(turn.sources(place, step)):
                    if source is None:
                        continue
                    assert source[kind] == place[kind]
                    assert source != place
                    assert turn.chunk_at(source, step - 1) == turn.chunk_at(place, step)
                    assert turn.targets(source, step - 1)[kind] == place
                for kind, target in enumerate(turn.targets(place, step)):
                    assert target is None or turn.sources(target, step + 1)[kind] == place


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (8, 8), (2, 8), (8, 2), (3, 7), (8, 1), (1, 1)])
def test_pes_of_a_cube_take_turns_at_reading(rows: int, columns: int) -> None:
    """All PEs use all chunks of a round. Along the longer side of the grid each reads one. Along the shorter side each
    reads one of a group, and some of the one that it begins in again. The reader of a chunk, which has it in its
    memory, is the PE that uses it first.
    """
    count, short = max(rows, columns), min(rows, columns)
    turn = ChunkRound(rows, columns, 5, count)
    is_wide = columns >= rows
    for place in product(range(rows), range(columns)):
        assert sorted(turn.order_of(place)) == list(range(5, 5 + count))
        assert turn.targets(place, count - 1) == (None, None)
        found = [[step for step in range(count) if turn.sources(place, step)[kind] is None] for kind in range(2)]
        along, across = found if is_wide else reversed(found)
        assert along == [0] or count == 1
        assert len(across) <= -(-count // short) + 1
    for chunk in range(5, 5 + count):
        for row in range(rows):
            users = [turn.order_of((row, column)).index(chunk) for column in range(columns)]
            assert turn.x_reader(row, chunk) == users.index(min(users))
        for column in range(columns):
            users = [turn.order_of((row, column)).index(chunk) for row in range(rows)]
            assert turn.weights_reader(column, chunk) == users.index(min(users))


def test_cubes_read_different_memories_at_a_time() -> None:
    """Two cubes of a group, side by side, of 8 PEs in a row each: while one has its first round the other has its
    second, whose chunks of x are on other PEs.
    """
    plan = BlocksPlan(SIP, rows=64, k=512, n=512, groups=2, row_parts=1, block_rows=32, block_columns=32, block_k=16)
    plan = replace(plan, passes=1)
    layout = Chunks(plan)
    assert len(plan.rounds) == 4
    places = [plan.place_of(cube, pe)[1:] for cube in range(2) for pe in range(8)]
    for step in range(4):
        first = [plan.rounds_of(*place)[step].order_of(plan.place_in_cube(*place))[0] for place in places]
        assert len({layout.place(0, 0, 0, chunk) // layout.room for chunk in first}) == 16


def test_the_most_crowded_link_is_counted() -> None:
    """Four PEs in a line, in one row of a grid: each link carries one chunk of x each way, the last PE's goes back over
    all of them. In two rows of two, chunks of weights go two PEs far.
    """
    line = [(0, at) for at in range(4)]
    assert crowded_links(line, 1) == ((1, 0),)
    assert crowded_links(line, 4) == ((0, 1),)
    assert crowded_links(line, 2) == ((1, 1), (0, 2))
    assert crowded_links([(0, 0), (0, 1), (1, 0), (1, 1)], 2) == ((1, 0), (0, 1))


def test_pes_with_different_numbers_of_blocks_do_not_pass_chunks_on() -> None:
    """45 columns over 4 grid columns of a group are 12 or 11 each: three blocks of 4, but two and one of 11."""
    assert plan_of(passes=1).can_pass()
    odd = replace(plan_of(passes=1), block_columns=11)
    assert not odd.can_pass()
    assert odd.for_weights(1, 2) == replace(odd, passes=0)
    assert plan_of(passes=1).for_weights(1, 2).passes


def test_the_most_columns_fill_tcm() -> None:
    """256 rows, chunks of 128: two of x are 128 KiB. A column: 3 strips of 128 sums in f32, 2 in f16, 2 chunks."""
    per_column = 3 * 128 * 4 + 2 * 128 * 2 + 2 * 128 * 2
    assert most_columns(SIP, 256, 128, 2) == (480 * KIB - 128 * KIB) // per_column


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and scores in TCM for products of all sizes."""
    monkeypatch.setattr(mapper, "MARGIN", -1e9)
    monkeypatch.setattr(mapper, "_column_plans", lambda *_: iter(()))
    mapper.candidates_of.cache_clear()
    mapper.choose_layer.cache_clear()
    yield
    mapper.candidates_of.cache_clear()
    mapper.choose_layer.cache_clear()


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize(
    ("model", "sips", "sizes"), [("tiny-gpt", 1, {"batch": 3, "tokens": 13}), ("tiny-llama", 2, {"tokens": 40})]
)
def test_numbers_are_right_by_blocks(model: str, sips: int, sizes: dict[str, object]) -> None:
    result = verified(sips, model=model, **sizes)
    found = [launch.name for launch in result.launches]
    assert found.count("mlp_down") == sips  # one launch: no partial sums to move
    assert found.count("attention") == sips  # and it stores its results as chunks
    assert "spread qkv" in names(result)
    assert "spread mlp_down" not in names(result)  # mlp_up has stored its results as chunks


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize(("model", "sips"), [("tiny-gpt", 1), ("tiny-llama", 2)])
def test_numbers_are_right_where_chunks_are_passed_on(model: str, sips: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product sends messages between the 4 PEs of a cube."""
    monkeypatch.setattr(mapper, "PASSED_K", (16,))
    monkeypatch.setattr(mapper, "_block_plans", lambda *_: iter(()))
    result = verified(sips, model=model, tokens=24)
    sent = {launch.name: launch.bytes_sent for launch in result.launches}
    assert all(sent[name] for name in ("qkv", "out_proj", "mlp_up", "mlp_down"))


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
@pytest.mark.usefixtures("_always")
def test_blocks_of_odd_sizes_keep_to_their_tcm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in ("kernbench.models.tensor_maker", "kernbench.tp.launches"):
        monkeypatch.setattr(f"{where}.tcm_budget", lambda _: 16 * KIB)
    file = tmp_path / "odd.yaml"
    file.write_text(PUBLIC.replace("heads: 4", "heads: 6").replace("hidden: 64", "hidden: 72"))
    result = verified(1, model=f"{file}:mine", tokens=77, tp=1)
    peaks = [launch.tcm_peak.tcm_peak_bytes for launch in result.launches if launch.tcm_peak is not None]
    assert 8 * KIB < max(peaks) <= 16 * KIB
