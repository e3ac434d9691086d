"""Routes and parts of transfers of a run that was not saved, from where its tensors lie; no flit was recorded.

A transfer takes its uncontended time; what it took longer counts as queueing at the most loaded place of its path:
where the bytes of the whole run take longest, or the memory if its load is half of that. A saved run knows the places
of queueing exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from kernbench.common.commands import Space
from kernbench.common.ids import CubeId, SipId
from kernbench.common.messages import KernelLaunchMsg, TensorArg, TensorShard
from kernbench.common.units import on_grid
from kernbench.policy.address.stack_map import stack_requests
from kernbench.policy.routing.resolver import AddressResolver
from kernbench.report.link_classes import link_class
from kernbench.report.runs.access_times import AccessTime, AccessTimes, access_gbs, burst_ns
from kernbench.report.runs.op_table import LaunchIndex, ServiceSplit, lane_of
from kernbench.report.runs.parts import SavedPlace
from kernbench.report.runs.place_table import HBM_CHANNEL
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.topology.far_memory import far_node
from kernbench.topology.graph import TopologyGraph

ROUNDING_NS = 1.0  # a difference below this is rounding: a short last flit, a burst


class _Transfer(NamedTuple):
    """The path of a transfer: its uncontended time, its links, and all places where it may queue."""

    access: AccessTime
    links: tuple[int, ...]
    places: tuple[int, ...]


class LiveRoutes:
    """The paths of a run's transfers, and the `places` where they may queue."""

    def __init__(self, result: BenchResult, launches: LaunchIndex, chunk: Mapping[str, Sequence[Any]]) -> None:
        self._graph = result.engine.graph
        self._times = AccessTimes(self._graph)
        self._chunk = chunk
        self._homes = _homes(result)
        self._launches = launches
        self.places: list[SavedPlace] = []
        self._index: dict[tuple[str, str], int] = {}
        self._loads: list[float] = []  # by place: how long the bytes of the run take there
        self._found: dict[int, _Transfer | None] = {}
        for number in chunk["id"]:
            self._found[number] = self._transfer(number)

    def split(self, number: int, lasted_ns: float, nbytes: int) -> ServiceSplit | None:
        """The parts of a transfer; None if its memory is not known."""
        found = self._found[number]
        if found is None:
            return None
        queue_ns = lasted_ns - found.access.ns(nbytes) - self._more_ns(number, found, nbytes)
        queue_ns = on_grid(queue_ns) if queue_ns > ROUNDING_NS else 0.0
        transfer_ns = min(on_grid(nbytes / found.access.gbs), lasted_ns - queue_ns)
        waits = ((self._hottest(found), queue_ns),) if queue_ns else ()
        return ServiceSplit(transfer_ns, lasted_ns - queue_ns - transfer_ns, queue_ns, waits, found.links)

    def _more_ns(self, number: int, found: _Transfer, nbytes: int) -> float:
        """What a transfer takes longer as several requests, and as runs of which each takes whole bursts."""
        params = self._chunk["params"][number]
        requests = int(params.get("requests", 1))
        runs = int(params.get("runs", requests))
        memory = found.access.path[0]
        bursts_ns = burst_ns(self._graph, memory, nbytes, runs) - nbytes / found.access.gbs if runs > 1 else 0.0
        return (requests - 1) * found.access.latency_ns + max(0.0, bursts_ns)

    def _hottest(self, found: _Transfer) -> int:
        """The place of a path with the largest load; the memory if it has half of that: it causes the load of links."""
        place = max(found.places, key=lambda place: (self._loads[place], -place))
        memory = found.places[-1]
        is_hot = memory not in found.links and 2 * self._loads[memory] >= self._loads[place]
        return memory if is_hot else place

    def _transfer(self, number: int) -> _Transfer | None:
        """The path of a transfer to the farthest of its memories; bytes load the path to the memory that has them."""
        pe, accessed = self._pe(number), self._accessed(number)
        found = [(memory, self._times.of(pe, memory)) for memory in accessed]
        accesses = {memory: access for memory, access in found if access is not None}
        if not accesses:
            return None
        transfers = {memory: self._path(number, memory, access) for memory, access in accesses.items()}
        for memory, transfer in transfers.items():
            for place in transfer.places:
                if self.places[place].gbs:
                    self._loads[place] += accessed[memory] / access_gbs(self._graph, self.places[place])
        return transfers[max(accesses, key=lambda name: accesses[name].latency_ns)]

    def _path(self, number: int, memory: str, access: AccessTime) -> _Transfer:
        path = access.path if self._is_read(number) else access.path[::-1]
        links = tuple(self._link(src, dst) for src, dst in pairwise(path))
        channels = self._channels(memory)
        return _Transfer(access, links, links if channels is None else (*links, channels))

    def _channels(self, memory: str) -> int | None:
        """The place of all channels of an HBM slice."""
        node = self._graph.nodes[memory]
        if "num_pcs" not in node.attrs:
            return None
        gbs = int(node.attrs["num_pcs"]) * float(node.attrs["pc_bw_gbs"])
        return self._place(memory, "", HBM_CHANNEL, gbs)

    def _link(self, src: str, dst: str) -> int:
        edge = self._graph.edge(src, dst)
        return self._place(src, dst, link_class(edge.kind), edge.bw_gbs or 0.0)

    def _place(self, src: str, dst: str, cls: str, gbs: float) -> int:
        if (src, dst) not in self._index:
            self._index[src, dst] = index = len(self.places)
            kind, channel = ("link", -1) if dst else ("channel", 0)
            self.places.append(SavedPlace(index, kind, src, dst, channel, cls, gbs, 0.0, 0.0, 0.0))
            self._loads.append(0.0)
        return self._index[src, dst]

    def _pe(self, number: int) -> str:
        return str(self._chunk["component_id"][number]).rpartition(".")[0]

    def _is_read(self, number: int) -> bool:
        return lane_of(self._chunk["op_kind"][number], self._chunk["op_name"][number])[1] == "read"

    def _accessed(self, number: int) -> Mapping[str, int]:
        """The memory nodes of a transfer of a PE's DMA engine, and the bytes that it moves at each."""
        chunk = self._chunk
        if not str(chunk["component_id"][number]).endswith(".pe_dma"):
            return {}
        params = chunk["params"][number]
        address = params.get("address", params.get("src_addr" if self._is_read(number) else "dst_addr"))
        pe = self._pe(number)
        launch = self._launches.launch_of(pe, chunk["stream"][number], chunk["t_asked"][number])
        homes = self._homes.get((launch, pe.partition(".")[0]))
        if not isinstance(address, int) or homes is None:
            return {}
        return homes.memories_of(address, int(params.get("nbytes", 1)))


def _homes(result: BenchResult) -> dict[tuple[int, str], _Homes]:
    """By launch and SIP: where the shards of its tensors lie."""
    found: dict[tuple[int, str], dict[int, _Home]] = {}
    resolver = AddressResolver(result.engine.graph)
    in_route = ("hbm", "sram", "far", result.engine.graph.spec.cube.home.space)
    for index, launch in enumerate(result.launches):
        for handle in launch.handles:
            request = handle.request
            if isinstance(request, KernelLaunchMsg):
                homes = found.setdefault((index, f"sip{request.sip}"), {})
                for arg in (*request.args, *request.named_args.values()):
                    if isinstance(arg, TensorArg) and arg.space in in_route:
                        homes.update(_shards(arg, result.engine.graph, resolver))
    return {key: _Homes(tuple(sorted(homes)), homes) for key, homes in found.items()}


def _shards(arg: TensorArg, graph: TopologyGraph, resolver: AddressResolver) -> dict[int, _Home]:
    """Begin of each shard, as kernels address it -> where it lies."""
    found = {}
    for shard in arg.shards:
        begin = shard.pa if arg.va_base is None else arg.va_base + shard.offset_bytes
        found[begin] = _home_of(shard, begin + shard.nbytes, arg.space, graph, resolver)
    return found


def _home_of(shard: TensorShard, end: int, space: Space, graph: TopologyGraph, resolver: AddressResolver) -> _Home:
    if space == "far":
        return _Home(end, (far_node(graph.spec, shard.sip),))
    stacks = graph.spec.sip.hbm_stacks
    if space == "sram" or stacks is None:
        return _Home(end, (CubeId(shard.sip, shard.cube).sram() if space == "sram" else graph.home_node(*shard.key),))
    names = tuple(SipId(shard.sip).hbm_stack(name) for name in stacks.group_of(shard.cube))
    return _Home(end, names, resolver.local_address(resolver.address(shard.pa)), stacks.interleave_bytes)


class _Home(NamedTuple):
    """The end of a range of addresses, and its memory, or the stacks that it is interleaved over from `local` on."""

    end: int
    memories: tuple[str, ...]
    local: int = 0
    interleave_bytes: int = 0


class _Homes(NamedTuple):
    """Address ranges by their begin, and where they lie."""

    begins: tuple[int, ...]
    ranges: Mapping[int, _Home]

    def memories_of(self, begin: int, nbytes: int) -> Mapping[str, int]:
        """The memories of a range of addresses, in order, and how many of its bytes each has."""
        found: dict[str, int] = {}
        for at in range(max(0, bisect_right(self.begins, begin) - 1), bisect_left(self.begins, begin + nbytes)):
            start, home = self.begins[at], self.ranges[self.begins[at]]
            first, count = max(begin, start), min(begin + nbytes, home.end) - max(begin, start)
            if count <= 0:
                continue
            pieces = [(0, count)]
            if home.interleave_bytes:
                requests = stack_requests(home.local + first - start, count, len(home.memories), home.interleave_bytes)
                pieces = [(request.stack, request.nbytes) for request in requests]
            for number, size in pieces:
                found[home.memories[number]] = found.get(home.memories[number], 0) + size
        return found
