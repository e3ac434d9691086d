"""HBM under load: accesses are those of the pattern, and what was measured is seen by no driver."""

from pathlib import Path

import pytest

from kernbench.validation import memory
from kernbench.validation.contract import judge
from kernbench.validation.data import DataFolder
from kernbench.validation.memory import H200, HBM2, SET, MemoryRequest, mixed, streamed, streams_that_meet

ROOT = Path(__file__).parents[3]


def says_nothing(_):
    pass


def judged(tmp_path, h200, dramsim3):
    folder = tmp_path / SET.folder
    folder.mkdir(parents=True)
    (folder / "h200_hbm.csv").write_text(h200)
    (folder / "dramsim3_hbm2.csv").write_text(dramsim3)
    return judge(SET, DataFolder(SET.folder, tmp_path), says_nothing)


def test_every_block_is_touched_once():
    for block, order in ((64, "random"), (512, "random"), (2048, "random"), (32, "sequential")):
        accesses = list(streamed(block, order, "read"))
        touched = sorted(access.address for access in accesses)
        assert touched == [i * accesses[0].nbytes for i in range(len(accesses))]
    assert sum(access.nbytes for access in streamed(2048, "random", "read")) == memory.REQUESTS * 512


def test_a_large_block_is_as_many_requests_as_warps_make():
    first = list(streamed(2048, "random", "copy"))[:8]
    assert [access.nbytes for access in first] == [512] * 8
    assert [access.is_write for access in first] == [False, True] * 4
    assert [access.address for access in first[::2]] == [0, 512, 1024, 1536]


def test_a_share_of_blocks_is_written():
    assert [access.is_write for access in mixed(64, "random", 0.25)][:8] == [False, False, False, True] * 2
    assert sum(access.is_write for access in mixed(64, "random", 0.5)) == memory.REQUESTS / 2
    assert list(mixed(64, "sequential", 0.0))[:2] == [MemoryRequest(0, 512, False), MemoryRequest(512, 512, False)]


def test_streams_take_turns_a_few_rows_apart():
    some = list(streams_that_meet(256, 0.333, 3, 5))[:4]
    apart = memory.APART + 5 * 2048
    assert some == [
        MemoryRequest(0, 256, False), MemoryRequest(apart, 256, False), MemoryRequest(2 * apart, 256, True),
        MemoryRequest(256, 256, False),
    ]  # fmt: skip


@pytest.mark.needs("n_to_one", reason="banks take accesses whole")
def test_what_was_measured_changes_no_simulated_value(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "REQUESTS", 64)
    h200, dramsim3 = (
        "block_bytes,order,kind,",
        "pattern,kind,block_bytes,write_share,streams,row_offset_between_streams,",
    )
    row, pattern = "128,random,copy,", "2R1W,interleaved sequential streams,256,0.333,3,5,"
    altered = judged(
        tmp_path / "a", f"{h200}share_of_4800_gbs\n{row}0.1\n", f"{dramsim3}dramsim3_share_of_peak\n{pattern}0.1\n"
    )
    deleted = judged(tmp_path / "b", f"{h200}x\n{row}\n", f"{dramsim3}x\n{pattern}\n")
    assert [row.simulated for row in altered.rows] == [row.simulated for row in deleted.rows]
    assert [row.error for row in deleted.rows] == [None, None]
    assert altered.rows[0].error == pytest.approx(altered.rows[0].simulated - 10.0)


@pytest.mark.needs("n_to_one", reason="banks take accesses whole")
def test_random_blocks_of_an_h200_are_met_to_five_points(tmp_path):
    rows = "128,random,read,0.749\n256,random,write,0.891\n"
    verdict = judged(
        tmp_path, f"block_bytes,order,kind,share_of_4800_gbs\n{rows}",
        "pattern,kind,block_bytes,write_share,streams,row_offset_between_streams,dramsim3_share_of_peak\n"
        "random 64 B half writes,random blocks,64,0.5,,,0.244\n",
    )  # fmt: skip
    assert [abs(row.error) < 5.0 for row in verdict.rows] == [True] * 3


def test_at_most_five_constants_are_fitted_and_all_are_named():
    assert len(SET.fitted) == 2
    described = (ROOT / "examples" / "machines" / H200).read_text()
    assert described.count("# F:") == len(SET.fitted)


@pytest.mark.parametrize("name", [H200, HBM2])
def test_the_machines_of_the_examples_are_those_that_are_judged(name):
    shipped = ROOT / "src" / "kernbench" / "validation" / "machines" / name
    assert (ROOT / "examples" / "machines" / name).read_text() == shipped.read_text()
