"""Which tiles a launch's composites were cut into, and what `tile_shape="auto"` would gain over the native ones.

What `auto` would give is asked of the model that chooses it, for the composites of the slowest PE, as if nobody else
were on its links and memories.
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

WORTH_TELLING = 1.25  # how many times as long the native tile must take
Tile = tuple[int, ...]


@frozen
class TileUse:
    """All composites of a launch with the same op and tile."""

    op: str
    tile: Tile
    composites: int
    tiles: int
    is_native: bool  # nobody asked for another
    auto_tile: Tile | None = None  # where the native tile takes clearly longer than this one
    auto_gain: float = 1.0  # how many times as long

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
    """By op and tile, in the order in which PEs first used them."""
    found: dict[tuple[str, Tile, bool], TileUse] = {}
    for result in launch.ended:
        for use in result.composites:
            key = use.cmd.op, use.tile, use.cmd.tile_shape is None
            so_far = found.get(key) or TileUse(*key[:2], 0, 0, key[2])
            composites, tiles = so_far.composites + use.composites, so_far.tiles + use.composites * use.tiles
            found[key] = TileUse(*key[:2], composites, tiles, key[2])
    return tuple(_with_auto(use, launch, graph) if use.is_native else use for use in found.values())


def _with_auto(use: TileUse, launch: Launch, graph: TopologyGraph) -> TileUse:
    """What `auto` would gain on the composites of the slowest PE that has such; `tile` is the one that gains most."""
    same = [
        (result, own)
        for result in sorted(launch.ended, key=lambda result: -result.pe_exec_ns)  # stable: equals by place
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
    if native_ns <= WORTH_TELLING * auto_ns:
        return use
    return TileUse(use.op, use.tile, use.composites, use.tiles, True, best[1], native_ns / auto_ns)


def _modelled(use: CompositeUse, graph: TopologyGraph, pe: PeId) -> tuple[Tile, float, float]:
    """The tile that `auto` would use, and how long all such composites take with the native one and with that."""
    limits, rates = limits_of(graph, pe), rates_of(graph, pe)
    if not all(use.tile):
        return use.tile, 0.0, 0.0
    tile = fastest_tile(use.cmd, limits, rates, use.paths)
    native, auto = composite_ns(use.cmd, np.array([use.tile, tile]), rates, use.paths) * use.composites
    return tile, float(native), float(auto)
