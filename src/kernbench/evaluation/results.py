"""An evaluation on disk: `results.json` with all the data of the figures, `results.csv`, figures, captions.

The results file contains the whole machine, so figures and report can be made again from it alone. It contains no time
stamp and no path: equal evaluations write equal bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.common.plain_json import parse_json
from kernbench.common.regular_files import read_regular
from kernbench.evaluation.contract import Row
from kernbench.report.chart_drawing import draw_chart
from kernbench.report.charts import Chart
from kernbench.sweep.folder import write_atomically
from kernbench.sweep.points import JsonValue
from kernbench.sweep.results import table_as_csv
from kernbench.sweep.rows import FIXED, SweepRow, param_column
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

SCHEMA = 1
COMMAND = "evaluation"
JSON, CSV = "results.json", "results.csv"
NOT_SHOWN = ("ok", "wrong", "fits", "made_with")  # columns of a sweep's row; `error` covers the first two
_KINDS = dict.fromkeys(("bench", "description", "version", "topology", "topology_hash"), str) | {
    "parameters": dict, "machine": dict, "facts": list, "rows": list,
}  # fmt: skip
_FIGURE = re.compile(r"\d\d-[a-z0-9-]+\.(svg|png|md)")


@dataclass(frozen=True, slots=True)
class EvaluationResults:
    """What `results.json` holds. `machine` is the whole description that the points started from."""

    bench: str
    description: str
    version: str
    topology: str
    topology_hash: str
    parameters: Mapping[str, JsonValue]
    machine: Mapping[str, JsonValue]
    facts: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.get("error") is not None]

    def graph(self) -> TopologyGraph:
        """The machine, compiled."""
        return load_topology(self.machine)

    def as_json(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "command": COMMAND,
            "bench": self.bench,
            "description": self.description,
            "version": self.version,
            "topology": self.topology,
            "topology_hash": self.topology_hash,
            "parameters": dict(self.parameters),
            "facts": list(self.facts),
            "machine": dict(self.machine),
            "rows": [dict(row) for row in self.rows],
        }

    def origin(self) -> str:
        """The provenance of the results, in one line."""
        settings = "".join(f" {name}={value}" for name, value in self.parameters.items())
        return (
            f"kernbench {self.version}, bench {self.bench}{settings and ' with' + settings}, "
            f"machine {self.topology} ({self.topology_hash})"
        )


def flat_row(row: SweepRow) -> dict[str, JsonValue]:
    """A point's settings and figures by name; raises UsageError where `point` returns a name that every row has."""
    figures: dict[str, JsonValue] = {name: getattr(row, name) for name in FIXED if name not in NOT_SHOWN}
    settings = {param_column(name): value for name, value in row.params.items()}
    settings |= {f"machine:{key}": value for key, value in row.machine.items()}
    taken = [name for name in row.returned if name in figures or name in settings]
    if taken:
        raise UsageError(f"a point returned '{taken[0]}', which its row has already", hint="rename it")
    error: dict[str, JsonValue] = {} if row.error is None and row.ok else {"error": row.error or "failed"}
    return {"point": row.point, **settings, **figures, **row.returned, **error}


def write_results(folder: Path, results: EvaluationResults) -> list[Path]:
    """Write both tables, each atomically."""
    columns = list(dict.fromkeys(name for row in results.rows for name in row))
    write_atomically(folder / CSV, table_as_csv(columns, results.rows))
    write_atomically(folder / JSON, results_text(results).encode())  # written last: if it exists, the CSV does too
    return [folder / JSON, folder / CSV]


def results_text(results: EvaluationResults) -> str:
    """The text of the results file: one line per row, so that differences are readable."""
    data = results.as_json()
    rows = data.pop("rows")
    assert isinstance(rows, list)
    head = json.dumps(data, indent=1, allow_nan=False)
    lines = ",\n".join("  " + json.dumps(row, allow_nan=False) for row in rows)
    return f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'


def read_results(folder: Path) -> EvaluationResults:
    """The results of a folder; raises UsageError when there are none."""
    file = folder / JSON
    try:
        data: dict[str, Any] = parse_json(read_regular(file))
        if data["command"] != COMMAND or data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']} of '{data['command']}'")
        for name, kind in _KINDS.items():
            if not isinstance(data[name], kind):
                raise ValueError(f"{name} is {type(data[name]).__name__}, not {kind.__name__}")
        if not all(isinstance(row, dict) for row in data["rows"]):
            raise ValueError("a row is no object")
        named = {name: data[name] for name in _KINDS}
        return EvaluationResults(**{**named, "facts": tuple(data["facts"]), "rows": tuple(data["rows"])})
    except FileNotFoundError:
        raise UsageError(
            f"no {JSON} in this folder", where=str(folder), hint="run the evaluation first: kernbench run --bench NAME"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"not the results of an evaluation: {error}", where=str(file), hint="run it again, into another folder"
        ) from None


def draw_figures(folder: Path, results: EvaluationResults, charts: Sequence[Chart]) -> list[Path]:
    """Every chart as SVG and PNG with its caption, in place of those that were there."""
    made: list[Path] = []
    for at, chart in enumerate(charts, 1):
        stem = f"{at:02}-{chart.name}"
        part = folder / f".{stem}.part"
        for file in draw_chart(chart, part):
            made.append(file.replace(folder / f"{stem}{file.suffix}"))
        cited = "".join(f"Reference point, {each.cited()}\n\n" for each in chart.references)
        caption = f"# {chart.title}\n\n{chart.caption}\n\n{cited}Made from results.json: {results.origin()}.\n"
        write_atomically(folder / f"{stem}.md", caption.encode())
        made.append(folder / f"{stem}.md")
    for file in folder.iterdir():
        if _FIGURE.fullmatch(file.name) and file not in made:
            file.unlink()
    return made


def figure_stems(folder: Path) -> list[Path]:
    """The figures of a folder in order, without suffix."""
    found = sorted(file for file in folder.glob("*.svg") if _FIGURE.fullmatch(file.name))
    return [file.with_suffix("") for file in found]
