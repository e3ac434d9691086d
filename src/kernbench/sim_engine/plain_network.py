"""From a plain network's description to a `Network`: nodes, links and buffers as it says."""

from __future__ import annotations

from kernbench.common.errors import Fault, TopologyError
from kernbench.sim_engine.fabric import Buffers, Network
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.network import NetworkTopology
from kernbench.topology.spec_fabric import BuffersSpec


def plain_network(topology: TopologyGraph) -> tuple[NetworkTopology, Network]:
    """The network of a description with the key `network`; raises TopologyError for a machine."""
    if not isinstance(topology, NetworkTopology):
        what = f"'{topology.spec.system.name}' is a machine with SIPs, not a plain network"
        raise TopologyError([Fault(what, "", "network", "give a description with the key `network`")])
    network = Network(topology.network.flit_bytes)
    for node in topology.nodes.values():
        network.add_node(node.id, node.overhead_ns)
    network.add_links(topology.wires)
    if topology.buffers is not None:
        network.set_buffers(buffers_of(topology.buffers, topology.n_layers), topology.layers_of)
    return topology, network


def buffers_of(spec: BuffersSpec, layers: int) -> Buffers:
    """The options as the fabric takes them."""
    return Buffers(
        spec.slots, spec.credit_ns, layers, spec.channels, spec.order, spec.ownership, spec.packet_bytes,
        spec.arbitration,
    )  # fmt: skip
