"""The page of a sweep: `kernbench report`. What came out in a few sentences, the best by kind of work, what is
infeasible and why, what each axis does, every point; figures inline, one file that can be sent.

Rows of a scenario are named by their machine in every table. Points have numbers of their own in the list of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.common.plain_json import parse_json
from kernbench.common.regular_files import read_regular
from kernbench.common.units import counted
from kernbench.report.results_page import Figure, Page, page_as_html
from kernbench.sweep.derived import DERIVED, LIMIT, PLAN
from kernbench.sweep.ends import ENDS_OF, with_ends
from kernbench.sweep.folder import write_atomically
from kernbench.sweep.objectives import Objective, ranked, read_objectives
from kernbench.sweep.plot import STEM
from kernbench.sweep.points import MACHINE
from kernbench.sweep.results import JSON
from kernbench.sweep.rows import SweepRow, labels_of, row_of_json, varying
from kernbench.sweep.scenario import WEIGHTED, failed_only, machine_numbers
from kernbench.sweep.sensitivity import TORNADO

PAGE = "report.html"
FACTS = ("energy", "area")
AS_IT_IS = "as it is"
REASONS = 5  # in the summary
NUMBERS = 10  # of machines or points, with a reason
FIGURES = {
    STEM: "The first objective over the first axis, and by number those that no other beats. Bars: ends of ranges",
    TORNADO: "Change of each objective when one axis alone changes; the widest first",
}
SHOWN = (PLAN, *DERIVED, "total_ns", "area_mm2", "sip_w", "cost_usd", LIMIT, "bound", "roofline_share", "warnings")
MEANINGS = {
    "layer_ns": "time of one layer of the model",
    "tokens_per_s": "tokens per second of all users, over all layers; weighted: of all workloads one after another",
    "ttft_ms": "time to the first token",
    "latency_ms": "time of a batch through all layers, of the best plan",
    "plan_users": "sequences in service at a time, of the best plan",
    "plan": "the best plan: tp SIPs share a layer, pp stages, dp replicas",
    "mj_per_token": "energy of a token, with the static power of the machine",
    "tokens_per_s_per_usd": "tokens per second for each dollar of the price",
    "total_ns": "simulated time of the run",
    "area_mm2": "silicon of all dies",
    "sip_w": "power of a SIP over its hottest launch",
    "cost_usd": "price of the machine",
    "limited_by": "the largest term of the roofline where half of it is reached; else latency: launches and waits",
    "bound": "the largest term of the roofline, whatever share of it is reached",
    "warnings": "what is unusual about the design",
    "roofline_share": "what the limits of the machine allow over what it took, 1 at best",
}

Group = list[Mapping[str, object]]
Settings = Mapping[str, object]


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


def _data(folder: Path) -> dict[str, Any]:
    found: Any = parse_json(read_regular(folder / JSON))
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _page(folder: Path, data: Mapping[str, Any]) -> Page:
    rows = [row_of_json(row) for row in data["rows"]]
    mix = data.get("scenario")
    groups = _plain_groups(data, rows) if mix is None else _scenario_groups(mix, rows)
    groups |= {**_axis_groups(data), **_failures(rows)}
    summary = [
        *(_plain_summary(data, rows) if mix is None else _scenario_summary(mix, rows, data["objectives"][0])),
        *_levers(data),
    ]
    used = {name for group in groups.values() for row in group for name in row}
    return Page(
        title=f"Sweep of {data['bench']}" if mix is None else f"Scenario {mix['name']}: which machine",
        about=_about(rows, is_scenario=mix is not None),
        origin=f"kernbench {data['version']}, machine {data['machine']}; {len(rows)} points, {data['failed']} failed.",
        parameters={},
        figures=[
            Figure(read_regular(folder / f"{stem}.svg"), words, words)
            for stem, words in FIGURES.items()
            if (folder / f"{stem}.svg").is_file()
        ],
        groups={title: group for title, group in groups.items() if group},
        machine=None,
        facts=FACTS,
        summary=summary,
        meanings={name: words for name, words in MEANINGS.items() if name in used},
        everything={"All points": _all_points(rows, mix), "The same in all points": _alike(rows)},
    )


def _about(rows: Sequence[SweepRow], *, is_scenario: bool) -> str:
    axes = [name for name in varying(rows) if name.startswith(MACHINE) or not is_scenario]
    over = ", ".join(name.removeprefix(MACHINE) for name in axes) or "nothing"
    apart = " Machines are compared for each kind of work, and over all of it; times of different work are never added."
    ends = " Figures with a range have it below them: every coefficient at the low, and at the high end of its range."
    return f"{'Machines' if is_scenario else 'Points'} differ in {over}.{apart if is_scenario else ''}{ends}"


# ------------------------------------------------------------------------------------------------------------ summary


def _plain_summary(data: Mapping[str, Any], rows: Sequence[SweepRow]) -> Iterator[str]:
    for objective in read_objectives(",".join(data["objectives"])):
        for best in ranked(rows, [objective])[:1]:
            yield f"{_best(objective)}: point {best.point}{_named(_settings(best.flat(), varying(rows)))}, " + _value(
                best.flat(objective.column), objective.column
            )
    by_reason: dict[str, list[int]] = {}
    for row in rows:
        if not row.is_feasible:
            by_reason.setdefault(_reason(row), []).append(row.point)
    yield from _excluded(by_reason, len(rows), "point")


def _scenario_summary(mix: Mapping[str, Any], rows: Sequence[SweepRow], main: str) -> Iterator[str]:
    """`main` is the objective by which workloads are ranked."""
    numbers, names = machine_numbers(rows), _machine_axes(rows)
    weighted = {row["point"]: row for row in mix[WEIGHTED]["rows"]}
    objectives = read_objectives(",".join(mix[WEIGHTED]["objectives"])) if mix[WEIGHTED]["objectives"] else ()
    for objective in objectives:
        known = [
            row for row in weighted.values() if row["infeasible"] is None and row.get(objective.column) is not None
        ]
        for best in sorted(known, key=lambda row: row[objective.column] * (-1 if objective.maximize else 1))[:1]:
            what = f"machine {best['point']}{_named(_settings(best, names))}, {_value(best, objective.column)}"
            yield f"Over all workloads, {_best(objective).lower()}: {what}"
    by_point = {row.point: row for row in rows}
    first = read_objectives(main)[0]
    for name, each in mix["workloads"].items():
        for point in each["best"][:1]:
            flat = by_point[point].flat(first.column)
            what = f"machine {numbers[point]}{_named(_settings(flat, names))}, {_value(flat, first.column)}"
            yield f"For {name}, {_best(first).lower()}: {what}"
    failed = failed_only(rows)
    by_reason: dict[str, list[int]] = {}
    for at, row in weighted.items():
        if row["infeasible"] is not None and at not in failed:
            by_reason.setdefault(row["infeasible"], []).append(at)
    yield from _excluded(by_reason, len(weighted), "machine")


def _best(objective: Objective) -> str:
    return f"{'Most' if objective.maximize else 'Least'} {objective.column}"


def _value(flat: Mapping[str, object], column: str) -> str:
    low, high = (flat.get(name) for name in ENDS_OF.get(column, ("", "")))
    value = flat[column]
    if isinstance(low, float) and isinstance(high, float):
        return f"{_shown(value)} ({_shown(low)} to {_shown(high)})"
    return _shown(value)


def _shown(value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _named(settings: Settings) -> str:
    words = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f" ({words})" if words else ""


def _excluded(by_reason: Mapping[str, Sequence[int]], total: int, what: str) -> Iterator[str]:
    """How many are infeasible, and a sentence on each reason with their numbers, the most frequent first."""
    if not by_reason:
        return
    count = sum(map(len, by_reason.values()))
    yield f"{count} of {counted(total, what)} {'is' if count == 1 else 'are'} infeasible, and never called best"
    for reason, numbers in sorted(by_reason.items(), key=lambda item: -len(item[1]))[:REASONS]:
        named = ", ".join(map(str, numbers[:NUMBERS]))
        more = f" and {len(numbers) - NUMBERS} more" if len(numbers) > NUMBERS else ""
        yield f"Infeasible {what}{'s' if len(numbers) > 1 else ''} {named}{more}: {reason}"
    if len(by_reason) > REASONS:
        yield f"{len(by_reason) - REASONS} other reasons are in the table of what is infeasible"


def _levers(data: Mapping[str, Any]) -> Iterator[str]:
    """The axis that explains most of an objective's spread."""
    for objective, shares in data.get("importance", {}).items():
        if shares:
            labels = labels_of(list(shares))
            named = ", ".join(f"{labels[axis]} {share:.0%}" for axis, share in shares.items())
            yield f"The spread of {objective} comes from {named}"


# ------------------------------------------------------------------------------------------------------------- tables


def _plain_groups(data: Mapping[str, Any], rows: Sequence[SweepRow]) -> dict[str, Group]:
    by_point, names = {row.point: row.flat() for row in rows}, varying(rows)
    infeasible = [row for row in rows if not row.is_feasible]
    return {
        "Best": [_short("point", by_point[point], names) for point in data["best"]],
        "Pareto front": [_short("point", by_point[point], names) for point in data["front"]],
        "Infeasible": [
            {"point": row.point, **_settings(row.flat(), names), "infeasible": _reason(row)} for row in infeasible
        ],
    }


def _scenario_groups(mix: Mapping[str, Any], rows: Sequence[SweepRow]) -> dict[str, Group]:
    numbers, names = machine_numbers(rows), _machine_axes(rows)
    by_point = {row.point: {**row.flat(), "point": numbers[row.point]} for row in rows}
    weighted = {row["point"]: row for row in mix[WEIGHTED]["rows"]}
    best, front = mix[WEIGHTED]["best"], mix[WEIGHTED]["front"]
    over_all = [
        {**_short("machine", weighted[at], names), "front": "yes" if at in front else ""}
        for at in dict.fromkeys([*best, *front])
    ]
    groups: dict[str, Group] = {"Weighted over all workloads, best first": list(over_all)}
    for name, each in mix["workloads"].items():
        title = f"{name}: {each['share']:.0%} of tokens, best first"
        groups[title] = [_short("machine", by_point[point], names) for point in each["best"]]
    failed = failed_only(rows)
    groups["Infeasible machines"] = [
        {"machine": row["point"], **_settings(row, names), "infeasible": row["infeasible"]}
        for row in weighted.values()
        if row["infeasible"] is not None and row["point"] not in failed
    ]
    return groups


def _axis_groups(data: Mapping[str, Any]) -> dict[str, Group]:
    alone = [
        {
            "objective": each["objective"],
            "axis": each["axis"].replace(MACHINE, ""),
            "value": each["value"],
            "change (%)": 100 * each["change"],
            "infeasible": each["infeasible"],
        }
        for each in data.get("sensitivity", [])
    ]
    spread = [
        {"objective": objective, "axis": axis.replace(MACHINE, ""), "share (%)": 100 * share}
        for objective, shares in data.get("importance", {}).items()
        for axis, share in shares.items()
    ]
    return {"Each axis alone": list(alone), "Spread explained by each axis": list(spread)}


def _failures(rows: Sequence[SweepRow]) -> dict[str, Group]:
    names = varying(rows)
    failed = [row for row in rows if row.has_failed]
    return {
        "Failed": [
            {"point": row.point, **_settings(row.flat(), names), "error": (row.error or "").replace("\n", " ")}
            for row in failed
        ]
    }


def _all_points(rows: Sequence[SweepRow], mix: Mapping[str, Any] | None) -> Group:
    """What differs, and every figure that differs."""
    flats = [row.flat() for row in rows]
    names = list(dict.fromkeys(name for flat in flats for name in flat))
    differ = [name for name in names if len({repr(flat.get(name)) for flat in flats}) > 1 or len(flats) == 1]
    numbers = machine_numbers(rows) if mix is not None else {}
    work = {} if mix is None else {row.point: _workload(row, mix) for row in rows}
    found: Group = []
    for row, flat in zip(rows, flats, strict=True):
        at = row.point
        of = {} if mix is None else {"machine": numbers[at], "workload": work[at]}
        found.append({"point": at, **of, **{name: flat.get(name) for name in differ if name != "point"}})
    return found


def _alike(rows: Sequence[SweepRow]) -> Group:
    """The parameters that no point changes."""
    first = rows[0].params if rows else {}
    names = [name for name in first if all(row.params.get(name) == first[name] for row in rows)]
    return [{"parameter": name, "value": str(first[name])} for name in names if first[name] != ""]


def _workload(row: SweepRow, mix: Mapping[str, Any]) -> str:
    for name, each in mix["workloads"].items():
        if all(row.params.get(key) == value for key, value in each["params"].items()):
            return str(name)
    return ""


def _machine_axes(rows: Sequence[SweepRow]) -> list[str]:
    return [name for name in varying(rows) if name.startswith(MACHINE)]


def _reason(row: SweepRow) -> str:
    return row.infeasible or "does not fit"


def _settings(flat: Mapping[str, object], names: Sequence[str]) -> Settings:
    """What differs. A key that a point leaves as it is keeps its column."""
    labels = labels_of(names)
    return {labels[name]: AS_IT_IS if flat.get(name) is None else flat[name] for name in names}


def _short(number: str, flat: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    """The columns that decide: what differs, objectives of layers, area, power, price."""
    shown = [name for name in SHOWN if name != "total_ns" or flat.get("layer_ns") is None]  # which has setting up in it
    figures = {name: with_ends(flat, name) for name in shown if flat.get(name) is not None}
    return {number: flat["point"], **_settings(flat, names), **figures}
