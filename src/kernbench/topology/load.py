"""Loads a machine description (a file, a mapping, or the shipped machine) as a checked spec, or reports every fault.

Values are checked one by one first (`spec.py`), then against each other (`check.py`). A value that is invalid on its
own is replaced by the shipped machine's, so that the rest can still be checked; findings that depend on a replaced
value are dropped.
"""

from __future__ import annotations

import copy

from kernbench.common.errors import Fault, TopologyError
from kernbench.topology.check import check_machine
from kernbench.topology.check_network import check_network
from kernbench.topology.cube_types import TYPES
from kernbench.topology.far_memory import check_far_place
from kernbench.topology.faults import UnplacedFault, findings_of, key_loc
from kernbench.topology.layers import SHIPPED_FILE, Overrides, Source, network_tree, shipped, stacked
from kernbench.topology.record import Loc, RecordError
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_network import NetworkDescription
from kernbench.topology.yaml_marks import Marked, SourceMark

_FAR: Loc = ("system", "far_memory")


def load_spec(source: Source = None, overrides: Overrides | None = None) -> MachineSpec:
    """The checked spec of a file, a spec, a mapping or (None) the shipped machine, with `overrides` on top.

    `overrides` maps key paths to values or YAML text: {"system.sips.count": 4}. Raises TopologyError with every fault.
    """
    if isinstance(source, MachineSpec) and not overrides:
        check_spec(source)
        return source
    return _validated(stacked(source, overrides or {}))


def load_network(source: Source, overrides: Overrides | None = None) -> NetworkDescription | None:
    """The checked description of a plain network; None where the source describes a machine."""
    tree = network_tree(source, overrides or {})
    if tree is None:
        return None
    try:
        description = NetworkDescription.model_validate(tree.plain())
    except RecordError as error:
        found = findings_of(error, NetworkDescription)
        raise TopologyError([finding.fault(tree) for _, finding in found]) from None
    findings = check_network(description)
    if findings:
        raise TopologyError([finding.fault(tree) for finding in findings])
    return description


def check_spec(spec: MachineSpec) -> None:
    """Raise TopologyError if the values of a spec are inconsistent."""
    found = check_machine(spec)
    if found:
        raise TopologyError([finding.fault(Marked({}, SourceMark("the machine's spec"))) for finding in found])


def _validated(tree: Marked) -> MachineSpec:
    plain = tree.plain()
    spec: MachineSpec | None
    wrong: list[tuple[Loc, UnplacedFault]] = []
    replaced: list[Loc] = []
    try:
        spec = MachineSpec.model_validate(plain)
    except RecordError as error:
        wrong = findings_of(error)
        spec, replaced = _patched(plain, [loc for loc, _ in wrong])
    findings = [finding for _, finding in wrong]
    if spec is not None:
        findings += [finding for finding in check_machine(spec) if not _depends_on(finding, replaced)]
        if _FAR in replaced and isinstance(far := _at(plain, _FAR), dict):  # incomplete, and not in the spec
            findings += check_far_place(far.get("at"), spec.system)
    if findings or spec is None:
        raise TopologyError(_once([finding.fault(tree, SHIPPED_FILE) for finding in findings]))
    return spec


def _at(plain: object, loc: Loc) -> object:
    """The value at a place of a description, None where there is none."""
    for part in loc:
        plain = plain.get(part) if isinstance(plain, dict) else None
    return plain


def _once(faults: list[Fault]) -> list[Fault]:
    """Without the faults that types of cubes inherit from `cube`: the same words about the same line."""
    known = {(fault.what, fault.where) for fault in faults if not fault.key.startswith(f"{TYPES}.")}
    return [
        fault for fault in faults if not fault.key.startswith(f"{TYPES}.") or (fault.what, fault.where) not in known
    ]


def _patched(plain: object, locs: list[Loc]) -> tuple[MachineSpec | None, list[Loc]]:
    """The machine with shipped values in place of the invalid ones, and the places that were replaced."""
    patched, sound = copy.deepcopy(plain), shipped().plain()
    replaced = [loc[: _replace(patched, sound, loc)] for loc in locs]
    try:
        return MachineSpec.model_validate(patched), replaced
    except RecordError:
        return None, replaced


def _replace(here: object, there: object, loc: Loc) -> int:
    """Replace the value at `loc` by the shipped one, or delete it if there is none; returns the depth of the change.

    An entry of a list takes the shipped list's entry of the same index, or its last entry.
    """
    for depth, part in enumerate(loc, 1):
        at_end = depth == len(loc)
        if isinstance(here, dict) and isinstance(there, dict):
            if part not in there:
                here.pop(part, None)
                return depth
            ours, sound = here.get(part), there[part]
            if at_end or type(ours) is not type(sound):
                here[part] = copy.deepcopy(sound)
                return depth
        elif isinstance(here, list) and isinstance(there, list) and isinstance(part, int) and there:
            ours, sound = here[part], there[min(part, len(there) - 1)]
            if at_end or type(ours) is not type(sound):
                here[part] = copy.deepcopy(sound)
                return depth
        else:
            return depth - 1
        here, there = ours, sound
    return len(loc)


def _depends_on(finding: UnplacedFault, replaced: list[Loc]) -> bool:
    """Whether a finding depends on a value that was replaced."""
    for key in (finding.key, *finding.uses):
        loc = key_loc(key)
        for other in replaced:
            n = min(len(loc), len(other))
            if loc[:n] == other[:n]:
                return True
    return False
