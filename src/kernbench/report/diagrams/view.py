"""A picture before it is drawn: boxes and lines of one level of a machine, in mm."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.topology.graph import EdgeKind


@dataclass(frozen=True, slots=True)
class ViewNode:
    """A box in a picture: centre and size in mm, a short label and a line of detail."""

    id: str
    kind: str
    label: str
    detail: str
    x_mm: float
    y_mm: float
    w_mm: float
    h_mm: float
    role: str = ""  # what it is for, where its kind does not say so


@dataclass(frozen=True, slots=True)
class ViewEdge:
    """A line in a picture; both directions of a link are drawn once."""

    src: str
    dst: str
    kind: EdgeKind
    label: str
    bw_gbs: float | None


@dataclass(frozen=True, slots=True)
class MachineView:
    """One level of the machine as a picture shows it, in mm."""

    name: str  # "system", "sip", "cube", "pe"
    title: str
    w_mm: float
    h_mm: float
    nodes: tuple[ViewNode, ...]
    edges: tuple[ViewEdge, ...]
