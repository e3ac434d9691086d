"""Requests in flight, by hand: 8 channels, bursts of 256 B that take 8 ns, a latency of 13 ns with one of them."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.commands import ROW_MAJOR, TILED, Operand
from kernbench.common.composite_use import PathTiming
from kernbench.components.builtin.flight_model import MOST_REQUESTS, RequestStream, TileGrid, in_flight

PATH = PathTiming(13.0, 256.0, "hbm", 2048, 8.0, 256)
ROW_ELEMENTS = 1024  # 2048 B of f16: all rows begin on the first channel


def stream(*, path=PATH, layout=ROW_MAJOR, transposed=False, is_write=False, last_only=False):
    """64 rows of 1024 f16, whose rows are side m of a tile and whose columns are side n."""
    shape = (ROW_ELEMENTS, 64) if transposed else (64, ROW_ELEMENTS)
    rows, columns = (2, 0) if transposed else (0, 2)
    operand = Operand(0, shape, "f16", "hbm", transposed=transposed, layout=layout)
    return RequestStream(operand, path, rows, columns, last_only or is_write, is_write)


def flight(streams, width, columns, places, behind_ns=0.0, depth=1):
    sides = tuple(np.array([side]) for side in (64, 1, width))
    found = in_flight(streams, TileGrid((64, depth, columns), sides), places, np.array([behind_ns]))
    return float(found.read_ns[0]), float(found.write_ns[0])


ALONE = 64 * 8 - 8 + 13  # a burst of each row, all on one channel; the latency has one of them


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (1, 8 * ALONE),
        (2, 4 * ALONE),
        (8, 8 * 16384 / 256 + 13),  # all at once: the link is the limit
        (1024, 8 * 16384 / 256 + 13),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_requests_on_different_channels_overlap(places, expected, transposed):
    # 8 tiles of 128 columns: 256 B of each row, tile i on channel i.
    assert flight([stream(transposed=transposed)], 128, 1024, places)[0] == expected


def test_requests_on_one_channel_follow_each_other():
    # Tiles of 64 columns: 0 and 1 on channel 0, 2 and 3 on channel 1. Tile 2 starts when 0 is done, tile 3 when 1 is.
    first = ALONE
    second = 2 * 512 - 8 + 13
    third = first + ALONE
    fourth = max(second, first + 512) + ALONE
    assert third < fourth
    assert flight([stream()], 64, 256, places=2)[0] == fourth


def test_a_write_starts_when_its_tile_is_computed_and_takes_channels_from_reads():
    # Tile 0 is written from 517 + 100 on, on channel 0, while tile 1 is read on channel 1.
    read_ns, write_ns = flight([stream(), stream(is_write=True)], 128, 256, places=1, behind_ns=100.0)
    assert (read_ns, write_ns) == (2 * ALONE, 2 * ALONE + 100 + ALONE)
    # Narrow tiles, all on channel 0: the second read starts at 517 and keeps it until 1029. The first write starts at
    # 617 and has it from then on; the second starts when that is acknowledged.
    read_ns, write_ns = flight([stream(), stream(is_write=True)], 64, 128, places=1, behind_ns=100.0)
    assert read_ns == 2 * ALONE
    assert write_ns == (ALONE + 512 + 512 - 8 + 13) + ALONE


def test_writes_of_operands_in_tcm_start_at_once():
    assert flight([stream(is_write=True)], 128, 1024, places=2, behind_ns=100.0) == (0.0, 100 + 4 * ALONE)


def test_an_operand_of_the_last_k_tile_is_read_once_per_output():
    sides = tuple(np.array([side]) for side in (64, 1, 128))
    grid = TileGrid((64, 5, 256), sides)  # two outputs of five K tiles
    every, last = (
        float(in_flight([stream(last_only=only)], grid, 1, np.zeros(1)).read_ns[0]) for only in (False, True)
    )
    assert (every, last) == (10 * ALONE, 2 * ALONE)


def test_what_is_not_booked_moves_at_the_pace_of_what_is():
    # Tiles that are one run: 8192 B take 32 ns and the latency.
    tiles = 3 * MOST_REQUESTS
    whole = stream(layout=TILED)
    assert flight([whole], 64, 64 * tiles, places=1)[0] == pytest.approx(tiles * (32 + 13))
    assert flight([whole], 64, 64 * tiles, places=4)[0] == pytest.approx(tiles * 32 + 13)


def test_an_edge_tile_takes_its_share():
    # The second tile has 64 of 128 columns: half of 512 ns, less the burst that the latency has.
    assert flight([stream()], 128, 192, places=1)[0] == ALONE + 256 - 8 + 13


def test_memories_have_channels_and_links_of_their_own_and_one_without_channels_counts_as_one():
    sram = PathTiming(20.0, 128.0, "sram")
    # 16384 B at 128 GB/s, beside 512 ns of HBM.
    assert flight([stream(), stream(path=sram)], 128, 128, places=2)[0] == ALONE
    assert flight([stream(path=sram), stream(path=sram)], 128, 128, places=2)[0] == 2 * 128 + 20
