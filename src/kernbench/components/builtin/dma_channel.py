"""A channel of a PE's DMA engine: its request slots, and the queue for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import simpy

from kernbench.common.ipcq import Chunk, Credit
from kernbench.common.messages import Request
from kernbench.components.builtin.pipeline import TileToken


class Channel:
    """One direction: its request slots (`places`), how many are taken, and the queue for them."""

    __slots__ = ("places", "taken", "waiting")

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.waiting: deque[tuple[TileToken | simpy.Event | Posted | Fetched, float]] = deque()  # and since when


class Posted(NamedTuple):
    """A posted write on the communication channel: its acknowledgement is not waited for."""

    pa: int
    nbytes: int
    payload: Chunk | Credit
    left: Callable[[], object] | None

    @property
    def request(self) -> Request:
        return self.payload.request


class Fetched(NamedTuple):
    """A read on the communication channel."""

    pa: int
    nbytes: int
    request: Request
    arrived: Callable[[], object]
