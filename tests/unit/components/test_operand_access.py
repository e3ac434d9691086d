"""What is moved for some rows of an operand that lies in pieces: 4096 bytes in one memory, then 4096 in another."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernbench.components.builtin.operand_access import OperandAccess

NEAR, FAR = SimpleNamespace(path=("dma", "near")), SimpleNamespace(path=("dma", "far"))


def locate(pa: int):
    return (NEAR, pa) if pa < 1 << 20 else (FAR, pa - (1 << 20))


@pytest.fixture
def access() -> OperandAccess:
    return OperandAccess([(0x1000, 4096), ((1 << 20) + 0x8000, 4096)], locate)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # offset, rows, bytes of a row, distance of rows -> memory, address there, bytes
        ((0, 1, 4096, 4096), [(NEAR, 0x1000, 4096)]),
        ((4096, 1, 256, 256), [(FAR, 0x8000, 256)]),
        ((4000, 1, 200, 200), [(NEAR, 0x1000 + 4000, 96), (FAR, 0x8000, 104)]),
        ((512, 4, 128, 512), [(NEAR, 0x1000 + 512, 4 * 128)]),
        ((2048 + 128, 4, 384, 512), [(NEAR, 0x1000 + 2176, 4 * 384)]),  # its last row ends with the piece
        ((2048 + 128, 8, 128, 512), [(NEAR, 0x1000 + 2176, 4 * 128), (FAR, 0x8000 + 128, 4 * 128)]),
        ((3968, 2, 256, 512), [(NEAR, 0x1000 + 3968, 128), (FAR, 0x8000, 128 + 256)]),
    ],
)
def test_rows_travel_as_one_transfer_for_each_memory_they_lie_in(access, rows, expected):
    assert access.transfers(*rows) == expected


def test_only_an_operand_without_a_gap_has_one_address(access):
    assert access.port is None
    whole = OperandAccess([(0x3000, 64)], locate)
    assert (whole.port, whole.address) == (NEAR, 0x3000)
