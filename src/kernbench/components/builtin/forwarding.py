"""Transit: a NoC router, a switch, a UCIe port, a bridge. Every flit is delayed by the overhead; none is blocked.

The block does not route (each packet carries its path) and does not limit bandwidth (the links do). Not modelled:
finite buffers.
"""

from __future__ import annotations

from kernbench.components.base import TransitComponent


class ForwardingComponent(TransitComponent):
    """The pipeline stage that models most nodes of a machine."""
