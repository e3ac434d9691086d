"""Noting many ranges at once is noting them one by one, and windows of addresses make no difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.writers import WINDOW_BITS, MachineWriters, Writers


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


_NEAR = st.tuples(st.integers(1, 3), st.integers(-40, 40)).map(lambda at: (at[0] << WINDOW_BITS) + at[1])
_LONG = st.sampled_from([0, 1 << WINDOW_BITS, 2 << WINDOW_BITS])


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(_NEAR, st.tuples(st.integers(0, 30), _LONG).map(sum)), min_size=1, max_size=20),
            st.sampled_from([None, 1, 2, 3]),
        ),
        max_size=10,
    ),
    _NEAR,
    st.tuples(st.integers(0, 90), _LONG).map(sum),
)
def test_windows_of_a_machine_make_no_difference(notes, address, nbytes):
    plain, windows, seen = Writers(), MachineWriters(), [[], []]
    plain.access_observers.add(seen[0].append)
    windows.access_observers.add(seen[1].append)
    for ranges, op in notes:
        for writers in (plain, windows):
            writers.note_all(ranges, op)
            writers.note(*ranges[0], op)
    assert windows.of(address, nbytes) == plain.of(address, nbytes)
    assert seen[0] == seen[1]
