"""Rows that a PE works on in pieces: the next ones are loaded and the last ones stored while one is computed.

A piece is what fits TCM together with those in flight, but few enough rows that loads, work and stores overlap, and
enough that a pass of the vector unit over them takes longer than to start it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from kernbench.models.bounds import F32_LANES
from kernbench.models.plans import F32_BYTES
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tp import launches
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.tl_context import TLContext

Item = TypeVar("Item")
AHEAD = 2  # pieces that are loaded while one is computed, and as many that are stored
PIECES = 8  # of a PE's rows, where it has so many: the first load and the last store overlap with nothing
PASS_NS = 8.0  # of the vector unit over a piece, at least


def element_bytes(tensors: int, item: int, ahead: int = AHEAD) -> int:
    """TCM of an element, of `tensors` that are read and as many that are written: those in flight, and sums in f32;
    twice that with pieces in flight, since tensors of several sizes leave gaps.
    """
    found = 2 * (ahead + 1) * tensors * item + 3 * F32_BYTES
    return 2 * found if ahead else found


def row_pieces(torch: RuntimeContext, rows: int, width: int, tensors: int, item: int) -> tuple[int, int]:
    """How many of a PE's `rows` are a piece, and how many pieces are loaded ahead: none where TCM is too small."""
    budget = launches.tcm_budget(torch)
    fit = [each for each in range(AHEAD, 0, -1) if width * element_bytes(tensors, item, each) <= budget]
    ahead = fit[0] if fit else 0
    fitting = budget // (width * element_bytes(tensors, item, ahead))
    parts = [cube.pe_template.components for cube, _ in torch.spec.cubes_of()]
    lanes = max(each.pe_math.number_attr("lanes_per_ns") for each in parts) * F32_LANES
    wanted = max(-(-rows // PIECES), int(PASS_NS * lanes) // width)
    return max(1, min(fitting, wanted)), ahead


def loaded_ahead(
    pieces: Iterable[Item], load: Callable[[Item], list[TransferHandle]], ahead: int, tl: TLContext
) -> Iterator[tuple[Item, list[TensorHandle]]]:
    """Each piece with its tensors. The loads of the next `ahead` pieces are issued before those of a piece are waited
    for, so that memory works while the PE computes; TCM holds all of them.
    """
    left, in_flight = iter(pieces), deque[tuple[Item, list[TransferHandle]]]()
    while True:
        in_flight.extend((piece, load(piece)) for piece in islice(left, ahead + 1 - len(in_flight)))
        if not in_flight:
            return
        piece, issued = in_flight.popleft()
        yield piece, [_arrived(each, tl) for each in issued]


def _arrived(handle: TransferHandle, tl: TLContext) -> TensorHandle:
    found = tl.wait(handle)
    assert found is not None
    return found


class StoresInFlight:
    """Stores of the last pieces, whose tensors take TCM until they have ended: those of at most `most` pieces."""

    def __init__(self, most: int, tl: TLContext) -> None:
        self._most, self._tl = most, tl
        self._pieces = deque[list[TransferHandle]]()

    def add(self, handles: list[TransferHandle]) -> None:
        """The stores of one more piece; waits for the oldest where there are too many."""
        self._pieces.append(handles)
        while len(self._pieces) > self._most:
            for handle in self._pieces.popleft():
                self._tl.wait(handle)
