"""The relative timing state of a PE: times relative to now, tiles relative to the one fed next.

Two instants with the same relative state of the PE's blocks, its fabric and the remaining tiles have the same future.
What is state is declared by the blocks (`common.declared_state`). The memory channels at which transfers begin are not
part of the state: they are noted beside it (`first_channels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernbench.common.declared_state import StateField, timing_state
from kernbench.components.builtin.pipeline import TileToken
from kernbench.components.builtin.stages import DmaStage
from kernbench.components.recording import STAGE_BITS

# Of an operand in memory channels: its address, bits of a burst, mask of channels; where bytes count, 0 and the mask of
# a round over the channels.
ChannelPlacement = tuple[int, int, int]


def tokens(name: str) -> StateField:
    """Tiles that wait, in the order of a queue, or by their order among the tiles of the PE."""

    def relative(owner: Any, view: RelativeView) -> tuple[object, ...]:
        waiting = getattr(owner, name)
        return tuple(
            [view.token(waiting[at]) for at in sorted(waiting)]
            if isinstance(waiting, dict)
            else map(view.token, waiting)
        )

    return StateField(name, relative)


class RelativeView:
    """Converts a PE's state to relative form, from the time, the tiles fed so far and the placement of operands."""

    def __init__(self, now: float, fed: int, placements: Mapping[int, ChannelPlacement]) -> None:
        self.now = now
        self._refs = fed << STAGE_BITS
        self._fed = fed
        self._placements = placements
        self.tokens: dict[int, TileToken] = {}  # tiles under way, and operands of them, by identity
        self.first_channels: list[int] = []  # of bytes still to move, in the order of the state

    def tile(self, number: int) -> int:
        return number - self._fed

    def ref(self, reference: float) -> float:
        return reference - self._refs if reference >= 0 else reference

    def token(self, token: TileToken) -> tuple[object, ...]:
        """A tile under way, or one of its operands: its remaining stages, and what its record will hold."""
        self.tokens[id(token)] = token
        if type(token) is TileToken:
            self._note_channels(token)
        return timing_state(token, self)

    def _note_channels(self, token: TileToken) -> None:
        """Note the memory channels at which the tile's remaining transfers begin."""
        for stage in token.stages[token.index :]:
            if type(stage) is DmaStage:
                placement = self._placements.get(stage.operand)
                if placement is not None:
                    address, shift, mask = placement
                    self.first_channels.append((address + stage.offset) >> shift & mask)
