"""HBM under load: blocks in sequence or in a pseudo-random order, read, written or copied, and streams that meet.

A DMA engine is given all requests at once and has as many under way as its description allows; patterns that mix reads
and writes on purpose are given in order, so many at a time. Compared is the share of the channels' peak that it gets.
Adjacent blocks are joined up to what a warp of a GPU asks for at once; a larger block is as many requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kernbench.common.messages import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.handles import Handle
from kernbench.topology.graph import TopologyGraph
from kernbench.validation.contract import CaseName, OtherSimulator, ShowProgress, ValidationSet, machine
from kernbench.validation.data import DataFolder

H200, HBM2 = "h200-hbm.yaml", "hbm2-channel.yaml"
SHORT, LONG, SIMULATOR = "H200, below 128 B", "H200, 128 B and more", "DRAMsim3 HBM2"
REQUESTS = 1024  # of a case
WINDOW = 64  # accesses of the simulator's patterns that are under way
WARP_BYTES = 512  # 32 lanes of 16 B
SPREAD = 0x9E3779B1  # odd: i x SPREAD mod n visits all of n = 2^k places once
PLACES = 1 << 20  # of random blocks
ROW_BYTES = 2048  # of HBM2
APART = 1 << 26  # between streams, and between what is read and what is written


class MemoryRequest(NamedTuple):
    """A request: where, how much, and which way."""

    address: int
    nbytes: int
    is_write: bool


def streamed(block: int, order: str, kind: str) -> Iterator[MemoryRequest]:
    """What a kernel does that touches each block once: `kind` is read, write or copy."""
    size = min(block, WARP_BYTES) if order == "random" else WARP_BYTES
    parts = max(block // size, 1) if order == "random" else 1
    blocks = max(REQUESTS // parts, 1)
    for i in range(blocks):
        place = i * SPREAD % blocks if order == "random" else i
        for part in range(parts):
            address = (place * parts + part) * size
            if kind != "write":
                yield MemoryRequest(address, size, False)
            if kind != "read":
                yield MemoryRequest(APART + address, size, True)


def shuffled(i: int) -> int:
    """A place among 2^20, pseudo-random and another one for every number below that: each step can be undone."""
    for right, factor in ((9, SPREAD), (11, 0x85EBCA6B), (7, 1)):
        i = (i ^ i >> right) * factor % PLACES
    return i


def mixed(block: int, order: str, write_share: float) -> Iterator[MemoryRequest]:
    """Blocks in sequence or in a pseudo-random order, of which a share is written, evenly among the others."""
    size = block if order == "random" else WARP_BYTES
    for i in range(REQUESTS):
        place = shuffled(i) if order == "random" else i
        yield MemoryRequest(place * size, size, int((i + 1) * write_share) > int(i * write_share))


def streams_that_meet(block: int, write_share: float, streams: int, rows_apart: int) -> Iterator[MemoryRequest]:
    """Sequences of blocks, one block of each in turn; the last ones are written."""
    written = round(write_share * streams)
    for i in range(REQUESTS // streams):
        for stream in range(streams):
            base = stream * (APART + rows_apart * ROW_BYTES)
            yield MemoryRequest(base + i * block, block, stream >= streams - written)


class MemoryUnderTest:
    """One PE of a machine and the memory beside it: requests are issued, and the machine says when they are done."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._spec = spec = graph.spec
        self._engine = GraphEngine(graph)
        self.peak_gbs = spec.cube.hbm_channels_per_pe * spec.cube.memory_map.hbm_channel_bw_gbs

    def share_pct(self, accesses: Iterable[MemoryRequest], window: int = 0) -> float:
        """The share of the peak that a list of accesses gets, all given to the engine at once; with `window`, one is
        given when that so many before it is done, so that reads and writes stay mixed as listed.
        """
        engine, cube, moved = self._engine, self._spec.cube, 0
        handles: list[Handle] = []
        for address, nbytes, is_write in accesses:
            moved += nbytes
            place = address % cube.hbm_slice_bytes
            pa = PhysAddr.pe_hbm_addr(0, 0, 0, place, cube.hbm_slice_bytes, self._spec.address_layout).encode()
            if window and len(handles) >= window:
                engine.wait(handles[-window])
            handles.append(engine.submit(PeDmaMsg(0, 0, 0, pa, nbytes, is_write)))
        engine.wait_all()
        lasted_ns = max(handle.end_ns or 0.0 for handle in handles) - handles[0].start_ns
        return 100.0 * moved / lasted_ns / self.peak_gbs


def simulate(data: DataFolder, show: ShowProgress) -> Mapping[CaseName, float]:
    found: dict[CaseName, float] = {}
    bench = MemoryUnderTest(machine(H200))
    for row in data.rows("h200_hbm.csv"):
        show(f"memory {_h200_case(row)[1]}")
        found[_h200_case(row)] = bench.share_pct(streamed(int(row["block_bytes"]), row["order"], row["kind"]))
    bench = MemoryUnderTest(machine(HBM2))
    for row in data.rows("dramsim3_hbm2.csv"):
        show(f"memory {row['pattern']}")
        found[SIMULATOR, row["pattern"]] = bench.share_pct(_pattern(row), WINDOW)
    return found


def _pattern(row: Mapping[str, str]) -> Iterator[MemoryRequest]:
    block, write_share = int(row["block_bytes"]), float(row["write_share"])
    if row["kind"] in ("sequential", "random blocks"):
        return mixed(block, row["kind"].split()[0], write_share)
    return streams_that_meet(block, write_share, int(row["streams"]), int(row["row_offset_between_streams"]))


def measured(data: DataFolder) -> Mapping[CaseName, float]:
    found: dict[CaseName, float] = {}
    for row in data.rows("h200_hbm.csv"):
        if row.get("share_of_4800_gbs"):
            found[_h200_case(row)] = 100.0 * float(row["share_of_4800_gbs"])
    for row in data.rows("dramsim3_hbm2.csv"):
        if row.get("dramsim3_share_of_peak"):
            found[SIMULATOR, row["pattern"]] = 100.0 * float(row["dramsim3_share_of_peak"])
    return found


def _h200_case(row: Mapping[str, str]) -> CaseName:
    regime = SHORT if int(row["block_bytes"]) < 128 else LONG
    return regime, f"{row['order']} {row['block_bytes']} B {row['kind']}"


SET = ValidationSet(
    name="memory",
    title="HBM of an H200, and patterns of a DRAM simulator",
    folder="5_memory_and_arrays",
    machine="",
    quantity="share of the peak bandwidth, percent",
    unit="points",
    fitted=(
        "efficiency of the H200's channels 0.95 beside refresh (all rows of h200_hbm.csv)",
        "activation window of the H200 28.4 ns (all rows of h200_hbm.csv)",
    ),
    differs=(
        "the H200 has the model `closed`, which opens rows at a fixed rate, so random reads of 64 B are too slow where "
        "those of 128 B are right. The simulator's channel has the model `banks`: its rules are those of its "
        "configuration, but it moves a line to the banks' queues in every cycle, and takes turns among banks where "
        "the oldest line goes first here; 64 accesses are under way, and 1024 are few beside its 100,000 lines"
    ),
    peers=(
        OtherSimulator(
            "prototype with bank queues", "1.1 points mean, 5.4 worst", "own study, 21 patterns of DRAMsim3"
        ),
    ),
    source="H200: own measurement; DRAMsim3 (umd-memsys/DRAMsim3 2981759, MIT), a simulator: own runs",
    simulate=simulate,
    measured=measured,
)
