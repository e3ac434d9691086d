"""Diagrams of a machine: views of tray, SIP, cube and PE, drawn as SVG."""

from kernbench.report.diagrams.files import diagram_texts, emit_diagrams
from kernbench.report.diagrams.svg import render_svg
from kernbench.report.diagrams.view import MachineView, ViewEdge, ViewNode
from kernbench.report.diagrams.views import machine_views, view_of

__all__ = [
    "MachineView",
    "ViewEdge",
    "ViewNode",
    "diagram_texts",
    "emit_diagrams",
    "machine_views",
    "render_svg",
    "view_of",
]
