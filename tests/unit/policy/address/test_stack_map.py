"""How an access is divided over HBM stacks, against byte by byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernbench.policy.address.stack_map import StackRequest, stack_requests


def test_pieces_of_one_stack_are_one_request() -> None:
    # Pieces of 256 bytes, from 64 bytes into piece 1 to 32 bytes into piece 7; their stacks are 1, 2, 0, 1, 2, 0, 1.
    assert stack_requests(256 + 64, 6 * 256 - 32, 3, 256) == [
        StackRequest(1, 64, (256 - 64) + 256 + 32),
        StackRequest(2, 0, 512),
        StackRequest(0, 256, 512),
    ]


@given(st.integers(0, 5000), st.integers(1, 4000), st.integers(1, 7), st.sampled_from([64, 256, 1024]))
def test_every_byte_is_on_its_stack_once(address: int, nbytes: int, stacks: int, interleave_bytes: int) -> None:
    expected: dict[int, list[int]] = {}
    for byte in range(address, address + nbytes):
        piece = byte // interleave_bytes
        here = piece // stacks * interleave_bytes + byte % interleave_bytes
        expected.setdefault(piece % stacks, []).append(here)
    found = stack_requests(address, nbytes, stacks, interleave_bytes)
    assert {part.stack: list(range(part.address, part.address + part.nbytes)) for part in found} == expected
    assert [part.stack for part in found] == list(expected)
