"""Noting many ranges at once is noting them one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.writers import Writers


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40), st.integers(1, 5)), max_size=8),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=17, max_size=30),
    st.sampled_from([None, 9]),
)
def test_many_ranges_in_ascending_order(before, gaps, op):
    ranges, at = [], 0
    for gap, nbytes in gaps:
        at += gap
        ranges.append((at, nbytes))
        at += nbytes
    one_by_one, together = Writers(), Writers()
    for writers in (one_by_one, together):
        for address, nbytes, who in before:
            writers.note(address, nbytes, who)
    for address, nbytes in ranges:
        one_by_one.note(address, nbytes, op)
    together.note_all(ranges, op)
    assert [together.of(byte, 1) for byte in range(400)] == [one_by_one.of(byte, 1) for byte in range(400)]
