"""The nodes and edges inside a PE.

Control runs pe_cpu -> pe_scheduler -> engines; data runs between pe_dma, pe_tcm, pe_fetch_store and the two compute
engines at the width of the TCM ports: data enters the TCM through its write port and leaves it through its read port.
The nine standard parts of a PE are wired by name, whatever class models them; an additional part declares its wires. A
PE has no extent here: all its parts are placed at its router, and wires inside it have no propagation delay.
"""

from __future__ import annotations

from kernbench.common.ids import PeId
from kernbench.topology.declarations import wires_of
from kernbench.topology.graph import EdgeKind
from kernbench.topology.spec_cube import CubeSpec, PeComponents
from kernbench.topology.template import ComponentData, Template, component_data

MMU = "pe_mmu"
CONTROL_LINKS: tuple[tuple[str, str], ...] = (
    ("pe_cpu", "pe_scheduler"),
    ("pe_scheduler", "pe_dma"),
    ("pe_scheduler", "pe_fetch_store"),
    ("pe_scheduler", "pe_gemm"),
    ("pe_scheduler", "pe_math"),
    ("pe_mmu", "pe_dma"),
    ("pe_ipcq", "pe_dma"),
    ("pe_cpu", "pe_ipcq"),
)
# The direction towards the TCM comes first: it uses the write port, the opposite direction the read port.
DATA_LINKS: tuple[tuple[str, str], ...] = (
    ("pe_dma", "pe_tcm"),
    ("pe_fetch_store", "pe_tcm"),
    ("pe_gemm", "pe_fetch_store"),
    ("pe_math", "pe_fetch_store"),
)


def pe_links(components: PeComponents, *, has_mmu: bool) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The pairs of parts that are wired: control links, then data links. Logical addresses need no MMU."""
    further = wires_of(components)
    control = [(wire.src, wire.dst) for wire in further if wire.carries == "control"]
    data = [(wire.src, wire.dst) for wire in further if wire.carries == "data"]
    control = [link for link in (*CONTROL_LINKS, *control) if has_mmu or MMU not in link]
    return control, [*DATA_LINKS, *data]


def pe_parts(cube: CubeSpec, *, has_mmu: bool) -> dict[str, ComponentData]:
    """The components of a PE, with the sizes that the memory map gives them."""
    components = cube.pe_template.components
    parts = {name: component_data(part) for name, part in components.parts.items() if has_mmu or name != MMU}
    home = {"home_bytes": cube.tcm_home_bytes} if cube.home.space == "tcm" else {}
    parts["pe_tcm"] = component_data(components.pe_tcm, size_bytes=cube.tcm_bytes, **home)
    return parts


def add_pe(
    template: Template, pe: PeId, router: str, at: tuple[float, float], parts: dict[str, ComponentData], cube: CubeSpec
) -> None:
    """Add one PE and its links to its router."""
    for name, part in parts.items():
        template.add(pe.part(name), part, at, pe.pe)
    control, data = pe_links(cube.pe_template.components, has_mmu=MMU in parts)
    for a, b in control:
        template.link(pe.part(a), pe.part(b), EdgeKind.PE_INTERNAL, None)
    ports = cube.pe_template.links
    for a, b in data:
        template.link(
            pe.part(a), pe.part(b), EdgeKind.PE_INTERNAL, ports.tcm_write_bw_gbs, back_bw_gbs=ports.tcm_read_bw_gbs
        )
    template.link(pe.part("pe_dma"), router, EdgeKind.PE_TO_ROUTER, cube.links.pe_dma_to_router_bw_gbs)
    template.link(router, pe.part("pe_cpu"), EdgeKind.COMMAND, None)
    if MMU in parts:
        template.link(router, pe.part(MMU), EdgeKind.COMMAND, None)
