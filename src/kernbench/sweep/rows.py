"""One row per point: its settings and its results. Equal for equal points, wherever and whenever they ran.

JSON keeps a row nested (`SweepRow.as_json`); a table has it flat. There a parameter's column has its name, a value of
the machine is `machine:KEY`, and a figure that the bench returned is `returned:NAME`. A parameter named as one of the
columns that every row has is `param:NAME`. A bench may return a table of its own, a list of mappings, as `ccl-bench`
does: a point's row keeps it under `table`, and `table_rows` has all of them with what was set for their points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kernbench.report.roofline import limit_of
from kernbench.sweep.derived import COLUMNS, LIMIT, derived
from kernbench.sweep.points import MACHINE, JsonValue, Point

TABLE = "table:"  # of the columns that a bench's own table has


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A point and its figures, which are None if the point failed before; `error` has the reason."""

    point: int  # its number in the sweep
    params: Mapping[str, JsonValue]
    machine: Mapping[str, JsonValue]  # what it changes
    machine_hash: str | None = None  # of the whole machine
    ok: bool = False
    total_ns: float | None = None
    kernels_ns: float | None = None  # how long at least one PE ran a kernel (`report/run_figures.py`)
    launches: int | None = None
    flops: int | None = None
    bytes_hbm: int | None = None  # moved, in whole bursts
    bytes_hbm_requested: int | None = None
    bound: str | None = None  # compute, memory, link or neither: the largest term of the roofline over all launches
    roofline_share: float | None = None  # what the bounds of all launches allow over what they took
    energy_j: float | None = None  # of what the machine has coefficients for
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    area_mm2: float | None = None  # of the blocks of all dies
    area_low_mm2: float | None = None
    area_high_mm2: float | None = None
    sip_w: float | None = None  # power of a SIP over its hottest launch, with static power
    sip_low_w: float | None = None
    sip_high_w: float | None = None
    static_w: float | None = None  # static power of the whole machine
    cost_usd: float | None = None
    cost_low_usd: float | None = None
    cost_high_usd: float | None = None
    cost: float | None = None
    returned: Mapping[str, float] = field(default_factory=dict)  # numbers that the bench returned by name
    wrong: bool = False  # it ran, and its data was not as stated
    fits: bool = True  # False where its work does not fit the machine's memories: such a row is never called best
    infeasible: str | None = None  # why the design cannot be built or used: such a row is never called best either
    warnings: str | None = None  # what is unusual about the design, such as a die larger than a reticle
    made_with: str | None = None  # digest of the sweep's identity when it was made: see `sweep.json`
    error: str | None = None
    table: tuple[Mapping[str, JsonValue], ...] = ()  # rows that the bench returned

    @property
    def is_feasible(self) -> bool:
        """Whether the row may be called best or be on a front, if it has not failed."""
        return self.fits and self.infeasible is None

    @property
    def has_failed(self) -> bool:
        """Whether it did not do what it should. A design that cannot hold its work, or is not simulated as it is over a
        limit, is infeasible, and did not fail.
        """
        return not self.ok and (self.is_feasible or self.total_ns is not None)

    @property
    def key(self) -> str:
        """Of its point: what it is found by in `rows.jsonl`."""
        return Point(self.params, self.machine).key

    def as_json(self) -> dict[str, object]:
        data = {name: getattr(self, name) for name in _KEYS}
        data["table"] = [dict(row) for row in self.table]
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in data.items()}
        return {"point": self.point, "key": self.key, **plain}

    def value(self, column: str) -> JsonValue:
        """What `flat` has under that name, or the bench's table as `table:COLUMN[NAME]`; None where neither has."""
        if column in FIXED or column == "point":
            found: JsonValue = getattr(self, column)
            return found
        if column in COLUMNS:
            return self.derived().get(column)
        if column.startswith(TABLE):
            return self._cell(*column.removeprefix(TABLE).removesuffix("]").partition("[")[::2])
        return self.flat().get(column)

    def _cell(self, column: str, name: str) -> JsonValue:
        """Of the table's row whose first value is `name`."""
        found = [row for row in self.table if column in row and next(iter(row.values())) == name]
        return found[0][column] if found else None

    def flat(self, *cells: str) -> dict[str, JsonValue]:
        """By the names of columns; of the table only those `cells`."""
        data = {name: getattr(self, name) for name in FIXED}
        returned = {f"returned:{name}": value for name, value in self.returned.items()}
        own = {name: self.value(name) for name in cells if name.startswith(TABLE)}
        return {**self.settings(), **data, **self.derived(), **returned, **own, "error": self.error}

    def derived(self) -> dict[str, JsonValue]:
        """Figures of a layer and its price, of a bench that gives them, and what limits the run (`derived.py`)."""
        usd = self.cost_low_usd, self.cost_usd, self.cost_high_usd
        found: dict[str, JsonValue] = dict(derived(self.table, self.returned, self.params.get("phase"), usd))
        if self.bound is None or self.roofline_share is None:
            return found
        return found | {LIMIT: limit_of(self.bound, self.roofline_share)}

    def settings(self) -> dict[str, JsonValue]:
        """The number of the point and what is set for it, by the names of columns."""
        params = {param_column(name): value for name, value in self.params.items()}
        machine = {MACHINE + key: value for key, value in self.machine.items()}
        return {"point": self.point, **params, **machine}


_KEYS = [part.name for part in fields(SweepRow)]
FIXED = [name for name in _KEYS if name not in ("point", "params", "machine", "returned", "error", "table")]


NUMBERS = [
    name
    for name in FIXED
    if name not in ("machine_hash", "ok", "bound", "wrong", "fits", "infeasible", "warnings", "made_with")
]


# Columns that rows of earlier sweeps do not have.
LATER = (
    *("infeasible", "sip_w", "sip_low_w", "sip_high_w", "static_w", "cost_usd", "cost_low_usd", "cost_high_usd"),
    *("area_low_mm2", "area_high_mm2", "energy_low_j", "energy_high_j", "warnings"),
)


ADDED = ("key", "derived")  # of a row of JSON: what follows from its fields


def param_column(name: str) -> str:
    return f"param:{name}" if name in _KEYS or name in COLUMNS else name


def row_of_json(data: Mapping[str, Any]) -> SweepRow:
    """The row that `as_json` gave, or `results.json` has; raises TypeError or ValueError for anything else."""
    later = dict.fromkeys(LATER, None)
    given = {name: value for name, value in data.items() if name not in ADDED}
    data = {"fits": True, "made_with": None, **later, **given}
    if set(data) != set(_KEYS) or not all(isinstance(data[name], dict) for name in ("params", "machine", "returned")):
        raise ValueError("not a row")
    if not all(isinstance(data[name], bool) for name in ("ok", "wrong", "fits")) or not isinstance(data["point"], int):
        raise ValueError("not a row")
    if not isinstance(data["table"], list) or not all(isinstance(row, dict) for row in data["table"]):
        raise ValueError("not a row")
    return SweepRow(**{**data, "table": tuple(data["table"])})


def failed_row(point: Point, error: str, number: int = 0, **known: Any) -> SweepRow:
    """The row of a point that failed."""
    return SweepRow(number, dict(point.params), dict(point.machine), error=error, **known)


def columns_of(rows: Iterable[SweepRow]) -> list[str]:
    """The columns of a table: the number, parameters and machine values in order of appearance, figures, the error."""
    set_names: dict[str, None] = {}
    returned: dict[str, None] = {}
    figures: dict[str, None] = {}
    for row in rows:
        for name in row.flat():
            if name.startswith("returned:"):
                returned[name] = None
            elif name in COLUMNS:
                figures[name] = None
            elif name not in FIXED and name not in ("point", "error"):
                set_names[name] = None
    params = [name for name in set_names if not name.startswith(MACHINE)]
    machine = [name for name in set_names if name.startswith(MACHINE)]
    return ["point", *params, *machine, *FIXED, *figures, *returned, "error"]


def table_rows(rows: Iterable[SweepRow]) -> list[dict[str, JsonValue]]:
    """The rows of all tables that benches returned, each with the number and the settings of its point."""
    return [
        {**row.settings(), **{TABLE + name: value for name, value in own.items()}} for row in rows for own in row.table
    ]


def table_columns(flats: Sequence[Mapping[str, JsonValue]]) -> list[str]:
    """Of those: the number of the point, parameters, machine values, then the tables' own, in order of appearance."""
    names = list(dict.fromkeys(name for flat in flats for name in flat))
    return sorted(names, key=lambda name: (name != "point") + name.startswith(MACHINE) + 2 * name.startswith(TABLE))


def varying(rows: Sequence[SweepRow]) -> list[str]:
    """The columns of parameters and machine values that are not the same in every row."""
    flats = [row.flat() for row in rows]
    names = [name for name in columns_of(rows) if name not in (*FIXED, *COLUMNS, "point", "error")]
    own = [name for name in names if not name.startswith("returned:")]
    return [name for name in own if len({json.dumps(flat.get(name)) for flat in flats}) > 1]


def labels_of(axes: Sequence[str]) -> dict[str, str]:
    """Short labels of axes; whole names where short ones would be the same."""
    short = {axis: short_axis(axis) for axis in axes}
    return short if len(set(short.values())) == len(axes) else {axis: axis.replace(MACHINE, "") for axis in axes}


def short_axis(axis: str) -> str:
    """A label of an axis: the last two parts of each of a machine's keys."""
    return " & ".join(
        ".".join(part.removeprefix(MACHINE).split(".")[-2:]) if part.startswith(MACHINE) else part
        for part in axis.split("&")
    )
