"""Compiles a checked spec to the frozen graph: host and switch first, then one SIP after another.

Cubes and IO chiplets are laid out once as templates and instantiated. The order of nodes and edges depends on the spec
alone, so equal descriptions compile to the same graph, edge for edge. The graphs of the last machines are kept: what is
derived of a graph (routes, the network) is shared by all runs on equal machines, in sweeps and in tests.
"""

from __future__ import annotations

from types import MappingProxyType

from kernbench.common.ids import HOST, SWITCH, IoId, Place
from kernbench.common.impls import BUILTIN
from kernbench.topology.build_cube import cube_template
from kernbench.topology.build_sip import add_sip, io_template
from kernbench.topology.build_stacks import add_stacks
from kernbench.topology.far_memory import add_far_memories, far_chiplet, far_part
from kernbench.topology.graph import Edge, EdgeKind, Node, TopologyGraph
from kernbench.topology.layers import Overrides, Source
from kernbench.topology.load import check_spec, load_network, load_spec
from kernbench.topology.mesh import build_mesh, snap_mm
from kernbench.topology.network import NetworkTopology
from kernbench.topology.ports import Chiplet, resolve_chiplets
from kernbench.topology.sip_links import direct_links
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_base import LinkSpec
from kernbench.topology.spec_far import AT_SIP
from kernbench.topology.switches import level_switches, switch_of_level, switches_above
from kernbench.topology.template import component_data

_KEPT = 4  # as many as `sim_engine.wiring` keeps
_recent: dict[str, TopologyGraph] = {}  # by all that a spec holds, in its order: the last one is the latest


def load_topology(source: Source = None, overrides: Overrides | None = None) -> TopologyGraph:
    """The machine of a YAML file, a mapping, a spec, or the one shipped (None or "default").

    A description with the key `network` is a plain network, and becomes a `NetworkTopology`.
    `overrides` maps key paths to values or YAML text, as `--set` does: {"system.sips.count": 4}.
    Raises TopologyError with every fault found.
    """
    description = load_network(source, overrides)
    if description is not None:
        return NetworkTopology(description)
    return _compile(load_spec(source, overrides))


def compile_spec(spec: MachineSpec) -> TopologyGraph:
    """The graph of a spec; raises TopologyError if its values are inconsistent."""
    check_spec(spec)
    return _compile(spec)


def _compile(spec: MachineSpec) -> TopologyGraph:
    key = repr(spec)  # equality would not do: 1 == 1.0, and the order of keys is the order of nodes
    graph = _recent.pop(key, None) or _built(spec)
    if all(node.impl in BUILTIN for node in graph.nodes.values()):  # a user's class may be another one next time
        _recent[key] = graph
    if len(_recent) > _KEPT:
        del _recent[next(iter(_recent))]
    return graph


def _built(spec: MachineSpec) -> TopologyGraph:
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []
    mesh, has_mmu = build_mesh(spec.cube), spec.system.has_mmu
    cubes = {
        name: cube_template(cube, mesh, has_mmu=has_mmu) for name, cube in {"": spec.cube, **spec.cube_types}.items()
    }
    resolved = resolve_chiplets(spec.sip, spec.io_chiplet.cube_distance_mm)
    sips = spec.system.sips
    chiplets = tuple(
        (chiplet, io_template(spec.io_chiplet, chiplet, sips if chiplet is resolved[0] else None))
        for chiplet in resolved
    )
    far = spec.system.far_memory
    for chiplet, template in chiplets:
        if far is not None and far.at == AT_SIP and chiplet.id == far_chiplet(spec):
            me, at = IoId(0, chiplet.id), (3 * spec.io_chiplet.size_mm.w / 4, 0.0)  # beside the PCIe endpoint
            template.add(me.far_memory(), far_part(far, spec.system.flit_bytes), at)
            template.link(me.io_noc(), me.far_memory(), EdgeKind.FAR_LINK, far.bw_gbs, far.distance_mm)
    _add_tray(spec, nodes, edges)
    for sip in range(spec.n_sips):
        add_sip(spec, sip, cubes, chiplets, nodes, edges)
        add_stacks(spec, sip, mesh, nodes, edges)
    _join_sips(spec, resolved, edges)
    edges += direct_links(spec)
    return TopologyGraph(spec, MappingProxyType(nodes), tuple(edges))


def _add_tray(spec: MachineSpec, nodes: dict[str, Node], edges: list[Edge]) -> None:
    for name, component in ((HOST, spec.system.host), (SWITCH, spec.system.switch)):
        part = component_data(component)
        nodes[name] = Node(name, part.kind, part.impl, part.attrs, 0.0, 0.0, Place())
    _pcie(HOST, SWITCH, spec.system.links.host_to_switch, edges)
    for switch in level_switches(spec.system):
        part = component_data(switch_of_level(spec.system, switch.level))
        nodes[switch.name] = Node(switch.name, part.kind, part.impl, part.attrs, 0.0, 0.0, Place())
        _pcie(switch.above, switch.name, switch.level, edges)
    add_far_memories(spec.system, nodes, edges)


def _join_sips(spec: MachineSpec, chiplets: tuple[Chiplet, ...], edges: list[Edge]) -> None:
    for sip in range(spec.n_sips):
        switch = switches_above(spec.system, sip)[0]
        for chiplet in chiplets:
            _pcie(switch, IoId(sip, chiplet.id).pcie_ep(), spec.system.links.io_ep_to_switch, edges)


def _pcie(a: str, b: str, link: LinkSpec, edges: list[Edge]) -> None:
    mm = snap_mm(link.distance_mm)
    edges.append(Edge(a, b, EdgeKind.PCIE, link.bw_gbs, mm))
    edges.append(Edge(b, a, EdgeKind.PCIE, link.bw_gbs, mm))
