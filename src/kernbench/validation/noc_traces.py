"""Reads over the networks on chip of one Wormhole, recorded with the chip's cycle counter, issued again.

A read is a request to the tile that has the data, and a transfer back. Open: every read is issued when the chip issued
it. Closed: a processor goes on after its own software gap, and waits at a barrier for all its reads, so that lateness
carries over. Compared is the end of the last transfer with the recorded span, less the software that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from simpy.events import Event

from kernbench.common.errors import UsageError
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment, Network, Transfer
from kernbench.sim_engine.fabric.clock import TransferEnd
from kernbench.sim_engine.fabric.planned_trains import Mode
from kernbench.sim_engine.plain_network import plain_network
from kernbench.topology.network import NetworkTopology, TilePosition
from kernbench.validation.contract import CaseName, OtherSimulator, ShowProgress, ValidationSet, machine
from kernbench.validation.data import DataFolder

READ, BARRIER = "READ", "READ_BARRIER_START"
REQUESTS, RESPONSES = 1 << 30, 1 << 31  # where their sequence numbers begin


class Operation(NamedTuple):
    """What a processor does, and how long after the operation before; a barrier is one operation."""

    number: int  # of the record: decides among simultaneous requests, and among responses
    at_ns: float  # from the first record of the trace on
    gap_ns: float
    noc: str
    reader: TilePosition
    memory: TilePosition
    nbytes: int

    @property
    def is_barrier(self) -> bool:
        return not self.nbytes


def read_trace(records: Any) -> list[list[Operation]]:
    """The operations of every processor of a trace, in the order of the file."""
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records) or not records:
        raise UsageError("a trace has no records", hint="the layout is that of the validation data: see its README")
    first_ns = min(record["timestamp"] for record in records)
    found: dict[tuple[int, int, str], list[Operation]] = {}
    latest: dict[tuple[int, int, str], float] = {}
    for number, record in enumerate(records):
        if "zone" in record:
            continue
        reader = record["sx"], record["sy"]
        processor, at_ns = (*reader, record["proc"]), float(record["timestamp"] - first_ns)
        if record["type"] in (READ, BARRIER):
            gap_ns = at_ns - latest.get(processor, 0.0)
            nbytes = record["num_bytes"] if record["type"] == READ else 0
            operation = Operation(number, at_ns, gap_ns, record["noc"], reader, (record["dx"], record["dy"]), nbytes)
            found.setdefault(processor, []).append(operation)
        latest[processor] = at_ns
    return list(found.values())


class TraceRead:
    """A read: its requests one after the other, then the response."""

    __slots__ = ("_arrived", "_done", "_fabric", "_operation", "_requests", "_topology")

    def __init__(
        self,
        operation: Operation,
        topology: NetworkTopology,
        fabric: Fabric,
        arrived: Callable[[Transfer], None],
        done: TransferEnd | None = None,
    ) -> None:
        self._operation, self._topology, self._fabric = operation, topology, fabric
        self._arrived, self._done = arrived, done
        self._requests = iter(topology.requests(operation.noc, operation.reader, operation.memory))

    def issue(self, at_ns: float) -> None:
        """Issue what comes next, at a time of now or later."""
        operation, request = self._operation, next(self._requests, None)
        if request is not None:
            self._fabric.inject(*request, at_ns, on_done=self._go_on, seq=REQUESTS + operation.number)
            return
        path = self._topology.path(operation.noc, operation.memory, operation.reader)
        header_bytes, seq = self._topology.network.header_bytes, RESPONSES + operation.number
        self._fabric.inject(path, operation.nbytes, at_ns, header_bytes=header_bytes, on_done=self._end, seq=seq)

    def _go_on(self, request: Transfer) -> None:
        self.issue(request.done_ns)

    def _end(self, response: Transfer) -> None:
        self._arrived(response)
        if self._done is not None:
            self._done.complete(response)


class Replay:
    """One trace on a machine: transfers are issued, and the machine says when they are done."""

    def __init__(self, topology: NetworkTopology, network: Network, *, mode: Mode = "adaptive") -> None:
        self._topology = topology
        self._env = FabricEnvironment(Fabric(network, mode=mode))
        self._end_ns = 0.0

    def open(self, processors: list[list[Operation]]) -> float:
        """When the last data has arrived, if every read is issued at its recorded time."""
        for operations in processors:
            for operation in operations:
                if not operation.is_barrier:
                    TraceRead(operation, self._topology, self._env.fabric, self._arrived).issue(operation.at_ns)
        self._env.run()
        return self._end_ns

    def closed(self, processors: list[list[Operation]]) -> float:
        """The same, if every processor waits for its own data before it goes on."""
        for operations in processors:
            self._env.process(self._processor(operations))
        self._env.run()
        return self._end_ns

    @property
    def flit_hops(self) -> int:
        """How many events it took: nearly all are one flit on one link."""
        return self._env.fabric.events

    def _arrived(self, response: Transfer) -> None:
        self._end_ns = max(self._end_ns, response.done_ns)

    def _processor(self, operations: list[Operation]) -> Any:
        env, barriers = self._env, self._topology.network.barriers
        under_way: list[Event] = []
        for operation in operations:
            yield env.timeout(operation.gap_ns)
            if operation.is_barrier:
                yield env.timeout(barriers.least_ns) & env.process(self._data(under_way, barriers.after_data_ns))
                under_way = []
            else:
                read = TransferEnd(env)
                TraceRead(operation, self._topology, env.fabric, self._arrived, read).issue(env.now)
                under_way.append(read)

    def _data(self, reads: list[Event], after_data_ns: float) -> Any:
        env = self._env
        yield env.all_of(reads)
        yield env.timeout(after_data_ns)


def simulate(data: DataFolder, show: ShowProgress) -> Mapping[CaseName, float]:
    topology, network = plain_network(machine(SET.machine))
    found: dict[CaseName, float] = {}
    names = data.names("traces", ".json")
    for regime in ("open", "closed"):
        for count, name in enumerate(names, 1):
            show(f"noc_traces {regime} {count}/{len(names)}")
            processors = read_trace(data.json(f"traces/{name}.json"))
            replay = Replay(topology, network)
            found[regime, name] = replay.open(processors) if regime == "open" else replay.closed(processors)
    return found


def measured(data: DataFolder) -> Mapping[CaseName, float]:
    rows = [row for row in data.rows("measured.csv") if row.get("reference_cycles")]
    return {(regime, row["trace"]): float(row["reference_cycles"]) for regime in ("open", "closed") for row in rows}


SET = ValidationSet(
    name="noc_traces",
    title="Reads over the networks on chip of a Wormhole",
    folder="1_noc_traces",
    machine="wormhole-noc.yaml",
    quantity="end of the last transfer, cycles of 1 ns",
    unit="pct",
    fitted=(
        "injection from L1 28.3 B per cycle (uncontended transfers)",
        "service of a read 130 cycles (uncontended transfers)",
        "service of a read from DRAM 185 cycles (uncontended transfers)",
        "software after the last data of a barrier 20 cycles (empty barriers)",
        "least time of a barrier 77 cycles (median of empty barriers)",
    ),
    differs=(
        "which of its two virtual channels a packet takes, refresh and bank conflicts of DRAM, and requests that wait "
        "for one another are not known or not modelled; single barriers differ more than totals"
    ),
    peers=(OtherSimulator("tt-npe", "3.2 % open", "tenstorrent/tt-npe 1021603; its link rate was set to match"),),
    source="tenstorrent/tt-npe, tt_npe/workload/noc_trace_json, commit 1021603; Apache-2.0",
    simulate=simulate,
    measured=measured,
)
