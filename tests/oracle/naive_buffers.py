"""The rules of finite buffers once more, small, slow and obvious: what the loop of the fabric is judged by.

One event queue, one object for every buffer, source and link. It shares nothing with the loop but the network's
parameters. Events of one instant are ordered: credits, buffers by (link, layer, virtual channel, output), sources,
links, injections.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

CREDIT, BUFFER, SOURCE, LINK, INJECT = range(5)


@dataclass
class Message:
    number: int
    links: tuple
    layers: tuple
    sizes: list
    done_ns: float = -1.0
    forks: dict = field(default_factory=dict)  # by hop: messages that its flits are copied to before it
    arrived: int = 0  # flits


@dataclass
class Flit:
    message: Message
    index: int
    hop: int
    ready: float
    copies: list = field(default_factory=list)  # messages that it has yet to be copied to in this buffer

    @property
    def is_last(self):
        return self.index == len(self.message.sizes) - 1


@dataclass
class Queue:
    """A queue of flits that leave in order: of a buffer, of one output of a buffer, or of a source."""

    name: tuple  # kind of its events, and its place among them
    buffer: tuple | None  # whose slots its flits take
    flits: list = field(default_factory=list)
    owned: tuple | None = None  # the virtual channel that its present packet owns
    started_ns: float = 0.0
    kept: list = field(default_factory=list)  # flits of a packet that is copied whole, before the next branch


class NaiveBuffers:
    def __init__(self, network):
        self.net, self.rules = network, network.buffers
        self.events, self.queues, self.credits, self.owners = [], {}, {}, {}
        self.wants_credit, self.wants_channel, self.wants_link = {}, {}, {}
        self.free, self.turn, self.credit_turn, self.called = {}, {}, {}, {}
        self.messages = []

    def inject(self, path, nbytes, at_ns):
        message = self.message(path, nbytes)
        self.at(at_ns, INJECT, (message.number,))
        return message

    def message(self, path, nbytes, start=0):
        """Along a path, or from one of its nodes on."""
        route, flit = self.net.route(path), self.net.flit_bytes
        sizes = [flit] * (nbytes // flit) + [nbytes % flit] * (nbytes % flit > 0)
        layers = tuple(self.net._layer_rule(route.path))
        message = Message(len(self.messages), route.links[start:], layers[start:], sizes)
        self.messages.append(message)
        return message

    def multicast(self, paths, nbytes, at_ns):
        """Messages to the ends of paths that form a tree, each from the node at which its path leaves the tree so far;
        `places` has the message that reaches a node of the tree, and its hop from there on."""
        sent, places = [], {}
        for path in paths:
            start = max((at for at in range(len(path)) if path[at] in places), default=0)
            message = self.message(path, nbytes, start)
            feeder, hop = places.get(path[start], (message, 0))
            if hop:
                feeder.forks.setdefault(hop, []).append(message)
            else:
                self.at(at_ns, INJECT, (message.number,))
            places |= {node: (message, at) for at, node in enumerate(path[start:]) if node not in places}
            sent.append(message)
        return sent

    def run(self):
        while self.events:
            now, kind, key = heappop(self.events)
            if kind == INJECT:
                self.enter(self.messages[key[0]], now)
            elif kind == CREDIT:
                self.credits[key] = self.credits.get(key, self.rules.slots) + 1
                waiting = self.wants_credit.get(key, [])
                if waiting:
                    chosen = self.choose(waiting, self.credit_turn, key)
                    if not waiting:
                        self.credit_turn.pop(key, None)  # turns are forgotten when no flit waits
                    self.grant_credit(chosen, key, now)
            elif kind == LINK:
                self.called[key] = False
                self.start(self.choose(self.wants_link[key], self.turn, key), key, now)
            else:
                self.ask(self.queues[kind, key], now)

    # ---- what happens

    def at(self, time, kind, key):
        heappush(self.events, (time, kind, key))

    def enter(self, message, now):
        source = self.queue(SOURCE, (message.links[0],), None)
        is_idle = not source.flits
        source.flits += [Flit(message, index, 0, now) for index in range(len(message.sizes))]
        if is_idle:
            self.at(max(now, source.started_ns), *source.name)

    def ask(self, queue, now):
        """The first flit of a queue asks for a virtual channel, then for a credit."""
        flit = queue.flits[0]
        channel = self.channel_of(queue, flit)
        if channel is None:
            group = self.group_of(flit)
            self.wants_channel.setdefault(group, []).append(queue)
        elif self.is_final(flit):
            self.granted(queue, now)
        elif self.credits.get(channel, self.rules.slots) > 0 and not self.wants_credit.get(channel):
            self.grant_credit(queue, channel, now)
        else:
            self.wants_credit.setdefault(channel, []).append(queue)

    def grant_credit(self, queue, channel, now):
        self.credits[channel] = self.credits.get(channel, self.rules.slots) - 1
        self.granted(queue, now)

    def granted(self, queue, now):
        """In order of asking the link takes it next; by round robin it waits until the link is free."""
        link = self.link_of(queue.flits[0])
        if self.rules.arbitration == "asking":
            self.start(queue, link, now)
        elif self.wants_link.get(link) or self.free.get(link, 0.0) > now:
            self.wants_link.setdefault(link, []).append(queue)
            self.call(link, max(now, self.free.get(link, 0.0)))
        else:
            self.start(queue, link, now)

    def call(self, link, time):
        if not self.called.get(link):
            self.called[link] = True
            self.at(time, LINK, link)

    def start(self, queue, link, now):
        channel = self.channel_of(queue, queue.flits[0])
        flit = queue.flits.pop(0)
        message = flit.message
        self.turn[link] = queue.name
        start = max(now, self.free.get(link, 0.0))
        occupy = max(round(message.sizes[flit.index] / self.net.bw_gbs[link] * 2**20) / 2**20, 2**-20)
        self.free[link] = start + occupy
        arrival = start + occupy + self.net.tail_ns[link]
        if self.rules.arbitration == "round_robin" and self.wants_link.get(link):
            self.call(link, self.free[link])
        queue.started_ns = start
        if flit.copies:
            self.copy(queue, flit, start)
        elif queue.buffer is not None:
            self.at(start + self.rules.credit_ns, CREDIT, queue.buffer)
        if queue.flits:
            self.at(max(queue.flits[0].ready, start), *queue.name)
        if not self.is_final(flit):
            output = message.links[flit.hop + 1] if self.rules.order == "voq" else 0
            onward = self.queue(BUFFER, (*channel, output), channel)
            forks = message.forks.get(flit.hop + 1, [])
            onward.flits.append(Flit(message, flit.index, flit.hop + 1, arrival, forks))
            if len(onward.flits) == 1:
                self.at(max(arrival, onward.started_ns), *onward.name)
        else:
            message.arrived += 1  # packets of one message may overtake each other in other channels
            if message.arrived == len(message.sizes):
                message.done_ns = arrival
        self.pass_channel_on(queue, flit, channel, start)

    def copy(self, queue, flit, start):
        """The flit keeps its slot, and asks for its next branch: first in its queue, or last in that of the output. All
        flits of a packet do so together, when the last has started on the branch before."""
        branch = Flit(flit.copies[0], flit.index, 0, start, flit.copies[1:])
        if self.rules.ownership == "packet":
            queue.kept.append(branch)
            if self.is_tail(flit):
                queue.flits[:0], queue.kept = queue.kept, []
            return
        if self.rules.order == "fifo":
            queue.flits.insert(0, branch)
            return
        other = self.queue(BUFFER, (*queue.buffer, branch.message.links[0]), queue.buffer)
        other.flits.append(branch)
        if len(other.flits) == 1:
            self.at(max(start, other.started_ns), *other.name)

    def pass_channel_on(self, queue, flit, channel, start):
        if self.rules.ownership == "flit" or not self.is_tail(flit):
            return
        queue.owned = None
        del self.owners[channel]
        waiting = self.wants_channel.get(self.group_of(flit), [])
        if waiting:
            following = waiting.pop(0)
            following.owned, self.owners[channel] = channel, following
            self.at(start, *following.name)

    # ---- who and where

    def is_tail(self, flit):
        packet = self.rules.packet_bytes // self.net.flit_bytes
        return flit.is_last or (packet and (flit.index + 1) % packet == 0)

    def queue(self, kind, key, buffer):
        return self.queues.setdefault((kind, key), Queue((kind, key), buffer))

    def link_of(self, flit):
        return flit.message.links[flit.hop]

    def group_of(self, flit):
        return flit.message.links[flit.hop], flit.message.layers[flit.hop]

    def is_final(self, flit):
        return flit.hop == len(flit.message.links) - 1

    def channel_of(self, queue, flit):
        """The virtual channel that the flit takes: the packet's own, or the lowest free one."""
        group = self.group_of(flit)
        if self.rules.ownership == "flit":
            return (*group, 0)
        if queue.owned is None:
            free = [(*group, k) for k in range(self.rules.channels) if (*group, k) not in self.owners]
            if free:
                queue.owned, self.owners[free[0]] = free[0], queue
        return queue.owned

    def choose(self, waiting, turns, key):
        """The next one to be granted, which waits no longer."""
        chosen = waiting[0]
        if self.rules.arbitration == "round_robin":
            latest = turns.get(key, (-1,))
            chosen = min(waiting, key=lambda queue: (queue.name <= latest, queue.name))
            turns[key] = chosen.name
        waiting.remove(chosen)
        return chosen
