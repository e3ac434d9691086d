"""What can be read of a run: what every link and memory channel did, and the times of watched transfers.

Counts are of transfers that are done. Waits are of all flits that are ready so far, bursts of all that have arrived:
plans that reach beyond the current time are turned into flits before a read (`Fabric.split_all`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping

from kernbench.common.channel_traffic import ChannelTraffic
from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.done_tally import DoneCounts, DoneTally, DoneTransfers
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.routes import CONTROL, LastFlit
from kernbench.sim_engine.fabric.transfers import (
    FlitHop,
    HopTimes,
    LinkCounters,
    Transfer,
)


class Counters:
    """What has been moved over links and channels whose state others keep. A queue is judged by the longest wait."""

    def __init__(
        self,
        network: Network,
        links: Links,
        groups: Mapping[int, ChannelGroup],
        *,
        record: bool,
        activity: Activity | None = None,
    ) -> None:
        self.network = network
        self.activity = activity
        self.recorded: list[FlitHop] | None = [] if record else None
        self.sees_flits = record or activity is not None  # every flit on every link: then no link can be reserved
        self._links = links
        self._groups = groups
        self._tally = DoneTally(network)
        # By the other end: the memory, whether it was read, the last flit, and the kind of transfer.
        self._memory_users: dict[int, list[tuple[int, bool, LastFlit, int]]] = {}
        self._looked_at = 0  # entries of the tally that are known there
        self._pending: list[Callable[[], None]] = []  # count what is done and not counted yet

    # ---- counting

    def count(self, last_flit: LastFlit, flits: int, transfers: int = 1) -> None:
        """Transfers are done: their links have carried `flits` whole flits, and a last one each."""
        self._tally.add(last_flit, flits, transfers)

    def is_slow(self, transfer: Transfer) -> bool:
        """Whether a transfer must be moved flit by flit: recorded ones, and watched ones that write to channels."""
        return self.recorded is not None or (self.activity is not None and transfer.sink is not None)

    def watch(self, transfer: Transfer, i: int, hop: int, ready: float, leave: float, occupy_ns: float) -> None:
        """A flit that is recorded, watched or traced takes a link."""
        if self.activity is not None:
            nbytes = transfer.flit_bytes(i, self.network.flit_bytes)
            self.activity.crossed(transfer, transfer.links[hop], nbytes, ready, leave, occupy_ns)
        if self.recorded is not None:
            nbytes = transfer.flit_bytes(i, self.network.flit_bytes)
            self.recorded.append(FlitHop(transfer.links[hop], transfer.seq, i, nbytes, ready, leave))
        if transfer.times is not None:
            if i == 0:
                transfer.times[hop][0:2] = ready, leave
            if i == transfer.last:
                transfer.times[hop][2:4] = ready, leave

    def count_before_reading(self, count_done: Callable[[], None]) -> None:
        """Have `count_done` called before counters are read: it counts what is done and is not counted yet."""
        self._pending.append(count_done)

    def _count_pending(self) -> None:
        for count_done in self._pending:
            count_done()

    # ---- reading

    def link_counters(self, src: Hashable, dst: Hashable) -> LinkCounters:
        """What the link from `src` to `dst` has done for transfers that are done."""
        link = self.network.link_index(src, dst)
        found = next((amounts for used, *amounts in self._carried(self.done()) if used == link), (0, 0.0))
        return self._counters_of(link, *found)

    def done(self) -> Iterator[DoneTransfers]:
        """All transfers that are done, by kind."""
        self._count_pending()
        return self._tally.all()

    def done_so_far(self) -> DoneCounts:
        """Which transfers are done, for `done_since` and `busy_since`."""
        self._count_pending()
        return self._tally.so_far()

    def done_since(self, before: DoneCounts) -> Iterator[DoneTransfers]:
        """Transfers that are done since `done_so_far` gave `before`, by kind."""
        self._count_pending()
        return self._tally.since(before)

    def busy_since(
        self, before: DoneCounts, parts: Collection[Hashable] | None = None
    ) -> dict[tuple[Hashable, Hashable], float]:
        """How long links were busy with what is done since `done_so_far` gave `before`, in order of index; with what
        has touched `parts` of the network, or with all.
        """
        self._count_pending()
        return {self._ends_of(link): ns for link, _, ns in self._carried(self._tally.since(before, parts))}

    def all_link_counters(self) -> dict[tuple[Hashable, Hashable], LinkCounters]:
        """Every link that has carried bytes, in order of index."""
        carried = self._carried(self.done())
        return {self._ends_of(link): self._counters_of(link, nbytes, ns) for link, nbytes, ns in carried if nbytes}

    def channel_counters(self, node: Hashable, now: float) -> list[LinkCounters]:
        """What each memory channel at `node` has done, or has been given to do."""
        group = self._group(node, now)
        granule_bytes, granule_ns = 1 << group.granule_shift, group.granule_ns
        return [
            LinkCounters(
                n * granule_bytes,
                n * granule_ns,
                int(wait / granule_ns * granule_bytes) if granule_ns else 0,  # channels may only count (`hbm_banks`)
                wait,
                at,
            )
            for n, wait, at in group.done()
        ]

    def channel_bytes(self, node: Hashable, now: float) -> int:
        """What the memory channels at `node` have been given to do, in whole granules."""
        group = self._group(node, now)
        return group.total_granules() << group.granule_shift

    def traffic_by(self, node: Hashable) -> dict[int, ChannelTraffic]:
        """What transfers between `node` and memories have moved, by index of the memory's node.

        Of transfers that are done; of those that end elsewhere on their way, nothing.
        """
        self._count_pending()
        if self._looked_at < len(self._tally.kinds):
            self._look_at_new_routes()
        moved: dict[int, list[int]] = {}
        flit_bytes, (all_flits, all_transfers) = self.network.flit_bytes, self._tally.counts
        for memory, is_read, last_flit, kind in self._memory_users.get(self.network.node_index(node), ()):
            flits, transfers = all_flits[kind], all_transfers[kind]
            use = moved.get(memory)
            if use is None:
                use = moved[memory] = [0, 0, 0]
            nbytes, group = flits * flit_bytes + transfers * last_flit.nbytes, self._groups.get(memory)
            if group is None:
                use[0] += nbytes
            else:
                use[0] += (flits + transfers) * flit_bytes - transfers * (last_flit.spare << group.granule_shift)
            use[1 if is_read else 2] += nbytes
        return {memory: ChannelTraffic(*use) for memory, use in moved.items()}

    def _look_at_new_routes(self) -> None:
        plain = self.network.plain_memories
        for kind in range(self._looked_at, len(self._tally.kinds)):
            last_flit = self._tally.kinds[kind]
            first, last = last_flit.route.origin, last_flit.route.nodes[-1]
            if last_flit.spare == CONTROL:
                continue
            if first in self._groups or first in plain:
                self._memory_users.setdefault(last, []).append((first, True, last_flit, kind))
            elif last in self._groups or last in plain:
                self._memory_users.setdefault(first, []).append((last, False, last_flit, kind))
        self._looked_at = len(self._tally.kinds)

    def _group(self, node: Hashable, now: float) -> ChannelGroup:
        group = self._groups.get(self.network.node_index(node))
        if group is None:
            raise FabricError(f"node {node!r} has no memory channels", hint="ask for a node with channels")
        group.flush(now)
        return group

    def hop_times(self, transfer: Transfer) -> list[HopTimes]:
        """Arrival and departure of the first and last flit at every node of a traced transfer that is done."""
        if transfer.times is None:
            raise FabricError(f"{transfer!r} was not traced", hint="inject it with trace=True")
        names, propagation = self.network.names, self.network.propagation_ns
        nodes = transfer.route.nodes
        rows = []
        first, last = transfer.at_ns, transfer.times[0][2]
        for hop, (_, first_leave, _, last_leave) in enumerate(transfer.times):
            rows.append(HopTimes(names[nodes[hop]], first, first_leave, last, last_leave))
            wire = propagation[transfer.links[hop]]
            first, last = first_leave + wire, last_leave + wire
        rows.append(HopTimes(names[nodes[-1]], first, transfer.done_ns, last, transfer.done_ns))
        return rows

    def _ends_of(self, link: int) -> tuple[Hashable, Hashable]:
        names, (src, dst) = self.network.names, self.network.link_ends[link]
        return names[src], names[dst]

    def _counters_of(self, link: int, nbytes: int, busy_ns: float) -> LinkCounters:
        wait, bw_gbs = self._links.worst[link], self.network.bw_gbs[link] or 0.0
        return LinkCounters(nbytes, busy_ns, round(wait * bw_gbs), wait, self._links.worst_at[link])

    def _carried(self, done: Iterable[DoneTransfers]) -> Iterator[tuple[int, int, float]]:
        """The links that transfers went over, in order of index: each with its bytes, and how long it was busy."""
        import numpy as np  # the fabric itself does without

        links, whole_ns, last_ns = list[int](), list[float](), list[float]()
        hops, amounts = list[int](), list[tuple[int, int, int]]()
        for last_flit, whole, last in done:
            links += last_flit.route.links
            own_whole_ns, own_last_ns = last_flit.occupancy
            whole_ns += own_whole_ns
            last_ns += own_last_ns
            hops.append(last_flit.route.hops)
            amounts.append((whole, last, whole * self.network.flit_bytes + last * last_flit.nbytes))
        rows = np.array(amounts, np.int64).reshape(-1, 3)
        flits, transfers, wire_bytes = np.repeat(rows, np.array(hops, np.int64), axis=0).T
        spent_ns = flits * np.array(whole_ns) + transfers * np.array(last_ns)
        used, place = np.unique(np.array(links, np.int64), return_inverse=True)
        nbytes = np.bincount(place, wire_bytes, len(used)).astype(np.int64)
        return zip(used.tolist(), nbytes.tolist(), np.bincount(place, spent_ns, len(used)).tolist(), strict=True)
