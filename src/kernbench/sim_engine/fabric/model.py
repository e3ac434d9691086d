"""A network as plain data: nodes that delay, links that serialise, banks of memory channels. No word of SIPs or cubes.

A node delays every flit that enters it by its overhead and blocks nobody; the source of a transfer is not entered. A link is
a serial FIFO: a flit occupies it for bytes / bandwidth and arrives a propagation delay later. A bank is the set of memory
channels behind one node: a flit's burst goes to the channel that its address names and occupies it for one burst time.
All durations are rounded to the time grid here, once. Buffers are not modelled: a queue can grow without limit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence

from kernbench.common.errors import FabricError
from kernbench.common.flits import FlitArrival
from kernbench.common.units import is_power_of_two, on_grid, transfer_ns

READ, WRITE = 1, 2

BankState = tuple[list[float], list[int], list[int], list[tuple[float, float]]]
DelayRule = Callable[[FlitArrival], float]


class Pace:
    """When the flits of a read may leave: the first round channel by channel, then every burst time; never out of order."""

    __slots__ = ("burst_ns", "firsts", "flits")

    def __init__(self, firsts: list[float], burst_ns: float, flits: int) -> None:
        self.firsts = firsts  # of the first round, each no earlier than the one before
        self.burst_ns = burst_ns
        self.flits = flits

    def time(self, index: int) -> float:
        firsts = self.firsts
        rounds, j = divmod(index, len(firsts))
        if not rounds:
            return firsts[j]
        return max(firsts[j] + rounds * self.burst_ns, firsts[-1] + (rounds - 1) * self.burst_ns)

    def times(self, start: int, stop: int) -> Iterator[float]:
        return map(self.time, range(start, stop))

    def count_until(self, now: float) -> int:
        """How many flits may leave at `now` or earlier."""
        return bisect_right(range(self.flits), now, key=self.time)


class Bank:
    """The memory channels behind one node. Reads and writes share a channel; turning its direction may cost a penalty."""

    __slots__ = ("burst_ns", "bursts", "busy_ns", "direction", "free_ns", "mask", "node", "penalty_ns", "shift", "worst")

    def __init__(self, node: int, channels: int, burst_bytes: int, burst_ns: float, penalty_ns: float) -> None:
        self.node = node
        self.mask = channels - 1
        self.shift = burst_bytes.bit_length() - 1
        self.burst_ns = burst_ns
        self.penalty_ns = penalty_ns
        self.free_ns = [0.0] * channels
        self.direction = [0] * channels
        self.bursts = [0] * channels
        self.worst = [(0.0, 0.0)] * channels  # longest wait for the channel, and when it began

    def commit(self, channel: int, ready_ns: float, direction: int) -> float:
        """Put one burst on a channel; returns when it is finished."""
        start = self.free_ns[channel]
        if start > ready_ns:
            wait = start - ready_ns
            if wait > self.worst[channel][0]:
                self.worst[channel] = (wait, ready_ns)
        else:
            start = ready_ns
        turned = self.direction[channel]
        if turned != direction:
            if turned:
                start += self.penalty_ns
            self.direction[channel] = direction
        finish = start + self.burst_ns
        self.free_ns[channel] = finish
        self.bursts[channel] += 1
        return finish

    def commit_reads(self, block: int, flits: int, now: float) -> Pace:
        """Commit a read of `flits` bursts from `block` on, all at `now`; tells when each flit may leave."""
        channels, burst_ns = self.mask + 1, self.burst_ns
        latest = 0.0
        firsts: list[float] = []
        for j in range(min(flits, channels)):
            channel = (block + j) & self.mask
            first = self.commit(channel, now, READ)
            more = (flits - j - 1) // channels
            if more:
                self._follow(channel, now, 0.0, more, first)
            if first > latest:
                latest = first
            firsts.append(latest)
        return Pace(firsts, burst_ns, flits)

    def is_idle(self, now: float, direction: int) -> bool:
        """Whether a burst in that direction would start at once on every channel."""
        return max(self.free_ns) <= now and not (self.penalty_ns and (READ ^ WRITE ^ direction) in self.direction)

    def commit_idle_reads(self, block: int, flits: int, now: float) -> None:
        """`commit_reads` on idle channels, where what happens need not be worked out."""
        channels, burst_ns = self.mask + 1, self.burst_ns
        rounds, rest = divmod(flits, channels)
        if rest:
            for j in range(min(flits, channels)):
                self._take_idle((block + j) & self.mask, rounds + (j < rest), now)
            return
        self.free_ns = [now + rounds * burst_ns] * channels
        self.direction = [READ] * channels
        self.bursts = [n + rounds for n in self.bursts]
        wait = (rounds - 1) * burst_ns
        if wait and min(self.worst)[0] < wait:
            self.worst = [worst if worst[0] >= wait else (wait, now) for worst in self.worst]

    def _take_idle(self, channel: int, bursts: int, now: float) -> None:
        self.free_ns[channel] = now + bursts * self.burst_ns
        self.direction[channel] = READ
        self.bursts[channel] += bursts
        wait = (bursts - 1) * self.burst_ns
        if wait > self.worst[channel][0]:
            self.worst[channel] = (wait, now)

    def commit_writes(self, block: int, index: int, runs: Sequence[tuple[float, float, int]]) -> float:
        """Commit flits `index`, ... that arrive at `runs` (first, step, count); returns when the last burst is finished."""
        channels, end = self.mask + 1, 0.0
        for t, dt, n in runs:
            for j in range(min(n, channels)):
                channel = (block + index + j) & self.mask
                finish = self.commit(channel, t + j * dt, WRITE)
                more = (n - j - 1) // channels
                if more:
                    finish = self._follow(channel, t + j * dt, channels * dt, more, finish)
                if finish > end:
                    end = finish
            index += n
        return end

    def _follow(self, channel: int, ready_ns: float, step_ns: float, more: int, finish: float) -> float:
        """`more` bursts in one direction after one that was ready at `ready_ns` and is over at `finish`."""
        burst_ns = self.burst_ns
        end = max(finish + more * burst_ns, ready_ns + more * step_ns + burst_ns)
        # Waits grow or shrink evenly along the row, so the longest is the first one's or the last one's.
        for wait, at in (
            (finish - ready_ns - step_ns, ready_ns + step_ns),
            (end - burst_ns - ready_ns - more * step_ns, ready_ns + more * step_ns),
        ):
            if wait > self.worst[channel][0]:
                self.worst[channel] = (wait, at)
        self.free_ns[channel] = end
        self.bursts[channel] += more
        return end

    def snapshot(self) -> BankState:
        return self.free_ns[:], self.direction[:], self.bursts[:], self.worst[:]

    def restore(self, state: BankState) -> None:
        free_ns, direction, bursts, worst = state
        self.free_ns[:], self.direction[:], self.bursts[:], self.worst[:] = free_ns, direction, bursts, worst


class Route:
    """A path, looked up once: its links with their times. `nodes` are indices."""

    __slots__ = ("control_ns", "dead_link", "flit_ns", "hooked", "hops", "links", "loops", "nodes", "partial_ns", "path", "shapes")

    def __init__(self, network: Network, path: tuple[Hashable, ...]) -> None:
        self.path = path
        self.nodes = tuple(network.node_index(node) for node in path)
        self.links = tuple(network.link_index(a, b) for a, b in zip(path, path[1:], strict=False))
        self.hops = len(self.links)
        self.flit_ns = tuple(network.flit_ns[link] for link in self.links)
        self.loops = len(dict.fromkeys(self.links)) < self.hops  # passes a link twice
        self.hooked = any(network.delay_rule[node] is not None for node in self.nodes[1:])
        self.control_ns = sum(network.tail_ns[link] for link in self.links)
        self.dead_link = next((link for link in self.links if network.bw_gbs[link] is None), None)
        self.partial_ns: dict[int, tuple[float, ...]] = {}
        self.shapes: dict[tuple[int, int, int], object] = {}  # how transfers of each size run on this route alone

    def last_flit_ns(self, network: Network, nbytes: int) -> tuple[float, ...]:
        """How long a last flit of `nbytes` occupies each link."""
        if nbytes == network.flit_bytes:
            return self.flit_ns
        times = self.partial_ns.get(nbytes)
        if times is None:
            bandwidths = [network.bw_gbs[link] for link in self.links]
            times = tuple(transfer_ns(nbytes, bw) if bw is not None else 0.0 for bw in bandwidths)
            self.partial_ns[nbytes] = times
        return times


class Network:
    """Nodes, links and banks. Build it once, then put a `Fabric` on it; several fabrics may share one network's structure.

    Names are any hashable values. A link has an index, in order of `add_link`: where flits become ready for one output at
    the same instant, the lower index goes first.
    """

    def __init__(self, flit_bytes: int = 256) -> None:
        if flit_bytes < 1:
            raise FabricError(f"a flit of {flit_bytes} bytes", mend="give flit_bytes of 1 or more")
        self.flit_bytes = flit_bytes
        self.names: list[Hashable] = []
        self.overhead_ns: list[float] = []
        self.delay_rule: list[DelayRule | None] = []
        self.link_ends: list[tuple[int, int]] = []
        self.bw_gbs: list[float | None] = []
        self.propagation_ns: list[float] = []
        self.flit_ns: list[float] = []  # how long a whole flit occupies the link
        self.tail_ns: list[float] = []  # from leaving the link to being ready in the node it leads to
        self.bank_specs: dict[int, tuple[int, int, float, float]] = {}
        self._nodes: dict[Hashable, int] = {}
        self._links: dict[tuple[int, int], int] = {}
        self._routes: dict[tuple[Hashable, ...], Route] = {}

    def add_node(self, name: Hashable, overhead_ns: float = 0.0, delay: DelayRule | None = None) -> int:
        """A node that delays a flit by `overhead_ns`, or by what `delay` says of it."""
        if name in self._nodes:
            raise FabricError(f"node {name!r} is there already", mend="give every node a name of its own")
        if not 0 <= overhead_ns < float("inf"):
            raise FabricError(f"node {name!r} has an overhead of {overhead_ns} ns", mend="give 0 or more")
        index = self._nodes[name] = len(self.names)
        self.names.append(name)
        self.overhead_ns.append(on_grid(overhead_ns))
        self.delay_rule.append(delay)
        return index

    def add_link(self, src: Hashable, dst: Hashable, bw_gbs: float | None, propagation_ns: float = 0.0) -> int:
        """One direction of a link. Without bandwidth it carries control messages only."""
        ends = self.node_index(src), self.node_index(dst)
        if ends in self._links:
            raise FabricError(f"a link from {src!r} to {dst!r} is there already", mend="add up their bandwidths")
        if bw_gbs is not None and not 0 < bw_gbs < float("inf"):
            raise FabricError(f"link {src!r} to {dst!r} has {bw_gbs} GB/s", mend="give more than 0, or None for control only")
        if not 0 <= propagation_ns < float("inf"):
            raise FabricError(f"link {src!r} to {dst!r} takes {propagation_ns} ns", mend="give 0 or more")
        index = self._links[ends] = len(self.link_ends)
        self.link_ends.append(ends)
        self.bw_gbs.append(bw_gbs)
        self.propagation_ns.append(on_grid(propagation_ns))
        self.flit_ns.append(transfer_ns(self.flit_bytes, bw_gbs) if bw_gbs is not None else 0.0)
        self.tail_ns.append(self.propagation_ns[index] + self.overhead_ns[ends[1]])
        return index

    def add_bank(self, node: Hashable, channels: int, burst_ns: float, switch_penalty_ns: float = 0.0) -> None:
        """Memory channels behind `node`. A flit is one burst; its address picks the channel."""
        index = self.node_index(node)
        if not is_power_of_two(channels) or not is_power_of_two(self.flit_bytes):
            raise FabricError(
                f"a bank of {channels} channels and bursts of {self.flit_bytes} B at {node!r}",
                mend="make both powers of two, so that address bits name the channel",
            )
        self.bank_specs[index] = (channels, self.flit_bytes, on_grid(burst_ns), on_grid(switch_penalty_ns))

    def node_index(self, name: Hashable) -> int:
        try:
            return self._nodes[name]
        except KeyError:
            raise FabricError(f"the network has no node {name!r}", mend="add it with add_node") from None

    def link_index(self, src: Hashable, dst: Hashable) -> int:
        try:
            return self._links[self.node_index(src), self.node_index(dst)]
        except KeyError:
            raise FabricError(f"no link from {src!r} to {dst!r}", mend="add it with add_link, or take another path") from None

    def route(self, path: Sequence[Hashable]) -> Route:
        """The path's links and times; found once, then looked up."""
        key = tuple(path)
        found = self._routes.get(key)
        if found is None:
            if len(key) < 2:
                raise FabricError(f"a path of {len(key)} nodes", mend="give at least a source and a destination")
            found = self._routes[key] = Route(self, key)
        return found

    def banks(self) -> dict[int, Bank]:
        """Fresh channel state for one fabric."""
        return {node: Bank(node, *spec) for node, spec in self.bank_specs.items()}
