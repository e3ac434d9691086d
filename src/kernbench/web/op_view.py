"""Details: one op with its releases in both directions; a window, a line or a block with its totals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernbench.common.errors import UsageError
from kernbench.common.whole_numbers import whole_number
from kernbench.report.runs.files import ReplacedRunError
from kernbench.report.runs.layout import KINDS
from kernbench.web.heat import places_of, totals_of_link
from kernbench.web.machine_map import Json
from kernbench.web.path_view import of_class
from kernbench.web.run_view import LETTERS, RunView

MOST = 20  # ops that are named in a list
MOST_ROWS = 500  # of a table


def _params(view: RunView, row: int) -> Json:
    """The other fields of an op; none if the run was replaced since it was opened: they are read when asked for."""
    try:
        return view.run.ops.params(row)
    except ReplacedRunError:
        return {}


def op_details(view: RunView, op: int) -> Json:
    """All data of an op; raises UsageError if there is no such id."""
    ops = view.run.ops
    if not 0 <= op < len(ops):
        raise UsageError(f"the run has no op {op}", hint=f"ops are 0 to {len(ops) - 1}")
    row = int(ops.row_of[op])
    lane = view.run.lanes[int(ops.lane[row])]
    took = float(ops.t_end[row] - ops.t_start[row])
    split = {name: float(getattr(ops, f"{name}_ns")[row]) for name in ("transfer", "latency", "queue")}
    moves = split["transfer"] + split["latency"] > 0
    consumers = _consumers(view, op)
    released = np.flatnonzero(ops.released_by == op)
    return {
        **brief(view, row),
        "schema": 1,
        "lane_name": lane.name,
        "component": lane.component,
        "port": lane.port,
        "launch": int(ops.launch[row]),
        "asked": float(ops.t_asked[row]),
        "ready": float(ops.t_ready[row]),
        "took": took,
        "split": split if moves else None,
        "queued_at": _queued_at(view, row),
        "nbytes": int(ops.nbytes[row]),
        "flops": int(ops.flops[row]),
        "release": ops.release[row],
        "released_by": _op_or_none(view, int(ops.released_by[row])),
        "chain": _chain(view, row),
        "deps": [brief(view, int(ops.row_of[dep])) for dep in ops.deps.of(row)[:MOST]],
        "consumers": [brief(view, int(r)) for r in consumers[:MOST]],
        "consumer_count": len(consumers),
        "released": [brief(view, int(r)) for r in released[:MOST]],
        "released_count": len(released),
        "tensors": [str(t) for t in ops.tensors.of(row)],
        "params": _params(view, row),
        "before": _neighbour(view, row, -1),
        "after": _neighbour(view, row, 1),
        "route": route_of(view, row),
    }


def brief(view: RunView, row: int) -> Json:
    """An op in one line."""
    ops = view.run.ops
    line = int(ops.line[row])
    return {
        "id": int(ops.id[row]),
        "lane": int(ops.lane[row]),
        "kind": ops.kind[row],
        "kind_name": KINDS[ops.kind[row]],
        "name": ops.name[row],
        "label": ops.label(row),
        "t0": float(ops.t_start[row]),
        "t1": float(ops.t_end[row]),
        "line": line_json(view, line),
    }


def line_json(view: RunView, line: int) -> Json | None:
    if line < 0:
        return None
    found = view.run.lines[line]
    return {"i": line, "file": found.file.name, "number": found.number}


def line_index(view: RunView, name: str) -> int:
    """The line called `flash.py:8`, or -1 if it issued nothing; raises UsageError where the run has no such line.

    A file may be named by the end of its path, as long as only one has that end.
    """
    path, _, number = name.rpartition(":")
    files = [file for file in view.run.sources if file.name == path]
    files = files or [file for file in view.run.sources if path and file.name.endswith(f"/{path}")]
    known = ", ".join(file.name for file in view.run.sources[:5]) or "none"
    at = whole_number(number)
    if len(files) != 1 or at is None:
        raise UsageError(f"the run has no source line '{name[:80]}'", hint=f"write FILE:NUMBER; its files are: {known}")
    file = files[0]
    if file.text is not None and not 1 <= at <= len(file.lines):
        raise UsageError(f"{file.name} has no line {number[:20]}", hint=f"it has lines 1 to {len(file.lines)}")
    return next((one.index for one in view.run.lines if one.file == file and one.number == at), -1)


def _op_or_none(view: RunView, op: int) -> Json | None:
    return None if op < 0 else brief(view, int(view.run.ops.row_of[op]))


def _neighbour(view: RunView, row: int, step: int) -> int | None:
    lane = view.run.lanes[int(view.run.ops.lane[row])]
    at = row + step
    return int(view.run.ops.id[at]) if lane.first <= at < lane.stop else None


def _chain(view: RunView, row: int) -> list[Json]:
    """The op that released it, the op that released that one, and so on."""
    ops = view.run.ops
    found: list[Json] = []
    before = int(ops.released_by[row])
    while before >= 0 and len(found) < MOST:
        at = int(ops.row_of[before])
        found.append({**brief(view, at), "release": ops.release[at]})
        before = int(ops.released_by[at])
    return found


def _consumers(view: RunView, op: int) -> NDArray[np.int64]:
    deps = view.run.ops.deps
    at = np.flatnonzero(deps.values == op)
    return np.unique(np.searchsorted(deps.starts, at, side="right") - 1)


def _queued_at(view: RunView, row: int) -> list[Json]:
    ops = view.run.ops
    places, waits = ops.wait_places.of(row), ops.wait_ns.of(row)
    order = np.argsort(-waits, kind="stable")
    found = []
    for n in order[:8]:
        place = view.run.places[int(places[n])]
        found.append({"id": view.place_id(int(places[n])), "name": place.name, "ns": float(waits[n])})
    return found


def route_of(view: RunView, row: int) -> list[str] | None:
    """The nodes that an op's bytes passed, in order."""
    places = [view.run.places[int(place)] for place in view.run.ops.route.of(row)]
    return [places[0].src, *(place.dst for place in places)] if places else None


# ------------------------------------------------------------------------------------------------------------- totals


def window_totals(view: RunView, t0: float, t1: float, chosen: NDArray[np.bool_] | None = None) -> list[Json]:
    """A row per kind of engine: ops that intersect the window, their busy time in it, their durations.

    `chosen` limits it to some rows of ops.
    """
    ops = view.run.ops
    meets = (ops.t_start < t1) & (ops.t_end > t0) & ops.is_work
    if chosen is not None:
        meets &= chosen
    rows = np.flatnonzero(meets)
    kinds = view.kinds[rows]
    lasts = ops.t_end[rows] - ops.t_start[rows]
    inside = np.minimum(ops.t_end[rows], t1) - np.maximum(ops.t_start[rows], t0)
    found = []
    for number, letter in enumerate(LETTERS):
        mine = kinds == number
        if not mine.any():
            continue
        own = lasts[mine]
        found.append(
            {
                "kind": letter,
                "name": KINDS[letter],
                "ops": int(mine.sum()),
                "busy_ns": float(inside[mine].sum()),
                "mean_ns": float(own.mean()),
                "min_ns": float(own.min()),
                "max_ns": float(own.max()),
                "queue_ns": float(ops.queue_ns[rows[mine]].sum()),
                "nbytes": int(ops.nbytes[rows[mine]].sum()),
            }
        )
    return found


def selected_rows(view: RunView, selection: str) -> NDArray[np.bool_]:
    """A mask over the rows of ops: whether each belongs to a selection.

    That is `op:16`, `line:flash.py:8`, `lane:4`, `launch:0`, `kind:G`, `class:queue@launch:0` (on that path),
    `node:sip0.cube0.pe3`, `link:A>B` or `q:WORDS`. A line that issued nothing is a selection of no rows.
    """
    what, _, name = selection.partition(":")
    ops = view.run.ops

    def make() -> NDArray[np.bool_]:
        if what in ("op", "lane", "launch") and (number := whole_number(name)) is not None:
            column = {"op": ops.id, "lane": ops.lane, "launch": ops.launch}[what]
            return np.equal(column, number)
        if what == "line":
            return np.equal(ops.line, line_index(view, name)) & (ops.line >= 0)
        if what == "class":
            cls, _, scope = name.partition("@")
            return of_class(view, scope or None, cls)
        if what == "q":
            return matching(view, name)
        if what == "kind" and len(name) == 1:
            return ops.kind.are(name)
        if what == "node":
            lanes = [lane.index for lane in view.run.lanes if f"{lane.component}.".startswith(f"{name}.")]
            return np.isin(ops.lane, lanes) if lanes else passed(view, name)
        if what == "link":
            return passed(view, name)
        raise UsageError(
            f"no selection '{selection[:60]}'",
            hint="use op:N, line:FILE:N, lane:N, launch:N, kind:K, class:CLASS@SCOPE, node:NAME, link:A>B or q:WORDS",
        )

    return view.keep("selected", selection, 8, make)


def matching(view: RunView, words: str) -> NDArray[np.bool_]:
    """A mask: whether the op's name, one of its tensors or its number has all the words."""
    wanted, ops = words.lower().split(), view.run.ops

    def fits(text: str) -> bool:
        return all(word in text.lower() for word in wanted)

    hit: NDArray[np.bool_] = np.isin(ops.name.codes, [code for code, word in enumerate(ops.name.words) if fits(word)])
    names, codes = tensor_codes(view)
    at = np.flatnonzero(np.isin(codes, [n for n, name in enumerate(names) if fits(name)]))
    hit[np.searchsorted(ops.tensors.starts, at, side="right") - 1] = True
    op = whole_number(wanted[0]) if len(wanted) == 1 else None
    if op is not None and op < len(ops):
        hit[ops.row_of[op]] = True
    return hit


def tensor_codes(view: RunView) -> tuple[list[str], NDArray[np.int64]]:
    """The names of tensors, and for every entry of `ops.tensors` which of them it is."""

    def make() -> tuple[list[str], NDArray[np.int64]]:
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(str(name), len(numbers)) for name in view.run.ops.tensors.values]
        return list(numbers), np.array(codes, np.int64)

    return view.keep("tensors", "codes", 1, make)


def passed(view: RunView, name: str) -> NDArray[np.bool_]:
    """A mask: whether the op's bytes passed a link, a node, or a channel's controller."""
    block = name.partition("#")[0]
    links = [place.index for place in places_of(view, block) if place.kind == "link"]
    if not links:
        links = [place.index for place in view.run.places if place.kind == "link" and block in (place.src, place.dst)]
    route = view.run.ops.route
    at = np.flatnonzero(np.isin(route.values, links))
    found = np.zeros(len(view.run.ops), bool)
    found[np.searchsorted(route.starts, at, side="right") - 1] = True
    return found


def op_at(view: RunView, lane: int, t: float) -> Json:
    """The op of a lane at a time, or the one nearest to it."""
    if not 0 <= lane < len(view.run.lanes) or not view.run.lanes[lane].ops:
        raise UsageError(f"no op on lane {lane}", hint="ask for a lane that has ops")
    found, ops = view.run.lanes[lane], view.run.ops
    row = found.first + int(np.searchsorted(ops.t_start[found.first : found.stop], t, side="right")) - 1
    row = min(max(row, found.first), found.stop - 1)
    if row + 1 < found.stop and ops.t_end[row] < t and ops.t_start[row + 1] - t < t - ops.t_end[row]:
        row += 1
    return {"schema": 1, "id": int(ops.id[row])}


def longest_ops(view: RunView, t0: float, t1: float) -> Json:
    """The longest ops of a window, in order of start: the timeline as a table."""
    ops = view.run.ops
    rows = np.flatnonzero((ops.t_start < t1) & (ops.t_end > t0))
    lasts = ops.t_end[rows] - ops.t_start[rows]
    chosen = rows[np.argsort(-lasts, kind="stable")[:MOST_ROWS]]
    chosen = chosen[np.argsort(ops.t_start[chosen], kind="stable")]
    table = [
        {
            **brief(view, int(row)),
            "lane_name": view.run.lanes[int(ops.lane[row])].name,
            "took": float(ops.t_end[row] - ops.t_start[row]),
            "queue": float(ops.queue_ns[row]),
            "nbytes": int(ops.nbytes[row]),
        }
        for row in chosen
    ]
    return {"schema": 1, "count": len(rows), "rows": table}


def totals(view: RunView, t0: float, t1: float, selection: str | None) -> Json:
    """The totals of a window, or of a selection in it."""
    data: Json = {"schema": 1, "t0": t0, "t1": t1, "sel": selection}
    chosen = selected_rows(view, selection) if selection else None
    data["engines"] = window_totals(view, t0, t1, chosen)
    if selection and chosen is not None:
        ops = view.run.ops
        rows = np.flatnonzero(chosen & (ops.t_start < t1) & ((ops.t_end > t0) | (ops.t_start == t0)))
        data["ops"] = len(rows)
        lasts = ops.t_end[rows] - ops.t_start[rows]
        slowest = rows[np.argsort(-lasts, kind="stable")[:MOST]]
        data["slowest"] = [brief(view, int(row)) for row in slowest]
        data["components"] = sorted({view.run.lanes[int(lane)].component for lane in np.unique(ops.lane[rows])})
        data["lines"] = [int(line) for line in np.unique(ops.line[rows]) if line >= 0]
        data["held_up_at"] = _held_up_at(view, rows)
        what, _, name = selection.partition(":")
        if what in ("node", "link"):
            data["place"] = totals_of_link(view, name, t0, t1)
    return data


def _held_up_at(view: RunView, rows: NDArray[np.int64]) -> list[str]:
    """Where the bytes of some ops waited, longest first."""
    waits = view.run.ops
    lengths = np.diff(waits.wait_places.starts)
    chosen = np.zeros(len(view.run.ops), bool)
    chosen[rows] = True
    mine = np.repeat(chosen, lengths)
    sums = np.bincount(waits.wait_places.values[mine], waits.wait_ns.values[mine], minlength=1)
    order = sorted(np.flatnonzero(sums), key=lambda n: (-sums[n], n))
    return [view.place_id(int(n)) for n in order[:MOST]]
