"""Which composites have yet to write some bytes."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from kernbench.triton_emu.pending_handle import PendingCommand
from kernbench.triton_emu.under_way import UnderWay


class Composite:
    """Stands for a command: only which one it is matters here."""


def handles(n: int) -> list[PendingCommand]:
    return [cast("PendingCommand", Composite()) for _ in range(n)]


def test_a_composite_is_found_by_any_byte_it_will_write_until_it_has() -> None:
    under_way, (first, second) = UnderWay(), handles(2)
    under_way.begin(first, [(0, 64), (128, 64)])
    under_way.begin(second, [(64, 64)])
    assert under_way.writers_of([(63, 1)]) == [first]
    assert under_way.writers_of([(60, 8), (190, 8)]) == [first, second]
    assert under_way.writers_of([(192, 64)]) == []
    under_way.end(first)
    assert under_way.writers_of([(0, 256)]) == [second]
    under_way.end(first)
    assert under_way.writers_of([(0, 256)]) == [second]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=12), st.integers(0, 50), st.integers(1, 9))
def test_those_found_are_those_that_share_a_byte(writes: list[tuple[int, int]], at: int, nbytes: int) -> None:
    under_way = UnderWay()
    issued: list[tuple[PendingCommand, tuple[int, int]]] = []
    for piece, composite in zip(writes, handles(len(writes)), strict=True):
        for earlier in under_way.writers_of([piece]):  # as a kernel does, which waits for them
            under_way.end(earlier)
            issued = [(handle, written) for handle, written in issued if handle is not earlier]
        under_way.begin(composite, [piece])
        issued.append((composite, piece))
    asked = range(at, at + nbytes)
    expected = [handle for handle, (start, n) in issued if any(byte in asked for byte in range(start, start + n))]
    assert under_way.writers_of([(at, nbytes)]) == expected
