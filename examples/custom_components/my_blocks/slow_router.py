"""A router whose arbiter loses a turn: every n-th flit that passes stays `extra_ns` longer than the overhead.

A transit block has no process. It answers one question, how long does this flit stay, and may remember what it has
seen. The fabric keeps the flits of a transfer in order, whatever the answer.
"""

from __future__ import annotations

from kernbench.common.flits import FlitArrival
from kernbench.components.base import Context, TransitComponent
from kernbench.topology.graph import Node


class SlowRouterComponent(TransitComponent):
    """attrs: overhead_ns, every (4), extra_ns (6.0)."""

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self.every = int(node.attrs.get("every", 4))
        self.extra_ns = float(node.attrs.get("extra_ns", 6.0))
        self.passed = 0

    def flit_delay_ns(self, flit: FlitArrival) -> float:
        self.passed += 1
        lost_turn = self.passed % self.every == 0
        return self.node.overhead_ns + (self.extra_ns if lost_turn else 0.0)
