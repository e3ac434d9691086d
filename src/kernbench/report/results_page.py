"""A results folder as one HTML page: inline figures, sortable tables, the machine, the limits of the model.

The page is self-contained: it loads no other script, style or picture, so it can be sent as one file. Equal results
give equal bytes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from kernbench.common.output_files import PAGE
from kernbench.report.fidelity import POLICY
from kernbench.report.fidelity_facts import FACTS
from kernbench.report.machine_facts import MachineFacts
from kernbench.report.ranges import FigureRange

TableRow = Mapping[str, object]
WRAPPED = 60  # characters of a text that is written in several lines


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn figure: SVG, title and caption."""

    svg: bytes
    title: str
    caption: str


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page. `groups` are tables by title; `facts` are topics of fidelity. A page that begins
    with a summary has its tables whole; of another one, values common to all rows of a table stand above it.
    """

    title: str
    about: str
    origin: str
    parameters: Mapping[str, object]
    figures: Sequence[Figure]
    groups: Mapping[str, Sequence[TableRow]]
    machine: MachineFacts | None  # None where results are of many machines
    facts: Sequence[str]
    summary: Sequence[str] = ()  # sentences that come first
    meanings: Mapping[str, str] = field(default_factory=dict)  # of columns
    everything: Mapping[str, Sequence[TableRow]] = field(default_factory=dict)  # tables that are folded, at the end


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1b1b1f; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.2rem; border-bottom: 1px solid #ccc; } figure { margin: 1.5rem 0; }
figure img { width: 100%; height: auto; } figcaption { color: #444; } .origin { color: #555; font-size: .9rem; }
.scroll { overflow-x: auto; max-height: 32rem; overflow-y: auto; border: 1px solid #ddd; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
th { position: sticky; top: 0; background: #f1f1f4; text-align: left; } th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid #1d8fd0; } th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; } td.n { text-align: right; }
th, td { padding: .15rem .5rem; border-bottom: 1px solid #eee; white-space: nowrap; } dt { font-weight: 600; }
td.w { white-space: normal; min-width: 24rem; } td small { color: #666; } details { margin: 1rem 0; }
summary { cursor: pointer; font-weight: 600; }
th { white-space: normal; vertical-align: bottom; min-width: 5.5rem; }
@media print { .scroll { max-height: none; overflow: visible; } }
"""

_SCRIPT = """
document.querySelectorAll("th button").forEach(button => button.addEventListener("click", () => {
  const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
  const at = [...head.parentNode.children].indexOf(head), up = head.getAttribute("aria-sort") !== "ascending";
  const value = row => { const cell = row.cells[at]; const v = cell.dataset.v;
    return v === undefined ? cell.textContent : Number(v); };
  const order = (a, b) => { const x = value(a), y = value(b);
    if (typeof x === "number" && typeof y === "number") return x - y;
    return String(x).localeCompare(String(y)); };
  const rows = [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a));
  table.querySelectorAll("th").forEach(th => th.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...rows);
}));
"""


def page_as_html(page: Page) -> str:
    """The whole page."""
    parts = [
        f'{PAGE.beginning.decode()}<meta name="viewport" content="width=device-width">',
        f"<title>{escape(page.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(page.title)}</h1><p>{escape(page.about)}</p>",
        f'<p class="origin">{escape(page.origin)}</p>',
        *_summary(page.summary),
        *_figures(page.figures),
        "<h2>Results</h2>",
        *(
            part
            for title, rows in page.groups.items()
            for part in (f"<h3>{escape(title)}</h3>", *(_table(rows) if page.summary else _rows(rows)))
        ),
        *_meanings(page.meanings),
        *(_machine(page.machine) if page.machine is not None else ()),
        *_fidelity(page.facts),
        *_folded(page.everything),
        f"<script>{_SCRIPT}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _summary(sentences: Sequence[str]) -> Iterable[str]:
    if sentences:
        yield "<h2>In short</h2><ul>" + "".join(f"<li>{escape(each)}.</li>" for each in sentences) + "</ul>"


def _meanings(meanings: Mapping[str, str]) -> Iterable[str]:
    if meanings:
        terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in meanings.items())
        yield f"<h3>What the columns mean</h3><dl>{terms}</dl>"


def _folded(tables: Mapping[str, Sequence[TableRow]]) -> Iterable[str]:
    for title, rows in tables.items():
        if rows:
            yield f"<details><summary>{escape(title)}</summary>"
            yield from _table(rows)
            yield "</details>"


def _figures(figures: Sequence[Figure]) -> Iterable[str]:
    if figures:
        yield "<h2>Figures</h2>"
    for figure in figures:
        data = b64encode(figure.svg).decode()
        yield f'<figure><img alt="{escape(figure.title)}" src="data:image/svg+xml;base64,{data}">'
        yield f"<figcaption>{escape(figure.caption)}</figcaption></figure>"


def _rows(rows: Sequence[TableRow]) -> Iterable[str]:
    """A table of the columns that differ; values common to all rows are listed once above it."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    alike = [name for name in names if len(rows) > 1 and len({repr(row.get(name)) for row in rows}) == 1]
    shared = [f"{name} {rows[0][name]}" for name in alike if rows[0].get(name) is not None]
    if shared:
        yield f'<p class="origin">In all rows: {escape(", ".join(shared))}.</p>'
    yield from _table([{name: value for name, value in row.items() if name not in alike} for row in rows])


def _table(rows: Sequence[TableRow]) -> Iterable[str]:
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if _has_values(rows, name)]
    heads = "".join(f'<th scope="col"><button type="button">{_head(name)}</button></th>' for name in names)
    yield f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>'
    for row in rows:
        yield "<tr>" + "".join(_cell(row.get(name)) for name in names) + "</tr>"
    yield "</tbody></table></div>"


def _head(name: str) -> str:
    """A column's name, which is broken between words and after dots of a key, and nowhere else."""
    return escape(name).replace(".", ".<wbr>")


def _has_values(rows: Sequence[TableRow], name: str) -> bool:
    return any(row.get(name) is not None for row in rows)


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, FigureRange):
        ends = f"{_number(value.low)} to {_number(value.high)}"
        return f'<td class="n" data-v="{value.value!r}">{_number(value.value)}<br><small>{ends}</small></td>'
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = str(value)
        return f'<td class="w">{escape(text)}</td>' if len(text) > WRAPPED else f"<td>{escape(text)}</td>"
    return f'<td class="n" data-v="{value!r}">{_number(value)}</td>'


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.4g}"


def _machine(machine: MachineFacts) -> Iterable[str]:
    yield f"<h2>Machine: {escape(machine.name)}</h2>"
    facts = {**machine.counts, **machine.memory}
    rows = [{"what": name.replace("_", " "), "value": value} for name, value in facts.items()]
    rows += [
        {"what": f"{name.replace('_', ' ')} (GB/s)", "value": value}
        for name, value in machine.bandwidth_gbs.items()
        if value is not None
    ]
    yield from _table(rows)


def _fidelity(topics: Sequence[str]) -> Iterable[str]:
    yield f"<h2>How far to trust it</h2><p>{escape(POLICY)}</p><dl>"
    for fact in FACTS:
        if fact.topic in topics:
            error = "" if fact.error == "none" else f" ({fact.error})"
            yield f"<dt>{escape(fact.topic)}: {escape(fact.kind)}{escape(error)}</dt>"
            words = f"Hardware: {fact.hardware}. Model: {fact.model}. Matters for {fact.matters}."
            yield f"<dd>{escape(words)}</dd>"
    yield "</dl><p>All of it: <code>kernbench fidelity</code>.</p>"
