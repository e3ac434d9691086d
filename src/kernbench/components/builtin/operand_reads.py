"""Operands of a tile that PE_DMA reads at the same time, where its channel has several places: each is a request of its
own, and the tile goes on when the last of them is there.
"""

from __future__ import annotations

from kernbench.components.builtin.pe_state import RelativeView, State
from kernbench.components.builtin.pipeline import TileToken
from kernbench.components.recording import DATA, STAGE_BITS


class OperandRead(TileToken):
    """One of several operands of a tile that are read at the same time."""

    __slots__ = ("group",)

    def __init__(self, group: OperandReads, index: int) -> None:
        tile = group.tile
        super().__init__(tile.plan, tile.context, tile.number)
        self.group = group
        self.index = index


class OperandReads:
    """The operands of a tile that are read at the same time. The tile goes on when the last of them is there."""

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


def token_state(token: TileToken, view: RelativeView, *, waits: bool = False) -> State:
    """A tile under way, or one of its operands; of the others that are read at the same time, what is there."""
    if not isinstance(token, OperandRead):
        return view.token(token, waits=waits)
    group, now = token.group, view.now
    view.tokens[id(token)] = token
    times = zip(group.times[::2], group.times[1::2], strict=True)
    there = tuple((start - now, end - now) if end else () for start, end in times)
    own = (token.index, 0.0 if waits else token.start_ns - now, token.pending)
    return (*own, view.token(group.tile, waits=True), group.first, group.missing, there)
