"""What a custom delay rule knows of a flit. Stands here because components and the fabric both speak of it."""

from __future__ import annotations

from collections.abc import Hashable

from kernbench.common.frozen import frozen


@frozen
class FlitArrival:
    """A flit entering a node."""

    node: Hashable
    came_from: Hashable
    time_ns: float
    index: int
    flits: int
    nbytes: int  # of this flit
    transfer_nbytes: int
    tag: object
