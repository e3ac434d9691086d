"""The difference between two saved runs, in rows that sum to the change of the total.

Both critical paths are summed by class, launch, engine, link and kernel line, and rows of the same name are compared.
Lines are matched by their text, so that moved code matches; launches by name and index among launches of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernbench.common.errors import UsageError
from kernbench.report.explain.explanation import OUTSIDE, Explanation, explain
from kernbench.report.explain.headline import headline, main_scope, scope_id, scope_name
from kernbench.report.explain.path import PathScope, PathSegment, RunData
from kernbench.report.explain.verdict import verdict_of
from kernbench.report.runs.saved_run import SavedRun

SCHEMA = 2
TABLES = ("class", "launch", "engine", "link", "line")
MOST_CHANGES = 6  # listed values of a machine, or parameters


@dataclass(frozen=True, slots=True)
class DiffRow:
    """Time on the critical path of both runs; None if a run has no such row."""

    name: str
    a_ns: float | None
    b_ns: float | None

    @property
    def delta_ns(self) -> float:
        return (self.b_ns or 0.0) - (self.a_ns or 0.0)

    @property
    def only(self) -> str:
        """`A` or `B` if only that run has the row."""
        return "A" if self.b_ns is None else "B" if self.a_ns is None else ""

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "a_ns": self.a_ns, "b_ns": self.b_ns, "delta_ns": self.delta_ns, "only": self.only}


@dataclass(frozen=True)
class Difference:
    """Two runs, or a launch of each. Each table's deltas sum to `delta_ns`, exactly."""

    a: ComparedRun
    b: ComparedRun
    tables: Mapping[str, tuple[DiffRow, ...]]

    @property
    def delta_ns(self) -> float:
        return self.b.total_ns - self.a.total_ns

    def as_json(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "command": "diff",
            "a": self.a.as_json(),
            "b": self.b.as_json(),
            "delta_ns": self.delta_ns,
            "tables": {name: [row.as_json() for row in rows] for name, rows in self.tables.items()},
        }


@dataclass(frozen=True)
class ComparedRun:
    """One of the two runs, and the scope that is compared."""

    run: SavedRun
    scope: PathScope
    sentence: str

    @property
    def total_ns(self) -> float:
        return self.scope.total_ns

    @property
    def name(self) -> str:
        scope = scope_name(self.run, self.scope)
        return f"{self.run.name}, {scope}" if scope else self.run.name

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.run.id,
            "name": self.run.name,
            "scope": scope_id(self.run, self.scope),
            "launch": self.scope.launch,
            "total_ns": self.total_ns,
            "sentence": self.sentence,
        }


def diff_runs(a: SavedRun, b: SavedRun, launch: int | None = None, *, whole: bool = False) -> Difference:
    """Compare the main scopes of two runs, the whole runs, or a launch of A with the matching one of B.

    Raises UsageError if B has no such launch.
    """
    if whole:
        return difference(a, explain(a), b, explain(b))
    if launch is None:
        return difference(a, main_scope(a), b, _matching_scope(a, b))
    ours = explain(a, launch)
    return difference(a, ours, b, explain(b, same_launch(a, b, launch)))


def difference(a: SavedRun, ours: Explanation, b: SavedRun, theirs: Explanation) -> Difference:
    """Compare a scope of A with one of B."""
    tables = {}
    for name in TABLES:
        before, after = _sums(ours, name), _sums(theirs, name)
        keys = dict.fromkeys((*before, *after))
        rows = [DiffRow(key, before.get(key), after.get(key)) for key in keys]
        tables[name] = tuple(sorted(rows, key=lambda row: (-abs(row.delta_ns), row.name)))
    return Difference(_side(a, ours), _side(b, theirs), tables)


def same_launch(a: SavedRun, b: SavedRun, launch: int) -> int:
    """The launch of B that matches one of A by name and index; the only launch, if each run has one."""
    if len(a.launches) == len(b.launches) == 1:
        return 0
    name, names = launch_names(a)[launch], launch_names(b)
    if name not in names:
        raise UsageError(
            f"B has no launch '{name}'", where=str(b.path), hint="compare the whole runs, or launches of the same name"
        )
    return names.index(name)


def differences(a: SavedRun, b: SavedRun) -> list[str]:
    """The differences in bench, machine and parameters, one sentence for each."""
    ours, theirs = a.manifest, b.manifest
    notes = []
    if ours.bench != theirs.bench:
        notes.append(f"A is {ours.bench}, B is {theirs.bench}: rows are matched by name alone.")
    if ours.machine_hash != theirs.machine_hash:
        notes.append(f"The machines differ: {_changed(a.machine_values, b.machine_values)}.")
    if ours.bench == theirs.bench and ours.params != theirs.params:
        notes.append(f"Parameters: {_changed(ours.params, theirs.params)}.")
    return notes


def _changed(ours: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    """The values that differ, the first few."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    listed = [f"{name} {ours.get(name)} → {theirs.get(name)}" for name in names[:MOST_CHANGES]]
    more = len(names) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")


def _matching_scope(a: SavedRun, b: SavedRun) -> Explanation:
    """The scope of B that is compared with the main scope of A: the launch of the same name, else B's main scope."""
    if len(a.launches) == 1 and len(b.launches) > 1 and a.launches[0].name in launch_names(b):
        return explain(b, same_launch(a, b, 0))
    return main_scope(b)


def _side(run: SavedRun, explanation: Explanation) -> ComparedRun:
    is_whole = scope_id(run, explanation.scope) == "run"
    return ComparedRun(run, explanation.scope, headline(run) if is_whole else verdict_of(explanation).sentence)


def _sums(explanation: Explanation, table: str) -> dict[str, float]:
    if table == "class":
        return explanation.by_class
    if table == "engine":
        return explanation.by_lane
    if table == "link":
        return explanation.by_place
    name_of = _launch_of(explanation.run) if table == "launch" else _line_names(explanation.run)
    sums: dict[str, float] = {}
    for segment in explanation.path:
        key = name_of(segment)
        sums[key] = sums.get(key, 0.0) + segment.ns
    return sums


def launch_names(run: RunData) -> list[str]:
    """`name`, `name #2` for the second of that name."""
    names, seen = list[str](), Counter[str]()
    for launch in run.launches:
        seen[launch.name] += 1
        times = seen[launch.name]
        names.append(launch.name if times == 1 else f"{launch.name} #{times}")
    return names


def _launch_of(run: RunData) -> Callable[[PathSegment], str]:
    names = launch_names(run)
    return lambda segment: names[segment.launch] if segment.launch >= 0 else OUTSIDE


def _line_names(run: RunData) -> Callable[[PathSegment], str]:
    """The text of a line, numbered if several lines that issued ops have the same text."""
    names, seen = dict[int, str](), Counter[str]()
    for line in sorted(run.lines, key=lambda line: (line.file.name, line.number)):
        name = line.text or line.name
        seen[name] += 1
        names[line.index] = name if seen[name] == 1 else f"{name} #{seen[name]}"
    return lambda segment: names[segment.line] if segment.line >= 0 else OUTSIDE
