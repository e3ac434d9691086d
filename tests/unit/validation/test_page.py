"""docs/validation.md has every set, what is fitted and the errors of all cases."""

from pathlib import Path

from kernbench.validation.contract import Regime, SetVerdict, ValidationRow
from kernbench.validation.page import page
from kernbench.validation.sets import SETS, chosen_sets

ROOT = Path(__file__).parents[3]


def test_the_page_in_the_docs_has_all_sets_and_what_they_fit():
    written = (ROOT / "docs" / "validation.md").read_text()
    assert [line.split("`")[1] for line in written.splitlines() if line.startswith("## ")] == list(SETS)
    for each in chosen_sets(()):
        assert all(constant in written for constant in each.fitted)
        assert each.differs in written


def test_a_section_has_a_row_for_every_case():
    (chosen,) = chosen_sets(["noc_traces"])
    row, regime = ValidationRow("open", "a", 100.0, 98.0, -2.0), Regime("open", "pct", 1, 2.0, -2.0, 2.0, 2.0)
    made = page([SetVerdict(chosen, [row], [regime])])
    assert "| open | 1 | 2.00 % | -2.00 % | 2.00 % | 2.00 % |" in made
    assert "| a | open | 100.0 | 98.0 | -2.00 |" in made
