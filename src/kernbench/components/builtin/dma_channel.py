"""A channel of a PE's DMA engine: its request slots, and the queue for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import simpy

from kernbench.common.declared_state import StateField, differs, quantity
from kernbench.common.ipcq import Chunk
from kernbench.common.messages import Request
from kernbench.components.builtin.pe_state import RelativeView
from kernbench.components.builtin.pipeline import TileToken


def _relative_queue(channel: DmaChannel, view: RelativeView) -> tuple[object, ...]:
    """Tiles in the order of the queue, each with the time since when it waits."""
    return tuple(
        (view.token(waiting), since_ns - view.now) if isinstance(waiting, TileToken) else differs()
        for waiting, since_ns in channel.waiting
    )


class DmaChannel:
    """One direction: its request slots (`places`), how many are taken, and the queue for them."""

    STATE = (quantity("taken"), StateField("waiting", _relative_queue))

    __slots__ = ("places", "taken", "waiting")

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.waiting: deque[tuple[TileToken | simpy.Event | Posted | Fetched, float]] = deque()  # and since when


class Posted(NamedTuple):
    """A posted write on the communication channel: its acknowledgement is not waited for."""

    pa: int
    nbytes: int
    payload: Chunk
    left: Callable[[], object]

    def continue_sender(self) -> None:
        """Its last byte has left: its sender may continue."""
        self.left()

    @property
    def request(self) -> Request:
        return self.payload.request


class Notified(NamedTuple):
    """A control message to a listener: it needs no channel."""

    request: Request


class Fetched(NamedTuple):
    """A read on the communication channel."""

    pa: int
    nbytes: int
    request: Request
    arrived: Callable[[], object]
