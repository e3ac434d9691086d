"""How long the requests of a composite take where several are in flight, for the model of the pipeline.

A request that is alone takes its latency and its busiest channel (`row_model.py`). With several in flight, latencies
overlap and requests on different channels proceed at the same time; how much that saves depends on which channels
successive tiles are on. So requests are booked in their order, for all tile sizes at once: up to `MOST_REQUESTS` of
them, the rest at the same pace. A request starts when a place is free and all before it have started, a write when its
tile is computed; it occupies its channels behind earlier requests. Not modelled: that engines or full tile buffers make
requests wait, more than `MOST_PLACES` in flight (64 with rows of 32 B: up to twice too slow), and offsets of rows that
are not a multiple of a burst apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernbench.common.array_types import Floats, Ints
from kernbench.common.commands import Operand
from kernbench.common.composite_use import PathTiming
from kernbench.components.builtin.row_model import channel_times, tile_in_memory
from kernbench.components.builtin.tiling import as_matrix

MOST_REQUESTS = 128  # that are booked one by one
MOST_PLACES = 16  # in flight; more count as so many, since the pace of more would show in longer series only
_NO_SIDE = 3  # of an operand that is broadcast: behind 0, 1, 2 for m, k, n


class RequestStream(NamedTuple):
    """The requests of one operand, and which sides of a tile are its rows and columns: 0, 1, 2 of (m, k, n)."""

    operand: Operand
    path: PathTiming
    rows: int
    columns: int
    last_only: bool  # with the last K tile of an output
    is_write: bool = False

    def sides(self) -> tuple[int, int]:
        """The same as they lie in memory."""
        rows, columns = as_matrix(self.operand.shape)
        found = self.rows if rows > 1 else _NO_SIDE, self.columns if columns > 1 else _NO_SIDE
        return found[::-1] if self.operand.transposed else found


class TileGrid:
    """An output cut into tiles, which follow each other along k, then n, then m; one column for each tile size."""

    __slots__ = ("counts", "edges", "outputs", "tile", "tiles")

    def __init__(self, sizes: tuple[int, int, int], tile: tuple[Ints, Ints, Ints]) -> None:
        whole = np.array(sizes)[:, None]
        self.tile = np.stack(tile)
        self.counts = -(-whole // self.tile)
        self.edges = (whole - (self.counts - 1) * self.tile) / self.tile  # share of a whole tile
        self.outputs = self.counts[0] * self.counts[2]
        self.tiles = self.outputs * self.counts[1]


class FlightTimes(NamedTuple):
    """When the last read has arrived, and when the last write is acknowledged."""

    read_ns: Floats
    write_ns: Floats


class _Costs:
    """What a request of each stream costs: one row per stream, and one column per tile size where that matters."""

    def __init__(self, streams: Sequence[RequestStream], grid: TileGrid) -> None:
        memories = list(dict.fromkeys(each.path.memory for each in streams))
        self.memory = np.array([memories.index(each.path.memory) for each in streams])
        self.latency_ns = np.array([each.path.latency_ns for each in streams])
        self.round_ns = np.array([each.path.round_ns for each in streams])
        self.gbs = np.array([each.path.gbs for each in streams])
        self.burst_bytes = np.array([each.path.burst_bytes or 1 for each in streams])
        self.last_only = np.array([each.last_only for each in streams])
        self.sides = np.array([each.sides() for each in streams])
        parts = [tile_in_memory(x.operand, grid.tile[x.rows], grid.tile[x.columns]) for x in streams]
        self.steps = np.array([(tall * stride, row_bytes) for stride, tall, row_bytes in parts])
        self.nbytes = np.array([tall * row_bytes for _, tall, row_bytes in parts])
        found = [channel_times(x.operand, x.path, *part) for x, part in zip(streams, parts, strict=True)]
        self.channels = np.array([times.shape[2] for times, _, _ in found])
        most, before = int(self.channels.max()), np.cumsum([0, *(len(times) for times, _, _ in found)])
        self.busy_ns = np.concatenate([np.pad(x, ((0, 0), (0, 0), (0, most - x.shape[2]))) for x, _, _ in found])
        self.entry = np.stack([start + which for start, (_, which, _) in zip(before, found, strict=False)])
        self.places = np.stack([places for _, _, places in found])

    def total_bytes(self, stream: int, grid: TileGrid) -> Floats:
        """Of all requests of a stream."""
        total: Floats = self.nbytes[stream].astype(np.float64)
        for side in range(3):
            if side in self.sides[stream]:
                total = total * (grid.counts[side] - 1 + grid.edges[side])
            elif side != 1 or not self.last_only[stream]:
                total = total * grid.counts[side]
        return np.asarray(total)


class _Flight:
    """The state of the requests of each tile size; axis 1 of an array for both directions: reads, writes."""

    def __init__(self, streams: Sequence[RequestStream], grid: TileGrid, places: int, behind_ns: Floats) -> None:
        self._grid, self._costs, self._behind_ns = grid, _Costs(streams, grid), behind_ns
        self._is_write = [each.is_write for each in streams]
        self._reads = self._is_write.count(False)
        many, memories = len(behind_ns), int(self._costs.memory.max()) + 1
        self._at = np.arange(many)
        self._channel_free = np.zeros((many, memories, self._costs.busy_ns.shape[2]))
        self._link_free = np.zeros((many, 2, memories))
        self._place_free = np.zeros((many, 2, min(places, MOST_PLACES)))
        self._started, self._done, self._bytes = np.zeros((many, 2)), np.zeros((many, 2)), np.zeros((many, 2))
        self._tile, self._slot, self._written = (np.zeros(many, np.int64) for _ in range(3))
        self._arrived = np.zeros(many)  # the operands of tiles so far
        self._ready = np.full((many, MOST_REQUESTS + 1), np.inf)  # to be written, by output
        if not self._reads:
            self._tile = grid.tiles
            outputs = np.arange(MOST_REQUESTS + 1) < grid.outputs[:, None]
            self._ready = np.where(outputs, behind_ns[:, None], np.inf)

    def ends(self) -> FlightTimes:
        before = self._bytes, self._started
        for number in range(MOST_REQUESTS):
            if number == MOST_REQUESTS // 4:
                before = self._bytes.copy(), self._started.copy()
            if not self._book():
                break
        total = np.zeros_like(self._bytes)
        for stream, is_write in enumerate(self._is_write):
            total[:, int(is_write)] += self._costs.total_bytes(stream, self._grid)
        moved, took = self._bytes - before[0], self._started - before[1]
        left = np.where(moved > 0, (total - self._bytes) / np.maximum(moved, 1.0), 0.0)
        read_ns, write_ns = (self._done + np.where(left > 1e-9, left, 0.0) * took).T
        return FlightTimes(read_ns, write_ns)

    def _book(self) -> bool:
        """The next request of each tile size, whichever direction is earlier; False when there was none."""
        grid, costs, at = self._grid, self._costs, self._at
        free = np.maximum(self._started, self._place_free.min(axis=2))
        read_at = np.where(self._tile < grid.tiles, free[:, 0], np.inf)
        write_at = np.maximum(free[:, 1], self._ready[at, self._written])
        start = np.minimum(read_at, write_at)
        some = np.isfinite(start)
        if not some.any():
            return False
        start, write = np.where(some, start, 0.0), some & (write_at <= read_at)
        stream = np.where(write, self._reads, self._slot)
        depth, way = grid.counts[1], write.astype(np.int64)
        needed = some & (write | ~costs.last_only[stream] | (self._tile % depth == depth - 1))
        done = self._occupy(stream, way, start, needed)
        first = self._place_free[at, way].argmin(axis=1)
        self._place_free[at, way, first] = np.where(needed, done, self._place_free[at, way, first])
        self._started[at, way] = np.where(needed, start, self._started[at, way])
        self._done[at, way] = np.where(needed, np.maximum(self._done[at, way], done), self._done[at, way])
        self._arrived = np.where(needed & ~write, np.maximum(self._arrived, done), self._arrived)
        self._advance(some & ~write, write)
        return True

    def _advance(self, read: Ints, write: Ints) -> None:
        """To the next operand, tile and output."""
        depth = self._grid.counts[1]
        self._written = np.minimum(self._written + write, MOST_REQUESTS)
        slot = self._slot + read
        ends = read & (slot == self._reads)
        if self._reads < len(self._is_write):
            output = np.minimum(self._tile // depth, MOST_REQUESTS)
            computed = ends & (self._tile % depth == depth - 1)
            self._ready[self._at, output] = np.where(
                computed, self._arrived + self._behind_ns, self._ready[self._at, output]
            )
        self._tile, self._slot = self._tile + ends, np.where(ends, 0, slot)

    def _occupy(self, stream: Ints, way: Ints, start: Floats, needed: Ints) -> Floats:
        """Channels and link of one request each, behind those before it; returns when it is done."""
        grid, costs, at = self._grid, self._costs, self._at
        output = np.minimum(np.where(way, self._written, self._tile // grid.counts[1]), grid.outputs - 1)
        nothing = np.zeros_like(output)
        index = np.stack((output // grid.counts[2], self._tile % grid.counts[1], output % grid.counts[2], nothing))
        shares = np.ones(index.shape)
        shares[:3] = np.where(index[:3] == grid.counts - 1, grid.edges, 1.0)
        rows, columns = costs.sides[stream].T
        share, column = shares[rows, at] * shares[columns, at], index[columns, at]
        offset = index[rows, at] * costs.steps[stream, 0, at] + column * costs.steps[stream, 1, at]
        channels, count = np.arange(costs.busy_ns.shape[2]), costs.channels[stream][:, None]
        source = (channels - (offset // costs.burst_bytes[stream])[:, None]) % count
        busy = costs.busy_ns[costs.entry[stream, at], column % costs.places[stream, at]]
        busy = np.take_along_axis(busy, source, axis=1) * share[:, None]
        used = (busy > 0) & (channels < count) & needed[:, None]
        nbytes, memory = np.where(needed, costs.nbytes[stream, at] * share, 0.0), costs.memory[stream]
        behind = np.maximum(self._channel_free[at, memory], start[:, None]) + busy
        self._channel_free[at, memory] = np.where(used, behind, self._channel_free[at, memory])
        moved = np.maximum(self._link_free[at, way, memory], start) + nbytes / costs.gbs[stream]
        self._link_free[at, way, memory] = np.where(needed, moved, self._link_free[at, way, memory])
        self._bytes[at, way] += nbytes
        committed = np.where(used, behind, 0.0).max(axis=1) - costs.round_ns[stream]
        return np.asarray(np.maximum(committed, moved) + costs.latency_ns[stream])


def in_flight(streams: Sequence[RequestStream], grid: TileGrid, places: int, behind_ns: Floats) -> FlightTimes:
    """When the requests of a composite are over, of which `places` may be under way for each direction; `streams` are
    its reads, in order, then its write, if any. A tile is computed `behind_ns` after its operands have arrived.
    """
    return _Flight(streams, grid, places, behind_ns).ends()
