"""Commands of the host reach a cube in the order in which they were submitted, whichever IO chiplet each enters at.

A command enters at the chiplet nearest to its target cubes, so a later one could take a shorter path and overtake: a
new mapping before the unmapping of what used its addresses, a launch before the one it follows. The arrival time of a
command at a cube is computable, since control messages never queue; one that would not arrive after all earlier ones is
held back at its endpoint until it does. A SIP with one IO chiplet has one path to every cube, and no command is held.
"""

from __future__ import annotations

from kernbench.common.messages import CubeCommand
from kernbench.common.units import GRID_NS, on_grid
from kernbench.sim_engine.machine import Machine

_HELD = ""  # no endpoint: a command that would arrive at the same instant as a held one must arrive after it


class CommandOrder:
    """When the latest command reaches each cube of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._is_needed = len(machine.graph.spec.sip.io_chiplets) > 1
        self._latest: dict[tuple[int, int], tuple[float, str]] = {}  # by SIP and cube: when, and by which endpoint
        self._reach_ns: dict[tuple[str, int], float] = {}  # from an endpoint to a cube: paths do not change

    def admit(self, command: CubeCommand, endpoint: str) -> float:
        """For how long a command that is submitted now is held back at its endpoint; it counts as submitted."""
        if not self._is_needed:
            return 0.0
        now_ns, hold_ns = self._machine.env.now, 0.0
        cubes = command.cubes(self._machine.graph.spec.sip.n_cubes)
        for cube in cubes:
            latest_ns, by = self._latest.get((command.sip, cube), (0.0, endpoint))
            arrives_ns = now_ns + self._reach(endpoint, command.sip, cube)
            # Two by one path keep their order; two that arrive together by different paths might not.
            if arrives_ns < latest_ns or (arrives_ns == latest_ns and by != endpoint):
                hold_ns = max(hold_ns, latest_ns - arrives_ns + GRID_NS)
        for cube in cubes:
            arrives_ns = now_ns + hold_ns + self._reach(endpoint, command.sip, cube)
            self._latest[command.sip, cube] = (arrives_ns, _HELD if hold_ns else endpoint)
        return hold_ns

    def _reach(self, endpoint: str, sip: int, cube: int) -> float:
        """From the instant at which the host submits a command until a cube's M_CPU has it."""
        known = self._reach_ns.get((endpoint, cube))
        if known is None:
            machine = self._machine
            io_cpu = machine.resolver.find_io_cpu(sip, machine.graph.node(endpoint).place.io)
            m_cpu = machine.resolver.find_m_cpu(sip, cube)
            legs = (machine.router.find_node_path(endpoint, io_cpu), machine.router.find_node_path(io_cpu, m_cpu))
            known = on_grid(machine.component(endpoint).entry_ns) + sum(machine.latency_ns(leg) for leg in legs)
            self._reach_ns[endpoint, cube] = known
        return known
