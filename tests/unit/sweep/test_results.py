"""Tables of rows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from pyarrow import parquet

from kernbench.sweep.results import results_as_json, write_results
from kernbench.sweep.rows import FIXED, SweepRow, columns_of, row_of_json, varying

ROWS = [
    SweepRow(0, {"m": 1, "ok": 2}, {"a.b": 1}, "h", True, 10.0, cost=1.0, returned={"tokens": 3}),
    SweepRow(1, {"m": 2, "ok": 2}, {"a.c": [1, 2]}, error="bad\n  hint: better"),
]


def test_columns_are_what_is_set_then_figures_then_the_error() -> None:
    assert FIXED == [
        "machine_hash", "ok", "total_ns", "kernels_ns", "launches", "flops", "bytes_hbm", "bytes_hbm_requested",
        "bound", "roofline_share", "energy_j", "energy_low_j", "energy_high_j", "area_mm2", "area_low_mm2",
        "area_high_mm2", "sip_w", "sip_low_w", "sip_high_w", "static_w", "cost_usd", "cost_low_usd", "cost_high_usd",
        "cost", "wrong", "fits",
        "infeasible", "warnings", "made_with",
    ]  # fmt: skip
    names = ["point", "m", "param:ok", "machine:a.b", "machine:a.c", *FIXED, "returned:tokens", "error"]
    assert columns_of(ROWS) == names


def test_columns_that_differ() -> None:
    assert varying(ROWS) == ["m", "machine:a.b", "machine:a.c"]
    assert varying(ROWS[:1]) == []


def test_a_row_survives_json() -> None:
    for row in ROWS:
        assert row_of_json(json.loads(json.dumps(row.as_json()))) == row


def test_the_three_tables_say_the_same(tmp_path: Path) -> None:
    results = results_as_json({"version": "1", "machine": "h"}, {"d": {"version": "1"}}, ROWS, [], ROWS[:1], ROWS[:1])
    files, changed = write_results(tmp_path, results, ROWS)
    assert [file.name for file in files] == ["results.json", "results.csv", "results.parquet"]
    assert changed
    assert json.loads(files[0].read_text())["rows"][0]["returned"] == {"tokens": 3}
    lines = list(csv.DictReader(io.StringIO(files[1].read_text())))
    assert files[1].read_text().count("\n") == 3  # a header and a line for each row, whatever an error says
    assert [line["total_ns"] for line in lines] == ["10.0", ""]
    assert [line["error"] for line in lines] == ["", "bad |   hint: better"]
    table = parquet.read_table(files[2])
    assert table.column_names == columns_of(ROWS)
    assert table["total_ns"].to_pylist() == [10.0, None]
    assert table["machine:a.c"].to_pylist() == [None, "[1, 2]"]
    about = json.loads(table.schema.metadata[b"kernbench"])
    assert (about["schema"], about["version"], about["machine"]) == (1, "1", "h")
    assert about["made_with"] == {"d": {"version": "1"}}


def test_same_rows_same_bytes(tmp_path: Path) -> None:
    results = results_as_json({}, {}, ROWS, [], [], [])
    first = {file.name: file.read_bytes() for file in write_results(tmp_path, results, ROWS)[0]}
    files, changed = write_results(tmp_path, results, ROWS)
    assert not changed
    assert {file.name: file.read_bytes() for file in files} == first
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(first)  # no part of a file is left


def test_tables_that_a_bench_returned_have_files_of_their_own(tmp_path: Path) -> None:
    """With what was set for the point, and without the point's figures. Another parameter may have a column's name."""
    rows = [
        SweepRow(0, {"m": 1}, {"a.b": 1}, table=({"m": 8, "us": 0.5}, {"m": 9, "us": None})),
        SweepRow(1, {"m": 2}, {"a.b": 1}, table=({"m": 8, "us": 0.25, "by": "ring"},)),
        SweepRow(2, {"m": 3}, {"a.b": 1}, error="bad"),
    ]
    assert [row_of_json(json.loads(json.dumps(row.as_json()))) for row in rows] == rows
    files, _ = write_results(tmp_path, results_as_json({}, {}, rows, [], [], []), rows)
    assert [file.name for file in files[3:]] == ["tables.csv", "tables.parquet"]
    assert files[3].read_text().splitlines() == [
        "point,m,machine:a.b,table:m,table:us,table:by",
        "0,1,1,8,0.5,",
        "0,1,1,9,,",
        "1,2,1,8,0.25,ring",
    ]
    assert parquet.read_table(files[4])["table:us"].to_pylist() == [0.5, None, 0.25]
