"""Page table: pieces, sub-page mappings, the last map wins, unmapping; and a byte-by-byte model as judge."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import AddressError
from kernbench.common.messages import MapEntry
from kernbench.policy.address.page_table import PageTable


def table(*maps: tuple[int, int, int]) -> PageTable:
    made = PageTable(4096)
    for va, pa, nbytes in maps:
        made.map(va, pa, nbytes)
    return made


def test_an_access_inside_a_mapping_is_one_piece() -> None:
    assert table((0x1000, 0xA000, 0x1000)).translate(0x1010, 32) == [(0xA010, 32)]


def test_an_access_across_mappings_is_cut() -> None:
    # 16 bytes of the first mapping are left, the other 16 lie in the second.
    assert table((0, 1000, 32), (32, 5000, 32)).translate(16, 32) == [(1016, 16), (5000, 16)]


def test_neighbours_that_touch_physically_too_are_one_piece() -> None:
    assert table((0, 1000, 32), (32, 1032, 32)).translate(0, 64) == [(1000, 64)]


def test_two_shards_may_share_a_page() -> None:
    shards = table((0x2000, 0xA000, 128), (0x2080, 0xB000, 128))
    assert shards.translate(0x2000, 128) == [(0xA000, 128)]
    assert shards.translate(0x2080, 128) == [(0xB000, 128)]


def test_the_last_map_wins_and_the_rest_of_the_first_stays() -> None:
    assert table((0, 1000, 64), (16, 9000, 16)).translate(0, 64) == [(1000, 16), (9000, 16), (1032, 32)]


def test_unmapping_takes_exactly_the_bytes() -> None:
    cut = table((0, 1000, 64))
    cut.unmap(16, 16)
    assert cut.mapped_bytes == 48
    assert cut.translate(32, 32) == [(1032, 32)]
    with pytest.raises(AddressError, match="virtual address 0x10 is not mapped"):
        cut.translate(0, 64)


def test_what_is_not_mapped_may_be_unmapped() -> None:
    empty = table()
    empty.unmap(0, 4096)
    assert empty.mapped_bytes == 0


def test_a_run_of_entries_is_as_good_as_each_of_them() -> None:
    run = (MapEntry(0, 1000, 32), MapEntry(32, 5000, 32), MapEntry(64, 3000, 32))
    together = PageTable(4096)
    together.map_run(run)
    apart = table(*((e.va, e.pa, e.nbytes) for e in run))
    assert together.translate(8, 80) == apart.translate(8, 80) == [(1008, 24), (5000, 32), (3000, 24)]


@pytest.mark.parametrize(("va", "nbytes"), [(0, 0), (-1, 4), (100, 8), (0, 65)])
def test_an_access_that_is_not_all_mapped_is_refused(va: int, nbytes: int) -> None:
    with pytest.raises(AddressError):
        table((0, 1000, 64)).translate(va, nbytes)


def test_a_page_size_is_a_power_of_two() -> None:
    with pytest.raises(AddressError, match="page_bytes is 3000"):
        PageTable(3000)


step = st.tuples(st.sampled_from(["map", "unmap", "run", "ask"]), st.integers(0, 60), st.integers(1, 20))


@given(st.lists(step, max_size=40))
def test_agrees_with_a_table_of_single_bytes(steps: list[tuple[str, int, int]]) -> None:
    real, model, next_pa = PageTable(64), dict[int, int](), 1000
    for kind, va, nbytes in steps:
        if kind == "map":
            real.map(va, next_pa, nbytes)
            model.update({va + i: next_pa + i for i in range(nbytes)})
        elif kind == "unmap":
            real.unmap(va, nbytes)
            for i in range(nbytes):
                model.pop(va + i, None)
        elif kind == "run":  # two entries, the second of which lies before the first in memory
            real.map_run((MapEntry(va, next_pa + 50, nbytes), MapEntry(va + nbytes, next_pa, 3)))
            model.update({va + i: next_pa + 50 + i for i in range(nbytes)})
            model.update({va + nbytes + i: next_pa + i for i in range(3)})
        wanted = [model.get(va + i) for i in range(nbytes)]
        if None in wanted:
            with pytest.raises(AddressError):
                real.translate(va, nbytes)
        else:
            pieces = real.translate(va, nbytes)
            assert [pa + i for pa, size in pieces for i in range(size)] == wanted
            assert all(sum(a) != b[0] for a, b in pairwise(pieces))
        next_pa += 100
    assert real.mapped_bytes == len(model)


def test_a_copy_changes_by_itself() -> None:
    table = PageTable(4096)
    table.map(0, 0x10000, 4096)
    copy = table.copy()
    table.unmap(0, 4096)
    copy.map(4096, 0x30000, 64)
    assert copy.translate(0, 4096) == [(0x10000, 4096)]
    assert copy.mapped_bytes == 4096 + 64
    assert table.mapped_bytes == 0
