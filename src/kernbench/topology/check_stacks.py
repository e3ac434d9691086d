"""Checks HBM stacks that PEs share against the rest of the description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernbench.topology.build_stacks import routers_at
from kernbench.topology.faults import UnplacedFault
from kernbench.topology.fit import check_fit
from kernbench.topology.layers import shipped
from kernbench.topology.mesh import build_mesh
from kernbench.topology.ports import shoreline
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_stacks import HbmStacksSpec

_KEY = "sip.hbm_stacks"
_UNUSED = (
    "hbm_total_gb_per_cube", "hbm_slices_per_cube", "hbm_pseudo_channels", "hbm_channels_per_pe", "hbm_channel_bw_gbs",
)  # fmt: skip


def check_stacks(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """Places, groups, sizes, and what stacks exclude."""
    stacks = spec.sip.hbm_stacks
    if stacks is None:
        return
    uses = (_KEY, "sip.cube_mesh", "cube")
    if not stacks.places:
        yield UnplacedFault(
            f"{_KEY}.places", "HBM stacks without a place", "place one, or set hbm_stacks to null", uses
        )
        return
    yield from _check_places(spec, stacks)
    if stacks.interleave_bytes < spec.system.flit_bytes:
        what = f"{stacks.interleave_bytes} bytes on a stack are less than a burst of {spec.system.flit_bytes}"
        yield UnplacedFault(
            f"{_KEY}.interleave_bytes", what, f"give {spec.system.flit_bytes} or more", ("system.flit_bytes",)
        )
    if spec.cube.has_channel_routers:
        what = "it does not go together with sip.hbm_stacks"
        yield UnplacedFault("cube.memory_map.hbm_mapping_mode", what, "use n_to_one", (_KEY,))
    as_shipped: Any = shipped().plain()
    for name in _UNUSED:
        if getattr(spec.cube.memory_map, name) != as_shipped["cube"]["memory_map"][name]:
            what = "stacks that PEs share take the place of HBM slices, so this key does nothing"
            yield UnplacedFault(f"cube.memory_map.{name}", what, f"delete it; {_KEY} has the sizes", (_KEY,))


def _check_places(spec: MachineSpec, stacks: HbmStacksSpec) -> Iterator[UnplacedFault]:
    taken: dict[str, str] = {}
    n, uses = spec.sip.n_cubes, (_KEY, "sip.cube_mesh", "cube.geometry", "cube.pe_layout")
    mesh = None if check_fit(spec.cube) else build_mesh(spec.cube)
    for at, place in enumerate(stacks.places):
        key = f"{_KEY}.places[{at}]"
        if place.cube >= n:
            yield UnplacedFault(f"{key}.cube", f"there is no cube {place.cube}", f"use 0 to {n - 1}", uses)
            continue
        if (place.cube % spec.sip.cube_mesh.w, place.cube // spec.sip.cube_mesh.w) not in shoreline(
            spec.sip, place.side
        ):
            what = f"side {place.side} of cube {place.cube} faces another cube"
            yield UnplacedFault(f"{key}.side", what, "attach stacks to sides at the edge of the package", uses)
        chiplet = next((each.id for each in spec.sip.io_chiplets if each.side == place.side), None)
        if chiplet is not None:
            what = f"side {place.side} of the package has the IO chiplet '{chiplet}'"
            yield UnplacedFault(f"{key}.side", what, "attach the stack to another side", (*uses, "sip.io_chiplets"))
        if place.id in taken:
            yield UnplacedFault(f"{key}.id", f"the id '{place.id}' is taken by {taken[place.id]}", "give another", uses)
        taken.setdefault(place.id, key)
        there = stacks.links if mesh is None else len(routers_at(place, mesh, stacks.links))
        if there < stacks.links:
            what = f"{stacks.links} links to side {place.side}, which has {there} routers"
            yield UnplacedFault(f"{_KEY}.links", what, f"give {there} or less", uses)
    if stacks.shared_by == "cube":
        counts = [len(stacks.group_of(cube)) for cube in range(n)]
        if len(dict.fromkeys(counts)) > 1:
            few = counts.index(min(counts))
            what = f"cube {few} has {counts[few]} stacks and cube {counts.index(max(counts))} has {max(counts)}"
            yield UnplacedFault(
                f"{_KEY}.places", what, "attach equally many to every cube, or use shared_by: sip", uses
            )
