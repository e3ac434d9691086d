"""Runs as transfers: which bursts they share, and how many granules of the last one they touch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from kernbench.components.builtin.run_bursts import bursts_of
from kernbench.components.memory_port import MemoryPort


@dataclass
class Port:
    """What `bursts_of` reads of a port."""

    burst_bytes: int = 256
    granule_bytes: int = 64


def transfers(runs: list[tuple[int, int]], port: Port) -> list[tuple[int, int, int]]:
    found = bursts_of((cast(MemoryPort, port), address, nbytes) for address, nbytes in runs)
    return [(each.address, each.nbytes, each.granules) for each in found]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([(0, 64)], [(0, 64, 1)]),
        ([(32, 64)], [(32, 64, 2)]),  # bytes 32 to 95 lie in two granules
        ([(0, 16), (64, 16), (200, 8)], [(0, 40, 3)]),  # one burst, three of its granules
        ([(0, 16), (48, 16)], [(0, 32, 1)]),
        ([(0, 300)], [(0, 300, 1)]),  # one whole burst, and 44 bytes
        ([(0, 300), (400, 100)], [(0, 400, 3)]),  # bytes 256 to 299 and 400 to 499 of the second burst
        ([(192, 128)], [(192, 64, 1), (256, 64, 1)]),  # cut at the end of the first burst
        ([(0, 512)], [(0, 512, 4)]),
    ],
)
def test_a_last_burst_pays_for_the_granules_that_its_runs_touch(
    runs: list[tuple[int, int]], expected: list[tuple[int, int, int]]
) -> None:
    assert transfers(runs, Port()) == expected


def test_where_granules_are_bursts_nothing_is_counted() -> None:
    assert transfers([(0, 16), (300, 8)], Port(granule_bytes=256)) == [(0, 16, 0), (300, 8, 0)]


def test_a_memory_without_channels_takes_runs_as_they_are() -> None:
    assert transfers([(3, 16), (21, 8)], Port(0, 0)) == [(3, 16, 0), (21, 8, 0)]
