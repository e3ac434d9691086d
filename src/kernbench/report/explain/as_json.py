"""An explanation as printed by `kernbench explain --json`; the keys are a contract."""

from __future__ import annotations

from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.finish import finish_of
from kernbench.report.explain.headline import scope_id
from kernbench.report.explain.stalls import stalls_of
from kernbench.report.explain.verdict import verdict_of

SCHEMA = 2
TABLES = ("class", "lane", "link", "place", "line", "launch", "wait")


def explanation_as_json(explanation: Explanation, command: str) -> dict[str, object]:
    """All tables of the path, each of which sums to `total_ns`; the lanes by kind; the largest stalls.

    `command` is what to run next.
    """
    bound, scope = verdict_of(explanation), explanation.scope
    finish = finish_of(explanation)
    return {
        "schema": SCHEMA,
        "command": "explain",
        "scope": {
            "id": scope_id(explanation.run, scope),
            "launch": scope.launch,
            "begin_ns": scope.begin_ns,
            "end_ns": scope.end_ns,
        },
        "total_ns": scope.total_ns,
        "sentence": bound.sentence,
        "verdict": bound.as_json(command),
        "bound": {"class": bound.cls, "link": bound.link_class, "ns": bound.ns, "share": bound.share},
        "finish": None if finish is None else finish.as_json(),
        "path": {name: _rows(explanation, getattr(explanation, f"by_{name}")) for name in TABLES},
        "lanes": explanation.lane_kinds,
        "stalls": [
            {"ns": stall.ns, "share": stall.share, "text": stall.text, "op": stall.op}
            for stall in stalls_of(explanation)
        ],
        "calls": [{"called_at": line, "launches": launches} for line, launches in explanation.calls.items()],
    }


def _rows(explanation: Explanation, sums: dict[str, float]) -> list[dict[str, object]]:
    return [{"name": name, "ns": ns, "share": explanation.share(ns)} for name, ns in sums.items()]
