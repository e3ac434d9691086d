"""Finite buffers at the far end of links: the options, and the proof that they cannot deadlock.

A flit in a buffer waits for a slot of the next link's buffer in its layer: the channel (link, layer) depends on the
next one. Dally and Seitz: if no cycle of dependencies exists, some flit can always go on. Every route is added to the
graph of dependencies before it carries bytes, and one that would close a cycle is refused. The last link of a route has
no buffer, so that nothing depends on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal

from kernbench.common.errors import FabricError
from kernbench.common.frozen import frozen
from kernbench.common.units import MAX_TIME_NS

Order = Literal["fifo", "voq"]
Ownership = Literal["flit", "packet"]
Arbitration = Literal["asking", "round_robin"]
LayerRule = Callable[[tuple[Hashable, ...]], Sequence[int]]  # of a path: the layer of each of its links
Channel = tuple[int, int]  # link, layer


def one_layer(path: tuple[Hashable, ...]) -> Sequence[int]:
    """The layer rule of networks whose routes have no cycle of dependencies."""
    return (0,) * (len(path) - 1)


@frozen
class Buffers:
    """What every link's buffer is like.

    `slots` flits in each virtual channel, of which a layer has `channels`; `order` "fifo" for one queue per virtual
    channel, "voq" for one per output; `ownership` "packet" where a packet of `packet_bytes` (0: a whole transfer) owns
    its virtual channel of a link from its first flit to its last; `arbitration` of links and credits in order of
    asking or by round robin over inputs. A slot is credited `credit_ns` after its flit has started on the next link.
    """

    slots: int
    credit_ns: float = 0.0
    layers: int = 1
    channels: int = 1
    order: Order = "fifo"
    ownership: Ownership = "flit"
    packet_bytes: int = 0
    arbitration: Arbitration = "asking"

    def check(self) -> None:
        """Raises FabricError where an option cannot be."""
        if self.slots < 1 or self.layers < 1 or self.channels < 1 or self.packet_bytes < 0:
            raise FabricError(f"{self}", hint="give 1 or more slots, layers and channels, and packets of 0 or more B")
        if not 0 <= self.credit_ns < MAX_TIME_NS:
            raise FabricError(f"credits that take {self.credit_ns} ns", hint="give 0 or more")
        if self.ownership == "flit" and self.channels > 1:
            raise FabricError(
                f"{self.channels} virtual channels per layer where flits own nothing",
                hint="give ownership 'packet', or one channel per layer",
            )

    def check_multicast(self, nbytes: int, flit_bytes: int) -> None:
        """Raises FabricError for a multicast whose packets could wait for one another for ever.

        A packet is copied whole to one branch after another, so that it owns a virtual channel of one at a time. All of
        it has to come to the buffer where it forks, since no slot is free before the last copy; and packets of one
        virtual channel stay one behind another, which they do not in queues of several outputs.
        """
        if self.ownership == "flit":
            return
        flits = -(-nbytes // flit_bytes)
        packet = min(self.packet_bytes // flit_bytes or flits, flits)
        if self.order == "voq":
            raise FabricError(
                "a multicast where packets own virtual channels that have a queue for each output: packets would mix",
                hint="give `fabric.buffers.order: fifo`, or `ownership: flit`",
            )
        if packet > self.slots:
            raise FabricError(
                f"a multicast in packets of {packet} flits, where a buffer has {self.slots} slots: one that does not "
                "fit where it forks would wait for ever",
                hint=f"give `fabric.buffers.packet_bytes` of at most {self.slots * flit_bytes}, more `slots`, or "
                "`ownership: flit`",
            )


class Dependencies:
    """The graph of dependencies between channels, kept free of cycles as routes are added.

    Channels have places in a topological order, which a new dependency changes between its two ends only (Pearce and
    Kelly): adding the routes of a machine takes time in proportion to their links.
    """

    def __init__(self, name_of: Callable[[int], str]) -> None:
        self._name_of = name_of
        self._after: dict[Channel, dict[Channel, None]] = {}
        self._before: dict[Channel, dict[Channel, None]] = {}
        self._place: dict[Channel, int] = {}

    def add_route(self, channels: Sequence[Channel]) -> None:
        """Add the dependencies of a route; raises FabricError with the cycle that it would close."""
        cycle = self.cycle_with([channels])
        if cycle:
            shown = " -> ".join(f"{self._name_of(link)} (layer {layer})" for link, layer in cycle)
            raise FabricError(
                f"buffers of a route could wait for one another for ever: {shown}",
                hint="give such routes a further layer, so that no cycle of links is in one layer",
            )

    def cycle_with(self, routes: Iterable[Sequence[Channel]]) -> list[Channel]:
        """Add the dependencies of routes, all or none; returns the cycle that they would close, or nothing."""
        added: list[tuple[Channel, Channel]] = []
        for channels in routes:
            for a, b in itertools.pairwise(channels):
                if b in self._after.setdefault(a, {}):
                    continue
                cycle = self._add(a, b)
                if cycle:
                    for c, d in added:
                        del self._after[c][d], self._before[d][c]
                    return cycle
                added.append((a, b))
        return []

    def _add(self, a: Channel, b: Channel) -> list[Channel]:
        place = self._place
        low, high = place.setdefault(b, len(place)), place.setdefault(a, len(place))
        if low <= high:
            onward = self._reach(b, self._after, lambda channel: place[channel] <= high)
            if a in onward:
                cycle, at = [a], a
                while at != b:
                    at = onward[at]
                    cycle.append(at)
                return [a, *reversed(cycle)]
            backward = self._reach(a, self._before, lambda channel: place[channel] >= low)
            by_place = place.__getitem__
            moved = sorted(backward, key=by_place) + sorted(onward, key=by_place)
            for channel, at_place in zip(moved, sorted(map(by_place, moved)), strict=True):
                place[channel] = at_place
        self._after.setdefault(a, {})[b] = None
        self._before.setdefault(b, {})[a] = None
        return []

    @staticmethod
    def _reach(
        start: Channel, edges: dict[Channel, dict[Channel, None]], is_between: Callable[[Channel], bool]
    ) -> dict[Channel, Channel]:
        """What can be reached, and from where."""
        found, stack = {start: start}, [start]
        while stack:
            at = stack.pop()
            for onward in edges.get(at, ()):
                if onward not in found and is_between(onward):
                    found[onward] = at
                    stack.append(onward)
        return found
