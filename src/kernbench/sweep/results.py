"""The result files of a sweep: `results.json`, `results.csv`, and `results.parquet` where pyarrow is installed; of
benches that return tables, also `tables.csv` and `tables.parquet`, with a line for each row of those.

Rows are in order of their points, regardless of worker and time: the same sweep gives the same bytes. Each file is
replaced as a whole.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernbench.sweep.folder import SCHEMA, write_atomically
from kernbench.sweep.objectives import Objective
from kernbench.sweep.points import JsonValue
from kernbench.sweep.rows import SweepRow, columns_of, table_columns, table_rows

JSON, CSV, PARQUET = "results.json", "results.csv", "results.parquet"
TABLES_CSV, TABLES_PARQUET = "tables.csv", "tables.parquet"


def results_as_json(
    identity: Mapping[str, str],
    made_with: Mapping[str, Mapping[str, str]],
    rows: Sequence[SweepRow],
    objectives: Sequence[Objective],
    best: Sequence[SweepRow],
    front: Sequence[SweepRow],
) -> dict[str, object]:
    """What `results.json` holds, and `kernbench sweep --json` prints with some more."""
    return {
        "schema": SCHEMA,
        "command": "sweep",
        **identity,
        "made_with": {digest: dict(parts) for digest, parts in made_with.items()},
        "points": len(rows),
        "failed": sum(1 for row in rows if row.has_failed),
        "objectives": [str(objective) for objective in objectives],
        "best": [row.point for row in best],
        "front": [row.point for row in front],
        "does_not_fit": [row.point for row in rows if not row.fits],
        "infeasible": [row.point for row in rows if not row.is_feasible],
        "rows": [row.as_json() | {"derived": row.derived()} for row in rows],
    }


def write_results(folder: Path, results: Mapping[str, object], rows: Sequence[SweepRow]) -> tuple[list[Path], bool]:
    """Write the tables; returns them, and whether `results.json` is another than it was."""
    text = (json.dumps(results, indent=2, allow_nan=False) + "\n").encode()
    json_file = folder / JSON
    changed = not json_file.is_file() or json_file.read_bytes() != text
    files = _write_table(folder / CSV, folder / PARQUET, columns_of(rows), [row.flat() for row in rows], results)
    flats = table_rows(rows)
    if flats:
        files += _write_table(folder / TABLES_CSV, folder / TABLES_PARQUET, table_columns(flats), flats, results)
    write_atomically(json_file, text)  # last: when it is there, the others are
    return [json_file, *files], changed


def _write_table(
    csv_file: Path,
    parquet_file: Path,
    columns: Sequence[str],
    flats: Sequence[Mapping[str, JsonValue]],
    results: Mapping[str, object],
) -> list[Path]:
    write_atomically(csv_file, table_as_csv(columns, flats))
    return [csv_file, *_write_parquet(parquet_file, columns, flats, results)]


def table_as_csv(columns: Sequence[str], flats: Sequence[Mapping[str, JsonValue]]) -> bytes:
    """A line of names, then a line for each row."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for flat in flats:
        writer.writerow([_cell(flat.get(name)) for name in columns])
    return out.getvalue().encode()


def _cell(value: JsonValue) -> JsonValue:
    """A line of a table is a line of the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value)
    return value.replace("\n", " | ") if isinstance(value, str) else value


def _write_parquet(
    path: Path, columns: Sequence[str], flats: Sequence[Mapping[str, JsonValue]], results: Mapping[str, object]
) -> list[Path]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return []
    table = pyarrow.table({name: _arrow(pyarrow, [flat.get(name) for flat in flats]) for name in columns})
    about = {name: value for name, value in results.items() if name != "rows"}
    out = io.BytesIO()
    parquet.write_table(table.replace_schema_metadata({"kernbench": json.dumps(about)}), out, compression="zstd")
    write_atomically(path, out.getvalue())
    return [path]


def _arrow(pyarrow: Any, values: list[JsonValue]) -> Any:
    """A column of one type: numbers of both kinds are floats, anything mixed is text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pyarrow.array([float(value) if isinstance(value, int | float) else None for value in values])
    if len(kinds) > 1 or kinds & {list, dict}:
        return pyarrow.array([None if value is None else str(_cell(value)) for value in values])
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, OverflowError):  # whole numbers past 64 bits
        return pyarrow.array([None if value is None else str(value) for value in values])
