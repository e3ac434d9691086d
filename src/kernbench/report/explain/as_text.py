"""An explanation in text: the sentence first, then tables that each sum to the scope, then the largest stalls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernbench.common.units import counted, format_ns
from kernbench.report.explain.calls import longest_calls, numbered_launches
from kernbench.report.explain.classes import WORK
from kernbench.report.explain.explanation import OUTSIDE, Explanation
from kernbench.report.explain.finish import finish_of
from kernbench.report.explain.headline import headline, main_scope, scope_id, wrapped
from kernbench.report.explain.stalls import stalls_of
from kernbench.report.explain.verdict import verdict_of
from kernbench.report.explain.what_if import WhatIf
from kernbench.report.paint import Paint
from kernbench.report.run_command import NextStep

BAR = 24
MOST_LINES = 12
MOST_FREE = 3  # parts of the machine
MOST_CALLS = 6  # lines of the program


def explanation_as_text(
    explanation: Explanation, title: str, paint: Paint, step: NextStep, free: Sequence[WhatIf]
) -> str:
    """The whole explanation; `step` is what to run next, `free` are estimates for parts of the machine."""
    lines = [f"{title}: {format_ns(explanation.scope.total_ns)}", "", *_sentences(explanation)]
    lines.append(f"  Next: {step.command}")
    if step.change:
        lines.append(f"        {step.change}")
    run = explanation.run
    if (finish := finish_of(explanation)) is not None:
        lines.append(wrapped(finish.sentence))
    if scope_id(run, explanation.scope) != "run":  # so that the two are not confused
        whole = format_ns(run.total_ns)
        lines.append(wrapped(f"The whole run, with what the host did around it, takes {whole}: --whole."))
    lines += [
        "",
        paint("Critical path by class (# work, / waiting)", "title"),
        *_bars(explanation, explanation.by_class),
    ]
    lines += ["", paint("By engine", "title"), *_bars(explanation, explanation.by_lane, solid=True)]
    if len(explanation.by_link) > 1:
        lines += ["", paint("Queueing by class of link", "title")]
        lines += _bars(explanation, explanation.by_link)
        lines += ["", paint("Queueing by place", "title"), *_bars(explanation, explanation.by_place)]
    lines += ["", paint("By kernel line", "title"), *_bars(explanation, explanation.by_line, solid=True)]
    lines += _texts(explanation)
    if len(explanation.run.launches) > 1 and explanation.scope.launch < 0:
        lines += ["", paint("By launch", "title"), *_bars(explanation, explanation.by_launch, solid=True)]
    lines += _calls(explanation)
    lines += ["", paint("What the next op waited for meanwhile", "title"), *_bars(explanation, explanation.by_wait)]
    lines += ["", paint("Engines: busy, and idle by what they waited for", "title"), *_lanes(explanation)]
    lines += ["", paint("Largest stalls", "title")]
    lines += [wrapped(f"{at}. {stall.text} ({stall.share:.1%})") for at, stall in enumerate(stalls_of(explanation), 1)]
    free = sorted((one for one in free if one.gain_ns > 0), key=lambda one: (-one.gain_ns, one.name))[:MOST_FREE]
    if free:
        lines += ["", paint("The machine, not the program: if a part were free (--what-if NAME measures it)", "title")]
        width = max(len(one.name) for one in free)
        lines += [f"  {one.name:<{width}}  {format_ns(one.estimated_ns):>10}  {-one.share:7.1%}" for one in free]
    return "\n".join(lines)


def _sentences(explanation: Explanation) -> Iterator[str]:
    """What bounded the scope; of a whole run also what bounded its launches, if that is another cause."""
    run, verdict = explanation.run, verdict_of(explanation)
    is_whole = scope_id(run, explanation.scope) == "run" and bool(run.launches)
    yield wrapped(f"{'All: ' * is_whole}{verdict.sentence}")
    if is_whole and verdict_of(main_scope(run)).cause != verdict.cause:
        yield wrapped(headline(run))


def _bars(explanation: Explanation, sums: Mapping[str, float], solid: bool = False) -> Iterator[str]:
    """A row for each of the largest, and one for the rest, so that rows sum to the total."""
    shown = dict(list(sums.items())[:MOST_LINES])
    rest = sum(sums.values()) - sum(shown.values())
    if rest:
        shown[counted(len(sums) - MOST_LINES, "other")] = rest
    width = max(map(len, shown), default=0)
    for name, ns in shown.items():
        mark = "#" if solid or name in WORK else "/"
        bar = mark * max(1, round(explanation.share(ns) * BAR)) if ns else ""
        yield f"  {name:<{width}}  {format_ns(ns):>10}  {explanation.share(ns):6.1%}  {bar}".rstrip()


def _texts(explanation: Explanation) -> Iterator[str]:
    """The source text of the lines with the largest shares."""
    names = [name for name in explanation.by_line if name != OUTSIDE][:3]
    texts = {line.name: line.text for line in explanation.run.lines}
    for name in names:
        if texts.get(name):
            yield f"    {name.rpartition('/')[2]}  {texts[name][:90]}"


def _calls(explanation: Explanation) -> Iterator[str]:
    """The program's lines of tensor operations and collectives; in a scope of several launches, those of most time."""
    for call in longest_calls(explanation.run, explanation.scope.launch)[:MOST_CALLS]:
        yield f"    {numbered_launches(call.launches)}: {call.place.rpartition('/')[2]}  {call.text[:90]}".rstrip()


def _lanes(explanation: Explanation) -> Iterator[str]:
    whole = {kind: sum(parts.values()) for kind, parts in explanation.lane_kinds.items()}
    for kind, parts in explanation.lane_kinds.items():
        idle = [(name, ns) for name, ns in parts.items() if name not in ("work", "latency", "queue") and ns]
        idle.sort(key=lambda item: (-item[1], item[0]))
        busy = [(name, ns) for name, ns in parts.items() if name in ("work", "latency", "queue") and ns]
        yield f"  {kind}"
        yield wrapped(f"  busy: {_list(busy, whole[kind])}; idle: {_list(idle, whole[kind])}")


def _list(parts: Sequence[tuple[str, float]], whole: float) -> str:
    return ", ".join(f"{name} {ns / whole:.1%}" for name, ns in parts[:4]) or "-"
