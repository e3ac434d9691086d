"""What changed between two saved runs, and where: rows that sum to the change of the total.

Both critical paths are cut by class, launch, engine, link and kernel line, and rows of the same name are compared.
Lines go by their text, so that code that only moved is the same; launches by name and number of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernbench.report.explain.explanation import Explanation, explain
from kernbench.report.explain.headline import headline
from kernbench.report.explain.path import Piece, RunData
from kernbench.report.runs.saved_run import SavedRun

SCHEMA = 1
OUTSIDE = "outside kernels"
TABLES = ("class", "launch", "engine", "link", "line")


@dataclass(frozen=True, slots=True)
class Row:
    """ns of the critical path; None where a run has no such row."""

    name: str
    a_ns: float | None
    b_ns: float | None

    @property
    def delta_ns(self) -> float:
        return (self.b_ns or 0.0) - (self.a_ns or 0.0)

    @property
    def only(self) -> str:
        """`A` or `B` where only one run has it."""
        return "A" if self.b_ns is None else "B" if self.a_ns is None else ""

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "a_ns": self.a_ns, "b_ns": self.b_ns, "delta_ns": self.delta_ns, "only": self.only}


@dataclass(frozen=True)
class Difference:
    """Two runs. Each table's deltas sum to `delta_ns`, exactly."""

    a: SavedRun
    b: SavedRun
    sentence_a: str
    sentence_b: str
    tables: Mapping[str, tuple[Row, ...]]

    @property
    def delta_ns(self) -> float:
        return self.b.total_ns - self.a.total_ns

    def as_json(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "command": "diff",
            "a": _about(self.a, self.sentence_a),
            "b": _about(self.b, self.sentence_b),
            "delta_ns": self.delta_ns,
            "tables": {name: [row.as_json() for row in rows] for name, rows in self.tables.items()},
        }


def _about(run: SavedRun, sentence: str) -> dict[str, object]:
    return {"id": run.id, "name": run.name, "total_ns": run.total_ns, "sentence": sentence}


def diff_runs(a: SavedRun, b: SavedRun) -> Difference:
    """Compare two runs."""
    ours, theirs = explain(a), explain(b)
    tables = {}
    for name in TABLES:
        before, after = _sums(ours, name), _sums(theirs, name)
        keys = dict.fromkeys((*before, *after))
        rows = [Row(key, before.get(key), after.get(key)) for key in keys]
        tables[name] = tuple(sorted(rows, key=lambda row: (-abs(row.delta_ns), row.name)))
    return Difference(a, b, headline(a), headline(b), tables)


def _sums(explanation: Explanation, table: str) -> dict[str, float]:
    if table == "class":
        return explanation.by_class
    if table == "engine":
        return explanation.by_lane
    if table == "link":
        return explanation.by_place
    name_of = _launch_names(explanation.run) if table == "launch" else _line_names(explanation.run)
    sums: dict[str, float] = {}
    for piece in explanation.path:
        key = name_of(piece)
        sums[key] = sums.get(key, 0.0) + piece.ns
    return sums


def _launch_names(run: RunData) -> Callable[[Piece], str]:
    """`name`, `name #2` for the second of that name."""
    names, seen = list[str](), Counter[str]()
    for launch in run.launches:
        seen[launch.name] += 1
        times = seen[launch.name]
        names.append(launch.name if times == 1 else f"{launch.name} #{times}")
    return lambda piece: names[piece.launch] if piece.launch >= 0 else OUTSIDE


def _line_names(run: RunData) -> Callable[[Piece], str]:
    """Its text, with a number where several lines that issued ops have the same."""
    names, seen = dict[int, str](), Counter[str]()
    for line in sorted(run.lines, key=lambda line: (line.file.name, line.number)):
        name = line.text or line.name
        seen[name] += 1
        names[line.index] = name if seen[name] == 1 else f"{name} #{seen[name]}"
    return lambda piece: names[piece.line] if piece.line >= 0 else OUTSIDE
