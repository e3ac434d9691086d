"""`kernbench query`: SQL over a saved run.

DuckDB has the tables in memory and nothing else: no file, no network, no extension, and its settings are locked. One
thread, so that sums of floats do not depend on the number of cores.
"""

from __future__ import annotations

from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click

from kernbench.cli.options import print_json
from kernbench.common.errors import UsageError
from kernbench.report.rows import rows_as_text
from kernbench.report.run_tables import run_tables
from kernbench.report.runs.saved_run import SavedRun, open_run

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCHEMA = 1
SETTINGS: Final = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # a name in the SQL is never a variable of this program
    "temp_directory": "",
    "threads": "1",
}
DIGITS = 10


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("sql", metavar="[SQL]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def query(run: str, sql: str | None, as_json: bool) -> int:
    """Answer SQL about RUN, a folder that `kernbench run --save` wrote.

    The tables are ops, launches, links, tensors and path (docs/guides/query-a-run.md); without SQL, their columns are
    listed. The SQL is one SELECT of DuckDB; it can read no file and change nothing.
    """
    if find_spec("duckdb") is None:
        raise UsageError("queries need duckdb", hint="pip install 'kernbench[query]'")
    saved = open_run(run)
    if sql is not None and any(0xD800 <= ord(letter) < 0xE000 for letter in sql):
        raise UsageError("SQL: not text in UTF-8", hint="write it in UTF-8")
    columns, rows = _answer(saved, _COLUMNS if sql is None else sql)
    if as_json:
        found = {"schema": SCHEMA, "command": "query", "run": {"id": saved.id, "name": saved.name}}
        print_json({**found, "columns": columns, "rows": rows})
    else:
        click.echo(rows_as_text(rows, DIGITS) if rows else f"no rows; columns: {', '.join(columns)}")
    return 0


_COLUMNS: Final = """
SELECT table_name AS "table", column_name AS "column", data_type AS type
FROM information_schema.columns ORDER BY table_name, ordinal_position
"""


def _answer(run: SavedRun, sql: str) -> tuple[list[str], list[dict[str, object]]]:
    """Names of columns, and rows by name."""
    import duckdb

    with duckdb.connect(":memory:", config=dict(SETTINGS)) as database:
        for name, table in run_tables(run).items():
            database.register("given", table)
            database.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
            database.unregister("given")
        database.execute("SET lock_configuration = true")
        try:
            _refuse_other_than_select(database, sql)
            answer = database.execute(sql)
            columns = _distinct([str(column[0]) for column in answer.description or ()])
            rows = answer.fetchall()
        except duckdb.Error as error:
            hint = f"`kernbench query {run.path}` lists tables and columns"
            raise UsageError(f"SQL: {_first_line(error)}", where=sql[:200], hint=hint) from error
    return columns, [dict(zip(columns, map(_plain, row), strict=True)) for row in rows]


def _refuse_other_than_select(database: DuckDBPyConnection, sql: str) -> None:
    """Raise UsageError unless the text is one SELECT."""
    import duckdb

    statements = database.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            f"SQL: one SELECT is answered, not {len(statements)} statements"
            if len(statements) != 1
            else f"SQL: only SELECT is answered, not {statements[0].type.name}",
            where=sql[:200],
            hint='kernbench query RUN "SELECT kind, sum(ns) FROM ops GROUP BY kind"',
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _distinct(names: list[str]) -> list[str]:
    """Names of columns; a repeated one gets a number."""
    found: list[str] = []
    for name in names:
        number, one = 2, name
        while one in found:
            one, number = f"{name}_{number}", number + 1
        found.append(one)
    return found


def _plain(value: object) -> object:
    """A value as JSON has it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return str(value)
