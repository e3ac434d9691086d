"""Checks hold on a sound machine, and each fails when what it guards is broken."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from kernbench.probes.bandwidth_checks import BANDWIDTH_RULES
from kernbench.probes.checks import run_checks
from kernbench.probes.findings import Findings
from kernbench.probes.latency_checks import LATENCY_RULES
from kernbench.probes.probe import run_probe
from kernbench.topology import load_topology

RULES = ("_hot_channel_is_serial", "_larger_is_better")


@cache
def graph():
    return load_topology(None, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})


@cache
def report():
    return run_probe(graph(), nbytes=4096)


def slower(result, ns):
    outcomes = tuple(replace(outcome, total_ns=outcome.total_ns + ns) for outcome in result.outcomes)
    return replace(result, outcomes=outcomes, total_ns=result.total_ns + ns)


def failing(changes, sweep=None):
    """Names of the checks that fail once the named cases took so many ns longer."""
    results = [slower(result, changes.get(result.name, 0.0)) for result in report().cases]
    return [check.name for check in run_checks(Findings(graph(), results, sweep or report().sweep)) if not check.ok]


def test_all_hold_on_a_sound_machine():
    assert failing({}) == []
    assert len(report().checks) == 15


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"h2d-1hop": 1e4}, "h2d latency grows with hops"),
        ({"d2h-1hop": 1e4}, "d2h latency grows with hops"),
        ({"h2d-2hop": 1e-6}, "d2h is no faster than h2d"),
        ({"pe-cross-cube-hbm-best-write": 1e4}, "adjacent cube is quicker than the farthest"),
        ({"pe-local-hbm": 1e4}, "farther memory is no faster"),
        ({"pe-sram": 2**-20}, "formula equals measurement, bit for bit"),
        ({"pe-sram": -(2**-20)}, "load makes no transfer faster"),
        ({"contention-all-to-slice": -120.0}, "bandwidth stays within the fair-share peak"),
        ({"contention-all-to-slice-write": -120.0}, "bandwidth stays within the HBM peak"),
        ({"contention-2-to-slice": 1e4}, "makespan onto one slice grows with issuers"),
        ({"contention-3-to-slice-write": -60.0}, "a slice serves its issuers one after another"),
        ({"contention-hot-channel-write": -60.0}, "a channel serves its bursts one after another"),
        ({"contention-sip-own-slice": 2**-20}, "own slices do not interfere"),
        ({"contention-cube-to-next-write": 2**-20}, "same input, same result"),
    ],
)
def test_each_notices_its_fault(changes, name):
    assert name in failing(changes)


def test_with_banks_refresh_and_a_write_buffer_may_make_short_accesses_to_hbm_faster():
    mesh = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2, "cube.memory_map.hbm_mapping_mode": "n_to_one"}
    banks = load_topology(None, {**mesh, "hbm.model": "banks", "hbm.preset": "hbm2"})
    hot = [slower(result, -60.0 if result.name == "contention-hot-channel-write" else 0.0) for result in report().cases]
    slow = [replace(point, total_ns=point.total_ns * (4 if point.nbytes == 65536 else 1)) for point in report().sweep]
    served, grows = ("a channel serves its bursts one after another", "utilization grows with size")
    for machine, wrong in ((graph(), [served, grows]), (banks, [])):
        in_hbm = Findings(machine, hot, [point for point in slow if "sram" not in point.name])
        checks = [rule(in_hbm) for rule in (*BANDWIDTH_RULES, *LATENCY_RULES) if rule.__name__ in RULES]
        assert [check.name for check in checks if check is not None and not check.ok] == wrong
    in_sram = Findings(banks, hot, [point for point in slow if "sram" in point.name])
    assert not LATENCY_RULES[-1](in_sram).ok


def test_a_sweep_that_loses_bandwidth_is_noticed():
    sweep = [replace(point, total_ns=point.total_ns * (4 if point.nbytes == 65536 else 1)) for point in report().sweep]
    assert "utilization grows with size" in failing({}, sweep)


def test_a_failing_check_tells_only_what_is_wrong():
    results = [slower(result, 1e4 if result.name == "h2d-2hop" else 0.0) for result in report().cases]
    checks = {check.name: check for check in run_checks(Findings(graph(), results, ()))}
    assert "h2d-1hop" not in checks["d2h is no faster than h2d"].detail
    assert "d2h-2hop" in checks["d2h is no faster than h2d"].detail


def test_checks_without_their_cases_are_left_out():
    one = run_probe(graph(), "pe-local-hbm", 4096, sweep=False)
    assert [check.name for check in one.checks] == [
        "formula equals measurement, bit for bit",
        "load makes no transfer faster",
        "bandwidth stays within the fair-share peak",
        "bandwidth stays within the HBM peak",
        "same input, same result",
    ]


def test_the_formula_is_not_held_against_blocks_of_the_users_own():
    ours = "kernbench.components.builtin.forwarding:ForwardingComponent"
    settings = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.components.router.impl": ours}
    found = run_probe(load_topology(None, settings), nbytes=4096, sweep=False)
    assert found.ok
    names = [check.name for check in found.checks]
    assert "formula equals measurement, bit for bit" not in names
    assert "d2h is no faster than h2d" not in names
    assert "h2d latency grows with hops" not in names  # one cube, one hop
    assert "a slice serves its issuers one after another" in names


@pytest.mark.parametrize(("read_gbs", "is_checked"), [(256.0, False), (128.0, True)])
def test_a_memory_that_is_read_faster_may_answer_the_host_sooner(read_gbs: float, is_checked: bool) -> None:
    memory = {"hbm_total_gb_per_cube": 0, "tcm_mb_per_pe": 4, "tcm_home_mb_per_pe": 2}
    rates = {"tcm_read_bw_gbs": read_gbs, "tcm_write_bw_gbs": 128.0}
    keys = {"sip.cube_mesh": {"w": 1, "h": 1}, "cube.memory_map": memory, "cube.pe_template.links": rates}
    found = run_probe(load_topology(None, keys), sweep=False)
    assert [check for check in found.checks if not check.ok] == []
    assert ("d2h is no faster than h2d" in [check.name for check in found.checks]) == is_checked
