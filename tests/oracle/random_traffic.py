"""Random networks and traffic for the fabric's oracle, and the same driver for every engine.

A case is made from a seed and can be built as often as wanted: delay rules that keep state start anew each time. All
times are on the grid, many of them equal, so that ties are common.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import simpy

from kernbench.common.flits import FlitArrival
from kernbench.common.framing import Framing
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment, LinkCounters, Network
from kernbench.sim_engine.fabric.clock import TransferEnd

GRID = 2.0**-20
AFTER_ALL = 2 * 10**9  # a SimPy priority behind all that settles at one instant in the naive model

# UCIe, PCIe, Ethernet as a router of chips packs it; packets of a byte; headers longer than flits; headers of nothing
FRAMINGS = [Framing(20, 236), Framing(24, 256), Framing(298, 6144), Framing(3, 1), Framing(700, 100), Framing(0, 64)]

Done = dict[tuple[int, int], float]  # by message and leg: when it was done
Send = Callable[[Any, float], Any]


@dataclass(frozen=True)
class Leg:
    """One transfer: a path, and where it reads or writes memory."""

    path: tuple[int, ...]
    nbytes: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """Legs one after the other, each `rest_ns` after the one before it is done: repeats, or store and forward."""

    at_ns: float
    legs: list[Leg]
    rest_ns: float = 0.0


class EveryFifth:
    """A delay rule with a memory: what it answers depends on how many flits it has seen."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, arrival: FlitArrival) -> float:
        self.seen += 1
        return 0.75 * (self.seen % 5)


def by_place(arrival: FlitArrival) -> float:
    return 1.5 * (arrival.index % 3) + (0.5 if arrival.nbytes < 64 else 0.0)


class Case:
    """A network and its traffic, by seed."""

    def __init__(
        self, seed: int, *, sizes: list[int], messages: int = 14, flit_bytes: int | None = None, framed: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.framed = framed
        rng = self.rng
        self.flit_bytes = flit_bytes or rng.choice([16, 64, 256])
        self.nodes = rng.randint(2, 8)
        self.ruled = rng.random() < 0.2
        self.network_seed = rng.random()
        self.ends = self._links()
        self.memories = {node for node in range(self.nodes) if rng.random() < 0.4}
        self.hot = rng.randrange(self.nodes) if rng.random() < 0.4 else None
        self.span_ns = rng.choice([0, 4, 20, 100, 1000])
        self.streams = [self._stream(sizes) for _ in range(rng.randint(1, messages))]

    def network(self) -> Network:
        """The network, with delay rules that have seen nothing yet."""
        rng = random.Random(self.network_seed)
        network = Network(self.flit_bytes)
        for node in range(self.nodes):
            rule = rng.choice([by_place, EveryFifth()]) if self.ruled and rng.random() < 0.4 else None
            network.add_node(node, rng.choice([0, 0, 1, 2, 2, 8]), rule)
        for src, dst in self.ends:
            bandwidth = rng.choice([1, 1, 0.5, 2, 0.8, 0.39]) * self.flit_bytes
            network.add_link(src, dst, bandwidth, rng.choice([0, 0, 0.1, 0.25, 1]))
        if self.framed:
            own = random.Random(self.network_seed + 1)  # of its own: networks without framing stay as they were
            for src, dst in self.ends:
                if own.random() < 0.5:
                    network.set_framing(src, dst, own.choice(FRAMINGS))
        for node in sorted(self.memories):
            channels = rng.choice([1, 2, 4, 8])
            burst_ns = rng.choice([8.0, channels * 1.0, channels * 0.5, 3.0])
            penalty_ns, separate = rng.choice([0, 0, 2, 5]), rng.random() < 0.3
            granule_bytes = rng.choice([0, self.flit_bytes // 4, self.flit_bytes // 2])
            open_ns, drain_bytes = rng.choice([0.0, burst_ns / 2, burst_ns]), rng.choice([0, 0, 1, 3]) * self.flit_bytes
            network.add_channels(
                node, channels, burst_ns, penalty_ns, separate=separate, granule_bytes=granule_bytes, open_ns=open_ns,
                drain_bytes=drain_bytes,
            )  # fmt: skip
        self._add_series(network)
        return network

    def _add_series(self, network: Network) -> None:
        """Promise what is true of this traffic: which links take flits from one other only. Of most cases."""
        if int(self.network_seed * 1000) % 4 == 0:
            return
        feeders: dict[tuple[int, int], dict[int | None, None]] = {}
        for stream in self.streams:
            for leg in stream.legs:
                if leg.nbytes:
                    for before, src, dst in zip((None, *leg.path), leg.path, leg.path[1:], strict=False):
                        feeders.setdefault((src, dst), {})[before] = None
        for (via, dst), sources in feeders.items():
            src = next(iter(sources))
            if len(sources) == 1 and src is not None and network.delay_rule[via] is None:
                network.add_series(src, via, dst)

    def _links(self) -> list[tuple[int, int]]:
        rng, order = self.rng, list(range(self.nodes))
        rng.shuffle(order)
        pairs = list(pairwise(order))
        for _ in range(rng.randint(0, 2 * self.nodes)):
            a, b = rng.randrange(self.nodes), rng.randrange(self.nodes)
            if a != b:
                pairs.append((a, b))
        ends = list(dict.fromkeys(end for a, b in pairs for end in ((a, b), (b, a))))
        rng.shuffle(ends)  # the index of a link decides ties
        return ends

    def _stream(self, sizes: list[int]) -> Stream:
        rng = self.rng
        at_ns = rng.choice([0.0, float(rng.randint(0, self.span_ns)), rng.random() * self.span_ns])
        leg = self._leg(rng.randrange(self.nodes), sizes)
        kind = rng.random()
        if kind < 0.15:  # store and forward: on from where the leg before it ended
            legs = [leg]
            while len(legs) < 3:
                legs.append(self._leg(legs[-1].path[-1], [leg.nbytes]))
            return Stream(round(at_ns / GRID) * GRID, legs, rng.choice([0.0, 5.0]))
        return Stream(round(at_ns / GRID) * GRID, [leg] * (4 if kind < 0.35 else 1))

    def _leg(self, src: int, sizes: list[int]) -> Leg:
        rng = self.rng
        path = self._walk(src) if rng.random() < 0.1 else self._way(src)
        nbytes = rng.choice(sizes)
        options: dict[str, Any] = {}
        address = rng.randrange(0, 1 << 14, rng.choice([1, self.flit_bytes]))
        if nbytes and path[0] in self.memories and rng.random() < 0.5:
            options["read_from"] = address
        elif nbytes and path[-1] in self.memories and rng.random() < 0.7:
            options["write_to"] = address
        if nbytes and "read_from" not in options and rng.random() < 0.15:
            n = rng.choice([2, 4, 8])
            options["slot"] = rng.randrange(n), n
        if ("read_from" in options or "write_to" in options) and address % 3 == 0:
            options["granules"] = 1  # as of scattered bytes that are fewer than the granules they touch, or more
        return Leg(path, nbytes, options)

    def _way(self, src: int) -> tuple[int, ...]:
        """A path to another node, with some detours, and mostly without coming back to a node."""
        dst = self.hot if self.hot not in (None, src) and self.rng.random() < 0.6 else None
        if dst is None:
            dst = self.rng.choice([node for node in range(self.nodes) if node != src])
        came_from: dict[int, int] = {src: src}
        todo = [src]
        for node in todo:
            onward = [b for a, b in self.ends if a == node and b not in came_from]
            self.rng.shuffle(onward)
            came_from.update((b, node) for b in onward)
            todo += onward
        path = [dst]
        while path[-1] != src:
            path.append(came_from[path[-1]])
        return tuple(reversed(path))

    def _walk(self, src: int) -> tuple[int, ...]:
        """Anywhere: nodes and links may come twice."""
        path = [src]
        for _ in range(self.rng.randint(1, 6)):
            path.append(self.rng.choice([b for a, b in self.ends if a == path[-1]]))
        return tuple(path)


class ReaderCase(Case):
    """Readers that stream from memories, some with a way for themselves, and others that come across them.

    A request takes `lead_ns` to get to the memory. Most sizes fill whole rounds of all channels.
    """

    def __init__(self, seed: int) -> None:
        self.lead_ns = random.Random(~seed).choice([0.0, 0.0, 3.0, 12.5])
        super().__init__(seed, sizes=[1, 100, 700, 1500], messages=10)
        self.ruled = self.ruled and seed % 4 == 0

    def _stream(self, sizes: list[int]) -> Stream:
        rng, memories = self.rng, sorted(self.memories)
        if not memories or rng.random() < 0.4:
            return super()._stream(sizes)
        path = self._way(rng.choice(memories))
        rounds = [8 * n * self.flit_bytes for n in (1, 1, 2, 4)]
        legs = []
        for _ in range(rng.randint(2, 12)):
            nbytes = rng.choice(rounds) if rng.random() < 0.9 else rng.choice(sizes)
            legs.append(Leg(path, nbytes, {"read_from": rng.randrange(0, 1 << 14, self.flit_bytes)}))
        at_ns = rng.choice([0.0, float(rng.randint(0, self.span_ns))])
        return Stream(at_ns, legs, rng.choice([0.0, 0.0, 1.0, 40.0]))


def drive(env: simpy.Environment, send: Send, streams: list[Stream]) -> Done:
    """Run every stream as a process. Streams that go on at one instant do so in order of their number."""
    done: Done = {}

    def in_turn(number: int) -> simpy.Event:
        turn = env.event()
        turn._ok, turn._value = True, None
        env.schedule(turn, priority=AFTER_ALL + number)
        return turn

    def process(number: int, stream: Stream) -> Generator[Any, Any, None]:
        yield env.timeout(stream.at_ns)
        for place, leg in enumerate(stream.legs):
            if place and stream.rest_ns:
                yield env.timeout(stream.rest_ns)
            yield in_turn(number)
            yield send(leg, env.now)
            done[number, place] = env.now

    for number, stream in enumerate(streams):
        env.process(process(number, stream))
    env.run()
    return done


@dataclass
class Outcome:
    done: Done
    links: dict[Any, LinkCounters]
    channels: list[list[LinkCounters]]
    fabric: Fabric


def fabric_in(network: Network, mode: Any) -> Fabric:
    """A fabric in one of its modes; "compiled" is adaptive, with a compiled loop for flits that contend from the start,
    "compiled later" when there are some.
    """
    if mode == "compiled later":
        return Fabric(network, compile_after=20)
    if mode != "compiled":
        return Fabric(network, mode=mode)
    fabric = Fabric(network, compile_after=0)
    assert fabric.engine.queues is not None, "numba is missing: install the extra `fast`"
    return fabric


def run_fabric(case: Case, mode: Any, *, trace: bool = False) -> Outcome:
    """All streams as processes."""
    network = case.network()
    fabric = fabric_in(network, mode)
    env = FabricEnvironment(fabric)
    done = drive(env, lambda leg, _: env.transfer(leg.path, leg.nbytes, trace=trace, **leg.options), case.streams)
    return _outcome(case, fabric, done)


def run_readers(case: ReaderCase, mode: Any) -> Outcome:
    """All streams as processes. A read departs when its request is at the memory."""
    fabric = fabric_in(case.network(), mode)
    env = FabricEnvironment(fabric)

    def send(leg: Leg, now: float) -> simpy.Event:
        if "read_from" not in leg.options:
            return env.transfer(leg.path, leg.nbytes, **leg.options)
        done = TransferEnd(env)
        fabric.inject(leg.path, leg.nbytes, now + case.lead_ns, on_done=done.complete, **leg.options)
        return done

    return _outcome(case, fabric, drive(env, send, case.streams))


def run_naive_readers(case: ReaderCase, naive_fabric: Any) -> Done:
    env = simpy.Environment()
    fabric = naive_fabric(env, case.network())

    def send(leg: Leg, now: float) -> Any:
        at_ns = now + (case.lead_ns if "read_from" in leg.options else 0.0)
        return fabric.inject(leg.path, leg.nbytes, at_ns, **leg.options).done

    return drive(env, send, case.streams)


def run_fabric_ahead(case: Case, mode: Any) -> Outcome:
    """The first leg of every stream, all injected before anything moves, so in another order than they depart in."""
    fabric = fabric_in(case.network(), mode)
    transfers = [
        fabric.inject(s.legs[0].path, s.legs[0].nbytes, s.at_ns, **s.legs[0].options) for s in case.streams
    ]  # fmt: skip
    fabric.run()
    return _outcome(case, fabric, {(number, 0): transfer.done_ns for number, transfer in enumerate(transfers)})


def _outcome(case: Case, fabric: Fabric, done: Done) -> Outcome:
    channels = [fabric.channel_counters(node) for node in sorted(case.memories)]
    return Outcome(done, fabric.all_link_counters(), channels, fabric)


def run_naive(case: Case, naive_fabric: Any) -> Done:
    env = simpy.Environment()
    fabric = naive_fabric(env, case.network())
    return drive(env, lambda leg, now: fabric.inject(leg.path, leg.nbytes, now, **leg.options).done, case.streams)


def run_naive_ahead(case: Case, naive_fabric: Any) -> Done:
    env = simpy.Environment()
    fabric = naive_fabric(env, case.network())
    firsts = [(stream.at_ns, stream.legs[0]) for stream in case.streams]
    messages = [fabric.inject(leg.path, leg.nbytes, at_ns, **leg.options) for at_ns, leg in firsts]
    env.run()
    return {(number, 0): message.done_ns for number, message in enumerate(messages)}
