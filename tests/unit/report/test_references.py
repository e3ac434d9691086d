"""Reference points: shares that name a source, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.common.errors import UsageError
from kernbench.report.charts import Line, reference_line, reference_marks
from kernbench.report.references import reference, shipped_references

ENTRY = """
- {name: a, label: chip A, value: 30, of: 40, unit: GB/s, how: copies, source: "A. Author, 2024", address: "https://a"}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "own.yaml"
    file.write_text(text)
    return file


def test_every_shipped_reference_is_a_share_and_can_be_read_somewhere() -> None:
    """Or a plain figure of the same machine, from another simulator."""
    assert shipped_references()
    for each in shipped_references().values():
        if each.of is None:
            assert each.address == "docs/results/published.md"
            assert f"{each.value:g} {each.unit}" in each.cited()
        else:
            assert 0 < each.share < 1
            assert each.address.startswith("https://")
        assert each.source in each.cited()
        assert each.address in each.cited()


def test_a_reference_is_a_level_line_or_a_mark_on_every_bar(tmp_path: Path) -> None:
    own = reference("a", written(tmp_path, ENTRY))
    assert own.cited() == "chip A: 30 of 40 GB/s, copies (A. Author, 2024, https://a)."
    line = reference_line(own, [Line("x", ((4, 1), (8, 2))), Line("y", ((2, 1),))])
    assert (line.label, line.points) == ("reference: chip A", ((2, 75.0), (8, 75.0)))  # 30 / 40
    assert reference_marks(own, "abc").values == (75.0,) * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTRY.replace(', source: "A. Author, 2024"', ""), "a reference needs exactly"),
        (ENTRY.replace("A. Author, 2024", " "), "source is empty"),
        (ENTRY.replace("of: 40", "of: 0"), "of is 0"),
        ("a: 1", "references are no list"),
        ("[", "cannot read references"),
        (ENTRY.replace("name: a", "name: b"), "no reference 'a'"),
    ],
)
def test_a_reference_without_a_source_or_a_share_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reference("a", written(tmp_path, text))
