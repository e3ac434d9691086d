"""Figures of validation sets: every case is drawn, both axes are alike, and no label lies on another."""

import math

import pytest

from kernbench.report import chart_drawing
from kernbench.validation.contract import SetVerdict, ValidationRow, _regime
from kernbench.validation.figures import chart_of, draw
from kernbench.validation.sets import load_set

RANGES = {  # smallest and largest value of a regime
    "a factor of 200,000": (1.3e3, 2.6e8),
    "a factor of 50": (4200.0, 210_000.0),
    "a factor of 8": (13.0, 110.0),
    "little": (67.3, 106.1),
    "one value": (54.0, 54.0),
    "below one": (0.002, 0.9),
}


def verdict(name="collectives", ranges=RANGES, n=60):
    """Cases over each range, a tenth too fast and a tenth too slow in turn."""
    chosen = load_set(name)
    rows = []
    for regime, (low, high) in ranges.items():
        for at in range(n):
            measured = low * (high / low) ** (at / (n - 1))
            simulated = measured * (0.9 if at % 2 else 1.1)
            rows.append(ValidationRow(regime, f"{at}", measured, simulated, 100 * (simulated - measured) / measured))
    return SetVerdict(chosen, rows, [_regime(regime, chosen.unit, rows) for regime in ranges])


@pytest.fixture
def figure_of(monkeypatch, tmp_path):
    """Draws a verdict and returns matplotlib's figure."""
    pytest.importorskip("matplotlib")
    figures = []
    monkeypatch.setattr(chart_drawing, "save_figure", lambda figure, stem: figures.append(figure) or [stem])

    def drawn(judged):
        assert draw(judged, tmp_path) == [tmp_path / judged.set.name]
        return figures.pop()

    return drawn


def texts_of(figure):
    """Visible texts with their boxes, in pixels."""
    renderer = figure.canvas.get_renderer()
    found = [figure._suptitle]
    for axes in figure.axes:
        if axes.axison:
            shown = [*axes.get_xticklabels(), *axes.get_yticklabels()]
            found += [*shown, axes.xaxis.label, axes.yaxis.label, axes.title]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in found if text.get_text()]


@pytest.mark.parametrize("name", ["collectives", "gpu_operators", "memory"])
def test_no_label_lies_on_another_or_leaves_the_figure(figure_of, name):
    figure = figure_of(verdict(name))
    texts, (width, height) = texts_of(figure), figure.canvas.get_width_height()
    for at, (text, box) in enumerate(texts):
        assert box.x0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= height + 1, text
        for other, beside in texts[at + 1 :]:
            assert not box.overlaps(beside), (text, other)


def test_both_axes_have_the_same_limits_and_at_least_two_ticks(figure_of):
    figure = figure_of(verdict())
    panels = [axes for axes in figure.axes if axes.axison]
    assert len(panels) == len(RANGES)
    for axes, regime in zip(panels, RANGES, strict=True):
        assert axes.get_xlim() == axes.get_ylim()
        assert axes.get_xscale() == axes.get_yscale()
        ticks = [text.get_text() for text in axes.get_xticklabels()]
        assert ticks == [text.get_text() for text in axes.get_yticklabels()]
        assert 2 <= len(ticks) <= 6, regime
        assert axes.get_xscale() == ("linear" if regime in ("little", "one value") else "log"), regime


def test_every_measured_case_is_a_point_within_the_panel(figure_of):
    judged = verdict()
    unmeasured = ValidationRow("little", "more", None, 80.0, None)
    figure = figure_of(SetVerdict(judged.set, [*judged.rows, unmeasured], judged.regimes))
    for axes, (low, high) in zip(figure.axes, RANGES.values(), strict=False):
        points, equal = axes.get_lines()
        assert len(points.get_xdata()) == 60
        left, right = axes.get_xlim()
        assert left < 0.9 * low
        assert 1.1 * high < right or math.isclose(1.1 * high, right, rel_tol=0.1)
        assert list(equal.get_xdata()) == list(equal.get_ydata())


def test_a_panel_names_its_regime_its_error_and_how_many_cases():
    panels = chart_of(verdict("memory", {"reads": (20.0, 90.0)})).panels
    (panel,) = panels
    assert panel.title.startswith("reads: ")
    assert panel.title.endswith(" points in 60 cases")
    assert (panel.x_unit, panel.log) == ("percent", "")  # shares are drawn as they are


def test_nothing_is_drawn_where_nothing_was_measured(tmp_path):
    rows = [ValidationRow("reads", "a", None, 80.0, None)]
    chosen = load_set("memory")
    assert draw(SetVerdict(chosen, rows, [_regime("reads", chosen.unit, rows)]), tmp_path) == []
