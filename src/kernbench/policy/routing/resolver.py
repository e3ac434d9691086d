"""Resolves an address to the node that serves it, and a place to the names of its nodes.

Every name comes from `common.ids` and is checked against the machine: a node that does not exist is a RoutingError here
and not later.
"""

from __future__ import annotations

from kernbench.common.errors import RoutingError
from kernbench.common.ids import CubeId, IoId, PeId
from kernbench.policy.address.capacity import AddressConfig
from kernbench.policy.address.phyaddr import PhysAddr, UnitType
from kernbench.topology.far_memory import far_base, far_node
from kernbench.topology.graph import TopologyGraph

WINDOW_BITS = 20  # addresses that differ below this bit lie in one memory
IN_WINDOW = (1 << WINDOW_BITS) - 1


class AddressResolver:
    """Names of the nodes of one machine."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._nodes = graph.nodes
        stacks = graph.spec.sip.hbm_stacks
        self._shares = stacks is not None and stacks.shared_by == "sip"  # the cubes of a SIP have one range
        self._sizes = AddressConfig.from_spec(graph.spec)
        self._io_names = tuple(chiplet.id for chiplet in graph.spec.sip.io_chiplets)  # in the order of their dies
        self._graph = graph
        self._parts: dict[tuple[int, int, int, str], str] = {}  # cache: (sip, cube, pe, kind) -> node
        self._windows: dict[int, tuple[str, int]] = {}  # cache, by number

    def address(self, raw: int) -> PhysAddr:
        """The address that a number encodes on this machine; raises AddressError when it encodes none."""
        return PhysAddr.decode(raw, self._sizes.layout)

    def resolve(self, addr: PhysAddr) -> str:
        """The node that serves `addr`; raises RoutingError when the machine has none."""
        if addr.hbm_offset is not None:
            sizes = self._sizes.of_cube(addr.sip_id, addr.die_id)
            if not sizes.hbm_slice_bytes:
                raise RoutingError(f"no node serves {addr}", hint="this machine has no HBM: use SRAM or TCM")
            return self.find_hbm_ctrl(addr.sip_id, addr.die_id, addr.hbm_offset // sizes.hbm_slice_bytes)
        unit = addr.unit_type
        if unit is UnitType.PE:
            assert addr.pe_id is not None
            return self.find_pe_part(addr.sip_id, addr.die_id, addr.pe_id, "pe_tcm")
        if unit is UnitType.SRAM:
            return self.find_sram(addr.sip_id, addr.die_id)
        if unit is UnitType.MCPU:
            return self.find_m_cpu(addr.sip_id, addr.die_id)
        if addr.far_offset is not None:
            return self.find_far_memory(addr)
        io = addr.die_id - self._sizes.layout.first_io_die
        if io < len(self._io_names):
            return self.find_io_cpu(addr.sip_id, self._io_names[io])
        raise RoutingError(f"no node serves {addr}", hint="use an address in a memory, an M_CPU or an IO_CPU")

    def locate(self, raw: int) -> tuple[str, int]:
        """The node that serves the address that a number encodes, and the address local to that memory. Raises as
        `address` and `resolve` do.
        """
        address, window = self.address(raw), raw >> WINDOW_BITS
        found = self._windows.get(window)
        if found is None:
            found = self._windows[window] = self.resolve(address), self.local_address(address) - (raw & IN_WINDOW)
        node, base = found
        return node, base + (raw & IN_WINDOW)

    def local_address(self, addr: PhysAddr) -> int:
        """The address local to the memory that serves it: the offset in the HBM window, or in its unit; in the range of
        all stacks, where cubes share them, or in the node of far memory.
        """
        if addr.hbm_offset is not None and self._shares:
            return addr.die_id * self._graph.spec.cube.hbm_bytes + addr.hbm_offset
        if addr.far_offset is not None:
            return far_base(self._graph.spec, addr.sip_id) + addr.far_offset
        offset = addr.hbm_offset if addr.hbm_offset is not None else addr.sub_offset
        return offset if offset is not None else 0

    def find_m_cpu(self, sip: int, cube: int) -> str:
        return self._there(CubeId(sip, cube).m_cpu())

    def find_sram(self, sip: int, cube: int) -> str:
        return self._there(CubeId(sip, cube).sram())

    def find_hbm_ctrl(self, sip: int, cube: int, pe: int) -> str:
        """The HBM slice of a PE, or the first of the stacks that its HBM is interleaved over."""
        self._there(PeId(sip, cube, pe).part("pe_dma"))
        if not self._sizes.hbm_slice_bytes:
            raise RoutingError("this machine has no HBM", hint="use SRAM or TCM")
        return self._there(self._graph.home_node(sip, cube, pe))

    def find_far_memory(self, addr: PhysAddr) -> str:
        """The node that has a byte of far memory; its address is in the window of one IO chiplet."""
        if not self._sizes.far_bytes_per_sip or addr.die_id != self._sizes.far_die:
            raise RoutingError(f"no node serves {addr}", hint="describe system.far_memory, and use its addresses")
        return self._there(far_node(self._graph.spec, addr.sip_id))

    def find_pe_dma(self, sip: int, cube: int, pe: int) -> str:
        return self.find_pe_part(sip, cube, pe, "pe_dma")

    def find_pe_part(self, sip: int, cube: int, pe: int, kind: str) -> str:
        """One of a PE's components, say `pe_cpu`."""
        key = (sip, cube, pe, kind)
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = self._there(PeId(sip, cube, pe).part(kind))
        return found

    def find_pcie_ep(self, sip: int, io_id: str | None = None) -> str:
        """The PCIe endpoint of a chiplet; of the SIP's first one if none is named."""
        return self._there(IoId(sip, io_id or self._io_names[0]).pcie_ep())

    def find_io_cpu(self, sip: int, io_id: str | None = None) -> str:
        """The IO_CPU of a chiplet; of the SIP's first one if none is named."""
        return self._there(IoId(sip, io_id or self._io_names[0]).io_cpu())

    def find_all_pcie_eps(self) -> list[str]:
        """Every PCIe endpoint of the tray, by SIP and then by IO chiplet, io2 before io10."""
        eps = [node for node in self._nodes.values() if node.id == IoId(node.place.sip, node.place.io).pcie_ep()]
        eps.sort(key=lambda node: (node.place.sip, len(node.place.io), node.place.io))
        return [node.id for node in eps]

    def _there(self, node_id: str) -> str:
        if node_id in self._nodes:
            return node_id
        sizes = self._sizes
        raise RoutingError(
            f"the machine has no node '{node_id:.80}'",
            hint=f"it has SIPs 0..{sizes.n_sips - 1}, each with cubes 0..{sizes.n_cubes - 1} "
            f"of PEs 0..{sizes.n_pes - 1}, and {sizes.n_io_chiplets} IO chiplets",
        )
