"""What all points of a sweep share: the function, the machine they change, how they are run and what they cost.

Rows are reused from a folder only when all of it is the same: `identity` says what "all" is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from kernbench.common.version import __version__
from kernbench.sweep.points import Value, plain_value
from kernbench.sweep.target import Target
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.layers import Overrides, Source, stacked
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import machine_hash

WORKER = "kernbench-sweep-worker"  # the name of processes that run points


@dataclass(frozen=True, slots=True)
class SweepContext:
    """It travels to other processes and other computers: `machine` is the whole description, not the name of a file."""

    target: Target
    title: str
    machine: Mapping[str, Value]
    device: str = "all"
    verify_data: bool = False
    cost: Target | None = None
    version: str = __version__

    def identity(self) -> dict[str, str]:
        """What a row depends on besides its point, by names that a person knows."""
        cost = f"{self.cost}, {self.cost.digest()}" if self.cost is not None else "default"
        return {
            "bench": self.title,
            "function": str(self.target),
            "source": self.target.digest(),
            "machine": machine_hash(load_spec(self.machine)),
            "device": self.device,
            "verify_data": "yes" if self.verify_data else "no",
            "cost": cost,
            "version": self.version,
        }


def digest_of(identity: Mapping[str, str]) -> str:
    return sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def machine_tree(topology: Source | TopologyGraph, overrides: Overrides | None) -> dict[str, Value]:
    """The whole description that a sweep starts from; raises TopologyError with every fault."""
    source = topology.spec if isinstance(topology, TopologyGraph) else topology
    load_spec(source, overrides)  # faults are found here, with their lines
    tree = plain_value(stacked(source, overrides or {}).plain(), "the machine")
    assert isinstance(tree, dict)
    return tree
