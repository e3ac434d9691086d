"""Products on a systolic array take the cycles that SCALE-Sim counts, through the whole stack."""

from pathlib import Path

from kernbench.validation.arrays import SET
from kernbench.validation.contract import judge
from kernbench.validation.data import DataFolder

HEAD = "m,n,k,dataflow,array_rows,array_cols,cycles,closed_form_cycles\n"


def says_nothing(_):
    pass


def judged(tmp_path, text):
    (tmp_path / SET.folder).mkdir(parents=True)
    (tmp_path / SET.folder / "scalesim.csv").write_text(text)
    return judge(SET, DataFolder(SET.folder, tmp_path), says_nothing)


def test_all_published_figures_are_met_exactly():
    verdict = judge(SET, DataFolder(SET.folder), says_nothing)
    assert [row.simulated for row in verdict.rows] == [146943, 155135, 9023, 12095]
    assert [regime.worst for regime in verdict.regimes] == [0.0, 0.0]
    assert SET.fitted == ()


def test_what_was_measured_changes_no_simulated_value(tmp_path):
    row = "100,70,33,WS,16,8,"
    altered = judged(tmp_path / "a", HEAD + row + "1,1\n")
    deleted = judged(tmp_path / "b", HEAD.replace(",cycles,closed_form_cycles", "") + row.rstrip(",") + "\n")
    # ceil(33 / 16) ceil(70 / 8) (100 + 2 * 16 + 8 - 2) - 1
    assert [row.simulated for row in altered.rows] == [row.simulated for row in deleted.rows] == [3 * 9 * 138 - 1]
    assert deleted.rows[0].error is None


def test_the_machine_of_the_examples_is_the_one_that_is_judged():
    root = Path(__file__).parents[3]
    shipped = root / "src" / "kernbench" / "validation" / "machines" / SET.machine
    assert (root / "examples" / "machines" / SET.machine).read_text() == shipped.read_text()
