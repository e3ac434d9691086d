"""Results: a folder of a sweep or an evaluation as one table."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.common.plain_json import parse_json
from kernbench.common.regular_files import is_regular, read_regular
from kernbench.web.machine_map import Json

RESULTS_FILES = ("results.json", "sweep.json")
_MOST_ROWS = 20_000
_MOST_FIGURES = 24
_SETTING = "machine:"  # prefix of a machine value that an evaluation set


class ResultsView:
    """A folder with `results.json`; raises UsageError when it cannot be read as a table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = _read(path)
        self.id = sha256(json.dumps(self.data, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        return str(self.data.get("title") or self.data.get("bench") or self.data.get("name") or self.path.name)

    @property
    def figures(self) -> list[str]:
        """The names of its pictures, in the order of the evaluation."""
        found = sorted(file.name for file in self.path.glob("*.svg") if is_regular(file))
        return found[:_MOST_FIGURES]

    def figure(self, name: str) -> bytes | None:
        """A picture of the folder; None if it has none of that name."""
        return read_regular(self.path / name) if name in self.figures else None

    def _figures_json(self) -> list[Json]:
        return [
            {"name": name, "title": _title(self.path / f"{name.removesuffix('.svg')}.md", name)}
            for name in self.figures
        ]

    def listed(self) -> Json:
        rows = self.data["rows"]
        return {
            "id": self.id,
            "name": self.title,
            "dir": str(self.path),
            "kind": "results",
            "bench": self.data.get("bench"),
            "command": self.data.get("command"),
            "machine": self.data.get("topology") or _name(self.data.get("machine")),
            "description": self.data.get("description"),
            "rows": len(rows),
            "ok": not any(row.get("ok") is False for row in rows),
            "error": None,
        }

    def as_json(self) -> Json:
        """Flat rows in the order of the file, and the names of their columns."""
        rows = [_flat(row) for row in self.data["rows"]]
        columns: dict[str, None] = {}
        for row in rows:
            columns.update(dict.fromkeys(row))
        settings = [c for c in columns if c.startswith(("params.", "machine.", "machine:"))]
        return {
            "schema": 1,
            **self.listed(),
            "columns": list(columns),
            "settings": settings,
            "objectives": self.data.get("objectives", []),
            "front": self.data.get("front", []),
            "best": self.data.get("best", []),
            "base": self._base(),
            "table": rows,
            "figures": self._figures_json(),
        }

    def _base(self) -> list[Any]:
        """Points on the base machine of the sweep, if it also used others."""
        rows, machine = self.data["rows"], self.data.get("machine")
        if len({row.get("machine_hash") for row in rows}) < 2:
            return []
        if isinstance(machine, dict):
            as_given = _as_given(rows, machine)
            return [row.get("point") for row in rows if row.get("machine_hash") in as_given]
        return [row.get("point") for row in rows if row.get("machine_hash") == machine]


def _title(text: Path, name: str) -> str:
    """The heading of a figure's text, or its name."""
    try:
        first = read_regular(text).decode("utf-8", "replace").partition("\n")[0] if is_regular(text) else ""
    except (OSError, UsageError):
        first = ""
    return first.removeprefix("# ").strip() or name.removesuffix(".svg")


def _as_given(rows: list[dict[str, Any]], machine: dict[str, Any]) -> list[Any]:
    """Hashes of machines that differ from the given one only in values that all rows set."""
    settings = [{name: value for name, value in row.items() if name.startswith(_SETTING)} for row in rows]
    common = [(name, value) for name, value in settings[0].items() if all(own.get(name) == value for own in settings)]
    return [
        row.get("machine_hash")
        for row, own in zip(rows, settings, strict=True)
        if all((name, value) in common or _at(machine, name) == value for name, value in own.items())
    ]


def _at(machine: Any, name: str) -> Any:
    """The value that a machine has for `machine:cube.ucie.n_connections`."""
    for part in name.removeprefix(_SETTING).split("."):
        machine = machine.get(part) if isinstance(machine, dict) else None
    return machine


def _name(machine: object) -> str | None:
    """A machine given by name or hash; an evaluation stores the whole description instead."""
    return machine if isinstance(machine, str) else None


def _read(path: Path) -> dict[str, Any]:
    file = path / "results.json"
    if not file.is_file():
        raise UsageError(
            "the sweep has no results.json yet", where=str(path), hint="let it end, or run the same command again"
        )
    try:
        data = parse_json(read_regular(file))
    except (OSError, ValueError) as error:
        raise UsageError(f"results.json cannot be read: {error}", where=str(path), hint="run it again") from error
    rows = data.get("rows") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError("results.json has no rows", where=str(path), hint="name a folder of a sweep or an evaluation")
    return {**data, "rows": rows[:_MOST_ROWS]}


def _flat(row: dict[str, Any], under: str = "") -> Json:
    """Nested values by dotted names: `params.m`; lists as text."""
    found: Json = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found.update(_flat(value, f"{under}{name}."))
        else:
            found[f"{under}{name}"] = value if not isinstance(value, list) else json.dumps(value)
    return found
