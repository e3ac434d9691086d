"""An explanation as SVG: the critical path by class, over time, and by kernel line.

Work is solid, waiting is hatched; every colour is labelled. Colours are those of the web page.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from kernbench.common.units import format_ns
from kernbench.report.explain.classes import (
    CLASSES,
    COMMUNICATION,
    CREDIT,
    FETCH_STORE,
    GEMM,
    HOST,
    ISSUE,
    LATENCY,
    LAUNCH,
    MATH,
    QUEUE,
    TRANSFER,
    WORK,
)  # fmt: skip
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.verdict import verdict_of

FILLS = {
    GEMM: "#1F6FD0", MATH: "#62C6EA", TRANSFER: "#0A6A50", FETCH_STORE: "#3B3226", COMMUNICATION: "#7A2A7A",
    LATENCY: "#868C96", QUEUE: "#A63446", ISSUE: "#A9B3C0", CREDIT: "#E3A008", LAUNCH: "#C9D1DB", HOST: "#D5DBE3",
}  # fmt: skip
DARK_TEXT = frozenset({MATH, ISSUE, CREDIT, LAUNCH, HOST})
WIDTH, MARGIN, BAR = 960, 24, 28
LINES = 10


def explanation_as_svg(explanation: Explanation, title: str, *, with_sentence: bool = True) -> str:
    """The picture; `with_sentence` has the title and the verdict above it."""
    total = explanation.scope.total_ns or 1.0
    inner = WIDTH - 2 * MARGIN
    parts: list[str] = []
    y = 8.0
    if with_sentence:
        y = 30.0
        parts.append(_text(MARGIN, y, f"{title}: {format_ns(explanation.scope.total_ns)}", size=16, weight="bold"))
        for line in _wrapped(verdict_of(explanation).sentence, 125):
            y += 20
            parts.append(_text(MARGIN, y, line))
        y += 16
    x = float(MARGIN)
    for cls, ns in explanation.by_class.items():
        w = ns / total * inner
        parts.append(_box(x, y, w, BAR, cls, f"{cls} {ns / total:.1%}"))
        x += w
    y += BAR + 14
    x = float(MARGIN)
    for cls, ns in explanation.by_class.items():
        label = f"{cls} {ns / total:.1%}"
        parts.append(_box(x, y, 12, 12, cls, ""))
        parts.append(_text(x + 17, y + 10, label, size=11))
        x += 30 + 6.4 * len(label)
        if x > WIDTH - 150:
            x, y = float(MARGIN), y + 18
    y += 36
    parts.append(_text(MARGIN, y, "Critical path over time", weight="bold"))
    y += 8
    parts += _path(explanation, y, inner)
    y += BAR
    parts += _axis(explanation, y, inner)
    y += 44
    parts.append(_text(MARGIN, y, "By kernel line", weight="bold"))
    y += 8
    lines, height = _line_bars(explanation, y, inner)
    parts += lines
    y += height + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y:.0f}" viewBox="0 0 {WIDTH} {y:.0f}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(title)}">\n{_patterns()}\n'
        f'<rect width="{WIDTH}" height="{y}" fill="#FFFFFF"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _patterns() -> str:
    """Stripes at 45 degrees for waiting."""
    found = [
        f'<pattern id="w-{cls.replace(" ", "-")}" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" fill="#FFFFFF"/>'
        f'<rect width="3" height="6" fill="{FILLS[cls]}"/></pattern>'
        for cls in CLASSES
        if cls not in WORK
    ]
    return f"<defs>{''.join(found)}</defs>"


def _fill(cls: str) -> str:
    return FILLS[cls] if cls in WORK else f"url(#w-{cls.replace(' ', '-')})"


def _box(x: float, y: float, w: float, h: float, cls: str, label: str) -> str:
    shape = f'x="{x:.2f}" y="{y}" width="{w:.2f}" height="{h}" fill="{_fill(cls)}"'
    box = f"<rect {shape}><title>{escape(label)}</title></rect>"
    if not label or w < 7.5 * len(label):
        return box
    if cls in WORK:
        return box + _text(x + 5, y + h - 9, label, fill="#1B2430" if cls in DARK_TEXT else "#FFFFFF", size=12)
    under = f'<rect x="{x + 3:.2f}" y="{y + 5}" width="{6.6 * len(label) + 6:.2f}" height="{h - 10}" fill="#FFFFFF"/>'
    return box + under + _text(x + 5, y + h - 9, label, size=12)


def _path(explanation: Explanation, y: float, inner: float) -> Iterator[str]:
    """The path as one lane; segments below a pixel are merged and take the colour of the largest class."""
    begin, total = explanation.scope.begin_ns, explanation.scope.total_ns or 1.0
    per_px = total / inner
    at, sums = begin, dict[str, float]()
    for segment in explanation.path:
        sums[segment.cls] = sums.get(segment.cls, 0.0) + segment.ns
        if segment.t1 - at >= per_px or segment is explanation.path[-1]:
            cls = max(sums, key=lambda name: sums[name])
            x, w = MARGIN + (at - begin) / per_px, (segment.t1 - at) / per_px
            yield f'<rect x="{x:.2f}" y="{y}" width="{w:.2f}" height="{BAR}" fill="{_fill(cls)}"/>'
            at, sums = segment.t1, {}


def _axis(explanation: Explanation, y: float, inner: float) -> Iterator[str]:
    begin, total = explanation.scope.begin_ns, explanation.scope.total_ns
    for i in range(5):
        x = MARGIN + inner * i / 4
        yield f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 5}" stroke="#5A6675"/>'
        anchor = "start" if i == 0 else "end" if i == 4 else "middle"
        yield _text(x, y + 18, format_ns(begin + total * i / 4), size=11, fill="#5A6675", anchor=anchor)


def _line_bars(explanation: Explanation, y: float, inner: float) -> tuple[list[str], float]:
    """The share of each kernel line, in the colours of its classes."""
    total = explanation.scope.total_ns or 1.0
    texts = {line.name: line.text for line in explanation.run.lines}
    by_line: dict[str, dict[str, float]] = {}
    for segment in explanation.path:
        name = explanation.run.lines[segment.line].name if segment.line >= 0 else "outside kernels"
        own = by_line.setdefault(name, {})
        own[segment.cls] = own.get(segment.cls, 0.0) + segment.ns
    found: list[str] = []
    most = max((sum(own.values()) for own in by_line.values()), default=1.0)
    height = 0.0
    for name, ns in list(explanation.by_line.items())[:LINES]:
        text = f"{name.rpartition('/')[2]}  {texts.get(name, '')}"
        found.append(_text(MARGIN, y + height + 15, text[:72], size=11, family="ui-monospace, monospace"))
        x = MARGIN + 500.0
        for cls in CLASSES:
            w = by_line[name].get(cls, 0.0) / most * (inner - 580)
            if w:
                found.append(_box(x, y + height + 4, w, 14, cls, ""))
                x += w
        found.append(_text(x + 6, y + height + 15, f"{ns / total:.1%}", size=11))
        height += 22
    return found, height


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    fill: str = "#1B2430",
    weight: str = "normal",
    anchor: str = "start",
    family: str = "",
) -> str:
    font = f' font-family="{family}"' if family else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" font-weight="{weight}" '
        f'text-anchor="{anchor}"{font} xml:space="preserve">{escape(text)}</text>'
    )


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
