"""The neighbour tables of all PEs, as they stand in the PEs' configuration registers (SFR).

Every PE of every SIP has its neighbours in all directions, independent of the algorithm, its root cube and the topology
of SIPs. So an algorithm is chosen at run time, without another set-up.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.ccl.config import load_ccl_config, resolve_algorithm_config
from kernbench.ccl.config_spec import AlgorithmConfig
from kernbench.ccl.install import Communicators
from kernbench.ccl.topologies import directions_of, group_of, peer_of
from kernbench.common.errors import UsageError
from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Communicator
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.spec import MachineSpec


def neighbor_table(spec: MachineSpec) -> dict[PeKey, dict[str, PeKey]]:
    """The neighbours of every PE of a machine, by direction."""
    group = group_of(spec)
    table: dict[PeKey, dict[str, PeKey]] = {}
    for sip in group.sips:
        for cube in range(group.n_cubes):
            for number in range(group.n_pes):
                pe = (sip, cube, number)
                peers = {direction: peer_of(group, pe, direction) for direction in directions_of(group, pe)}
                table[pe] = {direction: peer.pe for direction, peer in peers.items() if peer is not None}
    return table


def configure_sfr_intercube_multisip(
    engine: GraphEngine, spec: MachineSpec, cfg: AlgorithmConfig | Mapping[str, object] | None = None
) -> Communicator:
    """Give all PEs of a machine their neighbours and rings, as an algorithm's configuration says or else the shipped
    one: the communicator "world". A process group does this by itself. Raises UsageError for a machine that is not
    the engine's.
    """
    chosen = cfg if isinstance(cfg, AlgorithmConfig) else resolve_algorithm_config(load_ccl_config(cfg))
    if spec is not engine.graph.spec and spec != engine.graph.spec:
        raise UsageError("the machine described is not the one that the engine runs", hint="give engine.graph.spec")
    made = Communicators(engine)
    made.set_sizes(chosen.ring_bytes, chosen.work_bytes)
    return made.install_world(chosen.rings)
