"""Advice of benches: parameters to change when a run has lost time by some cause (`registry.bench(advice=...)`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_BLOCK_BYTES = 64 << 10  # of a block in f32; a kernel keeps several such blocks in TCM


def faster_tile(_cause: str, params: Mapping[str, Any]) -> Mapping[str, object]:
    """The tile that the model finds fastest, instead of the PE's own."""
    return {"tile": "auto"} if params["tile"] == "native" else {}


def more_rows(_cause: str, params: Mapping[str, Any]) -> Mapping[str, object]:
    """Blocks of twice as many rows, while they fit: fewer transfers and commands."""
    doubled = 2 * params["block_rows"]
    fits = doubled <= params["rows"] and doubled * params["cols"] * 4 <= MOST_BLOCK_BYTES
    return {"block_rows": doubled} if fits else {}
