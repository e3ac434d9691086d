"""Where a request enters the machine, and the checks of a request against the machine.

A PE's request enters at its DMA engine. A host request enters at the PCIe endpoint nearest to the memory it is for. A
command enters at the one whose farthest target cube is nearest, since a command is as slow as its farthest cube; among
equals, at the one with the least total distance to its cubes; the last tie-break is the lowest IO chiplet. A request
whose fields contradict each other or the machine is refused here, before any time has passed.
"""

from __future__ import annotations

from kernbench.common.errors import MessageError
from kernbench.common.frozen import changed
from kernbench.common.ids import Place
from kernbench.common.messages import (
    CubeCommand,
    CubeDmaMsg,
    HostMessage,
    KernelLaunchMsg,
    MemoryReadMsg,
    MemoryWriteMsg,
    PeDmaMsg,
)
from kernbench.components.base import MemoryComponent
from kernbench.policy.address.phyaddr import PeSubUnit, PhysAddr, UnitType
from kernbench.policy.routing.router import PathRouter
from kernbench.sim_engine.wiring import Wiring
from kernbench.topology.graph import TopologyGraph


def with_envelope(msg: HostMessage, number: int) -> HostMessage:
    """The request with the missing fields of its envelope filled in; raises MessageError for what is not a request."""
    if isinstance(msg, MemoryWriteMsg):
        sip = msg.dst_sip
    elif isinstance(msg, MemoryReadMsg | PeDmaMsg):
        sip = msg.src_sip
    elif isinstance(msg, CubeCommand):
        sip = msg.sip
    else:
        raise MessageError(f"the engine cannot take a {type(msg).__name__}", hint="submit one of the host messages")
    device = f"sip:{sip}"
    if msg.target_device not in ("", device):
        raise MessageError(
            f"{type(msg).__name__} is for device '{msg.target_device}', but names sip {sip}",
            hint=f"leave target_device out, or write '{device}'",
        )
    if isinstance(msg, KernelLaunchMsg):
        msg = msg.located()
    return changed(
        msg,
        correlation_id=msg.correlation_id or f"c{number}",
        request_id=msg.request_id or f"r{number}",
        target_device=device,
    )


def entry_node(graph: TopologyGraph, wiring: Wiring, msg: HostMessage) -> str:
    """The node that serves a request; raises MessageError, AddressError or RoutingError when none can."""
    if isinstance(msg, PeDmaMsg):
        _memory_at(wiring, msg.dst_pa, msg.nbytes)
        return wiring.resolver.find_pe_dma(msg.src_sip, msg.src_cube, msg.src_pe)
    if isinstance(msg, MemoryWriteMsg):
        node, address = _memory_at(wiring, msg.dst_pa, msg.nbytes)
        _check_tag(graph, wiring, node, address, (msg.dst_sip, msg.dst_cube, msg.dst_pe))
        _check_kind(graph.node(node).kind, address, msg.dst_mem_kind)
        return _nearest_endpoint(graph, wiring, node, address)
    if isinstance(msg, MemoryReadMsg):
        node, address = _memory_at(wiring, msg.src_pa, msg.nbytes)
        _check_tag(graph, wiring, node, address, (msg.src_sip, msg.src_cube, msg.src_pe))
        return _nearest_endpoint(graph, wiring, node, address)
    _check_command(wiring, msg)
    return _command_endpoint(graph, wiring, msg)


def _memory_at(wiring: Wiring, pa: int, nbytes: int) -> tuple[str, PhysAddr]:
    """The memory that serves an address: the address decodes, lies inside this machine, and is not a register file."""
    address = wiring.resolver.address(pa)
    wiring.sizes.check(address, nbytes)
    node = wiring.resolver.resolve(address)
    in_a_pe = address.unit_type is UnitType.PE
    if not issubclass(wiring.classes[node], MemoryComponent) or (in_a_pe and address.sub_unit is not PeSubUnit.PE_TCM):
        raise MessageError(f"{address} is not in a memory", where=node, hint="use an address in HBM, SRAM or TCM")
    return node, address


def _check_tag(graph: TopologyGraph, wiring: Wiring, node: str, address: PhysAddr, tag: tuple[int, int, int]) -> None:
    """The tag of a host request names the place that its address is in; SRAM belongs to every PE of its cube,
    far memory to every PE of its SIP.
    """
    place = graph.node(node).place
    owner = place.pe
    if address.hbm_offset is not None:
        place = Place(address.sip_id, address.die_id)  # a stack belongs to several cubes
        owner = address.hbm_offset // wiring.sizes.of_cube(place.sip, place.cube).hbm_slice_bytes
    sip, cube, pe = tag
    if address.far_offset is not None:  # that of a SIP belongs to all of its cubes
        place = Place(address.sip_id, cube if cube < wiring.sizes.n_cubes else -1)
    if (sip, cube) == (place.sip, place.cube) and (pe == owner if owner >= 0 else pe < wiring.sizes.n_pes):
        return
    where = f"sip {place.sip}, cube {place.cube}" + (f", pe {owner}" if owner >= 0 else "")
    raise MessageError(
        f"the request names sip {sip}, cube {cube}, pe {pe}, but its address {address} is in {where}",
        hint="make the tag and the address agree",
    )


def _check_kind(node_kind: str, address: PhysAddr, wanted: str) -> None:
    kind = {"hbm_ctrl": "HBM", "pe_tcm": "TCM", "sram": "SRAM", "far_memory": "FAR"}[node_kind]
    if wanted not in ("AUTO", kind):
        raise MessageError(
            f"the request is for {wanted}, but its address {address} is in {kind}",
            hint="make dst_mem_kind and the address agree, or leave dst_mem_kind out",
        )


def _nearest_endpoint(graph: TopologyGraph, wiring: Wiring, memory: str, address: PhysAddr) -> str:
    place, router = graph.node(memory).place, wiring.router
    if place.sip < 0:  # far memory at a switch: the SIP whose part it is
        place = Place(address.sip_id)
    if place.pe >= 0 and graph.spec.cube.home.space != "tcm":
        raise MessageError(
            f"{address} is inside a PE, where host traffic does not go",
            hint="use HBM or SRAM, and let the PE's DMA move the bytes",
        )

    def distance_mm(endpoint: str) -> float:
        return _length_mm(router, router.find_memory_path(endpoint, memory))

    return min((wiring.resolver.find_pcie_ep(place.sip, io) for io in _chiplets(graph)), key=distance_mm)


def _command_endpoint(graph: TopologyGraph, wiring: Wiring, msg: CubeCommand) -> str:
    key = (msg.sip, msg.target_cubes)
    known = wiring.command_endpoints.get(key)
    if known is not None:
        return known
    router, resolver = wiring.router, wiring.resolver
    endpoints = {resolver.find_pcie_ep(msg.sip, io): io for io in _chiplets(graph)}
    m_cpus = [resolver.find_m_cpu(msg.sip, cube) for cube in msg.cubes(graph.spec.sip.n_cubes)]

    def distances_mm(endpoint: str) -> tuple[float, float]:
        io_cpu = resolver.find_io_cpu(msg.sip, endpoints[endpoint])
        lengths = [_length_mm(router, router.find_node_path(io_cpu, m_cpu)) for m_cpu in m_cpus]
        return max(lengths), sum(lengths)

    nearest = min(endpoints, key=distances_mm) if len(endpoints) > 1 else next(iter(endpoints))
    wiring.command_endpoints[key] = nearest
    return nearest


def _chiplets(graph: TopologyGraph) -> list[str]:
    """The IO chiplets of a SIP, io2 before io10, so that the first of equals is the lowest."""
    return sorted((io.id for io in graph.spec.sip.io_chiplets), key=lambda name: (len(name), name))


def _length_mm(router: PathRouter, path: list[str]) -> float:
    return sum(edge.distance_mm for edge in router.links(path))


def _check_command(wiring: Wiring, msg: CubeCommand) -> None:
    sizes = wiring.sizes
    for name, ids, limit in (("cube", msg.target_cubes, sizes.n_cubes), ("pe", msg.target_pes, sizes.n_pes)):
        for item in () if ids == "all" else ids:
            if item >= limit:
                raise MessageError(f"the machine has no {name} {item}", hint=f"use 0 to {limit - 1}")
    if isinstance(msg, CubeDmaMsg):
        slice_bytes = min(sizes.of_cube(msg.sip, cube).hbm_slice_bytes for cube in msg.cubes(sizes.n_cubes))
        if msg.offset + msg.nbytes > slice_bytes:
            raise MessageError(
                f"{msg.nbytes} bytes at offset {msg.offset} run past an HBM slice of {slice_bytes} bytes",
                hint="move less, or from a lower offset",
            )
