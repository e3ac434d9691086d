"""`auto` against every algorithm of the package, by the committed rows of the evaluation ccl-auto; some run again."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import pytest

from kernbench.benches._ccl_runs import measure_alone
from kernbench.benches._collective_calls import bus_factor
from kernbench.benches._collectives import WantedCollective
from kernbench.benches.milestones.ccl_auto import (
    ALGORITHMS,
    BAR,
    COLLECTIVES,
    CUBE_PES,
    LINK_GBS,
    MESH,
    SHIPPED,
    SIPS,
    SIZES,
    SMALL,
    auto_ns,
    further,
    is_long,
    is_same_as_another,
    least_ns,
    machine_of,
    on_mesh,
    present,
    ratios,
    table_of,
    taken_by_auto,
)
from kernbench.ccl.measured import machine_key
from kernbench.common.units import KIB
from kernbench.evaluation.contract import Row, Rows, number, where
from kernbench.evaluation.results import read_results
from kernbench.topology import load_topology

MESHES = [SMALL, SHIPPED]
SPLIT = pytest.mark.needs("addresses", reason="blocks of split tensors: a PE reaches the parts of others")
FOLDER = Path(__file__).parents[2] / "docs/results/ccl-auto"


def wanted_of(collective: str, nbytes: int) -> WantedCollective:
    return WantedCollective(collective, nbytes, "f16")  # type: ignore[arg-type]  # a parameter of a test is any string


@cache
def rows() -> Rows:
    return read_results(FOLDER).rows


@pytest.mark.needs("shipped", reason="measured rows are those of the shipped machine")
@pytest.mark.parametrize(("mesh", "counts"), [(SMALL, SIPS), (SHIPPED, (2,))])
def test_there_are_rows_of_every_collective_number_of_sips_and_size(mesh: int, counts: tuple[int, ...]) -> None:
    assert set(ratios(rows(), mesh)) == set(product(COLLECTIVES, counts, SIZES))


@pytest.mark.needs("shipped", reason="measured rows are those of the shipped machine")
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("collective", ALGORITHMS)
def test_auto_is_never_more_than_10_percent_slower_than_the_fastest_algorithm(collective: str, mesh: int) -> None:
    found = ratios(where(rows(), collective=collective), mesh)
    assert found
    assert {key: round(ratio, 3) for key, ratio in found.items() if ratio > BAR} == {}


@pytest.mark.needs("shipped", reason="measured rows are those of the shipped machine")
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("collective", ALGORITHMS)
def test_from_256_kib_on_auto_is_within_1_6_times_the_link_bound(collective: str, mesh: int) -> None:
    # A SIP's PCIe link carries 128 GB/s each way; bus_factor is the share of the size that must cross the busiest one.
    config, here = present(), where(on_mesh(rows(), mesh), collective=collective)
    found = {}
    for row in here:
        sips, nbytes = int(number(row, "sips")), int(number(row, "size_bytes"))
        if nbytes >= 256 * KIB:
            bound_ns = bus_factor(collective, sips) * nbytes / LINK_GBS
            found[sips, nbytes] = auto_ns(here, config, machine_of(mesh), collective, sips, nbytes) / bound_ns
    assert found
    assert {at: round(ratio, 3) for at, ratio in found.items() if not 1 <= ratio <= 1.6} == {}


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_the_table_for_all_machines_keeps_the_bar_on_this_one_too(collective: str) -> None:
    # Where what it takes was measured. An algorithm without a row was left out by its bound, or does what another does.
    config, found = present(), {}
    here = where(on_mesh(rows(), SMALL), collective=collective)
    for row in here:
        sips, nbytes = int(number(row, "sips")), int(number(row, "size_bytes"))
        name, chunk = taken_by_auto(config, None, collective, sips, nbytes)
        cell = where(here, sips=sips, size_bytes=nbytes)
        taken = where(cell, algorithm=name, chunk_bytes=chunk)
        if taken:
            found[sips, nbytes] = number(taken[0], "time_ns") / min(number(each, "time_ns") for each in cell)
    assert len(found) > 20
    assert {at: round(ratio, 3) for at, ratio in found.items() if ratio > BAR} == {}


@pytest.mark.needs("shipped", reason="measured rows are those of the shipped machine")
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("collective", ALGORITHMS)
def test_the_tables_of_the_package_are_made_of_the_rows(collective: str, mesh: int) -> None:
    assert present().measured[machine_of(mesh)][collective] == table_of(rows(), collective, mesh)


def test_the_second_table_is_that_of_the_shipped_machine() -> None:
    assert machine_key(load_topology().spec) == machine_of(SHIPPED)
    assert load_topology().spec.n_sips == 2


def test_no_algorithm_is_faster_than_its_bound() -> None:
    for row in rows():
        collective, algorithm, sips, nbytes = cell = cell_of(row)
        assert number(row, "time_ns") > least_ns(collective, algorithm, sips, nbytes), cell


def test_an_algorithm_that_was_left_out_could_not_be_the_fastest() -> None:
    # Its bound is above what the fastest of those that were measured takes; where runs are long, by less than the bar.
    best: dict[tuple[int, str, int, int], float] = {}
    measured: set[tuple[int, str, int, int, str]] = set()
    for row in rows():
        collective, algorithm, sips, nbytes = cell_of(row)
        mesh, time_ns = int(number(row, MESH)), number(row, "time_ns")
        at = (mesh, collective, sips, nbytes)
        best[at] = min(best.get(at, time_ns), time_ns)
        measured.add((*at, algorithm))
    left_out = []
    for (mesh, collective, sips, nbytes), best_ns in best.items():
        for name in ALGORITHMS[collective]:
            here = (collective, name, sips, nbytes)
            if (mesh, collective, sips, nbytes, name) in measured or is_same_as_another(*here, mesh * mesh * CUBE_PES):
                continue
            left_out.append(here)
            factor = BAR if is_long(mesh, sips, nbytes) else 1.0
            assert factor * least_ns(*here) >= best_ns, here
    assert left_out


def test_where_runs_are_long_the_rows_call_for_no_further_algorithm() -> None:
    assert further(rows()) == []


def cell_of(row: Row) -> tuple[str, str, int, int]:
    sips, nbytes = int(number(row, "sips")), int(number(row, "size_bytes"))
    return str(row["collective"]), str(row["algorithm"]), sips, nbytes


@pytest.mark.parametrize(
    ("collective", "sips", "nbytes", "algorithm", "as_by"),
    [
        pytest.param("all_gather", 3, 16384, "long_messages_direct", "direct", marks=SPLIT),
        ("all_reduce", 2, 8192, "recursive_doubling", "hierarchical_all_pes"),
        ("reduce", 2, 2048, "two_rounds", "direct"),
        ("all_reduce", 3, 2048, "short_messages_all_pes", "hierarchical_all_pes"),
    ],
)
def test_an_algorithm_that_does_what_another_one_does_takes_as_long(
    collective: str, sips: int, nbytes: int, algorithm: str, as_by: str
) -> None:
    assert is_same_as_another(collective, algorithm, sips, nbytes, 16)
    graph = load_topology(None, {"system.sips.count": sips, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
    wanted = wanted_of(collective, nbytes)
    times = [measure_alone(graph, wanted, algorithm=name, check=False).time_ns for name in (algorithm, as_by)]
    assert times[0] == times[1]


@pytest.mark.needs("n_to_one", reason="times with one link per HBM slice")
@pytest.mark.parametrize(
    ("collective", "nbytes"),
    [pytest.param("all_gather", 1024, marks=SPLIT), ("broadcast", 32768), ("all_reduce", 4096)],
)
def test_a_call_on_that_machine_takes_what_the_table_says_and_as_long_as_its_row(collective: str, nbytes: int) -> None:
    graph = load_topology(None, {"system.sips.count": 2, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})
    found = measure_alone(graph, wanted_of(collective, nbytes), check=False)
    here = where(on_mesh(rows(), SMALL), collective=collective, sips=2, size_bytes=nbytes)
    same = where(here, algorithm=found.algorithm)
    assert found.time_ns in [number(row, "time_ns") for row in same]
    assert found.time_ns <= BAR * min(number(row, "time_ns") for row in here)


@pytest.mark.parametrize(
    ("collective", "rounds", "cube_w", "cube_h", "per_corner"),
    [
        pytest.param("all_gather", 1, 1, 1, 2, marks=SPLIT),
        pytest.param("reduce_scatter", 1, 1, 1, 2, marks=SPLIT),
        pytest.param("all_to_all", 1, 2, 2, 2, marks=SPLIT),
        ("all_reduce", 2, 2, 1, 1),
    ],
)
@pytest.mark.needs("n_to_one", reason="a request for each channel takes longer")
def test_32_kib_on_8_sips_take_little_more_than_the_link_and_a_crossing_per_round(
    collective: str, rounds: int, cube_w: int, cube_h: int, per_corner: int
) -> None:
    # 7 / 8 of 32 KiB at 128 GB/s are 224 ns; a message of a few bytes between the farthest PEs takes about 180 ns. An
    # all_reduce is a reduce_scatter and an all_gather. In an all_to_all, cubes near the IO chiplet must not go first.
    mesh = {"sip.cube_mesh.w": cube_w, "sip.cube_mesh.h": cube_h, "cube.pe_layout.pe_per_corner": per_corner}
    graph = load_topology(None, {"system.sips.count": 8, **mesh})
    found = measure_alone(graph, wanted_of(collective, 32768), check=False)
    assert found.time_ns <= rounds * (1.3 * 224 + 180)


@SPLIT
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_a_block_of_fewer_elements_than_pes_takes_no_longer_than_a_larger_one(collective: str) -> None:
    # 64 B on 4 SIPs are blocks of 8 elements, on 8 of the 16 PEs; 512 B are blocks of 64, on all of them. Every PE
    # sends from and receives into its own memory in both.
    graph = load_topology(None, {"system.sips.count": 4, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
    small, large = (measure_alone(graph, wanted_of(collective, nbytes)) for nbytes in (64, 512))
    assert (small.wrong, large.wrong) == (0, 0)
    assert small.time_ns <= large.time_ns


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_algorithms_take_the_same_time_with_logical_addresses_and_auto_takes_the_same(collective: str) -> None:
    """Translation takes no time in either model as shipped, so measured rows are those of both."""
    mesh = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    mesh |= {"cube.memory_map.hbm_mapping_mode": "n_to_one"}
    virtual, logical = (load_topology(None, {**mesh, "system.address_model": model}) for model in ("va", "la"))
    wanted = wanted_of(collective, 8192)
    for algorithm in ALGORITHMS[collective]:
        times = [measure_alone(graph, wanted, algorithm=algorithm, check=False).time_ns for graph in (virtual, logical)]
        assert times[0] == times[1], algorithm
    assert machine_key(virtual.spec) == machine_key(logical.spec)


def test_an_mmu_that_takes_time_makes_another_machine_of_virtual_addresses() -> None:
    slow = {"cube.pe_template.components.pe_mmu.attrs.tlb_overhead_ns": 2.0}
    keys = {
        machine_key(load_topology(None, {**slow, "system.address_model": model}).spec) for model in ("va", "la", "pa")
    }
    assert len(keys) == 3
