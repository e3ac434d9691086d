"""How long a composite takes for a given tile, in closed form: no clock, no events, a few sums per tile size.

Every block of the pipeline is a resource, and its total time over all tiles is known: the DMA's read places (latency
and bytes of every request, one after another within a place), the TCM's read port, the compute slot that GEMM and MATH
share, the TCM's write port, the DMA's write places, and the bytes that reads and writes move through one memory. Two
more are waiting times: for registers (a fetch waits until earlier tiles have freed room) and for tile buffers. Tiles
overlap, so the composite takes as long as its slowest resource, after the stages that the first tile passes before it
reaches that resource, and before those that the last tile passes after it:

    time = max over resources (stages before, first tile  +  total  +  stages behind, last tile)

Ops of scope `kernel` are a second pass, which begins when the first is over. Many tiles are worked out at once, as
arrays. How fast memory moves an operand's tiles is in `row_model.py`; where rows are runs and several requests are in
flight, `flight_model.py` books the first requests one by one. Not modelled: other PEs on the same links and memories,
short last bursts, and a queue that runs empty for a while though it is long enough on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernbench.common.array_types import Floats, Ints
from kernbench.common.commands import ROW_MAJOR, CompositeCmd, Operand, Scope
from kernbench.common.composite_use import PathTiming
from kernbench.common.dtypes import dtype_of
from kernbench.common.frozen import frozen
from kernbench.common.units import GRID_NS
from kernbench.components.builtin.engine_cycles import ProductCost
from kernbench.components.builtin.flight_model import FlightTimes, RequestStream, TileGrid, in_flight
from kernbench.components.builtin.row_model import TilePath, occupied_ns, tile_path
from kernbench.components.builtin.tile_pass import TilePass, gemm_pass, math_pass
from kernbench.components.builtin.tiling import LaneOp, as_matrix, math_ops, ops_of
from kernbench.components.builtin.vector_functions import VectorUnit


@frozen
class PeRates:
    """What the engines of a PE do per ns, and what each charges before it begins."""

    product: ProductCost
    vector: VectorUnit
    fetch_gbs: float  # of the TCM's read port
    store_gbs: float  # of its write port
    dma_places: int  # transfers under way per direction
    dma_gbs: float  # of the DMA's own link
    move_overhead_ns: float  # of PE_FETCH_STORE
    gemm_overhead_ns: float
    math_overhead_ns: float
    register_bytes: int
    tcm_bytes: int  # for tile buffers


def composite_ns(cmd: CompositeCmd, tiles: Ints, rates: PeRates, paths: Sequence[PathTiming | None]) -> Floats:
    """How long a composite whose operands are numbered takes with each of `tiles`, rows of (m, k, n) or (m, n).

    `paths` has the timing of each operand, by number; those in TCM are not looked at.
    """
    main = gemm_pass(cmd) if cmd.op == "gemm" else math_pass(cmd, cmd.inputs, math_ops(cmd))
    total = _Tiled(main, tiles, rates, paths).ns()
    last_ops = ops_of(cmd, Scope.KERNEL)
    if last_ops:
        total = total + _Tiled(math_pass(cmd, (cmd.out,), last_ops), tiles[:, [0, -1]], rates, paths).ns()
    return total


@frozen
class _Chain:
    """The uncontended time of one tile in each stage, overheads included; and how long it keeps the TCM's read port and
    the compute slot busy, without overheads.
    """

    read: Floats
    fetch: Floats
    fetch_busy: Floats
    compute_busy: Floats
    compute: Floats  # of a K tile that is not the last
    last_compute: Floats
    store: Floats
    write: Floats

    @property
    def behind_compute(self) -> Floats:
        return self.store + self.write

    @property
    def behind_fetch(self) -> Floats:
        return self.last_compute + self.behind_compute

    @property
    def behind_read(self) -> Floats:
        return self.fetch + self.behind_fetch


class _Tiled:
    """A pass, cut into tiles."""

    def __init__(self, work: TilePass, tiles: Ints, rates: PeRates, paths: Sequence[PathTiming | None]) -> None:
        self._work, self._rates, self._timings = work, rates, paths
        m, n = tiles[:, 0], tiles[:, -1]
        k = tiles[:, 1] if tiles.shape[1] == 3 else np.ones_like(m)
        sides = list(zip(work.sizes, (m, k, n), strict=True))
        self._paths: dict[int, TilePath | None] = {}
        for x, (height, width) in self._operand_sides((m, k, n)):
            path = self._timing(x)
            self._paths[x.address] = None if path is None else tile_path(x, path, height, width)
        self._tile = (m, k, n)
        self._counts = tuple(-(-size // part) for size, part in sides)
        self._edges = tuple(size - (-(-size // part) - 1) * part for size, part in sides)  # of the last tile
        self._outputs = self._counts[0] * self._counts[2]
        self._tiles = self._outputs * self._counts[1]

    def ns(self) -> Floats:
        """The slowest resource, with what comes before it and behind it.

        The tile before the last may be the larger one and end later, so both are looked at.
        """
        rates, depth, (m, k, n) = self._rates, self._counts[1], self._edges
        first, last = self._chain(*self._tile), self._chain(m, k, n)
        flight, fetching = self._in_flight(first), self._fetched_bytes() / rates.fetch_gbs
        reading = self._read_ns() + self._met_ns() if flight is None else flight.read_ns
        last_read = last.read / rates.dma_places if flight is None else 0.0
        computing, late_ns = self._compute_ns(), self._late_read_ns(m, k, n)
        found = [
            first.read + self._register_ns() + last.store + last.write + late_ns,
            self._buffer_ns(first) + last.store + last.write,
            *(self._memory_ns(last) if flight is None else (flight.write_ns,)),
            self._edge_row_ns(first),
        ]
        wider = self._counts[2] > 1
        before = self._chain(np.where(wider, m, self._tile[0]), k, np.where(wider, self._tile[2], n))
        for tile, left_out in ((last, 0), (before, depth)):
            found += [
                reading - left_out * last_read + tile.behind_read,
                first.read + fetching - left_out * last.fetch_busy + tile.behind_fetch + late_ns,
                first.read + first.fetch + computing - left_out * last.compute_busy + tile.behind_compute + late_ns,
            ]
        pace = np.maximum(reading, np.maximum(fetching, computing)) / self._tiles
        first_output = first.read + first.fetch + first.last_compute + (depth - 1) * pace
        found += [
            first_output + self._stored_bytes() / rates.store_gbs + last.write,
            first_output + first.store + self._write_ns(),
        ]
        return np.asarray(np.maximum.reduce(found))

    # ---- one tile

    def _chain(self, m: Ints, k: Ints, n: Ints) -> _Chain:
        rates, work = self._rates, self._work
        read = np.zeros(len(m))
        for operand, nbytes in self._inputs(m, k, n, last=False):
            path = self._path(operand)
            if path is not None:
                read = read + path.latency_ns + nbytes / path.gbs
        fetched = sum((nbytes for _, nbytes in self._inputs(m, k, n, last=False)), np.zeros(len(m)))
        result = m * n * dtype_of(work.out.dtype).itemsize
        out = self._path(work.out)
        macs = self._macs_ns(m, k, n) if work.mac_dtype else np.zeros(len(m))
        product = macs + rates.gemm_overhead_ns if work.mac_dtype else macs
        return _Chain(
            read,
            fetched / rates.fetch_gbs + rates.move_overhead_ns,
            fetched / rates.fetch_gbs,
            macs + self._lanes_ns(work.every_ops, m * n),
            product + self._lanes_ns(work.every_ops, m * n, rates.math_overhead_ns),
            product + self._lanes_ns(work.last_ops, m * n, rates.math_overhead_ns),
            result / rates.store_gbs + rates.move_overhead_ns,
            np.zeros(len(m)) if out is None else out.latency_ns + result / out.gbs,
        )

    def _late_read_ns(self, m: Ints, k: Ints, n: Ints) -> Floats:
        """Where only a last K tile reads anything, nothing hides the latency of the last one."""
        streamed = [self._path(x) is not None for x in (*self._work.head, *self._work.every)]
        total = np.zeros(len(m))
        for operand, nbytes in self._inputs(m, k, n, last=True)[len(streamed) :]:
            path = self._path(operand)
            if path is not None and not any(streamed):
                total = total + path.latency_ns + nbytes / path.gbs
        return total

    def _inputs(self, m: Ints, k: Ints, n: Ints, last: bool) -> list[tuple[Operand, Ints]]:
        """What a tile reads, in bytes."""
        work = self._work
        sizes = [m * k, k * n] if work.head else []
        found = [(x, size * dtype_of(x.dtype).itemsize) for x, size in zip(work.head, sizes, strict=True)]
        for operand in (*work.every, *(work.last if last else ())):
            rows, cols = as_matrix(operand.shape)
            elements = (m if rows > 1 else np.ones_like(m)) * (n if cols > 1 else np.ones_like(n))
            found.append((operand, elements * dtype_of(operand.dtype).itemsize))
        return found

    def _operand_sides(self, tile: tuple[Ints, Ints, Ints]) -> Iterator[tuple[Operand, tuple[Ints, Ints]]]:
        """Every operand, and which sides of a tile are its rows and columns."""
        work, (m, k, n) = self._work, tile
        yield from zip(work.head, ((m, k), (k, n)), strict=False)
        yield from ((x, (m, n)) for x in (*work.every, *work.last, work.out))

    def _timing(self, operand: Operand) -> PathTiming | None:
        return None if operand.pinned else self._timings[operand.address]

    def _path(self, operand: Operand) -> TilePath | None:
        return self._paths[operand.address]

    def _macs_ns(self, m: Ints, k: Ints, n: Ints) -> Floats:
        return self._rates.product.product_ns_each(m, k, n, self._work.mac_dtype)

    def _lanes_ns(self, ops: tuple[LaneOp, ...], elements: Ints, overhead_ns: float = 0.0) -> Floats:
        total = np.zeros(len(elements))
        for op, dtype in ops:
            total = total + self._rates.vector.op_ns_each(op, elements, dtype) + overhead_ns
        return total

    # ---- all tiles

    def _moved(self) -> list[tuple[Operand, Ints, Ints]]:
        """What all tiles read: operand, requests, bytes."""
        work, (rows, depth, cols) = self._work, self._counts
        m, k, n = work.sizes
        totals = [m * k * cols, k * n * rows] if work.head else []
        found = [(x, self._tiles, elements) for x, elements in zip(work.head, totals, strict=True)]
        for operands, times in ((work.every, depth), (work.last, np.ones_like(depth))):
            for x in operands:
                height, width = as_matrix(x.shape)
                elements = (m if height > 1 else rows) * (n if width > 1 else cols) * times
                found.append((x, self._outputs * times, elements))
        return [(x, requests, elements * dtype_of(x.dtype).itemsize) for x, requests, elements in found]

    def _read_ns(self) -> Floats:
        """The DMA's read places, taken one after another."""
        total = np.zeros(len(self._tiles))
        for operand, requests, nbytes in self._moved():
            path = self._path(operand)
            if path is not None:
                total = total + requests * path.latency_ns + nbytes / path.gbs
        return total / self._rates.dma_places

    def _write_ns(self) -> Floats:
        path = self._path(self._work.out)
        if path is None:
            return np.zeros(len(self._tiles))
        return (self._outputs * path.latency_ns + self._stored_bytes() / path.gbs) / self._rates.dma_places

    def _in_flight(self, first: _Chain) -> FlightTimes | None:
        """Requests one by one, where several are in flight and rows are runs of their own: channels differ."""
        work, rates = self._work, self._rates
        reads = [(x, side, False) for x, side in zip(work.head, ((0, 1), (1, 2)), strict=False)]
        reads += [(x, (0, 2), last) for each, last in ((work.every, False), (work.last, True)) for x in each]
        streams = [RequestStream(x, path, *side, last) for x, side, last in reads if (path := self._timing(x))]
        out = self._timing(work.out)
        if out is not None:
            streams.append(RequestStream(work.out, out, 0, 2, last_only=True, is_write=True))
        if rates.dma_places == 1 or not any(each.operand.layout == ROW_MAJOR for each in streams):
            return None
        behind_ns = first.fetch + first.last_compute + first.store
        return in_flight(streams, TileGrid(work.sizes, self._tile), rates.dma_places, behind_ns)

    def _met_ns(self) -> Floats:
        """What reads lose to writes on the channels of one memory: of the time that a write takes there, half of the
        share in which a read is under way there.
        """
        out, read, busy = self._path(self._work.out), self._read_ns(), np.zeros(len(self._tiles))
        for operand, _, nbytes in self._moved():
            path = self._path(operand)
            if out is not None and path is not None and path.memory == out.memory:
                busy = busy + nbytes / path.gbs
        if out is None or not busy.any():
            return busy
        return 0.5 * np.minimum(busy / read, 1.0) * self._stored_bytes() / out.gbs

    def _memory_ns(self, last: _Chain) -> list[Floats]:
        """Bytes through each memory, and through the DMA's own link, which bind where many transfers overlap.

        Transfers that overlap want the same channels, so each keeps them for whole rounds of bursts.
        """
        link = np.zeros(len(self._tiles))
        reads: dict[str, Floats] = {}
        for operand, requests, nbytes in self._moved():
            path = self._path(operand)
            if path is not None:
                reads[path.memory] = reads.get(path.memory, 0.0) + occupied_ns(path, requests, nbytes)
                link = link + nbytes / self._rates.dma_gbs
        found = [each + last.behind_read for each in (link, *reads.values())]
        out = self._path(self._work.out)
        if out is not None:
            written = occupied_ns(out, self._outputs, self._stored_bytes() + 0 * self._outputs)
            found.append(reads.get(out.memory, 0.0) + written + 2 * out.latency_ns)
        return found

    def _fetched_bytes(self) -> Floats:
        total = np.zeros(len(self._tiles))
        for _, _, nbytes in self._moved():
            total = total + nbytes
        return total

    def _stored_bytes(self) -> int:
        rows, _, cols = self._work.sizes
        return rows * cols * dtype_of(self._work.out.dtype).itemsize

    def _compute_ns(self) -> Floats:
        """The compute slot; engines work whole cycles, so edge tiles count by themselves."""
        total = np.zeros(len(self._tiles))
        for high, times in self._parts(self._work.sizes[0], self._tile[0]):
            total = total + times * self._row_compute_ns(high)
        return total

    def _row_compute_ns(self, high: Ints) -> Floats:
        """The compute slot over one row of output tiles."""
        work, (_, k, n), steps = self._work, self._tile, self._counts[1] - 1
        total = np.zeros(len(self._tiles))
        for wide, times in self._parts(work.sizes[2], n):
            every, last = self._lanes_ns(work.every_ops, high * wide), self._lanes_ns(work.last_ops, high * wide)
            if work.mac_dtype:
                every = every + self._macs_ns(high, k, wide)
                last = last + self._macs_ns(high, self._edges[1], wide)
            total = total + times * (steps * every + last)
        return total

    def _edge_row_ns(self, first: _Chain) -> Floats:
        """A last row of low tiles: its writes, each with its latency, begin when all rows before it are computed."""
        path, whole_rows = self._path(self._work.out), self._work.sizes[0] // self._tile[0]
        if path is None:
            return np.zeros(len(self._tiles))
        edge_bytes = self._stored_bytes() * self._edges[0] / self._work.sizes[0]
        writes = (self._counts[2] * path.latency_ns + edge_bytes / path.gbs) / self._rates.dma_places
        before = first.read + first.fetch + whole_rows * self._row_compute_ns(self._tile[0])
        return np.where(self._edges[0] < self._tile[0], before + writes, 0.0)

    @staticmethod
    def _parts(size: int, tile: Ints) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """A side in whole tiles and the rest: (size, how many)."""
        rest = size % tile
        return (tile, size // tile), (rest, (rest > 0).astype(np.int64))

    # ---- waiting for room

    def _register_ns(self) -> Floats:
        """Fetches wait for the registers of tiles before them, an output's first fetch for the sums before it."""
        (m, _, n), total = self._tile, np.zeros(len(self._tiles))
        for high, times_high in self._parts(self._work.sizes[0], m):
            for wide, times_wide in self._parts(self._work.sizes[2], n):
                total = total + times_high * times_wide * self._output_ns(high, wide)
        return total

    def _output_ns(self, m: Ints, n: Ints) -> Floats:
        """From one output tile of a size to the next, as limited by registers.

        With room for p tiles besides the sums, p K tiles are in fetch or compute at a time; there is less room while
        the result before is stored. The next output's first tile finds room at once, or when the last product is done,
        or when the result is stored.
        """
        k, steps, room = self._tile[1], self._counts[1] - 1, float(self._rates.register_bytes)
        tile, last = self._chain(m, k, n), self._chain(m, self._edges[1], n)
        held, held_last = self._held(m, k, n), self._held(m, self._edges[1], n)
        sums = m * n * self._work.acc_itemsize
        one, one_last = tile.fetch + tile.compute, last.fetch + last.last_compute
        pace, slow_pace = one / np.maximum((room - sums) // held, 1), one / np.maximum((room - 2 * sums) // held, 1)
        least = np.maximum(tile.fetch_busy, tile.compute_busy)  # a single output in registers waits for itself too
        more, end = np.maximum(steps - 1, 0), np.maximum(last.last_compute, one_last - tile.compute)
        end = np.where(steps == 0, one_last, one + np.where(sums + held + held_last <= room, end, one_last))
        slow = np.minimum(last.store / np.maximum(slow_pace, GRID_NS), more)
        computed = (more - slow) * np.maximum(pace, least) + slow * np.maximum(slow_pace, least) + end
        stored = more * np.maximum(pace, least) + end + last.store
        shared = (steps - slow) * pace + slow * slow_pace + one_last / np.maximum((room - sums) // held, 1)
        shared = np.maximum(shared, stored / np.maximum(room // (sums + held), 1))
        # Registers hold a few K tiles, not whole outputs: what is slower for this size is not made up for by the next.
        shared = np.maximum(shared, np.maximum(steps * tile.fetch_busy + last.fetch_busy, steps * tile.compute_busy))
        waits = np.where(2 * sums + held <= room, computed, stored)
        return np.asarray(np.where(2 * sums + held + held_last <= room, shared, waits))

    def _held(self, m: Ints, k: Ints, n: Ints) -> Floats:
        """Registers that a tile's operands take."""
        held = sum((nbytes for _, nbytes in self._inputs(m, k, n, last=False)), np.zeros(len(m)))
        return np.maximum(held, 1.0)

    def _buffer_ns(self, tile: _Chain) -> Floats:
        """A tile enters when its buffers fit: inputs stay until they are fetched, an output until it is written."""
        rates, (m, k, n) = self._rates, self._tile
        brought = [nbytes for x, nbytes in self._inputs(m, k, n, last=False) if not x.pinned]
        inputs = sum(brought, np.zeros(len(m)))
        result = m * n * dtype_of(self._work.out.dtype).itemsize * (not self._work.out.pinned)
        stay_in, stay_out = tile.read + tile.fetch, tile.read + tile.fetch + tile.last_compute + tile.store + tile.write
        places = np.maximum(rates.tcm_bytes // np.maximum(inputs + result, 1), 1)
        return np.asarray(np.maximum(self._tiles * stay_in, self._outputs * stay_out) / places)
