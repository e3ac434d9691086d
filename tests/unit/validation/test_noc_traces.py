"""Recorded reads of a real chip: issued again, they end when the rules of finite buffers say."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.sim_engine.plain_network import plain_network
from kernbench.validation.contract import judge, machine
from kernbench.validation.data import DataFolder
from kernbench.validation.noc_traces import SET, Replay, read_trace


@pytest.fixture(scope="module")
def wormhole():
    return plain_network(machine(SET.machine))


def copied(tmp_path, traces, measured):
    """The shipped data of a few traces as a folder, with another table of measurements."""
    shipped, folder = DataFolder(SET.folder), tmp_path / SET.folder
    (folder / "traces").mkdir(parents=True)
    for name in traces:
        (folder / "traces" / f"{name}.json").write_text(shipped.text(f"traces/{name}.json"))
    (folder / "measured.csv").write_text(measured)
    return DataFolder(SET.folder, tmp_path)


def says_nothing(_):
    pass


@pytest.mark.parametrize("trace", ["1x4_BLOCK_TO_8x4_BLOCK", "2x4_BLOCK_TO_2x4_HEIGHT", "DRAM_TO_2x8_HEIGHT"])
def test_a_trace_ends_when_the_reference_says(wormhole, trace):
    data = DataFolder(SET.folder)
    expected = next(row for row in data.rows("reference_rules.csv") if row["trace"] == trace)
    processors = read_trace(data.json(f"traces/{trace}.json"))
    assert Replay(*wormhole).open(processors) == pytest.approx(float(expected["wormhole_2x16_open_cycles"]), abs=1e-3)
    closed = Replay(*wormhole).closed(processors)
    assert closed == pytest.approx(float(expected["wormhole_2x16_closed_cycles"]), abs=1e-3)


@pytest.mark.parametrize("trace", ["2x4_BLOCK_TO_2x4_HEIGHT", "DRAM_TO_2x8_HEIGHT"])
def test_a_trace_ends_when_the_reference_says_by_round_robin(trace):
    topology, network = plain_network(machine(SET.machine))
    network.buffers = replace(network.buffers, arbitration="round_robin")
    data = DataFolder(SET.folder)
    expected = next(row for row in data.rows("reference_rules.csv") if row["trace"] == trace)
    processors = read_trace(data.json(f"traces/{trace}.json"))
    end = Replay(topology, network).open(processors)
    assert end == pytest.approx(float(expected["wormhole_2x16_round_robin_open_cycles"]), abs=1e-3)
    assert end != pytest.approx(float(expected["wormhole_2x16_open_cycles"]), abs=1e-3)


def test_what_was_measured_changes_no_simulated_value(tmp_path):
    trace = "1x4_BLOCK_TO_8x4_BLOCK"
    as_shipped = judge(SET, copied(tmp_path / "a", [trace], f"trace,reference_cycles\n{trace},2945\n"), says_nothing)
    altered = judge(SET, copied(tmp_path / "b", [trace], f"trace,reference_cycles\n{trace},9999\n"), says_nothing)
    deleted = judge(SET, copied(tmp_path / "c", [trace], f"trace\n{trace}\n"), says_nothing)
    assert [row.simulated for row in as_shipped.rows] == [row.simulated for row in altered.rows]
    assert [row.simulated for row in as_shipped.rows] == [row.simulated for row in deleted.rows]
    assert [row.error for row in deleted.rows] == [None, None]
    assert [regime.n for regime in deleted.regimes] == [0, 0]
    # 2967.85 cycles against 2945 that were measured
    assert as_shipped.regimes[0].mean == pytest.approx(100 * (2967.852 - 2945) / 2945, abs=1e-3)


def test_at_most_five_constants_are_fitted_and_all_are_named():
    assert 0 < len(SET.fitted) <= 5
    assert all(constant.split(" (")[1] for constant in SET.fitted)


def test_the_machine_of_the_examples_is_the_one_that_is_judged():
    example = Path(__file__).parents[3] / "examples" / "machines" / SET.machine
    shipped = Path(__file__).parents[3] / "src" / "kernbench" / "validation" / "machines" / SET.machine
    assert example.read_text() == shipped.read_text()
