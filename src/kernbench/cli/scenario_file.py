"""A scenario as a YAML file: workloads of `llm-layer` with weights.

    name: chat
    workloads:
      - { name: prompt, model: llama3-8b, phase: prefill, tokens: 2048, weight: 0.4 }
      - { name: answer, model: llama3-8b, phase: decode, batch: 16, context: 2048, weight: 0.6 }

Keys of a workload are parameters of the bench, and `name` and `weight`: its share of all tokens. All faults are
reported with their line, before anything runs: models that are not there, and what no machine can do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from kernbench.benches._layer_work import layer_work
from kernbench.benches._params import read_params
from kernbench.benches.registry import BenchSpec
from kernbench.common.errors import Fault, ScenarioError, UsageError
from kernbench.common.nearest import nearest
from kernbench.sweep.scenario import Scenario, Workload
from kernbench.topology.yaml_file import read_yaml
from kernbench.topology.yaml_marks import Marked

BENCH = "llm-layer"
EXAMPLE = "workloads: [{ name: prompt, model: llama3-8b, phase: prefill, tokens: 2048, weight: 0.4 }]"
KEYS, OWN = ("name", "workloads"), ("name", "weight")


def read_scenario(name: str, bench: BenchSpec) -> Scenario:
    """The scenario that a file describes; raises UsageError, TopologyError or ScenarioError for what cannot be read."""
    root = read_yaml(name, "scenario", EXAMPLE)
    if not isinstance(root.value, dict):
        raise UsageError("the file has no workloads", where=name, hint=f"write {EXAMPLE}")
    faults = [
        _unknown(node, key, KEYS, "a scenario has name and workloads")
        for key, node in root.value.items()
        if key not in KEYS
    ]
    listed = root.value.get("workloads")
    if listed is None:
        if not any(nearest(key, KEYS) == "workloads" for key in root.value):
            faults.append(Fault("the file has no workloads", name, "", f"write {EXAMPLE}"))
    elif not isinstance(listed.value, list) or not listed.value:
        faults.append(_fault(listed, "workloads is no list", f"write {EXAMPLE}"))
    else:
        found = [_workload(node, bench, number, faults) for number, node in enumerate(listed.value)]
        known = [workload for workload in found if workload is not None]
        faults += _repeated(list(zip(listed.value, found, strict=True)))
    if faults:
        raise ScenarioError(sorted(faults, key=_line))
    title = root.value.get("name")
    return Scenario(Path(name).stem if title is None else str(title.value), tuple(known))


def _line(fault: Fault) -> int:
    line = fault.where.rpartition(":")[2].split()[0]
    return int(line) if line.isdecimal() else 0


def _repeated(found: Sequence[tuple[Marked, Workload | None]]) -> Iterator[Fault]:
    """Workloads of one name, or with the parameters of another one."""
    earlier: list[Workload] = []
    for node, workload in found:
        if workload is None:
            continue
        if workload.name in [each.name for each in earlier]:
            yield _fault(node, f"two workloads are named '{workload.name}'", "give each a name of its own")
        elif workload.params in [each.params for each in earlier]:
            yield _fault(node, f"workload '{workload.name}' is one that was listed", "add their weights instead")
        earlier.append(workload)


def _workload(node: Marked, bench: BenchSpec, number: int, faults: list[Fault]) -> Workload | None:
    """A workload, or None where something is wrong with it, which is added to `faults`."""
    if not isinstance(node.value, dict):
        faults.append(_fault(node, "a workload has no keys and values", f"write {EXAMPLE}"))
        return None
    known, before = (*OWN, *(param.name for param in bench.params)), len(faults)
    settings: list[str] = []
    for key, value in node.value.items():
        if key not in known:
            faults.append(_unknown(value, key, known, f"use {', '.join(known)}"))
        elif key not in OWN:
            settings.append(f"{key}={str(value.value).lower() if isinstance(value.value, bool) else value.value}")
    name = node.value["name"].value if "name" in node.value else f"workload{number}"
    weight = node.value["weight"].value if "weight" in node.value else 1.0
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not isfinite(weight) or weight <= 0:
        hint = "give the share of tokens, a number above 0"
        faults.append(_fault(node.value["weight"], f"weight is {weight!r}", hint))
    try:
        params: dict[str, Any] = dict(read_params(bench.params, settings, os.environ))
        layer_work(**params)
    except UsageError as error:
        faults.append(Fault(error.what, str(node.mark), error.where or "", error.hint or "see kernbench list"))
    if len(faults) > before or not isinstance(weight, int | float):
        return None
    return Workload(str(name), params, float(weight))


def _unknown(node: Marked, key: str, known: Sequence[str], hint: str) -> Fault:
    close = nearest(key, known)
    suggestion = f"; did you mean '{close}'?" if close else ""
    return _fault(node, f"unknown key '{key[:40]}'{suggestion}", hint)


def _fault(node: Marked, what: str, hint: str) -> Fault:
    return Fault(what, str(node.mark), "", hint)
