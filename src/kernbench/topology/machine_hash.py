"""The fingerprint of a machine, sixteen hex digits. Equal checked descriptions have equal fingerprints."""

from __future__ import annotations

import json
from hashlib import sha256

from kernbench.common.address_layout import RECORD_LAYOUT
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_hbm import HbmSpec


def machine_hash(spec: MachineSpec) -> str:
    """SHA-256 of every value of the checked description, the name included, cut to 16 hex digits."""
    values = spec.model_dump(mode="json")
    if spec.fabric.buffers is None:
        del values["fabric"]  # as before there were buffers
    if spec.address_widths == RECORD_LAYOUT.widths:
        del values["system"]["address_map"]  # as before other widths were possible
    if spec.cube.pe_layout.rows_per_corner == 1:
        del values["cube"]["pe_layout"]["rows_per_corner"]
    if spec.hbm == HbmSpec():
        del values["hbm"]  # as before there were models of memory
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:16]
