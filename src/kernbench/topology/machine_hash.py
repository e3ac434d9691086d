"""A machine in sixteen hex digits: equal for equal descriptions, however they were put together."""

from __future__ import annotations

import json
from hashlib import sha256

from kernbench.topology.spec import MachineSpec


def machine_hash(spec: MachineSpec) -> str:
    """Of every value of the checked description; its name is one of them."""
    text = json.dumps(spec.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:16]
