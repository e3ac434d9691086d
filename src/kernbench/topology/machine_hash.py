"""The fingerprint of a machine, sixteen hex digits. Equal checked descriptions have equal fingerprints."""

from __future__ import annotations

import json
from hashlib import sha256

from kernbench.topology.spec import MachineSpec


def machine_hash(spec: MachineSpec) -> str:
    """SHA-256 of every value of the checked description, the name included, cut to 16 hex digits."""
    values = spec.model_dump(mode="json")
    if spec.fabric.buffers is None:
        del values["fabric"]  # as before there were buffers
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:16]
