"""Transit: a NoC router, a switch, a UCIe port, a bridge. Every flit is delayed by the overhead; nobody is blocked.

Routing is not decided here (a path comes with the packet), and bandwidth is the link's affair. Not modelled: finite
buffers.
"""

from __future__ import annotations

from kernbench.components.base import TransitComponent


class ForwardingComponent(TransitComponent):
    """The plain pipeline stage that most of a machine consists of."""
