"""What tiles of row-major operands cost memory, by hand: 8 channels, bursts of 256 B that take 8 ns."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.commands import ROW_MAJOR, TILED, Operand
from kernbench.common.composite_use import PathTiming
from kernbench.components.builtin.row_model import tile_path

PATH = PathTiming(13.0, 256.0, "hbm", 2048, 8.0, 256)


def rate(shape, tile, path=PATH, layout=ROW_MAJOR, *, transposed=False):
    operand = Operand(0, shape, "f16", "hbm", transposed=transposed, layout=layout)
    found = tile_path(operand, path, np.array([tile[0]]), np.array([tile[1]])).shared_gbs
    return float(np.broadcast_to(found, 1)[0])


@pytest.mark.parametrize(
    ("columns", "busiest_ns"),
    [
        (4096, 64 * 8),  # 8192 B from row to row: all on one channel
        (512, 32 * 8),  # 1024 B: on two of them
        (4096 + 128, 8 * 8),  # 33 bursts: one after the other
        (64, 32),  # whole rows lie end to end
    ],
)
def test_a_request_takes_as_long_as_its_busiest_channel(columns, busiest_ns):
    assert rate((1024, columns), (64, 64)) == 64 * 128 / busiest_ns


def test_a_burst_of_which_a_part_is_needed_pays_its_granules():
    half = PathTiming(13.0, 256.0, "hbm", 2048, 8.0, 256, 64)
    assert rate((1024, 4096), (64, 64), half) == 64 * 128 / (64 * 4)
    opened = PathTiming(13.0, 256.0, "hbm", 2048, 8.0, 256, 64, 7.0)
    assert rate((1024, 4096), (64, 64), opened) == 64 * 128 / (64 * 7)


def test_rows_that_share_a_burst_pay_for_it_once():
    assert rate((1024, 64), (64, 16)) == 64 * 32 / (4 * 8)  # 32 of each 128 B: 32 bursts on 8 channels


def test_memory_has_rows_of_a_transposed_operand_along_its_columns():
    assert rate((64, 4096), (32, 64), transposed=True) == rate((4096, 64), (64, 32))
    assert rate((4096, 64), (64, 64), transposed=True) == rate((64, 4096), (64, 64)) == 64 * 128 / (64 * 8)


def test_tiles_that_are_one_run_and_memory_without_channels_have_the_rate_of_the_path():
    assert rate((1024, 4096), (64, 64), layout=TILED) == 256.0
    assert rate((1024, 4096), (64, 64), PathTiming(13.0, 128.0, "sram")) == 128.0
