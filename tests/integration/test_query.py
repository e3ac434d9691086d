"""`kernbench query`: SQL over a saved run has the sums of `explain` and of the columns, and reaches nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kernbench.cli import query
from kernbench.cli.main import main
from kernbench.report.explain.headline import main_scope
from kernbench.report.explain.tensor_use import tensor_uses
from kernbench.report.run_tables import run_tables
from kernbench.report.runs.saved_run import SavedRun, open_run

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "query-a-run.md"
ONE_CUBE = ["--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    folder = tmp_path_factory.mktemp("query") / "run"
    with pytest.raises(SystemExit):
        main(["run", "--bench", "gemm-single-pe", *ONE_CUBE, "--save", str(folder)])
    return open_run(folder)


@pytest.fixture
def asked(run: SavedRun, capsys: pytest.CaptureFixture[str]):
    def ask(sql: str, code: int = 0) -> object:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(["query", str(run.path), sql, "--json"])
        printed = capsys.readouterr()
        assert stopped.value.code == code, printed.err
        return json.loads(printed.out)["rows"] if not code else printed.err

    return ask


def test_sums_are_those_of_the_run(run: SavedRun, asked) -> None:
    loads = run.ops.kind.are("R")
    assert asked("SELECT count(*) n, sum(nbytes) b, sum(queue_ns) q FROM ops WHERE kind = 'DMA read'") == [
        {"n": int(loads.sum()), "b": int(run.ops.nbytes[loads].sum()), "q": float(run.ops.queue_ns[loads].sum())}
    ]
    assert asked("SELECT sum(nbytes) b FROM links WHERE kind = 'link'") == [
        {"b": sum(place.nbytes for place in run.places if place.kind == "link")}
    ]
    assert asked("SELECT name, ns, flops FROM launches") == [
        {"name": one.name, "ns": one.total_ns, "flops": one.flops} for one in run.launches
    ]
    assert asked("SELECT name, home_bytes + remote_bytes AS moved FROM tensors") == [
        {"name": use.name, "moved": use.moved} for use in tensor_uses(run)
    ]


def test_the_path_sums_to_what_explain_says(run: SavedRun, asked) -> None:
    explanation = main_scope(run)
    assert asked("SELECT sum(ns) AS ns FROM path") == [{"ns": explanation.scope.total_ns}]
    rows = asked("SELECT class, sum(ns) AS ns FROM path GROUP BY class")
    assert {row["class"]: row["ns"] for row in rows} == pytest.approx(explanation.by_class)


def test_links_of_a_route_are_rows_of_links(asked) -> None:
    sql = "SELECT DISTINCT l.link_class FROM ops o, links l WHERE o.kind = 'DMA read' AND l.id = o.route[1]"
    assert asked(sql) == [{"link_class": "hbm port"}]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_parquet('{run}/ops.parquet')",
        "SELECT * FROM '{run}/ops.parquet'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM saved",
        "COPY ops TO '{file}.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH '{file}.db'",
        "SET enable_external_access = true",
        "CREATE TABLE t AS SELECT 1",
        "DROP TABLE ops",
        "SELECT 1; SELECT 2",
        "",
        "SELEC 1",
        "SELECT missing FROM ops",
        "SELECT '\udcff'",
    ],
)
def test_other_than_a_query_of_the_tables_is_one_message(sql: str, run: SavedRun, asked, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("secret text\n")
    printed = asked(sql.format(file=file, run=run.path), code=2)
    assert printed.startswith("error: SQL: ")
    assert printed.count("error:") == 1
    assert "Traceback" not in printed
    assert "secret text" not in printed
    assert list(tmp_path.iterdir()) == [file]


def test_repeated_names_of_columns_keep_their_values(asked) -> None:
    assert asked("SELECT 1 AS a, 2 AS a, 3.5::DECIMAL(4, 2) AS b, DATE '2020-01-02' AS d") == [
        {"a": 1, "a_2": 2, "b": 3.5, "d": "2020-01-02"}
    ]


def test_without_the_extra_the_message_names_it(run: SavedRun, asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "find_spec", lambda name: None)
    assert "pip install 'kernbench[query]'" in str(asked("SELECT 1", code=2))


def test_the_guide_has_every_table_and_column(run: SavedRun) -> None:
    chapters = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", GUIDE.read_text(), re.M | re.S))
    for name, table in run_tables(run).items():
        first_cells = re.findall(r"^\| (`.*?) \|", chapters[name], re.M)
        assert re.findall(r"`(\w+)`", " ".join(first_cells)) == table.column_names
