"""Types of cubes and of SIPs: named variants of `cube`, each with the keys that differ, and the cubes of each type.

A type is `cube` with other values: every key that it leaves out is filled in when a description is loaded. All cubes of
a machine have one structure, so that a route found in one holds in all: types differ in what blocks cost, in bandwidths
and in sizes of memories, not in the layout of the die or in the number of PEs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kernbench.topology.faults import UnplacedFault
from kernbench.topology.readers import closest
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_cube import CubeSpec

TYPES = "cube_types"
_NAME = r"[a-z][a-z0-9_]{0,30}"
_HBM_GB = "memory_map.hbm_total_gb_per_cube"
_PAGE = "pe_template.components.pe_mmu.attrs.page_size"


def differences(cube: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `other` whose values are not those of `cube`, as nested mappings."""
    found: dict[str, Any] = {}
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(cube.get(key), Mapping):
            inner = differences(cube[key], value)
            if inner:
                found[key] = inner
        elif key not in cube or cube[key] != value:
            found[key] = value
    return found


def changed_keys(spec: MachineSpec) -> dict[str, dict[str, tuple[Any, Any]]]:
    """By type: the key paths below `cube` whose values differ, with the value of `cube` and the type's own."""
    base = spec.cube.model_dump(mode="json")
    dumped = {name: cube.model_dump(mode="json") for name, cube in spec.cube_types.items()}
    return {name: dict(_changed(base, own)) for name, own in dumped.items()}


def _changed(
    base: Mapping[str, Any], other: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key, value in differences(base, other).items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            yield from _changed(base[key], other[key], f"{path}{key}.")
        else:
            yield f"{path}{key}", (base.get(key), other[key])


def variants(spec: MachineSpec) -> Iterator[tuple[str, MachineSpec]]:
    """For each type, the machine all of whose cubes are of it."""
    for name, cube in spec.cube_types.items():
        yield name, spec.model_copy(update={"cube": cube, TYPES: {}})


def of_type(name: str, finding: UnplacedFault) -> UnplacedFault:
    """A finding about `cube` as one about a type."""

    def moved(key: str) -> str:
        return f"{TYPES}.{name}{key[len('cube') :]}" if key == "cube" or key.startswith("cube.") else key

    hint = re.sub(r"\bcube\.(?=[a-z_]+)", f"{TYPES}.{name}.", finding.hint)
    return UnplacedFault(
        moved(finding.key), finding.what, hint, (*(moved(use) for use in finding.uses), f"{TYPES}.{name}")
    )


def check_types(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """Names, structure, and which cubes and SIPs are of which type."""
    for name, cube in spec.cube_types.items():
        if not re.fullmatch(_NAME, name):
            yield UnplacedFault(
                f"{TYPES}.{name}", f"'{name[:60]}' is no name of a type", "use small letters, digits and _"
            )
        yield from _check_structure(name, cube, spec.cube)
    known, n = tuple(spec.cube_types), spec.sip.n_cubes
    numbers = [*_check_numbers("sip.cube_types", spec.sip.cube_types, known, "cube", n)]
    for name, sip in spec.sip_types.items():
        numbers += _check_numbers(f"sip_types.{name}.cube_types", sip.cube_types, known, "cube", n)
    numbers += _check_numbers("system.sips.types", spec.system.sips.types, tuple(spec.sip_types), "SIP", spec.n_sips)
    yield from numbers or _check_use(spec)


def _check_use(spec: MachineSpec) -> Iterator[UnplacedFault]:
    """Every type that is described is the type of something."""
    placed = {name for sip in range(spec.n_sips) for name, cubes in spec.types_of_sip(sip).items() if cubes}
    for name in spec.cube_types:
        if name not in placed:
            what = f"no cube is of the type '{name}'"
            hint = f"name its cubes, say sip.cube_types: {{ {name}: [0] }}, or delete it"
            yield UnplacedFault(f"{TYPES}.{name}", what, hint, ("sip", "sip_types", "system.sips", TYPES))
    for name in spec.sip_types:
        if not spec.system.sips.types.get(name):
            what = f"no SIP is of the type '{name}'"
            hint = f"name its SIPs, say system.sips.types: {{ {name}: [0] }}, or delete it"
            yield UnplacedFault(f"sip_types.{name}", what, hint, ("system.sips",))


def _check_structure(name: str, cube: CubeSpec, base: CubeSpec) -> Iterator[UnplacedFault]:
    fixed: tuple[tuple[str, object, object], ...] = (
        ("geometry", cube.geometry, base.geometry),
        ("pe_layout", cube.pe_layout, base.pe_layout),
        ("placement", cube.placement, base.placement),
        ("ucie.n_connections", cube.ucie.n_connections, base.ucie.n_connections),
        ("memory_map.hbm_mapping_mode", cube.memory_map.hbm_mapping_mode, base.memory_map.hbm_mapping_mode),
        (_HBM_GB, cube.has_hbm, base.has_hbm),
        ("memory_map.tcm_home_mb_per_pe", cube.tcm_home_bytes > 0, base.tcm_home_bytes > 0),
        ("pe_template.components", set(cube.pe_template.components.parts), set(base.pe_template.components.parts)),
        (_PAGE, _page_size(cube), _page_size(base)),
    )
    if base.has_channel_routers:  # which are nodes
        channels = ("memory_map.hbm_channels_per_pe", cube.hbm_channels_per_pe, base.hbm_channels_per_pe)
        fixed = (*fixed, channels)
    for key, own, common in fixed:
        if key == _HBM_GB and own != common:
            what = f"the type '{name}' has {'HBM' if own else 'no HBM'}, and cube has {'HBM' if common else 'none'}"
            hint = f"all cubes of a machine have HBM or none has: set both to 0, or both to 1 or more (cube.{_HBM_GB})"
            yield UnplacedFault(f"{TYPES}.{name}.{key}", what, hint, (f"cube.{key}",))
        elif own != common:
            what = f"the type '{name}' differs from cube in {key.rpartition('.')[2]}"
            hint = (
                f"set cube.{key}, which holds for all cubes: types have other bandwidths, costs and sizes of memories"
            )
            yield UnplacedFault(f"{TYPES}.{name}.{key}", what, hint, (f"cube.{key}",))


def _page_size(cube: CubeSpec) -> object:
    return cube.pe_template.components.pe_mmu.attrs.get("page_size")


def _check_numbers(
    key: str, given: Mapping[str, tuple[int, ...]], known: tuple[str, ...], what: str, count: int
) -> Iterator[UnplacedFault]:
    owners: dict[int, str] = {}
    uses = (key, "cube_types", "sip_types", "sip.cube_mesh", "system.sips")
    for name, numbers in given.items():
        if name not in known:
            has = f"use one of {', '.join(known)}" if known else f"describe it in {_home(what)}.{name}"
            yield UnplacedFault(
                f"{key}.{name}", f"there is no type of {what} '{name[:60]}'{closest(name, known)}", has, uses
            )
        for at, number in enumerate(numbers):
            if number >= count:
                yield UnplacedFault(
                    f"{key}.{name}[{at}]", f"there is no {what} {number}", f"use 0 to {count - 1}", uses
                )
            elif number in owners:
                twice = (
                    f"{what} {number} is listed twice"
                    if owners[number] == name
                    else (f"{what} {number} is of two types, '{owners[number]}' and '{name}'")
                )
                yield UnplacedFault(f"{key}.{name}[{at}]", twice, "list each number once", uses)
            owners.setdefault(number, name)


def _home(what: str) -> str:
    return TYPES if what == "cube" else "sip_types"
