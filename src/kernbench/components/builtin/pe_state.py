"""The state of a PE seen from the view: times as they lie ahead or behind, tiles as counted from the one fed next.

Two instants at which a PE's blocks, its fabric and the tiles to come look the same are followed by the same. What is
over and cannot matter any more is left out. At which channels bytes begin is not part of it: that is noted beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.components.builtin.pipeline import ServerQueue, TileToken
from kernbench.components.builtin.stages import DmaStage
from kernbench.components.recording import STAGE_BITS

State = tuple[object, ...]
Placement = tuple[int, int, int]  # of an operand in memory channels: its address, bits of a burst, mask of channels


class RelativeView:
    """Where a PE stands: the time, how many tiles were fed, and where operands lie among channels."""

    def __init__(self, now: float, fed: int, placements: Mapping[int, Placement]) -> None:
        self.now = now
        self._refs = fed << STAGE_BITS
        self._fed = fed
        self._placements = placements
        self.tokens: dict[int, TileToken] = {}  # tiles under way, and operands of them, by identity
        self.first_channels: list[int] = []  # of bytes still to move, in the order of the state

    def remaining_ns(self, time: float) -> float:
        """How long something is still taken."""
        return time - self.now if time > self.now else 0.0

    def server(self, queue: ServerQueue) -> State:
        free = self.remaining_ns(queue.free_ns)
        return (free, self.ref(queue.holder)) if free else ()

    def ref(self, who: float) -> float:
        return who - self._refs if who >= 0 else who

    def token(self, token: TileToken, *, waits: bool = False) -> State:
        """A tile under way: what is left of it, and what its record will say. One that waits has yet to start."""
        self.tokens[id(token)] = token
        self._note_channels(token)
        now, causes = self.now, token.causes
        plan = token.plan
        said: list[float] = []
        for at in range(0, len(causes), 4):
            stage, release, ready, who = causes[at : at + 4]
            said += (stage, int(release), ready - now, self.ref(who))
        return (
            token.number - self._fed,
            plan.kind,
            token.index,
            0.0 if waits else token.start_ns - now,
            tuple([t - now for t in token.times]),
            tuple(said),
            token.pending,
        )

    def _note_channels(self, token: TileToken) -> None:
        """The channels at which the bytes begin that the tile has to move."""
        for stage in token.stages[token.index :]:
            if type(stage) is DmaStage:
                placement = self._placements.get(stage.operand)
                if placement is not None:
                    address, shift, mask = placement
                    self.first_channels.append((address + stage.offset) >> shift & mask)
