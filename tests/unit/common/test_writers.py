"""Who wrote which byte last, against a list of bytes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kernbench.common.writers import Writers

WRITES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.none() | st.integers(0, 5)), max_size=30)


@given(WRITES, st.integers(0, 80), st.integers(0, 40))
@example([(0, 2, 0)], 1, 0)  # no byte, in the middle of a stretch
def test_the_last_writer_of_every_byte_is_known(writes: list[tuple[int, int, int | None]], at: int, n: int) -> None:
    writers, plain = Writers(), [None] * 200
    for address, nbytes, op in writes:
        writers.note(address, nbytes, op)
        plain[address : address + nbytes] = [op] * nbytes
    assert writers.of(at, n) == tuple(sorted({op for op in plain[at : at + n] if op is not None}))


def test_a_tensor_written_in_halves_has_two_writers_until_all_of_it_is_written() -> None:
    writers = Writers()
    writers.note(0, 64, 3)
    writers.note(64, 64, 1)
    assert writers.of(0, 128) == (1, 3)
    assert writers.of(32, 32) == (3,)
    writers.note(0, 128, 7)
    assert writers.of(0, 128) == (7,)


def test_observers_hear_of_every_range_however_many_there_are() -> None:
    """Ranges may lie in memories of several PEs, and each of these may have been forecast."""
    writers, heard = Writers(), list[int]()
    writers.access_observers.add(heard.append)
    for count in (3, 40):
        heard.clear()
        writers.note_all([(64 * at, 32) for at in range(count)], 1)
        assert heard == [64 * at for at in range(count)]
