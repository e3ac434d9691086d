"""Loads of a PE's own slice that run ahead of their use, as far as TCM has room.

Weights and caches do not depend on what other PEs compute, so a kernel asks for the next ones while it waits for
messages. The DMA serves its reads in order, and nothing else of the kernel is read meanwhile that it would wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.tl_context import TLContext


class WeightBlock(NamedTuple):
    """A contiguous block of a PE's own slice."""

    address: int
    shape: tuple[int, int]
    nbytes: int


class LoadsAhead:
    """`pieces` in order; those asked for and not yet released take at most `room_bytes` of TCM, or one at a time."""

    def __init__(self, pieces: Iterable[WeightBlock], room_bytes: int, tl: TLContext) -> None:
        self._left, self._coming = deque(pieces), deque[TransferHandle]()
        self._room_bytes, self._tl = room_bytes, tl

    def ask(self) -> None:
        """Ask for all pieces that there is room for."""
        while self._left and self._left[0].nbytes <= self._room_bytes:
            self._ask_one()

    def take(self) -> TensorHandle:
        """The next piece, when it is here. `release` follows its last use."""
        if not self._coming:
            self._ask_one()
        found = self._tl.wait(self._coming.popleft())
        assert found is not None
        return found

    def release(self, nbytes: int) -> None:
        """The kernel has dropped a piece that it took: ask for what follows."""
        self._room_bytes += nbytes
        self.ask()

    def _ask_one(self) -> None:
        address, shape, nbytes = self._left.popleft()
        self._room_bytes -= nbytes
        self._coming.append(self._tl.load_async(address, shape))
