"""A saved run as one HTML page that needs no server and no network: `kernbench explain RUN --html FILE`.

It has the verdict, the critical path, the timeline, a heat map of HBM traffic and queueing by cube, links, sources and
tensors. Everything from a run is escaped, and a content security policy forbids the page to load or send anything.
Equal runs give equal bytes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

import numpy as np

from kernbench.common.array_types import Floats
from kernbench.common.units import counted, format_bytes, format_ns
from kernbench.report.explain.calls import longest_calls, numbered_launches
from kernbench.report.explain.classes import WORK
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.finish import finish_of
from kernbench.report.explain.measured import with_measurements
from kernbench.report.explain.picture import explanation_as_svg
from kernbench.report.explain.tensor_use import tensor_uses
from kernbench.report.explain.verdict import verdict_of
from kernbench.report.run_command import NextStep
from kernbench.report.runs.saved_run import SavedRun

MOST_LANES = 80
MOST_OPS = 40_000  # drawn; neighbours closer than a pixel are joined first
PIXELS = 4_000  # an op shorter than 1 / PIXELS of the time is joined with its neighbour
MOST_ROWS = 40
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def run_as_html(run: SavedRun, explanation: Explanation, title: str, step: NextStep) -> str:
    """The page of a saved run. `step` is what to run next."""
    package = files("kernbench.report.explain")
    style, script = ((package / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>",
        *_answer(run, explanation, title, step),
        '<section class="picture" tabindex="0" aria-label="The critical path">',
        f"{explanation_as_svg(explanation, title, with_sentence=False)}</section>",
        *_timeline(explanation),
        *_heat(run, explanation),
        *_what_if(run, explanation),
        *_tables(explanation),
        *_tensors(explanation),
        *_calls(explanation),
        *_sources(run, explanation),
        f"</main><script>{script}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _answer(run: SavedRun, explanation: Explanation, title: str, step: NextStep) -> Iterator[str]:
    about, verdict, finish = run.manifest, verdict_of(explanation), finish_of(explanation)
    yield f"<section><h1>{escape(title)}: {format_ns(explanation.scope.total_ns)}</h1>"
    yield f'<p class="lead">{escape(verdict.sentence)}</p>'
    if finish is not None:
        yield f'<p class="muted">{escape(finish.sentence)}</p>'
    yield f'<p class="command">Next: <code>{escape(step.command)}</code> '
    yield f'<button type="button" data-copy="{escape(step.command, quote=True)}">copy</button>'
    yield f'<span class="muted"> {escape(step.change)}</span></p>'
    facts = (
        f"bench {about.bench} on machine {about.machine}, whole run {format_ns(run.total_ns)}, data {about.verified}"
    )
    made = f"<code>{escape(shlex.join(about.command))}</code>, KernBench {escape(about.version)}"
    yield f'<p class="muted">{escape(facts)}. Made by {made}.</p>'
    yield "</section>"


# ---- the timeline


def _timeline(explanation: Explanation) -> Iterator[str]:
    run, scope = explanation.run, explanation.scope
    on_path = {segment.op for segment in explanation.path if segment.op >= 0}
    names: dict[str, int] = {}
    lanes = []
    drawn = 0
    for lane in _chosen_lanes(explanation, on_path):
        ops = _drawn_ops(explanation, lane, on_path, names)
        if drawn + len(ops) > MOST_OPS:
            continue
        drawn += len(ops)
        component = run.lanes[lane]
        lanes.append({"name": component.name, "kind": component.kind, "ops": ops, "at": lane})
    lanes.sort(key=lambda one: int(str(one.pop("at"))))  # in the order of the machine
    data = {"begin": scope.begin_ns, "end": scope.end_ns, "lanes": lanes, "names": list(names)}
    left = sum(1 for lane in run.lanes if lane.kind != "S") - len(lanes)
    more = f" {left:,} further lanes are not shown: those of PEs that are on the path come first." if left > 0 else ""
    yield "<section><h2>Timeline</h2>"
    yield '<p class="muted">Ops of every engine: solid is work, hatched is waiting; those on the critical path are '
    yield f"underlined.{more}</p>"
    buttons = {"zoom in": "0.5", "zoom out": "2", "all": "all"}
    yield "<p>" + " ".join(f'<button type="button" data-zoom="{to}">{text}</button>' for text, to in buttons.items())
    yield '<span id="tip" class="mono" role="status"></span></p>'
    yield '<canvas id="timeline" tabindex="0" role="img" aria-label="Timeline: lanes of engines over time"></canvas>'
    yield f'<script type="application/json" id="timeline-data">{_json(data)}</script></section>'


def _chosen_lanes(explanation: Explanation, on_path: set[int]) -> list[int]:
    """Lanes with ops in the scope: those of PEs on the path first, then in the order of the machine."""
    run, scope, ops = explanation.run, explanation.scope, explanation.run.ops
    lanes_on_path = {int(ops.lane[ops.row_of[op]]) for op in on_path}
    pes = {run.lanes[lane].component.rpartition(".")[0] for lane in lanes_on_path}
    found = []
    for lane in run.lanes:
        rows = slice(lane.first, lane.stop)
        if lane.kind != "S" and ((ops.t_end[rows] > scope.begin_ns) & (ops.t_start[rows] < scope.end_ns)).any():
            found.append((lane.component.rpartition(".")[0] not in pes, lane.index))
    return [index for _, index in sorted(found)[:MOST_LANES]]


def _drawn_ops(explanation: Explanation, lane: int, on_path: set[int], names: dict[str, int]) -> list[list[float]]:
    """Begin, end, number of the name, whether it is on the path, how long it queued; ops below a pixel are joined."""
    run, scope, ops = explanation.run, explanation.scope, explanation.run.ops
    least = scope.total_ns / PIXELS
    found: list[list[float]] = []
    was_short = False
    for row in range(run.lanes[lane].first, run.lanes[lane].stop):
        begin, end = float(ops.t_start[row]), float(ops.t_end[row])
        if end <= scope.begin_ns or begin >= scope.end_ns:
            continue
        line = int(ops.line[row])
        name = ops.name[row] + (f" {run.lines[line].name}" if line >= 0 else "")
        path = int(int(ops.id[row]) in on_path)
        queued = float(ops.queue_ns[row]) if ops.kind[row] in "RW" else 0.0
        is_short = end - begin < least and queued * 2 < end - begin
        if is_short and was_short and begin - found[-1][1] < least and found[-1][3] == path:
            found[-1][1] = end
        else:
            found.append([begin, end, names.setdefault(name, len(names)), path])
            if queued > 0 and not is_short:
                found[-1].append(queued)
        was_short = is_short
    return found


# ---- the machine


def _heat(run: SavedRun, explanation: Explanation) -> Iterator[str]:
    """Cubes of each SIP, coloured by the bytes that their HBM moved; queueing as a number."""
    spec = run.graph.spec
    width, height = spec.sip.cube_mesh.w, spec.sip.cube_mesh.h
    moved: dict[tuple[int, int], float] = {}
    waited: dict[tuple[int, int], float] = {}
    nbytes_at, waited_at = _activity(run, explanation)
    for place in run.places:
        node = run.graph.nodes[place.src]
        key = (node.place.sip, node.place.cube)
        if place.kind == "channel":
            moved[key] = moved.get(key, 0.0) + float(nbytes_at[place.index])
        if key[1] >= 0:
            waited[key] = waited.get(key, 0.0) + float(waited_at[place.index])
    most = max(moved.values(), default=0.0)
    yield "<section><h2>Heat map</h2>"
    yield '<p class="muted">HBM bytes of each cube in the time of this page; below, how long flits waited there, '
    yield "summed over its links and channels.</p>"
    yield '<div class="heat">'
    for sip in sorted({key[0] for key in (*moved, *waited) if key[0] >= 0}):
        cells = []
        for cube in range(width * height):
            share = moved.get((sip, cube), 0.0) / most if most else 0.0
            left, top = cube % width * 82, cube // width * 54
            nbytes, ns = format_bytes(int(moved.get((sip, cube), 0.0))), format_ns(waited.get((sip, cube), 0.0))
            box = f'x="{left}" y="{top}" width="78" height="50"'
            cells.append(f'<rect {box} fill="#DB6B3A" fill-opacity="{share:.3f}" stroke="#868C96">')
            cells.append(f"<title>cube {cube}: {nbytes}, waited {ns}</title></rect>")
            texts = enumerate((f"cube {cube}", nbytes, ns))
            cells += [f'<text x="{left + 4}" y="{top + 14 + 15 * row}">{text}</text>' for row, text in texts]
        box = f"0 0 {width * 82} {height * 54}"
        label = f"SIP {sip}: HBM bytes by cube"
        yield f'<figure><figcaption>SIP {sip}</figcaption><svg width="{width * 82}" viewBox="{box}" '
        yield f'role="img" aria-label="{label}">'
        yield "".join(cells) + "</svg></figure>"
    yield "</div><h2>Busiest links</h2>"
    yield '<p class="muted">By how long flits waited there in the time of this page, then by bytes.</p>'
    used = [place for place in run.places if place.kind == "link" and nbytes_at[place.index]]
    links = sorted(used, key=lambda link: (-waited_at[link.index], -nbytes_at[link.index], link.name))
    yield from _table(
        ("link", "class", "bytes", "GB/s", "time in which flits waited"),
        [
            (
                link.name,
                link.link_class,
                format_bytes(int(nbytes_at[link.index])),
                f"{link.gbs:.2f}",
                format_ns(float(waited_at[link.index])),
            )
            for link in links[:MOST_ROWS]
        ],
    )
    yield "</section>"


def _activity(run: SavedRun, explanation: Explanation) -> tuple[Floats, Floats]:
    """By place, in the bins of the scope: bytes, and how long flits waited there."""
    activity, scope = run.activity, explanation.scope
    chosen = (activity.bin >= int(scope.begin_ns / activity.bin_ns)) & (activity.bin * activity.bin_ns < scope.end_ns)
    places, count = activity.place[chosen], len(run.places)
    return (
        np.bincount(places, activity.nbytes[chosen], count).astype(np.float64),
        np.bincount(places, activity.contended_ns[chosen], count).astype(np.float64),
    )


# ---- tables


def _what_if(run: SavedRun, explanation: Explanation) -> Iterator[str]:
    rows = with_measurements(run, explanation)
    if not rows:
        return
    yield "<section><h2>What if it were gone?</h2>"
    yield '<p class="muted">The time of this scope if a component were free: estimated along the path, and measured '
    yield "where a run with it is saved beside this one.</p>"
    yield from _table(
        ("made free", "estimated", "", "measured", ""),
        [
            (
                one.estimated.name,
                format_ns(one.estimated.estimated_ns),
                f"{-one.estimated.share:+.2%}",
                "-" if one.measured_ns is None else format_ns(one.measured_ns),
                "" if one.measured_ns is None else f"{one.measured_ns / one.estimated.total_ns - 1:+.2%}",
            )
            for one in rows
        ],
    )
    yield "</section>"


def _tables(explanation: Explanation) -> Iterator[str]:
    tables = {
        "Critical path by class": explanation.by_class,
        "By engine": explanation.by_lane,
        "By kernel line": explanation.by_line,
        "Queueing by place": explanation.by_place,
        "What the next op waited for": explanation.by_wait,
    }
    for title, sums in tables.items():
        if title == "Queueing by place" and len(sums) < 2:  # nothing queued
            continue
        yield f'<section><h2>{title}</h2><div class="scroll"><table><tbody>'
        for name, ns in list(sums.items())[:MOST_ROWS]:
            share = explanation.share(ns)
            mark = ' class="wait"' if title.endswith("class") and name not in WORK else ""
            colour = f" c-{name.replace(' ', '-')}" if title.endswith("class") else ""
            bar = f'<span class="bar{colour}" style="width: {20 * share:.2f}rem"></span>'
            yield (
                f"<tr{mark}><td>{escape(name)}</td>"
                + _number(format_ns(ns))
                + _number(f"{share:.2%}")
                + f"<td>{bar}</td></tr>"
            )
        yield "</tbody></table></div></section>"


def _tensors(explanation: Explanation) -> Iterator[str]:
    uses = tensor_uses(explanation.run, explanation.scope.launch)
    if not uses:
        return
    yield "<section><h2>Tensors</h2>"
    yield '<p class="muted">Where kernels read and wrote each tensor. Home is the PE&#x27;s own cube.</p>'
    yield from _table(
        ("tensor", "memories", "cubes", "read by", "written by", "home", "remote", "byte hops"),
        [
            (
                use.name,
                f"{len(use.memories)}: {_few(list(use.memories))}",
                _few(use.cubes),
                _by(use.readers),
                _by(use.writers),
                format_bytes(use.home_bytes),
                format_bytes(use.remote_bytes),
                f"{use.byte_hops:,}",
            )
            for use in uses
        ],
    )
    yield "</section>"


def _by(pes: Mapping[str, int]) -> str:
    return f"{counted(len(pes), 'PE')}, {format_bytes(sum(pes.values()))}" if pes else "-"


def _calls(explanation: Explanation) -> Iterator[str]:
    """The program's lines of collectives and tensor operations."""
    calls = longest_calls(explanation.run, explanation.scope.launch)
    if not calls:
        return
    yield '<section id="calls"><h2>Called by the program</h2>'
    yield '<p class="muted">Lines of the program that launched collectives and tensor operations; longest first.</p>'
    yield from _table(
        ("line", "program", "launches", "time"),
        [
            (call.place.rpartition("/")[2], call.text, numbered_launches(call.launches), format_ns(call.ns))
            for call in calls[:MOST_ROWS]
        ],
    )
    yield "</section>"


def _sources(run: SavedRun, explanation: Explanation) -> Iterator[str]:
    """The files of kernels, each line with its part of the path."""
    by_line: dict[tuple[int, int], float] = {}
    for segment in explanation.path:
        if segment.line >= 0:
            line = run.lines[segment.line]
            key = (line.file.index, line.number)
            by_line[key] = by_line.get(key, 0.0) + segment.ns
    for file in run.sources:
        numbers = [number for index, number in by_line if index == file.index]
        if file.text is None or not numbers:
            continue
        first, last = max(1, min(numbers) - 12), max(numbers) + 12
        hottest = max(numbers, key=lambda number: (by_line[file.index, number], -number))
        yield f'<section><h2>{escape(file.name)}</h2><div class="scroll" tabindex="0"><pre class="source">'
        for number, text in enumerate(file.lines[first - 1 : last], first):
            ns = by_line.get((file.index, number), 0.0)
            marks = ["hot"] * (explanation.share(ns) >= 0.1) + ["hottest"] * (number == hottest)
            hot = f' class="{" ".join(marks)}"' if marks else ""
            margin = f"{format_ns(ns) if ns else '':>10} {number:>4}"
            yield f'<span{hot}><span class="ns">{margin}</span> {escape(text)}</span>'
        yield "</pre></div></section>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield '<div class="scroll" tabindex="0"><table><thead><tr>'
    yield "".join(f'<th scope="col">{escape(head)}</th>' for head in heads) + "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"


def _number(text: str) -> str:
    return f'<td class="n">{escape(text)}</td>'


def _few(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")


def _json(data: object) -> str:
    """JSON that cannot end its script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
