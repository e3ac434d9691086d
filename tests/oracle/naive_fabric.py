"""The fabric's rules once more, as small, slow and obvious SimPy processes: what the fast engines are judged by.

A process for every link, node and memory, a process for every flit in flight on a wire or in a node. It shares
nothing with the engines but the network's parameters. Where several things happen at one instant at one place, the
place waits for that instant to settle and takes them in the order of the tie rule: index of the link they came in on,
injections last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

import simpy

from kernbench.common.flits import FlitArrival
from kernbench.sim_engine.fabric.channel_bank import READ, WRITE
from kernbench.sim_engine.fabric.model import Network

INJECTED = 10**9
# SimPy priorities: an instant settles in nodes first: what passes a node without delay is ready at the same instant.
NODES_SETTLE, LINKS_SETTLE = 10**8, 10**9


@dataclass
class Message:
    number: int
    path: tuple
    nbytes: int
    at_ns: float
    access: int = 0
    address: int = 0
    tag: object = None
    done: simpy.Event | None = None
    done_ns: float = -1.0
    sizes: list[int] = field(default_factory=list)
    finish_ns: float = 0.0
    last_ready: dict[int, float] = field(default_factory=dict)
    slot: tuple[int, int] | None = None
    granules: int = 0
    group: list | None = None  # of a multicast: the messages, one for each destination, that a flit still stands for


@dataclass(order=True)
class Flit:
    """Compared by what decides its turn: when it was ready, where it came from, its message, its place in it."""

    ready: float
    came_in: int
    turn: int
    index: int
    message: Message = field(compare=False)
    hop: int = field(compare=False)


class Settled:
    """A place where flits gather. `wait` gives the next one in order once the instant has settled."""

    def __init__(self, env, priority):
        self.env = env
        self.priority = priority
        self.waiting = []
        self.arrival = env.event()

    def put(self, item):
        heappush(self.waiting, item)
        if not self.arrival.triggered:
            self.arrival.succeed()

    def wait(self):
        while not self.waiting:
            self.arrival = self.env.event()
            yield self.arrival
        settled = self.env.event()
        settled._ok, settled._value = True, None
        self.env.schedule(settled, priority=self.priority)
        yield settled
        return heappop(self.waiting)


class NaiveFabric:
    def __init__(self, env: simpy.Environment, network: Network):
        self.env = env
        self.net = network
        self.links = [Settled(env, LINKS_SETTLE) for _ in network.link_ends]
        self.nodes = [Settled(env, NODES_SETTLE) for _ in network.names]
        self.memories = {node: _Channels(*spec) for node, spec in network.channel_specs.items()}
        self.memory_doors = {node: Settled(env, LINKS_SETTLE) for node in network.channel_specs}
        self.count = 0
        self.turns = 0
        self.flit_hops = 0
        for link in range(len(self.links)):
            env.process(self.serve_link(link))
        for node in range(len(self.nodes)):
            env.process(self.serve_node(node))
        for node in self.memory_doors:
            env.process(self.serve_bank(node))

    # ---- what a user calls

    def inject(self, path, nbytes, at_ns, *, read_from=None, write_to=None, tag=None, slot=None, granules=0):
        message = Message(self.count, tuple(path), nbytes, at_ns, tag=tag, done=self.env.event())
        self.count += 1
        message.slot, message.granules = slot, granules
        if read_from is not None:
            message.access, message.address = READ, read_from
        if write_to is not None:
            message.access, message.address = WRITE, write_to
        rest = nbytes
        while rest > 0:
            message.sizes.append(min(rest, self.net.flit_bytes))
            rest -= message.sizes[-1]
        self.env.process(self.start(message))
        return message

    def multicast(self, paths, nbytes, at_ns, *, write_to=None):
        """A flit stands for all destinations, and is copied where their paths part. Returns a message for each."""
        leaves = []
        for number, path in enumerate(paths):
            leaf = Message(self.count, tuple(path), nbytes, at_ns, done=self.env.event())
            if write_to is not None and write_to[number] is not None:
                leaf.access, leaf.address = WRITE, write_to[number]
            leaf.sizes = [self.net.flit_bytes] * (nbytes // self.net.flit_bytes)
            if nbytes % self.net.flit_bytes:
                leaf.sizes.append(nbytes % self.net.flit_bytes)
            leaves.append(leaf)
            self.count += 1
        whole = Message(leaves[0].number, leaves[0].path, nbytes, at_ns, sizes=leaves[0].sizes, group=leaves)
        self.env.process(self.start(whole))
        return leaves

    # ---- processes

    def start(self, message):
        if message.at_ns > self.env.now:
            yield self.env.timeout(message.at_ns - self.env.now)
        if message.nbytes == 0:
            yield self.env.process(self.travel_as_control(message))
        elif message.access == READ:
            door = self.memory_doors[self.node(message.path[0])]
            door.put(Flit(self.env.now, INJECTED, message.number, 0, message, -1))
        elif message.slot is not None and message.slot[1] > 1:
            first, step = message.slot
            flit_ns = self.net.flit_ns[self.link(*message.path[:2])]
            for index in range(len(message.sizes)):
                self.env.process(self.release(message, index, message.at_ns + (first + index * step) * flit_ns))
        else:
            for index in range(len(message.sizes)):
                self.ready_for_link(Flit(self.env.now, INJECTED, message.number, index, message, 0))

    def travel_as_control(self, message):
        for a, b in zip(message.path, message.path[1:], strict=False):
            yield self.env.timeout(self.net.propagation_ns[self.link(a, b)])
            yield self.env.timeout(self.net.overhead_ns[self.node(b)])
        self.finish(message)

    def ready_for_link(self, flit):
        if flit.message.group is not None:
            onward = {}
            for leaf in flit.message.group:
                onward.setdefault(leaf.path[flit.hop + 1], []).append(leaf)
            for group in onward.values():
                copy = Message(group[0].number, group[0].path, flit.message.nbytes, 0.0, sizes=flit.message.sizes)
                copy.group = group if len(group) > 1 else None
                part = copy if copy.group else group[0]
                self.put_on_link(Flit(flit.ready, flit.came_in, flit.turn, flit.index, part, flit.hop))
            return
        self.put_on_link(flit)

    def put_on_link(self, flit):
        a, b = flit.message.path[flit.hop : flit.hop + 2]
        self.links[self.link(a, b)].put(flit)

    def serve_link(self, link):
        """A serial FIFO: one flit at a time, in order of readiness."""
        while True:
            flit = yield from self.links[link].wait()
            bw = self.net.bw_gbs[link]
            size = self.bytes_on_wire(link, flit)
            yield self.env.timeout(max(round(size / bw * 2**20) / 2**20, 2**-20))
            self.flit_hops += 1
            self.env.process(self.fly(link, flit))

    def bytes_on_wire(self, link, flit):
        """With headers of packets: whole flits pay their share, the last one what is missing of whole headers."""
        sizes, framing = flit.message.sizes, self.net.framing[link]
        if framing is None:
            return sizes[flit.index]
        header, payload = framing
        if flit.index < len(sizes) - 1:
            return sizes[flit.index] + sizes[flit.index] * header / payload
        whole = sum(sizes)
        packets = (whole + payload - 1) // payload
        return sizes[-1] + packets * header - (whole - sizes[-1]) * header / payload

    def fly(self, link, flit):
        yield self.env.timeout(self.net.propagation_ns[link])
        node = self.net.link_ends[link][1]
        self.nodes[node].put(Flit(self.env.now, link, 0, flit.index, flit.message, flit.hop + 1))

    def serve_node(self, node):
        """A pipeline: every flit is delayed, none is blocked."""
        while True:
            flit = yield from self.nodes[node].wait()
            self.turns += 1
            delay = self.net.overhead_ns[node]
            rule = self.net.delay_rule[node]
            if rule is not None:
                delay = self.ask(rule, node, flit)
            self.env.process(self.pass_node(node, flit, delay, self.turns))

    def ask(self, rule, node, flit):
        message = flit.message
        came_from = self.net.names[self.net.link_ends[flit.came_in][0]]
        arrival = FlitArrival(
            self.net.names[node], came_from, self.env.now, flit.index, len(message.sizes), message.sizes[flit.index],
            message.nbytes, message.tag,
        )  # fmt: skip
        ready = max(self.env.now + round(rule(arrival) * 2**20) / 2**20, message.last_ready.get(flit.hop, 0.0))
        message.last_ready[flit.hop] = ready
        return ready - self.env.now

    def pass_node(self, node, flit, delay, turn):
        yield self.env.timeout(delay)
        message, last_hop = flit.message, len(flit.message.path) - 1
        onward = Flit(self.env.now, flit.came_in, turn, flit.index, message, flit.hop)
        if flit.hop < last_hop:
            self.ready_for_link(onward)
        elif message.access == WRITE:
            self.memory_doors[node].put(onward)
        elif flit.index == len(message.sizes) - 1:
            self.finish(message)

    def serve_bank(self, node):
        """Commits never wait for one another, but are made in order."""
        memory = self.memories[node]
        while True:
            flit = yield from self.memory_doors[node].wait()
            message = flit.message
            if message.access == READ:
                leave = 0.0
                for index in range(len(message.sizes)):
                    leave = max(leave, memory.commit(message, index, self.env.now))
                    self.env.process(self.release(message, index, leave))
            else:
                finish = memory.commit(message, flit.index, self.env.now)
                message.finish_ns = max(message.finish_ns, finish)
                if flit.index == len(message.sizes) - 1:
                    self.env.process(self.settle_write(message))

    def release(self, message, index, leave):
        yield self.env.timeout(leave - self.env.now)
        self.ready_for_link(Flit(self.env.now, INJECTED, message.number, index, message, 0))

    def settle_write(self, message):
        yield self.env.timeout(message.finish_ns - self.env.now)
        self.finish(message)

    def finish(self, message):
        message.done_ns = self.env.now
        message.done.succeed(message)

    # ---- names

    def node(self, name):
        return self.net.node_index(name)

    def link(self, a, b):
        return self.net.link_index(a, b)


class _Channels:
    """Channels that take bursts one by one; one that is not full takes its granules, and at least the time of a row
    that its message has not opened on that channel before. With drains, the controller pays for turning there and
    back when it has collected a batch of writes, and something was read since it last did.
    """

    def __init__(self, channels, burst_bytes, burst_ns, penalty_ns, separate, granule_bytes, open_ns, drain_bytes):
        self.separate, self.granule_bytes, self.open_ns, self.drain_bytes = (
            separate,
            granule_bytes,
            open_ns,
            drain_bytes,
        )
        self.granule_ns = round(burst_ns * granule_bytes / burst_bytes * 2**20) / 2**20
        self.written = [0] * channels
        self.was_read = [False] * channels
        self.step = burst_bytes * (channels if separate else 1)  # to the next burst of a transfer
        self.channels, self.burst_bytes, self.burst_ns, self.penalty_ns = channels, burst_bytes, burst_ns, penalty_ns
        self.free = [0.0] * channels
        self.last = [None] * channels

    def commit(self, message, index, now):
        channel = ((message.address + index * self.step) // self.burst_bytes) % self.channels
        granules = -(-message.sizes[index] // self.granule_bytes)
        if index == len(message.sizes) - 1 and message.granules:
            granules = message.granules
        lasts = self.burst_ns - (self.burst_bytes // self.granule_bytes - granules) * self.granule_ns
        if index < (1 if self.separate else self.channels):
            lasts = max(lasts, self.open_ns)
        start = max(now, self.free[channel])
        if self.drain_bytes and self.penalty_ns:
            start += self.turn_in_batches(channel, message.access, granules * self.granule_bytes)
        elif self.last[channel] not in (None, message.access):
            start += self.penalty_ns
        self.last[channel] = message.access
        self.free[channel] = start + lasts
        return self.free[channel]

    def turn_in_batches(self, channel, access, nbytes):
        if access == READ:
            self.was_read[channel] = True
            return 0.0
        self.written[channel] += nbytes
        if self.written[channel] < self.drain_bytes:
            return 0.0
        self.written[channel] %= self.drain_bytes
        paid = self.penalty_ns if self.was_read[channel] else 0.0
        self.was_read[channel] = False
        return paid
