"""Collectives over 2 to 8 Wormhole chips in a ring or a line, issued again as transfers between the chips' memories.

A collective is pieces that move: each is a process that issues one transfer after another, as the chips' workers and
routers do, and the machine says when it is done. How pieces move is published: on a line an all-gather is a multicast
that routers pass on, on a ring a relay from worker to worker; a reduce-scatter moves partial sums towards their owner,
on a ring of small tensors every addend by itself; an all-reduce is both; the pieces of an all-to-all are relayed by the
chips between. Every call begins with a barrier. Compared is the time of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simpy.events import Event

from kernbench.common.errors import UsageError
from kernbench.common.ids import IoId, PeId
from kernbench.components.base import Process
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment
from kernbench.sim_engine.fabric.routes import Route
from kernbench.sim_engine.wiring import wiring_of
from kernbench.topology.graph import TopologyGraph
from kernbench.validation.contract import CaseName, OtherSimulator, ShowProgress, ValidationSet, machine
from kernbench.validation.data import DataFolder

EAST, WEST = 0, 1  # which way a piece moves, and the PE that sends it
PAGE, PACKET, FLAG = 2048, 6144, 16  # bytes: of a tile, of a packet's payload, of what a barrier sends
WORKERS = 4  # for each direction
GATHER_UNIT = 160 * WORKERS  # packets between two synchronisations of a ring all-gather
REDUCE_UNIT = 2  # packets of a partial sum that is added to and passed on
MOST_CHUNKS = 32  # larger tensors have longer chunks: many more would only take longer to simulate
ONE_SHOT_BYTES = 512 << 10  # up to here a ring reduce-scatter sends every addend by itself
LARGE_BYTES = 1 << 20
PARTS = {
    "all_gather": ("all_gather",),
    "reduce_scatter": ("reduce_scatter",),
    "all_reduce": ("reduce_scatter", "all_gather"),
    "all_to_all": ("all_to_all",),
}


class Chips:
    """The machine as collectives see it: routes of transfers, and what software costs."""

    def __init__(self, graph: TopologyGraph) -> None:
        wiring = wiring_of(graph)
        self.n = graph.spec.n_sips
        self.is_ring = graph.spec.system.sips.wraps
        self.network = GraphEngine(graph).fabric.network
        parts = graph.spec.cube.pe_template.components.parts
        self.start_ns = parts["pe_cpu"].number_attr("overhead_ns")
        self.wake_ns = parts["pe_ipcq"].number_attr("wake_ns")
        self._router, self._resolver = wiring.router, wiring.resolver
        self._io = graph.spec.sip.io_chiplets[0].id
        self._routes: dict[tuple[object, ...], Route] = {}

    def step(self, chip: int, side: int) -> int:
        """The next chip."""
        to = chip + 1 if side == EAST else chip - 1
        return to % self.n if self.is_ring else to

    def side_to(self, chip: int, to: int) -> int:
        """Which way is shorter."""
        ahead = (to - chip) % self.n if self.is_ring else to - chip
        return EAST if ahead > 0 and (not self.is_ring or 2 * ahead <= self.n) else WEST

    def write(self, chip: int, side: int, to: int) -> Route:
        """From a worker to the memory of its chip or of another."""
        return self._route(("write", chip, side, to), lambda: self._path(chip, side, to))

    def hop(self, chip: int, side: int, *, is_passed_on: bool) -> Route:
        """To the router of the next chip: from a worker, or from the router of this chip."""
        to = self.step(chip, side)
        noc, end = IoId(chip, self._io).io_noc(), IoId(to, self._io).io_noc()

        def path() -> list[str]:
            whole = self._path(chip, side, to)
            return whole[whole.index(noc) if is_passed_on else 0 : whole.index(end) + 1]

        return self._route(("hop", chip, side, is_passed_on), path)

    def deliver(self, chip: int, side: int) -> Route:
        """From the router of a chip to its memory."""

        def path() -> list[str]:
            whole = self._path(self.step(chip, 1 - side), side, chip)
            return whole[whole.index(IoId(chip, self._io).io_noc()) :]

        return self._route(("deliver", chip, side), path)

    def add(self, chip: int) -> Route:
        """What a partial sum passes before it is sent on."""
        ends = self._memory(chip), self._resolver.find_sram(chip, 0)
        return self._route(("add", chip), lambda: self._router.find_memory_path(*ends))

    def finish(self, chip: int, side: int) -> Route:
        """What a sum passes in the worker that finishes it."""
        pe = PeId(chip, 0, side)
        return self._route(("finish", chip, side), lambda: self._router.find_path(str(pe), pe.part("pe_tcm")))

    def _memory(self, chip: int) -> str:
        return self._resolver.find_hbm_ctrl(chip, 0, 0)

    def _path(self, chip: int, side: int, to: int) -> list[str]:
        return self._router.find_path(str(PeId(chip, 0, side)), self._memory(to))

    def _route(self, key: tuple[object, ...], path: Callable[[], Sequence[str]]) -> Route:
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = self.network.route(path())
        return found


def chunks(nbytes: int, packets: int = 1, least: int = 1) -> list[int]:
    """A part of a tensor in chunks of so many packets, whole pages each; shorter ones where there would be too few."""
    pages = max(nbytes // PAGE, 1)
    per = max(min(packets * PACKET // PAGE, -(-pages // least)), -(-pages // MOST_CHUNKS))
    sizes = [per * PAGE] * (nbytes // (per * PAGE))
    rest = nbytes - sum(sizes)
    return [*sizes, rest] if rest else sizes


class Calls:
    """Calls of collectives on a machine that does nothing else."""

    def __init__(self, chips: Chips) -> None:
        self._chips = chips
        self._env = FabricEnvironment(Fabric(chips.network))

    def time_ns(self, collective: str, nbytes: int, count: int) -> float:
        """How long a call takes, of so many back to back."""
        self._env.process(self._calls(collective, nbytes, count))
        self._env.run()
        return self._env.now / count

    def _calls(self, collective: str, nbytes: int, count: int) -> Process:
        env, pieces_of = self._env, {"all_gather": self._all_gather, "reduce_scatter": self._reduce_scatter,
                                     "all_to_all": self._all_to_all}  # fmt: skip
        for _ in range(count):
            for part in PARTS[collective]:
                yield env.timeout(self._chips.start_ns)
                yield env.all_of([env.process(piece) for piece in self._barrier()])
                yield env.all_of([env.process(piece) for piece in pieces_of[part](nbytes)])

    # ---- collectives, as their pieces

    def _barrier(self) -> Iterator[Process]:
        """Every chip notifies every other one."""
        chips = self._chips
        for chip in range(chips.n):
            for to in range(chips.n):
                if to != chip:
                    yield self._sent(chips.write(chip, chips.side_to(chip, to), to), FLAG)

    def _all_gather(self, nbytes: int) -> Iterator[Process]:
        chips, n = self._chips, self._chips.n
        sizes = chunks(nbytes // n, GATHER_UNIT, WORKERS) if chips.is_ring else chunks(nbytes // n)
        for chip in range(n):
            for at, size in enumerate(sizes):
                if chips.is_ring:  # the chip on the other side gets one half from either direction
                    far = n // 2 if at % 2 == 0 else (n - 1) // 2
                    yield self._relayed(chip, EAST, size, far)
                    yield self._relayed(chip, WEST, size, n - 1 - far)
                else:
                    yield self._multicast(chip, EAST, size, n - 1 - chip)
                    yield self._multicast(chip, WEST, size, chip)
            yield from self._own_copies(chip, sizes)

    def _reduce_scatter(self, nbytes: int) -> Iterator[Process]:
        chips, n = self._chips, self._chips.n
        if chips.is_ring and nbytes <= ONE_SHOT_BYTES:
            for chip in range(n):
                for side, hops, to, size in self._ways(chip, chunks(nbytes // n)):
                    yield self._addend(chip, side, size, hops, to)
        elif chips.is_ring:  # half of every part in either direction, once around
            for owner in range(n):
                for at, size in enumerate(chunks(nbytes // n, REDUCE_UNIT, 2)):
                    side = at % 2
                    yield self._reduced(chips.step(owner, side), side, size, n - 1)
        else:  # from both ends towards the owner; the part that has farthest to go first
            for hops in range(n - 1, 0, -1):
                for size in chunks(nbytes // n, REDUCE_UNIT):
                    yield self._reduced(0, EAST, size, hops)
                    yield self._reduced(n - 1, WEST, size, hops)

    def _all_to_all(self, nbytes: int) -> Iterator[Process]:
        sizes = chunks(nbytes // self._chips.n)
        for chip in range(self._chips.n):
            for side, hops, _, size in self._ways(chip, sizes):
                yield self._passed_on(chip, side, size, hops)
            yield from self._own_copies(chip, sizes)

    def _own_copies(self, chip: int, sizes: Sequence[int]) -> Iterator[Process]:
        """What a chip keeps, by its workers in turn; those that have no neighbour do nothing."""
        chips = self._chips
        sides = [side for side in (EAST, WEST) if chips.is_ring or 0 <= chips.step(chip, side) < chips.n]
        for at, size in enumerate(sizes):
            yield self._sent(chips.write(chip, sides[at % len(sides)], chip), size)

    def _ways(self, chip: int, sizes: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
        """Chunks for every other chip, the farthest first: direction, hops, destination, bytes. On a ring, those for
        the chip on the other side take both directions in turn.
        """
        chips, n = self._chips, self._chips.n
        for hops in range(n // 2 if chips.is_ring else n - 1, 0, -1):
            for side in (EAST, WEST):
                to = chip + hops if side == EAST else chip - hops
                if not chips.is_ring and not 0 <= to < n:
                    continue
                for at, size in enumerate(sizes):
                    if not chips.is_ring or 2 * hops < n or at % 2 == side:
                        yield side, hops, to % n, size

    # ---- pieces: processes that end when their bytes are where they belong

    def _send(self, route: Route, nbytes: int) -> Event:
        return self._env.transfer(route, nbytes)

    def _sent(self, route: Route, nbytes: int) -> Process:
        yield self._send(route, nbytes)

    def _multicast(self, chip: int, side: int, nbytes: int, hops: int) -> Process:
        """One packet for all chips on the way: routers deliver it and pass it on."""
        chips, delivered = self._chips, []
        for hop in range(hops):
            yield self._send(chips.hop(chip, side, is_passed_on=hop > 0), nbytes)
            chip = chips.step(chip, side)
            delivered.append(self._send(chips.deliver(chip, side), nbytes))
        yield self._env.all_of(delivered)

    def _relayed(self, chip: int, side: int, nbytes: int, hops: int) -> Process:
        """From worker to worker, each of which waits for it and sends it on."""
        chips = self._chips
        for hop in range(hops):
            if hop:
                yield self._env.timeout(chips.wake_ns)
            to = chips.step(chip, side)
            yield self._send(chips.write(chip, side, to), nbytes)
            chip = to

    def _passed_on(self, chip: int, side: int, nbytes: int, hops: int) -> Process:
        """To another chip: those between copy it and send it on."""
        chips = self._chips
        for hop in range(hops):
            if hop:
                yield self._send(chips.write(chip, side, chip), nbytes)
            to = chips.step(chip, side)
            yield self._send(chips.write(chip, side, to), nbytes)
            chip = to

    def _addend(self, chip: int, side: int, nbytes: int, hops: int, to: int) -> Process:
        """To another chip, where it is added."""
        yield self._env.process(self._passed_on(chip, side, nbytes, hops))
        yield self._env.timeout(self._chips.wake_ns)
        yield self._send(self._chips.finish(to, side), nbytes)

    def _reduced(self, chip: int, side: int, nbytes: int, hops: int) -> Process:
        """A partial sum on its way to its owner: every chip adds its own addend."""
        chips = self._chips
        for hop in range(hops):
            to = chips.step(chip, side)
            yield self._send(chips.write(chip, side, to), nbytes)
            yield self._env.timeout(chips.wake_ns)
            yield self._send(chips.add(to) if hop < hops - 1 else chips.finish(to, side), nbytes)
            chip = to


class CollectiveCase(NamedTuple):
    """A row of the table, without what was measured."""

    topology: str
    n: int
    collective: str
    nbytes: int
    calls: int  # back to back
    case: CaseName


def read_calls(data: DataFolder) -> Iterator[tuple[CollectiveCase, dict[str, str]]]:
    """The calls of the table; raises UsageError for a row that names no machine or collective of this set."""
    for row in data.rows(TABLE):
        try:
            n, nbytes, count = int(row["n"]), int(row["size_bytes"]), int(row["calls_back_to_back"])
            topology, collective = row["topology"], row["collective"]
            if topology not in ("ring", "line") or collective not in PARTS or n < 2 or nbytes < n or count < 1:
                raise ValueError(f"{count} x {collective} of {nbytes} bytes on a {topology} of {n}")
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"'{TABLE}' has a row that cannot be simulated: {error}",
                             hint="the layout is that of the validation data: see its README") from None  # fmt: skip
        regime = "above 1 MiB" if nbytes > LARGE_BYTES else "up to 1 MiB"
        often = "" if count == 1 else f", {count} calls"
        name = f"{topology} of {n}: {collective}, {row.get('memory', '')} {nbytes} B{often}"
        yield CollectiveCase(topology, n, collective, nbytes, count, (regime, name)), row


def simulate(data: DataFolder, show: ShowProgress) -> Mapping[CaseName, float]:
    calls = [call for call, _ in read_calls(data)]
    machines: dict[tuple[str, int], Chips] = {}
    known: dict[tuple[Any, ...], float] = {}  # tensors in L1 or in DRAM: neither is the limit
    found: dict[CaseName, float] = {}
    for number, call in enumerate(calls, 1):
        show(f"collectives {number}/{len(calls)}")
        chips = machines.get(call[:2])
        if chips is None:
            size = {"system.sips.count": call.n, **({"system.sips.w": call.n} if call.topology == "line" else {})}
            chips = machines[call[:2]] = Chips(machine(f"wormhole-{call.topology}.yaml", size))
        if call[:-1] not in known:
            known[call[:-1]] = Calls(chips).time_ns(call.collective, call.nbytes, call.calls)
        found[call.case] = known[call[:-1]]
    return dict(sorted(found.items(), key=lambda each: each[0][0] == "above 1 MiB"))


def measured(data: DataFolder) -> Mapping[CaseName, float]:
    return {call.case: 1000.0 * float(row["time_us"]) for call, row in read_calls(data) if row.get("time_us")}


TABLE = "wormhole_collectives.csv"
SET = ValidationSet(
    name="collectives",
    title="Collectives over Wormhole chips in a ring or a line",
    folder="2_collectives",
    machine="",
    quantity="time of a call, ns",
    unit="pct",
    fitted=(
        "start of a call 4.2 us (smallest sizes of all collectives)",
        "from the arrival of a piece to the worker that goes on 1.4 us (smallest sizes of all collectives)",
        "rate of the workers of one direction 12.6 GB/s (large all_gather over two chips, and on a ring)",
        "rate at which a chip adds to partial sums 14 GB/s (large reduce_scatter on a ring)",
        "rate at which workers finish sums 8.9 GB/s (large reduce_scatter over two chips)",
    ),
    differs=(
        "all constants were fitted to rows of this table, one value for all, and what sources leave open (units of "
        "partial sums, order and relays of all_to_all) was chosen with the rows in view; how workers wait, slots "
        "and first-level acknowledgements of routers, skew at entry, and the number of workers, which steps with the "
        "size, are not modelled; all_reduce on a line of eight is slower on the chips than its two parts together"
    ),
    peers=(
        OtherSimulator(
            "ASTRA-sim", "9.7 to 20.6 % against NCCL on H100", "its own validation; see 6_peers of the data"
        ),
        OtherSimulator("the same hardware, five days earlier", "4.8 % up to 128 KiB, 0.1 to 1.3 % above", "a8982e4"),
    ),
    source=(
        "tenstorrent/tt-metal, tech_reports/CCLs/results/FULL_wormhole_b0_bfloat16_6144.md, commit 608f159; figures "
        "only, Apache-2.0"
    ),
    simulate=simulate,
    measured=measured,
)
