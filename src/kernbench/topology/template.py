"""A block of nodes and edges that is built once and instantiated many times: a cube, an IO chiplet.

Names are those of `common/ids.py` for block number 0; an instance replaces the prefix, which is the printed id of the
block. Attrs are shared between all copies, so a machine of thousands of PEs holds each set of parameters once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kernbench.common.frozen import frozen
from kernbench.common.ids import Place
from kernbench.topology.attrs import read_attrs
from kernbench.topology.graph import Edge, EdgeKind, Node
from kernbench.topology.mesh import snap_mm
from kernbench.topology.readers import Scalar
from kernbench.topology.spec_base import ComponentSpec

Attrs = Mapping[str, Scalar]


@frozen
class ComponentData:
    """The data that all nodes of one component entry share."""

    kind: str
    impl: str
    attrs: Attrs


def component_data(component: ComponentSpec, **derived: Scalar) -> ComponentData:
    """The shared data of a component entry, with parameters derived from other keys."""
    attrs = read_attrs(component.kind, component.impl, component.attrs, [])  # the checks have read them already
    return ComponentData(component.kind, component.impl, MappingProxyType({**attrs, **derived}))


@dataclass(slots=True)
class Template:
    """The nodes and edges of a block whose printed id is `prefix`."""

    prefix: str
    _nodes: list[tuple[str, str, str, Attrs, float, float, int]] = field(default_factory=list)
    _edges: list[tuple[int, int, EdgeKind, float | None, float]] = field(default_factory=list)
    _index: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, part: ComponentData, at: tuple[float, float], pe: int = -1) -> None:
        self._index[name] = len(self._nodes)
        tail = name[len(self.prefix) :]
        self._nodes.append((tail, part.kind, part.impl, part.attrs, snap_mm(at[0]), snap_mm(at[1]), pe))

    def link(
        self,
        a: str,
        b: str,
        kind: EdgeKind,
        bw_gbs: float | None,
        distance_mm: float = 0.0,
        *,
        back_kind: EdgeKind | None = None,
        back_bw_gbs: float | None = None,
    ) -> None:
        """Add both directions. The reverse edge has the same kind and bandwidth unless it is given its own."""
        i, j, mm = self._index[a], self._index[b], snap_mm(distance_mm)
        self._edges.append((i, j, kind, bw_gbs, mm))
        self._edges.append((j, i, back_kind or kind, bw_gbs if back_bw_gbs is None else back_bw_gbs, mm))

    def instantiate(self, prefix: str, place: Place, nodes: dict[str, Node], edges: list[Edge]) -> None:
        """Add an instance with another id; `place` is the place of the block."""
        places: dict[int, Place] = {-1: place}
        ids: list[str] = []
        for tail, kind, impl, attrs, x_mm, y_mm, pe in self._nodes:
            where = places.get(pe)
            if where is None:
                where = places[pe] = Place(place.sip, place.cube, pe)
            name = prefix + tail
            ids.append(name)
            nodes[name] = Node(name, kind, impl, attrs, x_mm, y_mm, where)
        edges.extend([Edge(ids[i], ids[j], kind, bw, mm) for i, j, kind, bw, mm in self._edges])
