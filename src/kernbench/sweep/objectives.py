"""Objectives over the columns of rows, the Pareto front, and the ranking of rows.

A row is on the front if no other is at least as good in every objective and better in one. Rows that failed, rows that
are infeasible, and rows without a number in one of the columns are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.common.errors import UsageError
from kernbench.common.nearest import nearest
from kernbench.sweep.derived import COLUMNS, MORE_IS_BETTER, TTFT_MS, WORDS
from kernbench.sweep.points import MACHINE, JsonValue, Point
from kernbench.sweep.rows import NUMBERS, TABLE, SweepRow, columns_of

FROM_BENCH = ("returned:", TABLE)  # prefixes of columns that a bench returns
MOST_CELLS = 200  # of tables, that a mistaken objective is compared with


@dataclass(frozen=True, slots=True)
class Objective:
    """A column and whether less (min) or more (max) of it is better."""

    column: str
    maximize: bool = False

    def __str__(self) -> str:
        return f"{self.column}:{'max' if self.maximize else 'min'}"

    def worth(self, row: SweepRow) -> float | None:
        """The value to minimise; None if the row has no number there."""
        value = row.value(self.column)
        if not row.ok or not row.is_feasible or isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return -float(value) if self.maximize else float(value)


def read_objectives(text: str) -> tuple[Objective, ...]:
    """`total_ns:min,cost:min`; without a direction less is better, but for tokens per second. Raises UsageError."""
    found: dict[str, Objective] = {}
    for part in text.split(","):
        column, colon, direction = part.strip().rpartition(":")
        if not colon or direction not in ("min", "max"):
            column, direction = part.strip(), "max" if _figure(part.strip()) in MORE_IS_BETTER else "min"
        if ":" in column and not column.startswith(FROM_BENCH) and not column.startswith(MACHINE):
            raise UsageError(f"'{column[:60]}' has no such direction", hint="write :min or :max after a column")
        if not column:
            raise UsageError(f"'{text[:60]}' names no objective", hint="write for example total_ns:min,cost:min")
        found[column] = Objective(column, direction == "max")
    return tuple(found.values())


def _figure(column: str) -> str:
    """The name of a figure that a bench returned: `tokens_per_s` of `table:tokens_per_s[tp1 pp1 dp1]`."""
    for prefix in FROM_BENCH:
        column = column.removeprefix(prefix)
    return column.partition("[")[0]


def default_objectives(points: Sequence[Point]) -> tuple[Objective, ...]:
    """Time, and what the machine costs when not all points have the same machine."""
    machines = {point.machine_key for point in points}
    return (Objective("total_ns"), *([Objective("cost")] if len(machines) > 1 else []))


def check_columns(objectives: Sequence[Objective], examples: Sequence[Point]) -> None:
    """Before any run, raise UsageError for an objective that no row can have a number for. Values that a bench returns
    cannot be checked before it has run.
    """
    settings = [SweepRow(0, point.params, point.machine).settings() for point in examples]
    numeric = [
        name
        for name in dict.fromkeys(name for each in settings for name in each)
        if any(_is_number(each.get(name)) for each in settings)
    ]
    only_decodes = {each.get("phase") for each in settings} == {"decode"}
    unknown = (*WORDS, *((TTFT_MS,) if only_decodes else ()))
    known = [*numeric, *NUMBERS, *(name for name in COLUMNS if name not in unknown)]
    for objective in objectives:
        if objective.column not in known and not objective.column.startswith(FROM_BENCH):
            close = nearest(objective.column, known)
            suggestion = f"; did you mean '{close}'?" if close else ""
            raise UsageError(
                f"no row can have a number for the objective '{objective.column[:60]}'{suggestion}",
                hint=f"use one of {', '.join(name for name in known if name != 'point')}, or what the bench returns: "
                "returned:NAME, table:COLUMN[NAME]",
            )


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_objectives(objectives: Sequence[Objective], rows: Sequence[SweepRow]) -> None:
    """Raise UsageError for one that is no column, or that no row has a number for."""
    ok = [row for row in rows if row.ok and row.is_feasible]
    for objective in objectives:
        columns = _table_columns(ok) if objective.column.startswith(TABLE) else columns_of(rows)
        if ok and all(objective.worth(row) is None for row in ok):
            numeric = [name for name in columns if any(Objective(name).worth(row) is not None for row in ok)]
            close = nearest(objective.column, numeric)
            suggestion = f"; did you mean '{close}'?" if close else ""
            raise UsageError(
                f"no row has a number for the objective '{objective.column[:60]}'{suggestion}",
                hint=f"use one of {', '.join(name for name in numeric if name != 'point')}",
            )


def _table_columns(rows: Sequence[SweepRow]) -> list[str]:
    """The cells of benches' tables by the names of columns; a few of them."""
    names = [f"{TABLE}{name}[{next(iter(own.values()))}]" for row in rows for own in row.table for name in own]
    return list(dict.fromkeys(names))[:MOST_CELLS]


def ranked(rows: Sequence[SweepRow], objectives: Sequence[Objective]) -> list[SweepRow]:
    """Rows with all objectives, best first by the first one; ties by the next ones, then by number."""
    worths = [(_worths(row, objectives), row) for row in rows]
    known = [(worth, row.point, row) for worth, row in worths if worth is not None]
    return [row for _, _, row in sorted(known, key=lambda item: item[:2])]


def pareto_front(rows: Sequence[SweepRow], objectives: Sequence[Objective]) -> list[SweepRow]:
    """Rows that no other row dominates, best first by the first objective."""
    front: list[tuple[tuple[float, ...], SweepRow]] = []
    for row in ranked(rows, objectives):  # a dominating row precedes the dominated one
        worth = _worths(row, objectives) or ()
        if not any(_dominates(other, worth) for other, _ in front):
            front.append((worth, row))
    return [row for _, row in front]


def _dominates(other: tuple[float, ...], worth: tuple[float, ...]) -> bool:
    return other != worth and all(a <= b for a, b in zip(other, worth, strict=True))


def _worths(row: SweepRow, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    worths = [objective.worth(row) for objective in objectives]
    known = [worth for worth in worths if worth is not None]
    return tuple(known) if len(known) == len(worths) else None
