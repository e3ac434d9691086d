"""The settings that all points of a sweep share: function, base machine, run options and cost model.

Rows in a folder are reused only if all of these are equal: `identity` lists them, `provenance.py` describes how much of
the source it covers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from kernbench.ccl.config import load_ccl_config
from kernbench.common.version import __version__
from kernbench.sweep.points import JsonValue, plain_value
from kernbench.sweep.provenance import modules_digest, source_here
from kernbench.sweep.target import Target
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.layers import Overrides, Source, stacked
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import machine_hash

MADE_WITH = (
    "source",
    "modules",
    "simulator",
    "ccl",
    "cost",
    "version",
)  # parts of an identity that describe how, not what, was simulated
WORKER = "kernbench-sweep-worker"  # the name of processes that run points


@dataclass(frozen=True, slots=True)
class SweepContext:
    """It is sent to other processes and hosts: `machine` is the whole description, not a file name."""

    target: Target
    title: str
    machine: Mapping[str, JsonValue]
    device: str = "all"
    verify_data: bool = False
    cost: Target | None = None
    version: str = __version__
    source_here: Mapping[str, str] = field(default_factory=source_here)  # sources of the process that began the sweep

    def identity(self, values: Iterable[object] = ()) -> dict[str, str]:
        """Everything that a row depends on besides its point, by readable names. `values` are those that points set:
        the files and classes that they name are included. Raises CclConfigError for an invalid `ccl.yaml`.
        """
        cost = f"{self.cost}, {self.cost.digest()}" if self.cost is not None else "default"
        config = load_ccl_config()
        fns = [target.load() for target in (self.target, self.cost) if target is not None]
        return {
            "bench": self.title,
            "function": str(self.target),
            "source": self.target.digest(),
            "modules": modules_digest(fns, [self.machine, *values], config),
            **self.source_here,
            "machine": machine_hash(load_spec(self.machine)),
            "device": self.device,
            "verify_data": "yes" if self.verify_data else "no",
            "cost": cost,
            "version": self.version,
        }


def digest_of(identity: Mapping[str, str]) -> str:
    return sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def machine_tree(topology: Source | TopologyGraph, overrides: Overrides | None) -> dict[str, JsonValue]:
    """The whole description that a sweep starts from; raises TopologyError with every fault."""
    source = topology.spec if isinstance(topology, TopologyGraph) else topology
    load_spec(source, overrides)  # faults are found here, with their lines
    tree = plain_value(stacked(source, overrides or {}).plain(), "the machine")
    assert isinstance(tree, dict)
    return tree
