"""Loads of a PE's own slice that run ahead of their use, paced.

Weights and caches do not depend on what other PEs compute, so a kernel asks for the next ones while it waits for
messages, barriers and activations. All loads of a PE share the read channel of its DMA, in order: were all that fit TCM
asked for at once, the few bytes that a kernel waits for would queue behind them. So loads are asked for about when the
ones before them end, by an estimate of the time that each step of the kernel takes. The estimate sets when bytes are
asked for; it adds no time. A wrong one leaves the channel idle, or a small load in a queue.
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


class _Asked(NamedTuple):
    """A load, and when it is here: ns of the channel's work."""

    handle: TransferHandle
    end_ns: float


class PacedLoads:
    """`pieces` in order, at `gbs`; those asked for and not yet released take at most `room_bytes` of TCM."""

    def __init__(
        self, pieces: Iterable[WeightBlock], room_bytes: int, gbs: float, ahead_ns: float, tl: TLContext
    ) -> None:
        self._left, self._coming = deque(pieces), deque[_Asked]()
        self._room_bytes, self._gbs, self._ahead_ns, self._tl = room_bytes, gbs, ahead_ns, tl
        self._asked_ns = 0.0  # of the channel's work, by all loads so far
        self._here_ns = 0.0  # of it, that is estimated to be done

    def before(self, ns: float) -> None:
        """The kernel is about to spend some time: ask for what arrives meanwhile."""
        self._ask(self._here_ns + ns + self._ahead_ns)
        self._here_ns = min(self._asked_ns, self._here_ns + ns)

    def take(self) -> TensorHandle:
        """The next piece, when it is here. `release` follows its last use."""
        if not self._coming:
            self._ask_one()
        asked = self._coming.popleft()
        self._here_ns = max(self._here_ns, asked.end_ns)
        self._ask(asked.end_ns + self._ahead_ns)
        found = self._tl.wait(asked.handle)
        assert found is not None
        return found

    def release(self, nbytes: int) -> None:
        """The kernel has dropped a piece that it took."""
        self._room_bytes += nbytes

    def _ask(self, until_ns: float) -> None:
        while self._left and self._asked_ns < until_ns and self._left[0].nbytes <= self._room_bytes:
            self._ask_one()

    def _ask_one(self) -> None:
        address, shape, nbytes = self._left.popleft()
        self._room_bytes -= nbytes
        self._asked_ns += nbytes / self._gbs
        self._coming.append(_Asked(self._tl.load_async(address, shape), self._asked_ns))
