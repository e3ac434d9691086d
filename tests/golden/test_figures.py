"""Golden figures: they notice drift, and never replace a derivation.

A change in any of them is one that users can see: it needs a reason in `figures.json` and a line in CHANGELOG.md.
`python tests/golden/test_figures.py` prints the figures as they are now.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

import kernbench
from kernbench.benches.registry import list_all
from kernbench.probes.probe import ProbeReport, run_probe
from kernbench.topology import load_topology

pytestmark = pytest.mark.needs("shipped", reason="figures of the shipped machine")

FEWER_CUBES = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2}
SMALLER = {  # on a whole machine they take many seconds
    "ccl-bench": FEWER_CUBES,
    "llm-layer": FEWER_CUBES,
    "llm-plan": FEWER_CUBES,
    "tp-mlp": FEWER_CUBES,
    "tp-transformer-block": {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1},
}
GOLDEN = json.loads((Path(__file__).parent / "figures.json").read_text())


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They change no figure (tests/integration/test_record_ahead.py), and each test has one processor."""
    monkeypatch.setenv("KERNBENCH_WORKERS", "0")


@cache
def probed() -> ProbeReport:
    return run_probe(load_topology())


def probe_figures() -> dict[str, float]:
    return {case.name: case.total_ns for case in probed().cases}


def bench_figure(name: str) -> float:
    spec = next(spec for spec in list_all() if spec.name == name)
    device = "sip:0" if spec.devices == "each" else "whole"
    return kernbench.run(spec.run, None, SMALLER.get(name), name=name, device=device, data=False).total_ns


def decode_figure(batch: int) -> float:
    """A decode step of `llm-layer` in one launch."""
    (spec,) = [spec for spec in list_all() if spec.name == "llm-layer"]
    params = {"phase": "decode", "batch": batch, "context": 64}
    machine = {**FEWER_CUBES, "system.sips.count": 1}
    return kernbench.run(spec.run, None, machine, name=spec.name, device="whole", data=False, params=params).total_ns


def test_probe_of_the_default_machine_is_as_it_was() -> None:
    assert probe_figures() == GOLDEN["probe"]["total_ns"]


def test_the_probe_of_the_default_machine_has_every_category_and_passes() -> None:
    assert probed().ok
    assert len(probed().cases) == 44
    assert len(probed().checks) == 15
    times = probe_figures()
    # Routers 2 x 2, 32768 / 256, one flit more, a burst of 8.
    assert times["pe-local-hbm"] == times["pe-local-hbm-write"] == times["contention-sip-own-slice"] == 4 + 128 + 1 + 8
    # 128 PEs through one link of 256 GB/s.
    assert times["contention-sip-to-slice"] >= 128 * 128.0


def test_every_bench_has_a_figure() -> None:
    assert [spec.name for spec in list_all() if not spec.is_evaluation] == list(GOLDEN["benches"]["total_ns"])


@pytest.mark.parametrize("name", GOLDEN["benches"]["total_ns"])
def test_bench_takes_as_long_as_it_did(name: str) -> None:
    assert bench_figure(name) == GOLDEN["benches"]["total_ns"][name]


@pytest.mark.parametrize("batch", [1, 8])
def test_a_decode_step_takes_as_long_as_it_did(batch: int) -> None:
    assert decode_figure(batch) == GOLDEN["decode"]["total_ns"][str(batch)]


if __name__ == "__main__":
    benches = {spec.name: bench_figure(spec.name) for spec in list_all() if not spec.is_evaluation}
    decode = {str(batch): decode_figure(batch) for batch in (1, 8)}
    print(json.dumps({"probe": probe_figures(), "benches": benches, "decode": decode}, indent=2))
