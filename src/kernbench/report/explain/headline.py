"""The last sentence of a run: what bounded it, and what to try first.

Its scope is the launch if there is one, else the time from the first launch to the end of the last: the host's setup is
seldom of interest. The command and the web page use the same sentence.
"""

from __future__ import annotations

from textwrap import fill

from kernbench.common.units import format_ns
from kernbench.report.explain.explanation import Explanation, explain
from kernbench.report.explain.path import PathScope, RunData, scope_of
from kernbench.report.explain.verdict import verdict_of


def main_scope(run: RunData) -> Explanation:
    """The main scope of a run: its launch, or all launches."""
    if len(run.launches) < 2:
        return explain(run, 0 if run.launches else None)
    begin = min(launch.start_ns for launch in run.launches)
    end = max(launch.end_ns for launch in run.launches)
    return Explanation(run, PathScope(begin, min(end, run.total_ns)))


def scope_id(run: RunData, scope: PathScope) -> str:
    """`run`, `kernels` or `launch:N`: how JSON and the page name a scope."""
    if scope.launch >= 0:
        return f"launch:{scope.launch}"
    return "run" if scope == scope_of(run) else "kernels"


def scope_name(run: RunData, scope: PathScope) -> str:
    """A scope in words; empty for a run without launches."""
    if scope.launch >= 0:
        return f"launch {scope.launch}: {run.launches[scope.launch].name}"
    if not run.launches:
        return ""
    return "whole run" if scope_id(run, scope) == "run" else all_launches(run)


def all_launches(run: RunData) -> str:
    """The name of several launches together."""
    return "both launches" if len(run.launches) == 2 else f"all {len(run.launches)} launches"


def headline(run: RunData) -> str:
    """What bounded a run, and what to try first."""
    explanation = main_scope(run)
    bound, ns = verdict_of(explanation), format_ns(explanation.scope.total_ns)
    if not run.launches:
        return bound.sentence
    subject = f"Launch {run.launches[0].name}" if len(run.launches) == 1 else f"{len(run.launches)} launches"
    return f"{subject}, {ns}: {bound.sentence}"


def wrapped(text: str) -> str:
    """A sentence as indented lines of a terminal."""
    return fill(text, 118, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
