"""The relative timing state of a PE: times relative to now, tiles relative to the one fed next.

Two instants with the same relative state of the PE's blocks, its fabric and the remaining tiles have the same future.
State of the past that cannot influence the future is left out. The memory channels at which transfers begin are not
part of the state: they are noted beside it (`first_channels`).
"""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.components.builtin.pipeline import ServerQueue, TileToken
from kernbench.components.builtin.stages import DmaStage
from kernbench.components.recording import STAGE_BITS

State = tuple[object, ...]
Placement = tuple[int, int, int]  # of an operand in memory channels: its address, bits of a burst, mask of channels


class RelativeView:
    """Converts a PE's state to relative form, from the time, the tiles fed so far and the placement of operands."""

    def __init__(self, now: float, fed: int, placements: Mapping[int, Placement]) -> None:
        self.now = now
        self._refs = fed << STAGE_BITS
        self._fed = fed
        self._placements = placements
        self.tokens: dict[int, TileToken] = {}  # tiles under way, and operands of them, by identity
        self.first_channels: list[int] = []  # of bytes still to move, in the order of the state

    def remaining_ns(self, time: float) -> float:
        """How long something is still busy."""
        return time - self.now if time > self.now else 0.0

    def server(self, queue: ServerQueue) -> State:
        free = self.remaining_ns(queue.free_ns)
        return (free, self.ref(queue.holder)) if free else ()

    def ref(self, who: float) -> float:
        return who - self._refs if who >= 0 else who

    def token(self, token: TileToken, *, waits: bool = False) -> State:
        """A tile under way: its remaining stages, and what its record will hold. One that waits has yet to start."""
        self.tokens[id(token)] = token
        self._note_channels(token)
        now, causes = self.now, token.causes
        plan = token.plan
        relative: list[float] = []
        for at in range(0, len(causes), 4):
            stage, release, ready, who = causes[at : at + 4]
            relative += (stage, int(release), ready - now, self.ref(who))
        return (
            token.number - self._fed,
            plan.kind,
            token.index,
            0.0 if waits else token.start_ns - now,
            tuple([t - now for t in token.times]),
            tuple(relative),
            token.pending,
        )

    def _note_channels(self, token: TileToken) -> None:
        """Note the memory channels at which the tile's remaining transfers begin."""
        for stage in token.stages[token.index :]:
            if type(stage) is DmaStage:
                placement = self._placements.get(stage.operand)
                if placement is not None:
                    address, shift, mask = placement
                    self.first_channels.append((address + stage.offset) >> shift & mask)
