"""Operands of a tile that PE_DMA reads at the same time, where its channel has several places: each is a request of its
own, and the tile goes on when the last of them is there.
"""

from __future__ import annotations

from kernbench.common.declared_state import StateField, part, quantity
from kernbench.components.builtin.pe_state import RelativeView
from kernbench.components.builtin.pipeline import TileToken
from kernbench.components.recording import DATA, STAGE_BITS


class OperandRead(TileToken):
    """One of several operands of a tile that are read at the same time."""

    STATE = (part("group"),)
    DERIVED = ("causes", "times")  # those of the tile count

    __slots__ = ("group",)

    def __init__(self, group: OperandReads, index: int) -> None:
        tile = group.tile
        super().__init__(tile.plan, tile.context, tile.number)
        self.group = group
        self.index = index


def _relative_times(group: OperandReads, view: RelativeView) -> tuple[tuple[float, ...], ...]:
    """Start and end of the reads that are there; nothing of others."""
    found = zip(group.times[::2], group.times[1::2], strict=True)
    return tuple((start - view.now, end - view.now) if end else () for start, end in found)


class OperandReads:
    """The operands of a tile that are read at the same time. The tile goes on when the last of them is there."""

    STATE = (
        StateField("tile", lambda group, view: view.token(group.tile)),
        quantity("first"),
        quantity("missing"),
        StateField("times", _relative_times),
    )

    __slots__ = ("first", "missing", "tile", "times")

    def __init__(self, tile: TileToken, count: int) -> None:
        self.tile = tile
        self.first = tile.index
        self.missing = count
        self.times = [0.0] * (2 * count)

    def waits(self, read: OperandRead, release: float, ready_ns: float, released_by: float) -> None:
        """What lets a read start last."""
        self.tile.causes += (read.index, release, ready_ns, released_by)

    def arrived(self, read: OperandRead, now: float) -> bool:
        """An operand is there; says whether it was the last."""
        at = 2 * (read.index - self.first)
        self.times[at : at + 2] = read.start_ns, now
        self.missing -= 1
        if self.missing:
            return False
        tile = self.tile
        tile.times += self.times
        tile.index = self.first + len(self.times) // 2 - 1
        if read.index != tile.index:  # what follows starts when the last operand is there, whichever that is
            tile.causes += (tile.index + 1, DATA, now, read.number << STAGE_BITS | read.index)
        return True
