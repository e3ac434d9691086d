"""Which rank relays which chunk in `two_rounds`, and how long its chunks are."""

from __future__ import annotations

from collections import Counter

import pytest

from kernbench.benches._ccl_runs import measure_alone
from kernbench.benches._collectives import WantedCollective
from kernbench.ccl.algorithms.two_rounds import IN_FLIGHT_BYTES, Relayed, chunk_of, lag_of, relayed
from kernbench.topology import load_topology


def test_chunks_are_relayed_by_rank_after_rank_beginning_where_it_is_said() -> None:
    spans = [(0, 8), (8, 8), (16, 8), (24, 5)]
    found = relayed(spans, [0, 2, 3], 1)
    assert found == [Relayed((0, 8), 2), Relayed((8, 8), 3), Relayed((16, 8), 0), Relayed((24, 5), 2)]


def test_32_pes_with_a_chunk_each_are_relayed_by_all_of_seven_ranks_alike() -> None:
    counts = Counter(relayed([(0, 8)], range(1, 8), pe)[0].relay for pe in range(32))
    assert sorted(counts.values()) == [4, 4, 4, 5, 5, 5, 5]  # 32 = 7 * 4 + 4


@pytest.mark.parametrize(
    ("n_pes", "window", "nbytes"), [(8, 3, 2048), (32, 3, 512), (128, 3, 256), (1, 3, 2048), (8, 5, 1024), (32, 5, 256)]
)
def test_all_pes_together_have_as_much_in_flight_as_the_link_carries_in_two_rounds(
    n_pes: int, window: int, nbytes: int
) -> None:
    # 48 KiB: 3 chunks of 8 PEs are 2048 bytes each, of 32 PEs 512; no chunk is longer than asked for or below a burst
    assert chunk_of(2048, n_pes, window) == nbytes
    assert n_pes * window * nbytes <= max(IN_FLIGHT_BYTES, n_pes * window * 256)


def test_the_first_round_is_further_ahead_in_a_reduce_of_many_ranks() -> None:
    assert [lag_of("reduce", n, 8192) for n in (2, 8, 9, 16)] == [2, 2, 4, 4]
    assert [lag_of("reduce", 16, nbytes) for nbytes in (128, 16384, 32768)] == [4, 4, 2]
    assert [lag_of("broadcast", n, 8192) for n in (2, 8, 9, 16)] == [2, 2, 2, 2]


@pytest.mark.parametrize(("nbytes", "root"), [(65536, 0), (50002, 9)])
def test_a_reduce_of_ten_ranks_is_right(nbytes: int, root: int) -> None:
    # 8 PEs with 8 KiB each: 8 chunks of 1 KiB over 9 relays; of the other, the last chunks are shorter
    machine = load_topology(None, {"system.sips.count": 10, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1})
    assert (
        measure_alone(machine, WantedCollective("reduce", nbytes, "f16", root=root), algorithm="two_rounds").wrong == 0
    )
