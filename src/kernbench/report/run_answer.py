"""The first lines of a run: time, bound, correctness of the data, what to try, where to look. One line each, with
commands that can be copied; the chart below shows the critical path by class.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from kernbench.common.units import format_ns
from kernbench.report.explain.classes import WORK
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.verdict import Verdict, verdict_of
from kernbench.report.paint import Paint, plain
from kernbench.report.run_command import RunCommand
from kernbench.report.run_figures import RunFigures, rows_of
from kernbench.report.run_summary import bar_of, percent, table

WIDTH = 118
ANSWER = "answer"  # the column of rows in which a bench answers in words
HOST_BOUND = "host writes, launching; in kernels: "


def answer_lines(
    figures: RunFigures, found: Explanation | None, command: RunCommand, paint: Paint = plain
) -> list[str]:
    """At most six lines, and what the bench itself answers. `found` is the explanation of the launches, or None if it
    would take too long.
    """
    bound = None if found is None else verdict_of(found)
    rows = [("data", _data(figures, command.is_triton, paint))]
    if figures.launches:
        rows.insert(0, ("bound by", _bound(figures, bound)))
        if bound is not None:
            rows.append(("try", _hint(bound, command)))
        rows += _commands(bound, command)
    answers = [str(row[ANSWER]) for row in rows_of(figures.result) if ANSWER in row]
    rows = [*(("answer" if at == 0 else "", text) for at, text in enumerate(answers)), *rows]
    return [_time(figures), *(f"  {name:<8}  {text}" for name, text in rows)]


def path_chart(found: Explanation, paint: Paint = plain) -> Iterator[str]:
    """The critical path by class, longest first."""
    launches = "launch" if len(found.run.launches) == 1 else "launches"
    title = f"Critical path of the {launches}, {format_ns(found.scope.total_ns)}"
    yield f"{paint(title, 'title')} (# work, / waiting)"
    classes = sorted(found.by_class.items(), key=lambda item: -item[1])
    total = found.scope.total_ns
    yield from table(
        [(name, format_ns(ns), bar_of(ns, total, "#" if name in WORK else "/")) for name, ns in classes], left=(0, 2)
    )


def _time(figures: RunFigures) -> str:
    result, kernels = figures.result, figures.kernels_ns
    devices = ", ".join(f"sip:{device}" for device in result.devices)
    devices = devices if len(devices) <= 40 else f"{len(result.devices)} SIPs"
    head = f"bench {result.bench} on machine {figures.machine}, {devices}: {format_ns(result.total_ns)}"
    if not figures.launches:
        return head
    rest = result.total_ns - kernels
    outside = f"host {format_ns(rest)} ({percent(rest, result.total_ns)})"
    inside = f"kernels {format_ns(kernels)} ({percent(kernels, result.total_ns)})"
    return f"{head}, {outside}, {inside}" if _is_host_bound(figures) else f"{head}, {inside}"


def _is_host_bound(figures: RunFigures) -> bool:
    """Whether more than half of the time is outside kernels."""
    return figures.kernels_ns < figures.result.total_ns / 2


def _bound(figures: RunFigures, bound: Verdict | None) -> str:
    """The largest part of the critical path, and the fraction of the roofline of the slowest launch; the host, where
    most of the time is outside kernels.
    """
    launch, roofline = max(figures.launches, key=lambda pair: pair[0].pe_exec_ns_max)
    has_work = roofline.bound != "neither"
    near = f"{roofline.share:.1%} of {roofline.bound_name} roofline" if has_work else "no flops and no bytes"
    if bound is None or not has_work:
        found = f"{near} on {launch.name}, the slowest launch"
        return f"{HOST_BOUND}{found}" if _is_host_bound(figures) else found
    if _is_host_bound(figures):
        return f"{HOST_BOUND}{_shortened(bound.brief, WIDTH - 12 - len(HOST_BOUND))}"
    return f"{_shortened(bound.brief, WIDTH - 14 - len(near))}; {near}"


def _data(figures: RunFigures, is_triton: bool, paint: Paint) -> str:
    result = figures.result
    if not result.completion.ok:
        return f"{paint('[x] FAIL', 'fail')} {result.completion.error_message}"
    if not result.data and is_triton:
        return "not compared here; the program's own asserts have passed"
    if not result.data:
        return "not compared; --verify-data compares what the bench states with numpy"
    wrong = [check.tensor for check in result.data if not check.ok]
    if wrong:
        named = _shortened(", ".join(wrong), 80)
        return f"{paint('[x] FAIL', 'fail')} {len(wrong)} of {len(result.data)} compared: {named}"
    return f"{paint('[v] PASS', 'pass')} {len(result.data)} compared"


def _hint(bound: Verdict, command: RunCommand) -> str:
    """What to try first: what the command below it changes, if the bench advises one. Other possibilities are listed
    below the chart.
    """
    room = WIDTH - 12
    if change := command.change(bound.cause):
        return _shortened(change, room)
    return bound.hint if len(bound.hint) <= room else _shortened(bound.hint.partition(", or ")[0], room)


def _commands(bound: Verdict | None, command: RunCommand) -> list[tuple[str, str]]:
    """What to try (as the bench advises, else an explanation with lines), and where to look."""
    folder = shlex.quote(command.folder)
    explained = f"kernbench explain {folder}"
    saving = f"{shlex.join(command.command)} --save {folder}"
    advice = None if bound is None else command.advice(bound.cause)
    if advice is not None:
        return [("run", advice), ("look at", saving if command.saved is None else f"kernbench web {folder}")]
    if command.saved is None:
        return [("look at", saving), ("then", explained)]
    return [("run", explained), ("look at", f"kernbench web {folder}")]


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
