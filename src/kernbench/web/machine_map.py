"""A machine as the page draws it: one level at a time, boxes and directed links in mm, and routes between nodes.

The geometry is that of `report.diagrams`. A box may represent many nodes (a PE, a cube, a SIP): it *owns* them. A drawn
link is all links of the graph from what one box owns to what another owns; its bandwidth is their sum. Control wires
between two boxes are left out where data links join them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernbench.common.errors import RoutingError, UsageError
from kernbench.common.ids import CubeId, PeId, Place
from kernbench.policy.routing.router import PathRouter
from kernbench.report.diagrams import MachineView, ViewNode, machine_views, view_of
from kernbench.report.diagrams.svg_layout import Frame, is_outline, is_zone, scale_px_per_mm
from kernbench.report.diagrams.svg_route import Points, link_points
from kernbench.report.diagrams.svg_style import role_of
from kernbench.topology.graph import Edge, TopologyGraph
from kernbench.topology.mesh import build_mesh

TRAY = "tray"
Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class DrawnLink:
    """One direction between two boxes; `members` are the links of the graph that it represents."""

    src: str
    dst: str
    members: tuple[Edge, ...]

    @property
    def id(self) -> str:
        return f"{self.src}>{self.dst}"

    @property
    def gbs(self) -> float | None:
        speeds = [edge.bw_gbs for edge in self.members if edge.bw_gbs is not None]
        return sum(speeds) if speeds else None


def link_id(edge: Edge) -> str:
    """A link of the graph by its ends, as run folders and URLs name it."""
    return f"{edge.src}>{edge.dst}"


class MachineMap:
    """The levels of one machine, each computed on first use."""

    def __init__(self, graph: TopologyGraph) -> None:
        self.graph = graph
        self._views = machine_views(graph.spec)
        self._mesh = build_mesh(graph.spec.cube)
        self._router = PathRouter(graph)
        self.view = lru_cache(maxsize=64)(self._view)
        self.links = lru_cache(maxsize=64)(self._links)
        self._lines = lru_cache(maxsize=8)(self._lines_of)

    # -------------------------------------------------------------------------------------------------------- levels

    def _view(self, root: str) -> MachineView:
        """The picture of the block `root`: `tray`, `sip0`, `sip0.cube3`, `sip0.cube3.pe1`."""
        name, block = self._level(root)
        view = self._views[view_of(self.graph.spec, name, block.sip, block.cube)]
        if root == TRAY:
            return view
        nodes = tuple(self._renamed(node, block) for node in view.nodes)
        return MachineView(view.name, view.title, view.w_mm, view.h_mm, nodes, ())

    def _level(self, root: str) -> tuple[str, Place]:
        spec, place = self.graph.spec, Place.of(root)
        names = {TRAY: "system"}
        if 0 <= place.sip < spec.n_sips:
            names[f"sip{place.sip}"] = "sip"
            if 0 <= place.cube < spec.sip.n_cubes:
                names[str(CubeId(place.sip, place.cube))] = "cube"
                if 0 <= place.pe < spec.cube.n_pes:
                    names[str(PeId(place.sip, place.cube, place.pe))] = "pe"
        if root not in names:
            raise UsageError(
                f"the machine has no block '{root[:60]}' to open", hint=f"open {TRAY}, a SIP, a cube or a PE"
            )
        return names[root], place

    def _renamed(self, node: ViewNode, at: Place) -> ViewNode:
        """A box of the representative block, named as in the block at `at`."""
        old = Place.of(node.id)
        name = node.id
        if at.pe >= 0:
            cube = CubeId(at.sip, at.cube)
            if node.kind == "noc_router":
                name = cube.router(*self._mesh.pes[at.pe])
            elif node.kind == "hbm_ctrl":
                name = self.graph.home_node(at.sip, at.cube, at.pe)
            else:
                name = str(PeId(at.sip, at.cube, at.pe)) + name[len(str(PeId(0, 0, 0))) :]
        elif at.cube >= 0:
            name = str(CubeId(at.sip, at.cube)) + name[len(str(CubeId(0, 0))) :]
        elif old.sip >= 0:
            name = f"sip{at.sip}" + name[len("sip0") :]
        return ViewNode(name, node.kind, node.label, node.detail, node.x_mm, node.y_mm, node.w_mm, node.h_mm, node.role)

    def boxes(self, root: str) -> tuple[ViewNode, ...]:
        """The boxes of a level that represent nodes, without outlines and areas."""
        return tuple(node for node in self.view(root).nodes if not is_outline(node) and not is_zone(node))

    def _links(self, root: str) -> tuple[DrawnLink, ...]:
        owners = {node.id for node in self.boxes(root)}
        found: dict[tuple[str, str], list[Edge]] = {}
        for edge in self.graph.edges:
            src, dst = owner_of(edge.src, owners), owner_of(edge.dst, owners)
            if src is not None and dst is not None and src != dst:
                found.setdefault((src, dst), []).append(edge)
        links = []
        for (src, dst), edges in found.items():
            data = [edge for edge in edges if edge.bw_gbs is not None]
            links.append(DrawnLink(src, dst, tuple(data or edges)))
        return tuple(links)

    def as_json(self, root: str) -> Json:
        """The data with which the page draws a level."""
        view = self.view(root)
        lines = self._lines(root)
        return {
            "schema": 1,
            "root": root,
            "level": view.name,
            "title": view.title,
            "w": view.w_mm,
            "h": view.h_mm,
            "ns_per_mm": self.graph.spec.system.ns_per_mm,
            "crumbs": _crumbs(root),
            "nodes": [self._node_json(node) for node in view.nodes],
            "links": [self._link_json(link, lines[link.src, link.dst]) for link in self.links(root)],
        }

    def _node_json(self, node: ViewNode) -> Json:
        known = self.graph.nodes.get(node.id)
        opens = node.kind in ("sip", "cube", "pe")
        left, top = node.x_mm - node.w_mm / 2, node.y_mm - node.h_mm / 2
        return {
            "id": node.id,
            "kind": node.kind,
            "role": role_of(node).name,
            "label": node.label,
            "detail": node.detail,
            "box": [round(value, 4) for value in (left, top, node.w_mm, node.h_mm)],
            "shape": "outline" if is_outline(node) else "zone" if is_zone(node) else "box",
            "opens": opens,
            "attrs": dict(known.attrs) if known is not None else {},
        }

    def _link_json(self, link: DrawnLink, line: Points) -> Json:
        mm = max(edge.distance_mm for edge in link.members)
        ids = [link_id(edge) for edge in link.members]
        return {
            "id": link.id,
            "src": link.src,
            "dst": link.dst,
            "kind": str(link.members[0].kind),
            "gbs": link.gbs,
            "count": len(ids),
            "links": ids[:4],
            "mm": mm,
            "ns": mm * self.graph.spec.system.ns_per_mm,
            "line": [[round(x, 3), round(y, 3)] for x, y in line],
        }

    def _lines_of(self, root: str) -> Mapping[tuple[str, str], Points]:
        """The lines of links, in mm; both directions share one line, which the page draws as two."""
        view = self.view(root)
        scale = scale_px_per_mm(view)
        frame = Frame(scale, 0.0, 0.0)
        rects = {node.id: frame.rect(node) for node in self.boxes(root)}
        in_cube = view.name == "cube"
        routers = {node.id for node in view.nodes if node.kind == "noc_router"}
        lines: dict[tuple[str, str], Points] = {}
        for link in self.links(root):
            if (link.dst, link.src) in lines:
                lines[link.src, link.dst] = lines[link.dst, link.src][::-1]
                continue
            is_reversed = in_cube and link.src not in routers
            ends = (link.dst, link.src) if is_reversed else (link.src, link.dst)
            others = [rect for name, rect in rects.items() if name not in ends]
            line = link_points(rects[ends[0]], rects[ends[1]], others, from_corner=in_cube)
            points = tuple((x / scale, y / scale) for x, y in line)
            lines[link.src, link.dst] = points[::-1] if is_reversed else points
        return lines

    # -------------------------------------------------------------------------------------------------------- routes

    def route(self, src: str, dst: str) -> Json:
        """The path from one block to another: its nodes and links, its uncontended latency, its narrowest link. Raises
        RoutingError for a block that does not exist or cannot be reached.
        """
        start, end = self._end_node(src, is_source=True), self._end_node(dst, is_source=False)
        traffic, path = self._path(start, end)
        links = self._router.links(path)
        ns_per_mm = self.graph.spec.system.ns_per_mm
        nodes_ns = sum(self.graph.node(node).overhead_ns for node in path)
        wire_ns = sum(edge.distance_mm for edge in links) * ns_per_mm
        data = [edge for edge in links if edge.bw_gbs is not None]
        narrowest = min(data, key=lambda edge: self.graph.access_gbs(edge) or 0.0) if data else None
        return {
            "schema": 1,
            "from": start,
            "to": end,
            "traffic": traffic,
            "nodes": [{"id": node, "ns": self.graph.node(node).overhead_ns} for node in path],
            "links": [
                {"id": link_id(edge), "gbs": edge.bw_gbs, "mm": edge.distance_mm, "ns": edge.distance_mm * ns_per_mm}
                for edge in links
            ],
            "ns": nodes_ns + wire_ns,
            "nodes_ns": nodes_ns,
            "wire_ns": wire_ns,
            "narrowest": None
            if narrowest is None
            else {"id": link_id(narrowest), "gbs": self.graph.access_gbs(narrowest)},
        }

    def _end_node(self, block: str, is_source: bool) -> str:
        """The node at which a route to or from a block ends: of a PE its DMA, of a larger block its first PE or HBM."""
        place = Place.of(block)
        if block in self.graph.nodes:
            return block
        if place.sip < 0 or place.io:
            chiplet = f"{block}.pcie_ep"
            return self.graph.node(chiplet if chiplet in self.graph.nodes else block).id
        cube = CubeId(place.sip, max(place.cube, 0))
        if place.pe >= 0 or is_source:
            return self.graph.node(PeId(place.sip, cube.cube, max(place.pe, 0)).part("pe_dma")).id
        return self.graph.node(self.graph.home_node(place.sip, cube.cube, 0)).id

    def _path(self, start: str, end: str) -> tuple[str, list[str]]:
        """The path of data if there is one, else of host traffic, else of commands."""
        self.graph.node(start), self.graph.node(end)
        pe, place = start.rpartition(".")[0], Place.of(start)
        if place.pe >= 0 and start == f"{pe}.pe_dma":
            try:
                return "data", self._router.find_path(pe, end)
            except RoutingError:
                pass
        if place.pe < 0 <= place.sip:
            try:
                return "host", self._router.find_memory_path(start, end)
            except RoutingError:
                pass
        return "control", self._router.find_node_path(start, end)

    def about(self, name: str) -> Json:
        """The attributes of a node, or the content of a block; raises RoutingError if there is none."""
        node = self.graph.nodes.get(name)
        if node is not None:
            return {"schema": 1, "id": name, "kind": node.kind, "impl": node.impl, "attrs": dict(node.attrs)}
        inside = [node.kind for node in self.graph.nodes.values() if node.id.startswith(f"{name}.")]
        if not inside:
            self.graph.node(name)
        counts = {kind: inside.count(kind) for kind in dict.fromkeys(inside)}
        return {"schema": 1, "id": name, "kind": "block", "impl": "", "attrs": {}, "holds": counts}

    def search(self, words: str, limit: int) -> tuple[list[str], int]:
        """Nodes and blocks whose name has all the words; how many there are."""
        wanted = words.lower().split()
        spec = self.graph.spec
        blocks = [f"sip{sip}" for sip in range(spec.n_sips)]
        blocks += [str(CubeId(sip, cube)) for sip in range(spec.n_sips) for cube in range(spec.sip.n_cubes)]
        pes = (
            str(PeId(sip, cube, pe))
            for sip in range(spec.n_sips)
            for cube in range(spec.sip.n_cubes)
            for pe in range(spec.cube.n_pes)
        )
        found = [name for name in (*blocks, *pes, *self.graph.nodes) if all(word in name.lower() for word in wanted)]
        return found[:limit], len(found)


def owner_of(node: str, owners: set[str]) -> str | None:
    """The smallest drawn box that a node is in, or None. The channel routers of a PE may be one box."""
    name = node.rstrip("0123456789") if ".ch_r" in node and node not in owners else node
    while name:
        if name in owners:
            return name
        name = name.rpartition(".")[0]
    return None


def _crumbs(root: str) -> list[Json]:
    """The path from the tray to a level, by id and label."""
    crumbs: list[Json] = [{"id": TRAY, "label": "tray"}]
    if root != TRAY:
        parts = root.split(".")
        for n, part in enumerate(parts, 1):
            label = part.replace("sip", "SIP ").replace("cube", "cube ").replace("pe", "PE ")
            crumbs.append({"id": ".".join(parts[:n]), "label": label})
    return crumbs
