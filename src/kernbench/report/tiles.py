"""The tiles of a launch's composites, and what `tile_shape="auto"` would gain over the native tiles.

The gain is estimated by the model that chooses automatic tiles, for the composites of the slowest PE, with uncontended
links and memories.
"""

from __future__ import annotations

import numpy as np

from kernbench.common.composite_use import CompositeUse
from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId
from kernbench.components.builtin.tile_choice import fastest_tile, limits_of, rates_of
from kernbench.components.builtin.tile_model import composite_ns
from kernbench.runtime_api.launches import Launch
from kernbench.topology.graph import TopologyGraph

MIN_GAIN = 1.25  # report a gain only if the native tile takes at least this many times as long
TileShape = tuple[int, ...]


@frozen
class TileUse:
    """All composites of a launch with the same op and tile."""

    op: str
    tile: TileShape
    composites: int
    tiles: int
    is_native: bool  # no tile shape was requested
    auto_tile: TileShape | None = None  # set if the native tile takes clearly longer than this one
    auto_gain: float = 1.0  # time of the native tile over the time of `auto_tile`

    def as_json(self) -> dict[str, object]:
        return {
            "op": self.op,
            "tile_shape": list(self.tile),
            "composites": self.composites,
            "tiles": self.tiles,
            "is_native": self.is_native,
            "auto_tile_shape": None if self.auto_tile is None else list(self.auto_tile),
            "auto_gain": self.auto_gain,
        }


def tiles_of(launch: Launch, graph: TopologyGraph) -> tuple[TileUse, ...]:
    """Tiles by op and shape, in order of first use."""
    found: dict[tuple[str, TileShape, bool], TileUse] = {}
    for result in launch.ended:
        for use in result.composites:
            key = use.cmd.op, use.tile, use.cmd.tile_shape is None
            so_far = found.get(key) or TileUse(*key[:2], 0, 0, key[2])
            composites, tiles = so_far.composites + use.composites, so_far.tiles + use.composites * use.tiles
            found[key] = TileUse(*key[:2], composites, tiles, key[2])
    return tuple(_with_auto(use, launch, graph) if use.is_native else use for use in found.values())


def _with_auto(use: TileUse, launch: Launch, graph: TopologyGraph) -> TileUse:
    """The gain of `auto` on the composites of the slowest PE that has such; `tile` is the one that gains most."""
    same = [
        (result, own)
        for result in sorted(launch.ended, key=lambda result: -result.pe_exec_ns)  # stable: ties by place
        for own in result.composites
        if (own.cmd.op, own.tile, own.cmd.tile_shape) == (use.op, use.tile, None)
    ]
    slowest = same[0][0]
    pe = PeId(slowest.sip, slowest.cube, slowest.pe)
    native_ns, auto_ns, best = 0.0, 0.0, (0.0, use.tile)
    for own in (own for result, own in same if result is slowest):
        tile, native, auto = _modelled(own, graph, pe)
        native_ns, auto_ns = native_ns + native, auto_ns + auto
        best = max(best, (native - auto, tile))
    if native_ns <= MIN_GAIN * auto_ns:
        return use
    return TileUse(use.op, use.tile, use.composites, use.tiles, True, best[1], native_ns / auto_ns)


def _modelled(use: CompositeUse, graph: TopologyGraph, pe: PeId) -> tuple[TileShape, float, float]:
    """The tile that `auto` would use, and the time of all such composites with the native tile and with that one."""
    limits, rates = limits_of(graph, pe), rates_of(graph, pe)
    if not all(use.tile):
        return use.tile, 0.0, 0.0
    tile = fastest_tile(use.cmd, limits, rates, use.paths)
    native, auto = composite_ns(use.cmd, np.array([use.tile, tile]), rates, use.paths) * use.composites
    return tile, float(native), float(auto)
