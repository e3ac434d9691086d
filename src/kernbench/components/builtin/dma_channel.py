"""A channel of a PE's DMA engine: its places, and what waits for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import simpy

from kernbench.common.ipcq import Chunk, Credit
from kernbench.common.messages import Request
from kernbench.components.builtin.pipeline import TileToken


class Channel:
    """One direction: places, and who waits for one."""

    __slots__ = ("places", "taken", "waiting")

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.waiting: deque[tuple[TileToken | simpy.Event | Posted | Fetched, float]] = deque()  # and since when


class Posted(NamedTuple):
    """Bytes that leave on the communication channel; nobody waits for their acknowledgement."""

    pa: int
    nbytes: int
    payload: Chunk | Credit
    left: Callable[[], object] | None

    @property
    def request(self) -> Request:
        return self.payload.request


class Fetched(NamedTuple):
    """Bytes that are read on the communication channel."""

    pa: int
    nbytes: int
    request: Request
    arrived: Callable[[], object]
