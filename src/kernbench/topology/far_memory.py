"""The nodes of far memory in a machine: their names, their links, and whether they go together with the rest."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from kernbench.common.ids import SWITCH, IoId, Place, far_memory, level_switch
from kernbench.common.units import GIB
from kernbench.topology.faults import UnplacedFault
from kernbench.topology.graph import Edge, EdgeKind, Node
from kernbench.topology.mesh import snap_mm
from kernbench.topology.spec import MachineSpec, SystemSpec
from kernbench.topology.spec_far import AT_SIP, AT_TOP, FarMemorySpec
from kernbench.topology.template import ComponentData

_KEY = "system.far_memory"
FAR_KIND = "far_memory"


def far_part(far: FarMemorySpec, flit_bytes: int) -> ComponentData:
    """What a node of far memory is: the controller of HBM with channels of its own, whose bursts are flits."""
    attrs = {
        "overhead_ns": far.overhead_ns,
        "burst_bytes": flit_bytes,
        "switch_penalty_ns": far.switch_penalty_ns,
        "num_pcs": far.channels,
        "pc_bw_gbs": far.channel_bw_gbs,
        "slice_bytes": far.gb * GIB,
    }
    return ComponentData(FAR_KIND, "builtin.hbm_ctrl", MappingProxyType(attrs))


def far_switches(system: SystemSpec) -> list[tuple[str, str]]:
    """The nodes of far memory at switches: name, and the switch."""
    far = system.far_memory
    if far is None or far.at == AT_SIP:
        return []
    count = system.n_far_memories
    names = [SWITCH] if far.at == AT_TOP else [level_switch(far.at, number) for number in range(count)]
    return [(far_memory(number), switch) for number, switch in enumerate(names)]


def add_far_memories(system: SystemSpec, nodes: dict[str, Node], edges: list[Edge]) -> None:
    """Add those at switches to the tray, with both directions of their links."""
    for name, switch in far_switches(system):
        assert system.far_memory is not None
        part, mm = far_part(system.far_memory, system.flit_bytes), snap_mm(system.far_memory.distance_mm)
        nodes[name] = Node(name, part.kind, part.impl, part.attrs, 0.0, 0.0, Place())
        edges.append(Edge(switch, name, EdgeKind.FAR_LINK, system.far_memory.bw_gbs, mm))
        edges.append(Edge(name, switch, EdgeKind.FAR_LINK, system.far_memory.bw_gbs, mm))


def far_chiplet(spec: MachineSpec) -> str:
    """The IO chiplet whose window of addresses has the far memory of a SIP, and to which it is linked if it is at the
    SIP.
    """
    far = spec.system.far_memory
    return spec.sip.io_chiplets[0].id if far is None or far.io is None else far.io


def far_index(spec: MachineSpec) -> int:
    """The number of that chiplet in its SIP."""
    return [chiplet.id for chiplet in spec.sip.io_chiplets].index(far_chiplet(spec))


def far_node(spec: MachineSpec, sip: int) -> str:
    """The node that has a SIP's part of far memory."""
    system = spec.system
    if system.far_memory is None or system.far_memory.at == AT_SIP:
        return IoId(sip, far_chiplet(spec)).far_memory()
    return far_memory(sip * system.n_far_memories // system.sips.count)


def far_base(spec: MachineSpec, sip: int) -> int:
    """Where the part of a SIP begins in its node: SIPs that share one have equal parts, in order of their numbers."""
    system = spec.system
    sharing = system.sips.count // max(system.n_far_memories, 1)
    return sip % sharing * system.far_bytes_per_sip


def check_far_place(at: object, system: SystemSpec) -> Iterator[UnplacedFault]:
    """The place that a text names exists."""
    places = (AT_SIP, AT_TOP, *system.switch_levels)
    if isinstance(at, str) and at not in places:
        uses = ("system.switch_levels",)
        yield UnplacedFault(f"{_KEY}.at", f"there is no '{at}'", f"use one of {', '.join(places)}", uses)


def check_far_memory(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """The place of far memory exists."""
    far, system = spec.system.far_memory, spec.system
    if far is None:
        return
    yield from check_far_place(far.at, system)
    chiplets = [chiplet.id for chiplet in spec.sip.io_chiplets]
    if far.io is not None and far.at != AT_SIP:
        yield UnplacedFault(f"{_KEY}.io", "far memory at a switch is on no IO chiplet", "delete it", (f"{_KEY}.at",))
    elif far.io is not None and far.io not in chiplets:
        uses = ("sip.io_chiplets",)
        yield UnplacedFault(
            f"{_KEY}.io", f"there is no IO chiplet '{far.io}'", f"use one of {', '.join(chiplets)}", uses
        )
