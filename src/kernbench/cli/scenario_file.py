"""A scenario as a YAML file: workloads of `llm-layer` with weights.

    name: chat
    workloads:
      - { name: prompt, model: llama3-8b, phase: prefill, tokens: 2048, weight: 0.4 }
      - { name: answer, model: llama3-8b, phase: decode, batch: 16, context: 2048, weight: 0.6 }

Keys of a workload are parameters of the bench, and `name` and `weight`: its share of all tokens. Faults are reported
with their line, before anything runs: models that are not there, and what no machine can do.
"""

from __future__ import annotations

import os
from math import isfinite
from pathlib import Path
from typing import Any

from kernbench.benches._layer_work import layer_work
from kernbench.benches._params import read_params
from kernbench.benches.registry import BenchSpec
from kernbench.common.errors import UsageError
from kernbench.common.nearest import nearest
from kernbench.sweep.scenario import Scenario, Workload
from kernbench.topology.yaml_file import read_yaml
from kernbench.topology.yaml_marks import Marked

BENCH = "llm-layer"
EXAMPLE = "workloads: [{ name: prompt, model: llama3-8b, phase: prefill, tokens: 2048, weight: 0.4 }]"
OWN = ("name", "weight")


def read_scenario(name: str, bench: BenchSpec) -> Scenario:
    """The scenario that a file describes; raises UsageError or TopologyError for what cannot be read."""
    root = read_yaml(name, "scenario")
    if not isinstance(root.value, dict) or "workloads" not in root.value:
        raise UsageError("the file has no workloads", where=name, hint=f"write {EXAMPLE}")
    for key, node in root.value.items():
        if key not in ("name", "workloads"):
            raise _wrong(node, f"unknown key '{key[:40]}'", "a scenario has name and workloads")
    listed = root.value["workloads"]
    if not isinstance(listed.value, list) or not listed.value:
        raise _wrong(listed, "workloads is no list", f"write {EXAMPLE}")
    found: list[Workload] = []
    for node in listed.value:
        workload = _workload(node, bench, len(found))
        if workload.name in [each.name for each in found]:
            raise _wrong(node, f"two workloads are named '{workload.name}'", "give each a name of its own")
        if workload.params in [each.params for each in found]:
            raise _wrong(node, f"workload '{workload.name}' is one that was listed", "add their weights instead")
        found.append(workload)
    title = root.value.get("name")
    return Scenario(Path(name).stem if title is None else str(title.value), tuple(found))


def _workload(node: Marked, bench: BenchSpec, number: int) -> Workload:
    if not isinstance(node.value, dict):
        raise _wrong(node, "a workload has no keys and values", f"write {EXAMPLE}")
    known = [param.name for param in bench.params]
    settings: list[str] = []
    for key, value in node.value.items():
        if key in OWN:
            continue
        if key not in known:
            close = nearest(key, (*OWN, *known))
            suggestion = f"; did you mean '{close}'?" if close else ""
            raise _wrong(value, f"unknown key '{key[:40]}'{suggestion}", f"use {', '.join((*OWN, *known))}")
        settings.append(f"{key}={str(value.value).lower() if isinstance(value.value, bool) else value.value}")
    name = node.value["name"].value if "name" in node.value else f"workload{number}"
    weight = node.value["weight"].value if "weight" in node.value else 1.0
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not isfinite(weight) or weight <= 0:
        raise _wrong(node.value["weight"], f"weight is {weight!r}", "give the share of tokens, a number above 0")
    try:
        params: dict[str, Any] = dict(read_params(bench.params, settings, os.environ))
        layer_work(**params)
    except UsageError as error:
        raise UsageError(error.what, where=f"{node.mark}  {error.where or ''}".rstrip(), hint=error.hint) from None
    return Workload(str(name), params, float(weight))


def _wrong(node: Marked, what: str, hint: str) -> UsageError:
    return UsageError(what, where=str(node.mark), hint=hint)
