"""The page of a sweep: `kernbench report`. The best by kind of work, what is infeasible and why, what each axis
does, every point; figures inline, one file that can be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.common.plain_json import parse_json
from kernbench.common.regular_files import read_regular
from kernbench.report.results_page import Figure, Page, page_as_html
from kernbench.sweep.derived import DERIVED
from kernbench.sweep.folder import write_atomically
from kernbench.sweep.plot import STEM
from kernbench.sweep.results import JSON
from kernbench.sweep.rows import SweepRow, row_of_json, short_axis, varying
from kernbench.sweep.sensitivity import TORNADO

PAGE = "report.html"
FACTS = ("energy", "area")
AS_IT_IS = "as it is"
FIGURES = {
    STEM: "The first objective over the first axis, and the points that no other beats",
    TORNADO: "Change of each objective when one axis alone changes; the widest first",
}
SHOWN = (*DERIVED, "total_ns", "area_mm2", "sip_w", "cost_usd", "bound", "roofline_share")
RANGES = ("area_low_mm2", "area_high_mm2", "sip_low_w", "sip_high_w", "cost_low_usd", "cost_high_usd")

Group = list[Mapping[str, object]]


def is_sweep(folder: Path) -> bool:
    """Whether a folder has results that a sweep wrote."""
    try:
        return _data(folder).get("command") == "sweep"
    except (OSError, ValueError, UsageError):
        return False


def write_sweep_page(folder: Path, target: Path | None = None) -> Path:
    """One HTML file of a sweep's results; raises UsageError if the folder has none that can be read."""
    try:
        page = _page(folder, _data(folder))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"not the results of a sweep: {error!r}"[:200],
            where=str(folder / JSON),
            hint="run the sweep again: its rows are kept",
        ) from None
    path = folder / PAGE if target is None else target
    write_atomically(path, page_as_html(page).encode())
    return path


def _page(folder: Path, data: Mapping[str, Any]) -> Page:
    rows = [row_of_json(row) for row in data["rows"]]
    return Page(
        title=f"Sweep of {data['bench']}",
        about=_about(data, rows),
        origin=f"kernbench {data['version']}, machine {data['machine']}; {len(rows)} points, {data['failed']} failed.",
        parameters={},
        figures=[
            Figure(read_regular(folder / f"{stem}.svg"), words, words)
            for stem, words in FIGURES.items()
            if (folder / f"{stem}.svg").is_file()
        ],
        groups={title: group for title, group in _groups(data, rows).items() if group},
        machine=None,
        facts=FACTS,
    )


def _data(folder: Path) -> dict[str, Any]:
    found: Any = parse_json(read_regular(folder / JSON))
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _about(data: Mapping[str, Any], rows: Sequence[SweepRow]) -> str:
    over = ", ".join(varying(rows)) or "nothing"
    excluded = sum(not row.is_feasible for row in rows)
    kept = (
        f" {excluded} points are infeasible: they are listed with the reason and never called best." if excluded else ""
    )
    apart = " Rows of different workloads are not compared with each other." if "scenario" in data else ""
    ends = "Figures that end in low and high take every coefficient at that end of its range."
    return f"Points differ in {over}. Best by {', '.join(data['objectives'])}.{kept}{apart} {ends}"


def _groups(data: Mapping[str, Any], rows: Sequence[SweepRow]) -> dict[str, Group]:
    by_point = {row.point: row for row in rows}
    groups: dict[str, Group] = {}
    if "scenario" in data:
        mix = data["scenario"]
        for name, each in mix["workloads"].items():
            title = f"{name}: {each['share']:.0%} of tokens, best first"
            groups[title] = [_short(by_point[point].flat(), rows) for point in each["best"]]
        weighted = {row["point"]: row for row in mix["weighted"]["rows"]}
        groups["Weighted over all workloads, best first"] = [
            _short(weighted[point], rows, further=RANGES) for point in mix["weighted"]["best"]
        ]
        groups["Front of weighted figures"] = [_short(weighted[point], rows) for point in mix["weighted"]["front"]]
    groups["Best"] = [_short(by_point[point].flat(), rows, further=RANGES) for point in data["best"]]
    groups["Pareto front"] = [_short(by_point[point].flat(), rows) for point in data["front"]]
    groups["Each axis alone"] = [
        {"objective": e["objective"], "axis": e["axis"], "value": e["value"], "change (%)": 100 * e["change"]}
        for e in data.get("sensitivity", [])
    ]
    groups["Spread explained by each axis"] = [
        {"objective": objective, "axis": axis, "share (%)": 100 * share}
        for objective, shares in data.get("importance", {}).items()
        for axis, share in shares.items()
    ]
    groups["Infeasible"] = [
        {**_short(row.flat(), rows), "infeasible": row.infeasible} for row in rows if not row.is_feasible
    ]
    groups["Failed"] = [
        {**row.settings(), "error": (row.error or "").replace("\n", " ")} for row in rows if row.has_failed
    ]
    groups["All points"] = [row.flat() for row in rows]
    return groups


def _short(flat: Mapping[str, object], rows: Sequence[SweepRow], further: Sequence[str] = ()) -> dict[str, object]:
    """The columns that decide: what differs, objectives of layers, area, power, price. A key that a point leaves as
    it is keeps its column.
    """
    names = varying(rows)
    labels = [short_axis(name) for name in names]
    heads = labels if len(dict.fromkeys(labels)) == len(names) else names
    settings = [AS_IT_IS if flat.get(name) is None else flat[name] for name in names]
    figures = {name: flat[name] for name in (*SHOWN, *further) if flat.get(name) is not None}
    return {"point": flat["point"], **dict(zip(heads, settings, strict=True)), **figures}
