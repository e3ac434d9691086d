"""`auto` against every algorithm of the package, by the committed rows of the evaluation ccl-auto; some run again."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kernbench.benches._ccl_runs import measure_alone
from kernbench.benches._collectives import Wanted
from kernbench.benches.milestones.ccl_auto import ALGORITHMS, BAR, machine_of, present, ratios, table_of
from kernbench.evaluation.contract import Rows, number, where
from kernbench.evaluation.results import read_results
from kernbench.topology import load_topology

FOLDER = Path(__file__).parents[2] / "docs/results/ccl-auto"


@cache
def rows() -> Rows:
    return read_results(FOLDER).rows


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_auto_is_never_more_than_10_percent_slower_than_the_fastest_algorithm(collective: str) -> None:
    found = ratios(where(rows(), collective=collective), machine_of(2))
    assert found
    assert {key: round(ratio, 3) for key, ratio in found.items() if ratio > BAR} == {}


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_the_table_of_the_package_is_made_of_the_rows(collective: str) -> None:
    assert present().measured[machine_of(2)][collective] == table_of(rows(), collective)


@pytest.mark.parametrize(("collective", "nbytes"), [("all_gather", 1024), ("broadcast", 32768), ("all_reduce", 4096)])
def test_a_call_on_that_machine_takes_what_the_table_says_and_as_long_as_its_row(collective: str, nbytes: int) -> None:
    graph = load_topology(None, {"system.sips.count": 2, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})
    found = measure_alone(graph, Wanted(collective, nbytes, "f16"), check=False)  # type: ignore[arg-type]
    same = where(rows(), collective=collective, sips=2, size_bytes=nbytes, algorithm=found.algorithm)
    assert found.time_ns in [number(row, "time_ns") for row in same]
    assert found.time_ns <= BAR * min(
        number(row, "time_ns") for row in where(rows(), collective=collective, sips=2, size_bytes=nbytes)
    )


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
def test_32_kib_on_8_sips_take_little_more_than_the_link_and_one_crossing(collective: str) -> None:
    # 7 / 8 of 32 KiB at 128 GB/s are 224 ns; a message of a few bytes between the farthest PEs takes about 180 ns.
    graph = load_topology(None, {"system.sips.count": 8, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
    assert measure_alone(graph, Wanted(collective, 32768, "f16"), check=False).time_ns <= 1.3 * 224 + 180  # type: ignore[arg-type]
