"""The table of the guide *Choose a machine*: figures per dollar are those of today's prices, and the answer follows."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from kernbench.report.price import price_of
from kernbench.report.ranges import Range
from kernbench.topology import load_topology

ROOT = Path(__file__).parents[3]
ROW = re.compile(
    r"^\| (8B|70B) (prompts|answers) \| `([\w-]+)`[^|]*\| ([\d,]+) \| \d+ \| ([^|]+) \| ([^|]+) \|", re.MULTILINE
)
RANGE = re.compile(r"([\d.,]+) \(([\d.,]+) to ([\d.,]+)\)")
ONE_DIE, GPU, WAFER = "one-die-64", "gpu-like", "wafer-like"
Work = tuple[str, str, str]


@cache
def table() -> dict[Work, tuple[float, Range, Range]]:
    """Tokens per second, and the ranges per dollar and per joule, by model, kind of work and machine."""
    page = (ROOT / "docs/guides/choose-a-machine.md").read_text()
    return {
        (model, kind, machine): (_number(tokens), _range(per_usd), _range(per_j))
        for model, kind, machine, tokens, per_usd, per_j in ROW.findall(page)
    }


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _range(text: str) -> Range:
    (value, low, high), *_ = RANGE.findall(text)
    return Range(_number(low), _number(value), _number(high))


@pytest.mark.parametrize("machine", [ONE_DIE, GPU, WAFER])
def test_figures_per_dollar_are_those_of_todays_prices(machine: str) -> None:
    path = ROOT / f"examples/machines/{machine}.yaml"
    usd = price_of(load_topology(str(path), {"system.sips.count": 1})).total_usd
    rows = [row for (_, _, name), row in table().items() if name == machine]
    assert len(rows) == 4
    for tokens, per_usd, _ in rows:
        expected = Range(tokens / usd.high, tokens / usd.value, tokens / usd.low)
        for found, by_price in zip(_ends(per_usd), _ends(expected), strict=True):
            assert found == pytest.approx(by_price, rel=0.01)


def test_the_best_machine_is_best_at_every_end_of_the_ranges() -> None:
    for model in ("8B", "70B"):
        assert _leads(model, "prompts", GPU, ONE_DIE, per=1)
        assert _leads(model, "prompts", GPU, WAFER, per=1)
        assert _leads(model, "prompts", GPU, WAFER, per=2)
        assert _leads(model, "answers", WAFER, ONE_DIE, per=1)
        assert _leads(model, "answers", WAFER, GPU, per=1)
        assert _leads(model, "answers", ONE_DIE, GPU, per=2)
    assert _leads("8B", "prompts", GPU, ONE_DIE, per=2)
    assert _leads("70B", "answers", WAFER, ONE_DIE, per=2)
    assert not _leads("8B", "answers", WAFER, ONE_DIE, per=2)
    assert not _leads("8B", "answers", ONE_DIE, WAFER, per=2)


def _leads(model: str, kind: str, better: str, worse: str, per: int) -> bool:
    one, other = table()[model, kind, better][per], table()[model, kind, worse][per]
    assert isinstance(one, Range)
    assert isinstance(other, Range)
    return all(a > b for a, b in zip(_ends(one), _ends(other), strict=True))


def _ends(figure: Range) -> tuple[float, float, float]:
    return figure.low, figure.value, figure.high
