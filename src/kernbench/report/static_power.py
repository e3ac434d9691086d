"""Static power of a machine, from one source: `energy.static_w` by kind of block where the description has it,
otherwise the area of all dies times `power.static_w_per_mm2`. Far memory draws its own.
"""

from __future__ import annotations

from kernbench.report.energy import static_w_of
from kernbench.report.ranges import FigureRange, exactly
from kernbench.report.silicon import far_w, static_w
from kernbench.topology.graph import TopologyGraph


def static_power(graph: TopologyGraph) -> FigureRange:
    """Watts of the whole machine."""
    by_block = static_w_of(graph)
    return exactly(by_block) + far_w(graph.spec) if by_block else static_w(graph)
