"""The end of a direct link between SIPs: takes whole packets, as the router of a chip-to-chip link does.

A packet is taken whole, pays the overhead, and goes on. With `slots`, the far end of the link has room for so many
packets that are under way or wait there: one departs when there is room, in order of arrival; its place is free again
when its last byte has left the port at the far end, and is known here `credit_ns` later. Control messages need none.
Packets that wait here have no limit, so no cycle of ports can wait for one another. Not modelled: retries.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from kernbench.common.declared_state import idle, quantity
from kernbench.components.base import ActiveComponent, Context, Packet, Process
from kernbench.topology.graph import Node


class SipPortComponent(ActiveComponent):
    """One end of a link, for both directions."""

    __slots__ = ("_taken", "_waiting")

    STATE = (quantity("_taken"), idle("_waiting"))

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._taken = 0  # of the slots at the far end
        self._waiting: deque[Packet] = deque()

    @property
    def slots(self) -> int:
        """At the far end; 0 for no limit."""
        return int(self.node.attrs.get("slots", 0))

    def handle(self, packet: Packet) -> Process | None:
        if not self.slots or not packet.nbytes:
            return super().handle(packet)
        own, places = self.node.place.sip, [self.ctx.graph.node(node).place.sip for node in self._ends(packet)]
        if places[1] == own:  # it has come over the link
            packet.on_left += (partial(self._return_credit, packet.path[packet.place - 1]),)
            self.ctx.send(packet)
        else:
            self._waiting.append(packet)
            self._depart()
        return None

    def credited(self) -> None:
        """A slot at the far end is free again."""
        self._taken -= 1
        self._depart()

    def _depart(self) -> None:
        while self._waiting and self._taken < self.slots:
            self._taken += 1
            self.ctx.send(self._waiting.popleft())

    def _ends(self, packet: Packet) -> tuple[str, str]:
        """The nodes before and after this one on the packet's path."""
        return packet.path[packet.place - 1], packet.path[packet.place + 1]

    def _return_credit(self, sender: str, node: str, left_ns: float) -> None:
        """Once a packet has left this port, return its credit to the sending end of the link."""
        if node == self.node.id:
            port, credit_ns = self.ctx.component(sender), float(self.node.attrs.get("credit_ns", 0.0))
            assert isinstance(port, SipPortComponent)
            self.ctx.at(left_ns + credit_ns, SipPortComponent.credited, port)
