"""What the model reproduces exactly, what it approximates and in which direction, and what it ignores.

The facts are in `fidelity_facts` and `fidelity_kernel_facts`; the text of the command, its JSON and docs/fidelity.md
are generated from them here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kernbench.report.fidelity_fact import Fact, Kind
from kernbench.report.fidelity_facts import FACTS

KINDS: tuple[Kind, ...] = ("exact", "approximated", "ignored")
POLICY = (
    "Optimistic: the model is faster than hardware would be; pessimistic: slower. Comparisons of two runs that stress "
    "the same things are far better than absolute figures. Before an absolute figure is relied on, check it against "
    "hardware or a cycle-accurate model if the workload is named as one that an approximation matters for. Totals are "
    "better than single completions."
)

_HEADS: dict[Kind, str] = {
    "exact": "Exact: the model does what hardware does",
    "approximated": "Approximated: modelled, with a known direction of error",
    "ignored": "Ignored: not modelled",
}
_WIDTH = 100


def as_json() -> dict[str, Any]:
    """The facts as plain values."""
    return {"schema": 1, "command": "fidelity", "policy": POLICY, "facts": [asdict(fact) for fact in FACTS]}


def as_text() -> str:
    """The facts for a terminal."""
    lines = [*textwrap.wrap(POLICY, _WIDTH), ""]
    for kind in KINDS:
        lines += [_HEADS[kind], ""]
        for fact in (fact for fact in FACTS if fact.kind == kind):
            lines += [*_block(fact), ""]
    return "\n".join(lines).rstrip()


def _block(fact: Fact) -> Iterator[str]:
    error = "" if fact.error == "none" else f"  [{fact.error}]"
    yield f"  {fact.topic}{error}"
    for name, text in (("hardware", fact.hardware), ("model", fact.model), ("matters for", fact.matters)):
        yield from textwrap.wrap(text, _WIDTH, initial_indent=f"    {name:<13}", subsequent_indent=" " * 17)


def as_markdown() -> str:
    """The facts as docs/fidelity.md."""
    lines = ["# What the model gets right, and what it does not", ""]
    lines += ["Written by `kernbench fidelity --markdown`; change `report/fidelity_*facts.py`, not this page.", ""]
    lines += [POLICY, ""]
    for kind in KINDS:
        lines += [f"## {_HEADS[kind]}", ""]
        lines += ["| topic | hardware | model | error | matters for |", "|---|---|---|---|---|"]
        for fact in (fact for fact in FACTS if fact.kind == kind):
            cells = (fact.topic, fact.hardware, fact.model, fact.error, fact.matters)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
