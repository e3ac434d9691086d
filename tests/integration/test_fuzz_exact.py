"""A handful of the random programs of `make fuzz-exact`; and the fuzzer itself sees a fast path that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz_exact import report, run_one, run_programs, smallest
from tests.fuzz_programs import Program, program

import kernbench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.sim_engine.memo.composite_memo import OneEventComposite


@pytest.mark.parametrize("seed", [35, 1016, 1019, 1020])
def test_random_programs_are_the_same_without_fast_paths(seed: int) -> None:
    """Short ones, in all of which something is replayed. Program 35 loads what stores of many runs have written."""
    counts, reports = run_programs(1, seed, shrinks=False)
    assert reports == []
    assert counts["same"] == 1, "it is refused: the fuzzer only sees one path"
    assert counts["reused"] > 0, "nothing is replayed: the fuzzer has gone blunt"


def test_composites_whose_requests_take_no_time_meet_in_the_instant_in_which_they_begin() -> None:
    """On wires and routers without latency all PEs read the first one's memory at once: PE 0 is served first."""

    def kernel(x: Any, y: Any, tl: Any) -> None:
        tl.wait(tl.composite("gemm", tl.ref(x.local, (70, 64)), tl.ref(x, (64, 64)), y.local))

    def bench(torch: Any) -> None:
        x, y = (torch.zeros(128, 256, dp=DPPolicy(cube="row_wise", pe="row_wise")) for _ in range(2))
        torch.launch("k", kernel, x, y, target_cubes=(0,), target_pes=range(4))

    small = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    no_latency = {"system.ns_per_mm": 0, "cube.components.router.attrs.overhead_ns": 0}
    check = kernbench.run(bench, overrides={**small, **no_latency}, check_fast=True).fast_check
    assert check is not None
    assert check.ok, check.as_text()


def test_a_seed_is_always_the_same_program() -> None:
    assert program(3) == program(3)
    assert program(3).source() == program(3).source() != program(4).source()


@pytest.mark.needs("n_to_one", reason="it names the smallest program")
def test_a_fast_path_that_is_wrong_is_found_and_the_program_is_made_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Composites that begin as one event end a nanosecond late."""
    begin = OneEventComposite.begin

    def late(self, recording) -> None:
        begin(self, replace(recording, end_ns=recording.end_ns + 1.0))

    monkeypatch.setattr(OneEventComposite, "begin", late)
    gemm = "tl.wait(tl.composite('gemm', tl.ref(x.local, (64, 64)), tl.ref(x.local, (64, 64)), y.local))"
    small = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    launch = "torch.launch('k0', kernel0, x, y, z, 0, target_cubes=cubes, target_pes=(0,))"
    made = Program(7, small, (("tl.cycles(5)", gemm, "tl.load(x.local, (1, 16))"),), (0,), ("torch.wait_all()", launch))
    found = smallest(made, tmp_path)
    assert found.kernels == ((gemm,),)
    assert found.host == (launch,)
    outcome = run_one(found, tmp_path, "each")
    assert outcome.how == "differs"
    text = report(found, outcome)
    assert "the difference comes from: composites" in text
    assert gemm in text
    assert text.endswith("again: python -m tests.fuzz_exact --programs 1 --seed 7")
