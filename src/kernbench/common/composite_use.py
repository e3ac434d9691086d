"""What a PE reports about the composites of a launch: which tile each was cut into, and how far its operands lay."""

from __future__ import annotations

from typing import NamedTuple

from kernbench.common.commands import CompositeCmd
from kernbench.common.frozen import frozen


@frozen
class PathTiming:
    """An uncontended transfer between a PE and a memory takes `latency_ns + nbytes / gbs`, read or write."""

    latency_ns: float  # request, way there and back, one burst, one flit on every link but the narrowest
    gbs: float  # of the narrowest link, or of the memory's channels
    memory: str = ""  # the node behind the path: transfers of one memory share its channels
    round_bytes: int = 1  # one burst on every channel
    round_ns: float = 0.0  # and how long that takes; 0 for a memory without channels
    burst_bytes: int = 0  # of a memory with channels
    granule_bytes: int = 0  # that a short burst is counted in; 0: bursts are whole
    open_ns: float = 0.0  # the least time of a short burst


class CompositeUse(NamedTuple):
    """Equal composites of one PE in one launch."""

    cmd: CompositeCmd  # its operands are numbered; the address of an operand is its place in `paths`
    tile: tuple[int, ...]  # (m, k, n) of a gemm, (m, n) of a math op
    tiles: int  # of one composite
    composites: int
    paths: tuple[PathTiming | None, ...]  # None for an operand in TCM
