"""Which rank relays which chunk in `two_rounds`, and how long its chunks are."""

from __future__ import annotations

from collections import Counter

import pytest

from kernbench.ccl.algorithms.two_rounds import IN_FLIGHT_BYTES, WINDOW, Relayed, chunk_of, relayed


def test_chunks_are_relayed_by_rank_after_rank_beginning_where_it_is_said() -> None:
    spans = [(0, 8), (8, 8), (16, 8), (24, 5)]
    found = relayed(spans, [0, 2, 3], 1)
    assert found == [Relayed((0, 8), 2), Relayed((8, 8), 3), Relayed((16, 8), 0), Relayed((24, 5), 2)]


def test_32_pes_with_a_chunk_each_are_relayed_by_all_of_seven_ranks_alike() -> None:
    counts = Counter(relayed([(0, 8)], range(1, 8), pe)[0].relay for pe in range(32))
    assert sorted(counts.values()) == [4, 4, 4, 5, 5, 5, 5]  # 32 = 7 * 4 + 4


@pytest.mark.parametrize(("n_pes", "nbytes"), [(8, 2048), (32, 512), (128, 256), (1, 2048)])
def test_all_pes_together_have_as_much_in_flight_as_the_link_carries_in_two_rounds(n_pes: int, nbytes: int) -> None:
    # 48 KiB: 3 chunks of 8 PEs are 2048 bytes each, of 32 PEs 512; no chunk is longer than asked for or below a burst
    assert chunk_of(2048, n_pes) == nbytes
    assert n_pes * WINDOW * nbytes <= max(IN_FLIGHT_BYTES, n_pes * WINDOW * 256)
