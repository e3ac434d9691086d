"""Neighbours: what is in a direction of mine has me in the opposite one, on every shape."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl.topologies import (
    OPPOSITE,
    GridKind,
    SipGroup,
    direction_names,
    directions_of,
    group_of,
    mesh_2d_no_wrap,
    peer_of,
    ring_1d,
    torus_2d,
)
from kernbench.common.errors import TopologyError, UsageError
from kernbench.common.ids import PeKey
from kernbench.topology import load_spec

KINDS: tuple[GridKind, ...] = ("ring_1d", "torus_2d", "mesh_2d_no_wrap")


def group(
    sips: int | tuple[int, ...] = 1,
    kind: GridKind = "ring_1d",
    grid: tuple[int, int] | None = None,
    cubes: tuple[int, int] = (4, 4),
    pes: int = 8,
) -> SipGroup:
    chosen = tuple(range(sips)) if isinstance(sips, int) else sips
    w, h = grid or (len(chosen), 1)
    return SipGroup(chosen, kind, w, h, *cubes, pes)


@st.composite
def groups(draw: st.DrawFn) -> SipGroup:
    kind = draw(st.sampled_from(KINDS))
    w, h = draw(st.integers(1, 5)), 1 if kind == "ring_1d" else draw(st.integers(1, 4))
    sips = draw(st.permutations(range(w * h + 2)))[: w * h]  # some of the machine's, in any order
    cubes = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    return SipGroup(tuple(sips), kind, w, h, *cubes, draw(st.sampled_from([1, 2, 3, 4, 7, 8, 16])))


@st.composite
def places(draw: st.DrawFn) -> tuple[SipGroup, PeKey]:
    where = draw(groups())
    cube, pe = draw(st.integers(0, where.n_cubes - 1)), draw(st.integers(0, where.n_pes - 1))
    return where, (draw(st.sampled_from(where.sips)), cube, pe)


def reach(where: SipGroup, pe: PeKey, *directions: str) -> list[PeKey | None]:
    found = [peer_of(where, pe, direction) for direction in directions]
    return [None if peer is None else peer.pe for peer in found]


# ---- on every shape


@settings(max_examples=20, deadline=None, derandomize=True)
@given(places())
def test_the_neighbour_of_my_neighbour_in_the_way_back_is_me(place: tuple[SipGroup, PeKey]) -> None:
    where, me = place
    for direction in directions_of(where, me):
        peer = peer_of(where, me, direction)
        assert peer is not None
        assert peer_of(where, peer.pe, peer.direction) == (me, direction)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(places())
def test_no_pe_is_its_own_neighbour_and_all_are_on_the_machine(place: tuple[SipGroup, PeKey]) -> None:
    where, me = place
    for direction in directions_of(where, me):
        sip, cube, pe = peer_of(where, me, direction).pe  # type: ignore[union-attr]  # it has one
        assert (sip, cube, pe) != me
        assert sip in where.sips
        assert 0 <= cube < where.n_cubes
        assert 0 <= pe < where.n_pes


@settings(max_examples=15, deadline=None, derandomize=True)
@given(places())
def test_two_directions_are_two_rings_at_the_other_end_too(place: tuple[SipGroup, PeKey]) -> None:
    where, me = place
    ends = [peer_of(where, me, direction) for direction in directions_of(where, me)]
    assert len(set(ends)) == len(ends)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(places(), st.text("ENSWX_intrcubegloak0123456789 -+", max_size=9))
def test_what_is_no_direction_leads_nowhere(place: tuple[SipGroup, PeKey], text: str) -> None:
    where, me = place
    assert (peer_of(where, me, text) is not None) == (text in directions_of(where, me))


@pytest.mark.parametrize(
    "text", ["", "n", "NE", "intra", "intra_", "intra_X", "intra_01", "intra_+1", "intra_-1", "intra_1 ", "intra_٣",
             "cube_16", "rank_9", "global", "global_1", "_E", "W_"],
)  # fmt: skip
def test_near_misses_of_directions_lead_nowhere(text: str) -> None:
    assert peer_of(group(4), (0, 0, 0), text) is None


# ---- between cubes


def test_sides_are_the_next_cubes_of_the_mesh_and_do_not_wrap() -> None:
    #  0  1  2
    #  3  4  5
    where = group(cubes=(3, 2))
    assert reach(where, (0, 4, 5), "N", "S", "E", "W") == [(0, 1, 5), None, (0, 5, 5), (0, 3, 5)]
    assert reach(where, (0, 0, 1), "N", "S", "E", "W") == [None, (0, 3, 1), (0, 1, 1), None]


@pytest.mark.parametrize(
    ("cubes", "sides"), [((1, 1), ()), ((1, 3), ("N", "S")), ((3, 1), ("E", "W")), ((3, 3), ("N", "S", "E", "W"))]
)
def test_a_row_of_cubes_has_two_sides_and_one_cube_none(cubes: tuple[int, int], sides: tuple[str, ...]) -> None:
    where = group(cubes=cubes)
    middle = (0, where.n_cubes // 2, 0)
    assert tuple(side for side in OPPOSITE if peer_of(where, middle, side)) == sides


def test_any_cube_of_the_sip_has_a_name() -> None:
    where = group(cubes=(4, 4))
    assert peer_of(where, (0, 5, 2), "cube_8") == ((0, 8, 2), "cube_5")
    assert peer_of(where, (0, 5, 2), "cube_5") is None


def test_any_pe_of_the_sip_has_a_name_that_is_not_listed() -> None:
    where = group(cubes=(4, 4))
    assert peer_of(where, (0, 5, 2), "cube_8_pe_1") == ((0, 8, 1), "cube_5_pe_2")
    assert peer_of(where, (0, 5, 2), "cube_5_pe_1") == ((0, 5, 1), "cube_5_pe_2")
    for text in ("cube_5_pe_2", "cube_16_pe_1", "cube_8_pe_8", "cube_8_pe_", "cube_8_pe_1_pe_1", "rank_0_cube_8_pe_1"):
        assert peer_of(where, (0, 5, 2), text) is None
    assert "cube_8_pe_1" not in directions_of(where, (0, 5, 2))


# ---- within a cube


def test_a_cube_with_one_pe_has_no_directions_inside() -> None:
    assert [name for name in directions_of(group(pes=1), (0, 0, 0)) if name.startswith("intra")] == []


def test_in_a_cube_with_two_pes_four_directions_reach_the_other_one() -> None:
    where = group(pes=2)
    assert reach(where, (0, 3, 0), "intra_E", "intra_W", "intra_N", "intra_S", "intra_1") == [(0, 3, 1)] * 5
    ways_back = [peer_of(where, (0, 3, 0), f"intra_{side}") for side in "EWNS"]
    assert [peer.direction for peer in ways_back if peer] == ["intra_W", "intra_E", "intra_S", "intra_N"]


def test_eight_pes_are_a_ring_and_four_pairs() -> None:
    where = group(pes=8)
    assert reach(where, (0, 0, 7), "intra_E", "intra_W", "intra_N", "intra_S") == [(0, 0, n) for n in (0, 6, 3, 3)]
    assert peer_of(where, (0, 0, 7), "intra_2") == ((0, 0, 2), "intra_7")


def test_of_an_odd_number_of_pes_across_is_half_the_ring_rounded_down_southward() -> None:
    where = group(pes=5)
    assert reach(where, (0, 0, 1), "intra_S") == [(0, 0, 3)]  # 1 + 2
    assert reach(where, (0, 0, 3), "intra_N") == [(0, 0, 1)]
    assert reach(where, (0, 0, 1), "intra_N") == [(0, 0, 4)]  # 1 - 2


# ---- between SIPs


def test_in_a_ring_of_two_sips_both_directions_reach_the_other_one_through_rings_of_their_own() -> None:
    where = group(2)
    assert peer_of(where, (0, 3, 1), "global_E") == ((1, 3, 1), "global_W")
    assert peer_of(where, (0, 3, 1), "global_W") == ((1, 3, 1), "global_E")


def test_one_sip_alone_has_no_directions_to_others() -> None:
    assert [name for name in directions_of(group(1), (0, 0, 0)) if name[:4] in ("glob", "rank")] == []


def test_the_six_of_a_torus_and_of_a_mesh() -> None:
    #  0  1  2
    #  3  4  5
    torus, mesh = group(6, "torus_2d", (3, 2)), group(6, "mesh_2d_no_wrap", (3, 2))
    sides = [f"global_{side}" for side in "NSEW"]
    assert reach(torus, (2, 0, 0), *sides) == [(sip, 0, 0) for sip in (5, 5, 0, 1)]
    assert reach(mesh, (2, 0, 0), *sides) == [None, (5, 0, 0), None, (1, 0, 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_of_one_row_has_no_north(kind: GridKind) -> None:
    names = {
        name for sip in range(4) for name in directions_of(group(4, kind, (4, 1)), (sip, 0, 0)) if "global" in name
    }
    assert names == {"global_E", "global_W"}


def test_ranks_of_some_sips_count_within_the_group() -> None:
    where = group((5, 1, 3))
    assert peer_of(where, (5, 2, 7), "rank_2") == ((3, 2, 7), "rank_0")
    assert peer_of(where, (5, 2, 7), "global_E") == ((1, 2, 7), "global_W")
    assert peer_of(where, (3, 2, 7), "global_E") == ((5, 2, 7), "global_W")
    assert peer_of(where, (5, 2, 7), "rank_5") is None


def test_a_sip_outside_the_group_has_no_directions_at_all() -> None:
    assert directions_of(group((5, 1, 3)), (2, 0, 0)) == ()


def test_neighbours_by_rank_are_what_algorithms_ask_for() -> None:
    assert ring_1d(0, 3) == {"E": 1, "W": 2}
    assert ring_1d(0, 1) == {}
    assert torus_2d(0, 2, 2) == {"N": 2, "S": 2, "E": 1, "W": 1}
    assert mesh_2d_no_wrap(3, 3, 2) == {"N": 0, "E": 4}


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_by_rank_the_way_back_is_the_opposite_side(w: int, h: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, w * h - 1))
    for neighbours in (torus_2d, mesh_2d_no_wrap):
        for side, peer in neighbours(rank, w, h).items():
            assert neighbours(peer, w, h)[OPPOSITE[side]] == rank


# ---- of a machine


def test_directions_are_listed_in_one_order_the_short_names_first() -> None:
    names = direction_names(group(2, cubes=(2, 1), pes=2))
    assert names[:8] == ("N", "S", "E", "W", "intra_N", "intra_S", "intra_E", "intra_W")
    assert names[12:] == ("rank_0", "rank_1", "intra_0", "intra_1", "cube_0", "cube_1")


def machine(**sips: object) -> dict[str, object]:
    return {f"system.sips.{key}": value for key, value in sips.items()}


def test_a_group_of_all_sips_is_on_the_machines_grid_and_one_of_some_is_a_ring() -> None:
    spec = load_spec(None, machine(count=6, topology="torus_2d", w=3, h=2))
    whole, some = group_of(spec), group_of(spec, [4, 0])
    assert (whole.kind, whole.w, whole.h, whole.sips) == ("torus_2d", 3, 2, (0, 1, 2, 3, 4, 5))
    assert group_of(spec, range(6)) == whole
    assert (some.kind, some.w, some.h, some.sips) == ("ring_1d", 2, 1, (4, 0))
    assert (whole.cube_w, whole.cube_h, whole.n_pes) == (4, 4, 8)


def test_a_ring_is_one_ring_in_whatever_rows_the_machine_draws_it() -> None:
    where = group_of(load_spec(None, machine(count=4, topology="ring_1d", w=2, h=2)))
    assert (where.w, where.h) == (4, 1)
    assert reach(where, (1, 0, 0), "global_E", "global_W", "global_N") == [(2, 0, 0), (0, 0, 0), None]


@pytest.mark.parametrize(
    ("sips", "hint"),
    [
        (machine(count=6, topology="torus_2d", w=2, h=2), "set w and h so that w x h = 6, or count to 4"),
        (machine(count=7, topology="mesh_2d_no_wrap", w=3, h=2), "set w and h so that w x h = 7, or count to 6"),
        (machine(count=6, topology="mesh_2d_no_wrap"), "set w and h so that w x h = 6"),
    ],
)
def test_a_grid_that_does_not_hold_its_sips_is_refused_with_the_fix(sips: dict[str, object], hint: str) -> None:
    with pytest.raises(TopologyError, match=r"does not hold|not a square") as refused:
        load_spec(None, sips)
    assert hint in str(refused.value)


def test_a_description_that_was_not_checked_is_refused_here_too() -> None:
    spec = load_spec(None, machine(count=6, topology="torus_2d", w=3, h=2))
    sips = spec.system.sips.model_copy(update={"w": 2})
    wrong = spec.model_copy(update={"system": spec.system.model_copy(update={"sips": sips})})
    with pytest.raises(UsageError, match="a grid of 2 x 2 SIPs does not hold 6") as refused:
        group_of(wrong)
    assert "w and h whose product is count" in str(refused.value)
