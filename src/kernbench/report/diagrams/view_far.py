"""Far memory in pictures: beside the switch that it is at, or outside the IO chiplet that it is linked to."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.ids import IoId
from kernbench.report.diagrams.view import ViewEdge, ViewNode
from kernbench.report.diagrams.view_cube import bandwidth_label
from kernbench.topology.far_memory import far_chiplet, far_switches
from kernbench.topology.graph import EdgeKind
from kernbench.topology.ports import Chiplet
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_far import AT_SIP, FarMemorySpec

_SWITCH_SHARE, _FAR_SHARE = 0.75, 0.2  # of the width of a switch that has far memory beside it


def with_far_at_switches(spec: MachineSpec, boxes: Sequence[ViewNode]) -> list[ViewNode]:
    """The boxes of the tray; a switch with far memory gives the right end of its place to it."""
    at = {switch: name for name, switch in far_switches(spec.system)}
    found: list[ViewNode] = []
    for box in boxes:
        far = spec.system.far_memory
        if box.id not in at or far is None:
            found.append(box)
            continue
        left, width = box.x_mm - box.w_mm / 2, box.w_mm
        own, part = _SWITCH_SHARE * width, _FAR_SHARE * width
        found.append(ViewNode(box.id, box.kind, box.label, box.detail, left + own / 2, box.y_mm, own, box.h_mm))
        x = left + width - part / 2
        found.append(ViewNode(at[box.id], "far_memory", "far memory", _about(far), x, box.y_mm, part, box.h_mm))
    return found


def far_switch_edges(spec: MachineSpec) -> list[ViewEdge]:
    """The links of those at switches."""
    far = spec.system.far_memory
    return [] if far is None else [_edge(far, switch, name) for name, switch in far_switches(spec.system)]


def far_of_sip(spec: MachineSpec) -> str:
    """How the box of a SIP names the far memory that is linked to one of its chiplets."""
    far = spec.system.far_memory
    return "" if far is None or far.at != AT_SIP else f", {far.gb} GB of far memory"


def far_at_chiplet(spec: MachineSpec, chiplets: Sequence[Chiplet], boxes: Sequence[ViewNode]) -> list[ViewNode]:
    """The far memory of a SIP, outside its chiplet; nothing where it is at a switch."""
    far = spec.system.far_memory
    if far is None or far.at != AT_SIP:
        return []
    io = IoId(0, far_chiplet(spec))
    box = next(each for each in boxes if each.id == str(io))
    side = next(chiplet.side for chiplet in chiplets if chiplet.id == io.name)
    dx, dy = {"N": (0, -1), "S": (0, 1), "E": (1, 0), "W": (-1, 0)}[side]
    x, y = box.x_mm + dx * 1.5 * box.w_mm, box.y_mm + dy * 1.5 * box.h_mm
    return [ViewNode(io.far_memory(), "far_memory", "far memory", _about(far), x, y, box.w_mm, box.h_mm)]


def far_chiplet_edges(spec: MachineSpec) -> list[ViewEdge]:
    far = spec.system.far_memory
    if far is None or far.at != AT_SIP:
        return []
    io = IoId(0, far_chiplet(spec))
    return [_edge(far, str(io), io.far_memory())]


def _edge(far: FarMemorySpec, src: str, dst: str) -> ViewEdge:
    return ViewEdge(src, dst, EdgeKind.FAR_LINK, bandwidth_label(far.bw_gbs), far.bw_gbs)


def _about(far: FarMemorySpec) -> str:
    return f"{far.gb} GB, {far.gbs:g} GB/s"
