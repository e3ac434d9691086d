"""Source: the kernel's text as saved with the run, with time, stall and bytes of each line that issued ops."""

from __future__ import annotations

import numpy as np

from kernbench.report.explain.calls import longest_calls
from kernbench.web.machine_map import Json
from kernbench.web.op_view import brief, selected_rows, tensor_codes
from kernbench.web.path_view import line_shares
from kernbench.web.run_view import LETTERS, RunView

SEARCH_HITS = 50  # sent per group


def sources(view: RunView, scope: str | None, t0: float, t1: float) -> Json:
    """All files, and of each line: its part of the path in the window, ops, engine time by kind, stall, bytes. `calls`
    are the program's lines that made the launches of the scope.
    """
    shares = line_shares(view, scope, t0, t1)
    none: Json = {"ns": 0.0, "parts": []}
    ops = view.run.ops
    rows = np.flatnonzero((ops.line >= 0) & ops.is_work & (ops.t_start < t1) & (ops.t_end >= t0))
    line = ops.line[rows]
    n = len(view.run.lines)
    inside = np.minimum(ops.t_end[rows], t1) - np.maximum(ops.t_start[rows], t0)
    waited = ops.t_start[rows] - ops.t_asked[rows]
    sums = {
        "ops": np.bincount(line, minlength=n),
        "busy_ns": np.bincount(line, inside, minlength=n),
        "stall_ns": np.bincount(line, waited, minlength=n),
        "queue_ns": np.bincount(line, ops.queue_ns[rows], minlength=n),
        "nbytes": np.bincount(line, ops.nbytes[rows], minlength=n),
    }
    kinds = [
        np.bincount(line[view.kinds[rows] == number], inside[view.kinds[rows] == number], minlength=n)
        for number in range(len(LETTERS))
    ]
    lines = []
    for found in view.run.lines:
        i = found.index
        lines.append(
            {
                "i": i,
                "file": found.file.index,
                "number": found.number,
                "path": shares.get(i, none),
                **{name: float(values[i]) for name, values in sums.items()},
                "kinds": {LETTERS[k]: float(values[i]) for k, values in enumerate(kinds) if values[i]},
            }
        )
    files = [{"i": file.index, "name": file.name, "text": file.text} for file in view.run.sources]
    calls = [
        {"place": call.place, "text": call.text, "launches": call.launches, "ns": call.ns}
        for call in longest_calls(view.run, view.launch_of(scope))
    ]
    outside = shares.get(-1, none)
    return {"schema": 1, "t0": t0, "t1": t1, "files": files, "lines": lines, "outside": outside, "calls": calls}


def search(view: RunView, words: str, limit: int = SEARCH_HITS) -> Json:
    """Nodes, launches, lines, tensors and ops whose text has all the words: the first of each, and how many."""
    wanted = words.lower().split()
    nodes, node_count = view.machine.search(words, limit)
    found: Json = {
        "schema": 1,
        "q": words,
        "nodes": {"count": node_count, "hits": [{"id": name, "text": name} for name in nodes]},
    }

    def fits(text: str) -> bool:
        return all(word in text.lower() for word in wanted)

    launches = [launch for launch in view.run.launches if fits(launch.name)]
    found["launches"] = _hits([{"id": f"launch:{x.index}", "text": x.name} for x in launches], limit)
    lines = [line for line in view.run.lines if fits(f"{line.name} {line.text}")]
    found["lines"] = _hits([{"id": x.name, "text": f"{x.name}  {x.text}"} for x in lines], limit)
    ops = view.run.ops
    tensors = [name for name in tensor_codes(view)[0] if fits(name)]
    hit = selected_rows(view, f"q:{words}")
    rows = np.flatnonzero(hit)
    rows = rows[np.argsort(ops.t_start[rows], kind="stable")]
    found["tensors"] = _hits([{"id": name, "text": name} for name in tensors], limit)
    found["ops"] = {
        "count": len(rows),
        "hits": [{"id": int(ops.id[row]), "text": f"{brief(view, int(row))['label']}", "op": brief(view, int(row))}
                 for row in rows[:limit]],
        "times": ops.t_start[rows[:2000]].tolist(),
    }  # fmt: skip
    return found


def _hits(hits: list[Json], limit: int) -> Json:
    return {"count": len(hits), "hits": hits[:limit]}
