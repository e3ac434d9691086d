"""Charts: how series look, how axes read, that the same chart is the same bytes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from kernbench.report.chart_drawing import COLOURS, bytes_text, draw_chart, looks_of
from kernbench.report.charts import Arrow, BarPanel, Bars, Chart, DiagramBox, DiagramPanel, Line, LinePanel

PANELS = (
    LinePanel("x", "y", (Line("a", ((1, 1), (2, 4))), Line("b", ((1, 2), (2, 3)), "theory")), log="xy"),
    BarPanel("y", ("one", "two"), (Bars("a", (1, 2)), Bars("c", (None, 3))), marks=(Bars("limit", (4, 5)),)),
    BarPanel("y", ("one", "two"), (Bars("a", (1, 2)), Bars("c", (2, 3))), stacked=True, with_values=True),
    DiagramPanel("who", (DiagramBox("0", 0, 0), DiagramBox("1", 1, 0)), (Arrow(0, 1, "sends"),)),
)


def lightness(colour: str) -> float:
    """As a copy without colour shows it, from 0 to 100 (Rec. 601)."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 2.55


def test_no_two_colours_are_alike_in_grey() -> None:
    shades = sorted(map(lightness, COLOURS))
    assert all(lighter - darker >= 6 for darker, lighter in pairwise(shades))


def test_series_of_one_colour_differ_in_marker_and_dash() -> None:
    looks = looks_of([str(at) for at in range(2 * len(COLOURS))])
    first, again = looks["0"], looks[str(len(COLOURS))]
    assert first.colour == again.colour
    assert first.marker != again.marker
    assert first.dash != again.dash


def test_a_line_that_is_like_another_has_its_colour_and_takes_none_from_the_rest() -> None:
    lines = (
        Line("bound", ((1, 2),), "theory", like="measured"),
        Line("measured", ((1, 1),)),
        Line("other", ((1, 3),)),
    )
    chart = Chart("n", "t", "c", (LinePanel("x", "y", lines),))
    looks = looks_of(chart.series(), chart.likenesses())
    assert looks["bound"] == looks["measured"]
    assert [looks[name].colour for name in ("measured", "other")] == list(COLOURS[:2])


def test_theory_lines_differ_in_dash_as_well_as_in_colour() -> None:
    looks = looks_of(["a", "b", "c", "d"])
    assert len({look.theory_dash for look in looks.values()}) == 4
    assert len({look.limit_dash for look in looks.values()}) == 4


def test_a_label_has_one_look_in_all_panels_of_a_chart() -> None:
    assert Chart("n", "t", "c", PANELS).series() == ("a", "b", "c", "limit", "sends")


@pytest.mark.parametrize(
    ("nbytes", "text"), [(256, "256"), (1024, "1K"), (1536, "1.5K"), (1 << 20, "1M"), (1 << 30, "1G")]
)
def test_bytes_of_an_axis_are_short(nbytes: int, text: str) -> None:
    assert bytes_text(nbytes) == text


def test_the_same_chart_is_the_same_bytes(tmp_path: Path) -> None:
    chart = Chart(
        "n", "A title that is long enough to be broken into two lines, as those of figures often are", "c", PANELS
    )
    first, second = draw_chart(chart, tmp_path / "a"), draw_chart(chart, tmp_path / "b")
    assert [file.suffix for file in first] == [".png", ".svg"]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
