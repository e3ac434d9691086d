"""Prefetch of a PE's own slice into TCM, as far ahead as there is room.

Weights and caches do not depend on what other PEs compute, so their loads are issued while the kernel waits for
messages. A DMA serves its reads in order: no other read of the kernel may be urgent meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from kernbench.models.quantised import QuantisedForm
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.tl_context import TLContext


class StreamedBlock(NamedTuple):
    """A contiguous block of weights or of a cache in a PE's own slice, loaded as one piece; `form` of quantised ones,
    and of their scales.
    """

    address: int
    shape: tuple[int, int]
    nbytes: int
    form: QuantisedForm | None = None
    is_scales: bool = False


class LoadsAhead:
    """Loads `pieces` in order. Those issued and not yet released take at most `room_bytes` of TCM, unless a single
    piece takes more.
    """

    def __init__(self, pieces: Iterable[StreamedBlock], room_bytes: int, tl: TLContext) -> None:
        self._left, self._issued = deque(pieces), deque[tuple[StreamedBlock, TransferHandle]]()
        self._room_bytes, self._tl = room_bytes, tl

    def issue(self) -> None:
        """Issue the loads of all pieces that there is room for."""
        while self._left and self._left[0].nbytes <= self._room_bytes:
            self._issue_one()

    @property
    def next_block(self) -> StreamedBlock | None:
        """What `take` returns next; None if nothing is left."""
        if self._issued:
            return self._issued[0][0]
        return self._left[0] if self._left else None

    def take(self) -> TensorHandle:
        """Wait for the next piece. `release` follows its last use."""
        if not self._issued:
            self._issue_one()
        found = self._tl.wait(self._issued.popleft()[1])
        assert found is not None
        return found

    def release(self, nbytes: int) -> None:
        """The kernel has dropped a piece that it took: issue what there is room for now."""
        self._room_bytes += nbytes
        self.issue()

    def _issue_one(self) -> None:
        block = self._left.popleft()
        self._room_bytes -= block.nbytes
        self._issued.append((block, self._tl.load_async(block.address, block.shape)))
