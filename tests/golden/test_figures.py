"""Golden figures: they notice drift, and never replace a derivation.

A change in any of them is one that users can see: it needs a reason in `figures.json` and a line in CHANGELOG.md.
`python tests/golden/test_figures.py` prints the figures as they are now.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kernbench
from kernbench.benches.registry import list_all
from kernbench.probes.probe import run_probe
from kernbench.topology import load_topology

pytestmark = pytest.mark.needs("shipped", reason="figures of the shipped machine")

FEWER_CUBES = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2}
SMALLER = {"llm-layer": FEWER_CUBES, "llm-plan": FEWER_CUBES}  # of a whole machine they take half a minute
GOLDEN = json.loads((Path(__file__).parent / "figures.json").read_text())


def probe_figures() -> dict[str, float]:
    report = run_probe(load_topology(), sweep=False)
    return {case.name: case.total_ns for case in report.cases}


def bench_figure(name: str) -> float:
    spec = next(spec for spec in list_all() if spec.name == name)
    device = "sip:0" if spec.devices == "each" else "whole"
    return kernbench.run(spec.run, None, SMALLER.get(name), name=name, device=device).total_ns


def test_probe_of_the_default_machine_is_as_it_was() -> None:
    assert probe_figures() == GOLDEN["probe"]["total_ns"]


def test_every_bench_has_a_figure() -> None:
    assert [spec.name for spec in list_all() if not spec.is_evaluation] == list(GOLDEN["benches"]["total_ns"])


@pytest.mark.parametrize("name", GOLDEN["benches"]["total_ns"])
def test_bench_takes_as_long_as_it_did(name: str) -> None:
    assert bench_figure(name) == GOLDEN["benches"]["total_ns"][name]


if __name__ == "__main__":
    benches = {spec.name: bench_figure(spec.name) for spec in list_all() if not spec.is_evaluation}
    print(json.dumps({"probe": probe_figures(), "benches": benches}, indent=2))
