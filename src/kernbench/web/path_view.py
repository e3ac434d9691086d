"""The critical path and the explanation of a scope for the page, from `report.explain`.

A path of few segments is sent whole. Of a long path, the segments of a window are sent: those of two pixels or more
individually, shorter ones as shares of each pixel column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernbench.common.errors import UsageError
from kernbench.report.explain.classes import CLASSES, LABELS
from kernbench.report.explain.diff import difference as compare
from kernbench.report.explain.diff import differences, same_launch
from kernbench.report.explain.explanation import Explanation, explain
from kernbench.report.explain.finish import finish_of
from kernbench.report.explain.measured import is_alike
from kernbench.report.explain.path import PathScope
from kernbench.report.explain.stalls import stalls_of
from kernbench.report.explain.verdict import verdict_of
from kernbench.report.explain.what_if import machine_with, targets_of, what_ifs
from kernbench.report.runs.layout import KINDS
from kernbench.web.machine_map import Json
from kernbench.web.run_view import RunView
from kernbench.web.tiles import ON_PATH

MOST_SEGMENTS = 20_000
LETTER = {  # and colour
    "gemm": "G",
    "math": "M",
    "transfer": "R",
    "fetch and store": "F",
    "communication": "C",
    "latency": "L",
    "queue": "Q",
    "issue": "I",
    "credit": "Q",
    "launch": "I",
    "host": "I",
}


class PathColumns:
    """The segments of a path as columns."""

    def __init__(self, found: Explanation) -> None:
        segments = found.path
        self.t0 = np.array([segment.t0 for segment in segments])
        self.t1 = np.array([segment.t1 for segment in segments])
        self.cls = np.array([CLASSES.index(segment.cls) for segment in segments], np.int64)
        self.op = np.array([segment.op for segment in segments], np.int64)
        self.place = np.array([segment.place for segment in segments], np.int64)
        self.line = np.array([segment.line for segment in segments], np.int64)
        self.lane = np.array([segment.lane for segment in segments], np.int64)


def explained(view: RunView, scope: str | None) -> Explanation:
    """The explanation of a scope, computed once."""
    name = scope or "run"
    view.scope(name)

    def make() -> Explanation:
        if name == "kernels":
            return Explanation(view.run, PathScope(*view.scope(name)))
        return explain(view.run, None if name == "run" else int(name.partition(":")[2]))

    return view.keep("explained", name, 16, make)


def columns(view: RunView, scope: str | None) -> PathColumns:
    return view.keep("columns", scope or "run", 16, lambda: PathColumns(explained(view, scope)))


def flags_of(view: RunView, scope: str | None) -> NDArray[np.uint8]:
    """Flags of every row of ops: whether it is on the path of the scope."""

    def make() -> NDArray[np.uint8]:
        flags = np.zeros(len(view.run.ops), np.uint8)
        ops = columns(view, scope).op
        flags[view.run.ops.row_of[ops[ops >= 0]]] = ON_PATH
        return flags

    return view.keep("flags", scope or "run", 8, make)


def of_class(view: RunView, scope: str | None, cls: str) -> NDArray[np.bool_]:
    """A mask over the rows of ops: whether the path of the scope has a segment of the class for each."""
    if cls not in CLASSES:
        raise UsageError(f"no class '{cls[:30]}'", hint=f"use one of {', '.join(CLASSES)}")
    found = columns(view, scope)
    ops = found.op[(found.cls == CLASSES.index(cls)) & (found.op >= 0)]
    chosen = np.zeros(len(view.run.ops), bool)
    chosen[view.run.ops.row_of[ops]] = True
    return chosen


def path(view: RunView, scope: str | None, t0: float, t1: float, px: int) -> Json:
    """The segments from `t0` to `t1`, and their sums."""
    if not 0 < px <= 8192:
        raise UsageError(f"a path of {px} px is not served", hint="ask for px from 1 to 8192")
    found = columns(view, scope)
    rows = np.flatnonzero((found.t1 > t0) & (found.t0 < t1))
    is_whole = len(found.t0) <= MOST_SEGMENTS
    data: Json = {"schema": 1, "scope": scope or "run", "t0": t0, "t1": t1, "whole": is_whole, "classes": classes()}
    if is_whole:
        shown = np.arange(len(found.t0))
    else:
        bin_ns = (t1 - t0) / px
        is_long = found.t1[rows] - found.t0[rows] >= 2 * bin_ns
        shown = rows[is_long]
        data["columns"] = _shares(found, rows[~is_long], t0, bin_ns, px)
    data["pieces"] = {
        "t0": found.t0[shown].tolist(),
        "t1": found.t1[shown].tolist(),
        "cls": found.cls[shown].tolist(),
        "op": found.op[shown].tolist(),
    }
    inside = np.minimum(found.t1[rows], t1) - np.maximum(found.t0[rows], t0)
    data["sums"] = class_sums(found.cls[rows], inside)
    lanes = found.lane[rows]
    sums = np.bincount(lanes[lanes >= 0], inside[lanes >= 0], minlength=1)
    data["lane"] = {str(lane): float(sums[lane]) for lane in np.flatnonzero(sums)}
    data["places"] = _place_sums(view, found, rows, inside)
    return data


def classes() -> list[Json]:
    return [{"id": name, "letter": LETTER[name], "label": LABELS[name]} for name in CLASSES]


def class_sums(numbers: NDArray[np.int64], ns: NDArray[np.float64]) -> list[Json]:
    """Parts of a bar, largest first."""
    sums = np.bincount(numbers, ns, minlength=len(CLASSES))
    order = sorted(np.flatnonzero(sums), key=lambda n: (-sums[n], n))
    return [{"id": CLASSES[n], "letter": LETTER[CLASSES[n]], "label": LABELS[CLASSES[n]], "ns": float(sums[n])}
            for n in order]  # fmt: skip


def path_sums(view: RunView, scope: str | None, t0: float, t1: float) -> list[Json]:
    """The path of a scope in a window, by class: sums to the part of the window that is in the scope."""
    found = columns(view, scope)
    inside = np.minimum(found.t1, t1) - np.maximum(found.t0, t0)
    return class_sums(found.cls[inside > 0], inside[inside > 0])


def _shares(found: PathColumns, rows: NDArray[np.int64], t0: float, bin_ns: float, px: int) -> list[list[float]]:
    """For each class, the share of short segments in every pixel column."""
    begin = np.clip((found.t0[rows] - t0) / bin_ns, 0, px)
    end = np.clip((found.t1[rows] - t0) / bin_ns, 0, px)
    shares = np.zeros((len(CLASSES), px + 3))
    for step in range(3):  # a segment shorter than two columns intersects at most three
        column = begin.astype(np.int64) + step
        inside = np.maximum(np.minimum(end, column + 1) - np.maximum(begin, column), 0)
        np.add.at(shares, (found.cls[rows], column), inside)
    return np.round(shares[:, :px], 3).tolist()  # type: ignore[no-any-return]  # numpy does not say of what


def _place_sums(view: RunView, found: PathColumns, rows: NDArray[np.int64], ns: NDArray[np.float64]) -> list[Json]:
    places = found.place[rows]
    has = places >= 0
    if not has.any():
        return []
    sums = np.bincount(places[has], ns[has])
    best = sorted(np.flatnonzero(sums), key=lambda n: (-sums[n], n))[:8]
    return [{"id": view.place_id(int(n)), "ns": float(sums[n])} for n in best]


def line_shares(view: RunView, scope: str | None, t0: float, t1: float) -> dict[int, Json]:
    """Of each line, its part of the path in a window: total and by class; line -1 is time without a line."""
    found = columns(view, scope)
    rows = np.flatnonzero((found.t1 > t0) & (found.t0 < t1))
    inside = np.minimum(found.t1[rows], t1) - np.maximum(found.t0[rows], t0)
    shares: dict[int, Json] = {}
    for line in np.unique(found.line[rows]):
        mine = found.line[rows] == line
        shares[int(line)] = {"ns": float(inside[mine].sum()), "parts": class_sums(found.cls[rows][mine], inside[mine])}
    return shares


def answer(view: RunView, scope: str | None) -> Json:
    """The answer strip: total, sentence, what to try, the bar."""
    found = explained(view, scope)
    bound = view.keep("verdict", scope or "run", 16, lambda: verdict_of(found))
    path_columns = columns(view, scope)
    finish = view.keep("finish", scope or "run", 16, lambda: finish_of(found))
    return {
        "schema": 1,
        "scope": scope or "run",
        "finish": None if finish is None else finish.as_json(),
        "total_ns": found.scope.total_ns,
        "what": bound.what,
        "try": bound.hint,
        "sentence": bound.sentence,
        "cls": bound.cls,
        "cause": bound.cause,
        "sums": class_sums(path_columns.cls, path_columns.t1 - path_columns.t0),
        "lane": _main_lane(view, path_columns),
        "lines": [{"i": line.index, "name": line.name, "text": line.text} for line in view.run.lines],
    }


def _main_lane(view: RunView, found: PathColumns) -> int | None:
    """The PE lane with most of the path: Timeline opens its PE, Machine its cube."""
    of_pe = [lane.index for lane in view.run.lanes if lane.pe >= 0]
    sums = np.bincount(found.lane[found.lane >= 0], (found.t1 - found.t0)[found.lane >= 0], len(view.run.lanes))
    best = max(of_pe, key=lambda lane: sums[lane], default=None)
    return best if best is not None and sums[best] > 0 else None


def explanation(view: RunView, scope: str | None, others: Sequence[RunView] = ()) -> Json:
    """Everything of the Explain view: tables that each sum to the total, stalls, idle time of lanes.

    `others` are runs that may measure a what-if estimate.
    """
    found = explained(view, scope)
    return {
        **answer(view, scope),
        "tables": {
            "class": _rows({LABELS[name]: ns for name, ns in found.by_class.items()}, _class_letters()),
            "lane": _rows(found.by_lane, {name: letter for letter, name in KINDS.items()}),
            "link": _rows(found.by_link, {}),
            "place": _rows(found.by_place, {}),
            "line": _rows(found.by_line, {}),
            "launch": _rows(found.by_launch, {}),
            "wait": _rows(found.by_wait, {}),
        },
        "stalls": [
            {"ns": stall.ns, "share": stall.share, "text": stall.text, "op": stall.op} for stall in stalls_of(found)
        ],
        "idle": [
            {"kind": kind, "parts": [{"name": name, "ns": ns} for name, ns in parts.items()]}
            for kind, parts in found.lane_kinds.items()
        ],
        "lane_counts": _lane_counts(found),
        "what_if": what_if(view, found, scope or "run", others),
    }


def difference(a: RunView, b: RunView, scope: str | None) -> Json:
    """What changed from one run to the other in a scope of A: the rows of `kernbench diff --json`, and both bars."""
    scopes = (scope or "run", same_scope(a, b, scope or "run"))
    found = compare(a.run, explained(a, scopes[0]), b.run, explained(b, scopes[1]))
    data = found.as_json()
    for name, view, own in (("a", a, scopes[0]), ("b", b, scopes[1])):
        about = data[name]
        assert isinstance(about, dict)
        path_columns = columns(view, own)
        about["scope"] = own
        about["t0"], about["t1"] = view.scope(own)
        about["sums"] = class_sums(path_columns.cls, path_columns.t1 - path_columns.t0)
    return {**data, "notes": differences(a.run, b.run)}


def same_scope(a: RunView, b: RunView, scope: str) -> str:
    """The scope of B that is compared with a scope of A."""
    a.scope(scope)
    kind, _, number = scope.partition(":")
    if kind == "launch":
        try:
            return f"launch:{same_launch(a.run, b.run, int(number))}"
        except UsageError:
            if scope != a.main_scope:
                raise
            return b.main_scope  # each run has its own main scope
    return scope if kind == "run" or len(b.run.launches) > 1 else b.main_scope


def _class_letters() -> dict[str, str]:
    return {LABELS[name]: letter for name, letter in LETTER.items()}


def _rows(sums: dict[str, float], letters: dict[str, str]) -> list[Json]:
    return [{"name": name, "ns": ns, "letter": letters.get(name, "")} for name, ns in sums.items()]


def _lane_counts(found: Explanation) -> dict[str, int]:
    counts: dict[str, int] = {}
    for use in found.accounts:
        counts[use.lane.kind_name] = counts.get(use.lane.kind_name, 0) + 1
    return counts


def what_if(view: RunView, found: Explanation, scope: str, others: Sequence[RunView]) -> list[Json]:
    """Estimated gains along this path if a component were free, with the time of a run on that machine if one is open;
    largest first.
    """
    same = [one for one in others if one is not view and is_alike(one.run, view.run)]
    by_machine = {one.run.manifest.machine_hash: one for one in same}
    estimated = what_ifs(view.run, found, targets_of(view.run.graph.spec))
    rows: list[Json] = []
    for one in sorted(estimated, key=lambda one: (-one.gain_ns, one.name)):
        other = by_machine.get(machine_with(view.run, one.settings)) if by_machine else None
        if one.gain_ns > 0 or other is not None:
            measured = _measured(view, scope, other) if other is not None else None
            rows.append({"name": one.name, "gain_ns": one.gain_ns, "foreseen_ns": one.estimated_ns, "share": one.share,
                         "measured": measured})  # fmt: skip
    return rows


def _measured(view: RunView, scope: str, other: RunView) -> Json | None:
    try:
        t0, t1 = other.scope(same_scope(view, other, scope))
    except UsageError:
        return None
    return {"id": other.id, "ns": t1 - t0}
