"""What-if estimates of a run beside their measurements: runs of the same program that were saved beside it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kernbench.common.errors import KernBenchError
from kernbench.report.explain.explanation import Explanation, explain
from kernbench.report.explain.headline import main_scope, scope_id
from kernbench.report.explain.what_if import WhatIf, free_folder, machine_with, targets_of, what_ifs
from kernbench.report.runs.layout import MANIFEST
from kernbench.report.runs.saved_run import SavedRun, open_run


class EstimatedAndMeasured(NamedTuple):
    """A free component: the estimate, and how long the scope took in a run with it; None if there is none."""

    estimated: WhatIf
    measured_ns: float | None


def with_measurements(run: SavedRun, explanation: Explanation) -> list[EstimatedAndMeasured]:
    """All components that would gain, or that were measured, the largest gain first. A folder `RUN-free` beside the run
    has its measurements, as `kernbench web` and `kernbench explain --what-if --save` write them.
    """
    beside = free_folder(run.path)
    folders = sorted(path for path in beside.iterdir() if (path / MANIFEST).is_file()) if beside.is_dir() else []
    by_machine = {one.manifest.machine_hash: one for one in map(_opened, folders) if one is not None}
    found = []
    for one in what_ifs(run, explanation, targets_of(run.graph.spec)):
        other = by_machine.get(machine_with(run, one.settings)) if by_machine else None
        measured = _same_scope_ns(run, explanation, other) if other and is_alike(other, run) else None
        if one.gain_ns > 0 or measured is not None:
            found.append(EstimatedAndMeasured(one, measured))
    return sorted(found, key=lambda row: (-row.estimated.gain_ns, row.estimated.name))


def is_alike(one: SavedRun, other: SavedRun) -> bool:
    """The same program on another machine: the same bench and parameters, and kernels of the same text."""
    return _program(one) == _program(other)


def _program(run: SavedRun) -> tuple[object, ...]:
    about = run.manifest
    return about.bench, about.params, about.device, [(file.name, file.text) for file in run.sources]


def _opened(folder: Path) -> SavedRun | None:
    """A run; None for a folder that cannot be read."""
    try:
        return open_run(folder)
    except KernBenchError:
        return None


def _same_scope_ns(run: SavedRun, explanation: Explanation, other: SavedRun) -> float | None:
    """How long the scope of an explanation takes in another run."""
    scope = explanation.scope
    if scope_id(run, scope) == "run":
        return other.total_ns
    if len(other.launches) != len(run.launches):
        return None
    found = main_scope(other) if scope.launch < 0 else explain(other, scope.launch)
    return found.scope.total_ns
