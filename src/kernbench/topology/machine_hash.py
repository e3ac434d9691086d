"""The fingerprint of a machine, sixteen hex digits. Equal checked descriptions have equal fingerprints."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from kernbench.common.address_layout import RECORD_LAYOUT
from kernbench.topology.layers import shipped
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_hbm import HbmSpec

# Blocks and keys that came later: a machine that leaves them as shipped has the fingerprint that it had before.
_LATER = ("power", "cost", "limits")
_LATER_AREA = ("um2_per_mac", "um2_per_lane", "mm2_per_gbs", "mm_per_gbs", "unattributed_share", "hbm_place", "die")
_LATER_COEFFICIENTS = (  # of far memory, routers and ports
    ("energy", "pj_per_byte", ("far",)),
    ("area", "mm2_per_gbs", ("far", "router", "tcm", "sram")),
    ("area", "mm_per_gbs", ("far",)),
)


ONE_PASS = {"exp_passes": 1, "div_passes": 1, "erf_passes": 1, "reduction": "pass", "sorting": "pass"}  # of pe_math


def machine_hash(spec: MachineSpec) -> str:
    """SHA-256 of every value of the checked description, the name included, cut to 16 hex digits."""
    return fingerprint(values_of(spec))


def fingerprint(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:16]


def values_of(spec: MachineSpec) -> dict[str, Any]:
    """The checked description without the keys that came later and are as shipped."""
    values: dict[str, Any] = spec.model_dump(mode="json")
    if not spec.fabric.control_bytes:
        del values["fabric"]["control_bytes"]  # as before requests took bandwidth
        if spec.fabric.buffers is None:
            del values["fabric"]
    if spec.address_widths == RECORD_LAYOUT.widths:
        del values["system"]["address_map"]
    elif spec.system.address_map.chiplet_bits is None:
        del values["system"]["address_map"]["chiplet_bits"]
    if spec.cube.pe_layout.rows_per_corner == 1:
        del values["cube"]["pe_layout"]["rows_per_corner"]
    for cube in (values["cube"], *values["cube_types"].values()):
        if not cube["memory_map"]["tcm_home_mb_per_pe"]:  # as before tensors could be at home in TCM
            del cube["memory_map"]["tcm_home_mb_per_pe"]
    if spec.hbm == HbmSpec():
        del values["hbm"]  # as before there were models of memory
    as_shipped: Any = shipped().plain()
    for block in _LATER:
        if values[block] == as_shipped[block]:
            del values[block]
    for key in _LATER_AREA:
        if values["area"][key] == as_shipped["area"][key]:
            del values["area"][key]
    if values["area"].get("hbm_place") == "stacked" and spec.sip.hbm_stacks is None:
        del values["area"]["hbm_place"]  # what is shipped, in words
    if spec.system.sips.links is None:
        del values["system"]["sips"]["links"]  # as before there were direct links
    for link in (*values["system"]["links"].values(), values["sip"]["links"]["cube_to_cube"]):
        if link["payload_bytes"] is None:  # as before there were packets
            del link["header_bytes"], link["payload_bytes"]
    if spec.sip.cube_mesh.wrap == "none":  # as before there were rings of cubes
        del values["sip"]["cube_mesh"]["wrap"], values["sip"]["links"]["wrap"]
    for part, key in ((values, "cube_types"), (values, "sip_types"), (values["sip"], "cube_types")):
        if not part[key]:  # as before there were types of cubes
            del part[key]
    if spec.sip.hbm_stacks is None:
        del values["sip"]["hbm_stacks"]  # as before there were stacks
    for block, group, names in _LATER_COEFFICIENTS:
        given = values.get(block, {}).get(group, {})
        for name in names:
            if given.get(name, 0.0) is None:
                del given[name]
    for block, key in (("power", "far_w_per_gb"), ("cost", "far_usd_per_gb")):
        if values.get(block, {}).get(key, 0.0) is None:
            del values[block][key]
    if spec.system.far_memory is None:
        del values["system"]["far_memory"]  # as before there was far memory
    if not spec.system.switch_levels:
        del values["system"]["switch_levels"]  # as before there were levels of switches
    if not spec.system.sips.types:
        del values["system"]["sips"]["types"]
    attrs = values["cube"]["pe_template"]["components"]["pe_math"]["attrs"]
    for name, default in ONE_PASS.items():
        if attrs.get(name) == default:
            del attrs[name]  # as before functions had costs
    return values
