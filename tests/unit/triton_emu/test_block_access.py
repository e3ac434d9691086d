"""Lanes of blocks: equal ones share one object, which must not be changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from kernbench.common.dtypes import dtype_of
from kernbench.triton_emu.block_access import dense, strided


def test_blocks_of_one_form_share_lanes_that_cannot_be_changed() -> None:
    lanes = strided((4, 8), (32, 1), dtype_of("f32"), None)
    assert lanes is strided((4, 8), (32, 1), dtype_of("f32"), None)
    assert (lanes.nbytes, lanes.touched_bytes, lanes.span, lanes.requests) == (128, 128, (0, 3 * 128 + 32), ((0, 4),))
    for shared in (lanes, dense((4, 8), dtype_of("f32"))):
        with pytest.raises(FrozenInstanceError):
            shared.runs = ()  # type: ignore[misc]  # the point: it cannot be changed
        with pytest.raises(FrozenInstanceError):
            shared.nbytes = 0
