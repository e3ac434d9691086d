"""The tables of the guide *Choose a machine*: figures per dollar follow from prices, the answer from both."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from kernbench.report.price import price_of
from kernbench.report.ranges import FigureRange
from kernbench.topology import load_topology

ROOT = Path(__file__).parents[3]
PROMPTS = re.compile(
    r"^\| (8B|70B) prompts \| `([\w-]+)`[^|]*\| ([\d,]+) \| \d+ \| ([^|]+) \| ([^|]+) \| [\d,]+ \|$", re.MULTILINE
)
ANSWERS = re.compile(
    r"^\| (8B|70B) answers \| (\d+) \| (\d) `([\w-]+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([^|]+) \| ([^|]+) \|$",
    re.MULTILINE,
)
COEFFICIENT = re.compile(
    r"^\| `([\w.]+)`(, wafer only)? \| ([\d.]+) / ([\d.]+) \|" + r" ([\d./* ]+) \|" * 4 + "$", re.MULTILINE
)
RANGE = re.compile(r"([\d.,]+) \(([\d.,]+) to ([\d.,]+)\)")
ONE_DIE, GPU, WAFER = "one-die-64", "gpu-like", "wafer-like"


@cache
def page() -> str:
    return (ROOT / "docs/guides/choose-a-machine.md").read_text()


@cache
def prompts() -> dict[tuple[str, str], tuple[float, FigureRange, FigureRange]]:
    """Tokens per second, and the ranges per dollar and per joule, by model and machine."""
    return {
        (model, machine): (_number(tokens), _range(per_usd), _range(per_j))
        for model, machine, tokens, per_usd, per_j in PROMPTS.findall(page())
    }


@cache
def answers() -> dict[tuple[str, int, int, str], tuple[float, float, float, FigureRange, FigureRange]]:
    """Tokens per second per user and in total, dollars, and the ranges per dollar and per joule, by model, users,
    SIPs and machine.
    """
    return {
        (model, int(users), int(sips), machine): (
            _number(per_user),
            _number(in_total),
            _number(usd),
            _range(per_usd),
            _range(per_j),
        )
        for model, users, sips, machine, per_user, in_total, usd, per_usd, per_j in ANSWERS.findall(page())
    }


@cache
def usd_of(machine: str, sips: int = 1, **coefficients: float) -> FigureRange:
    """The price of SIPs in one machine; wafers are bought one by one."""
    count = 1 if machine == WAFER else sips
    path = ROOT / f"examples/machines/{machine}.yaml"
    keys = {key.replace("__", "."): value for key, value in coefficients.items()}
    return price_of(load_topology(str(path), {"system.sips.count": count, **keys})).total_usd * (sips / count)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _range(text: str) -> FigureRange:
    (value, low, high), *_ = RANGE.findall(text)
    return FigureRange(_number(low), _number(value), _number(high))


def _ends(figure: FigureRange) -> tuple[float, float, float]:
    return figure.low, figure.value, figure.high


def _assert_per_usd(tokens: float, usd: FigureRange, found: FigureRange) -> None:
    expected = FigureRange(tokens / usd.high, tokens / usd.value, tokens / usd.low)
    for shown, by_price in zip(_ends(found), _ends(expected), strict=True):
        assert shown == pytest.approx(by_price, rel=0.01)


def test_figures_per_dollar_of_prompts_are_those_of_todays_prices() -> None:
    assert len(prompts()) == 6
    for (_, machine), (tokens, per_usd, _) in prompts().items():
        _assert_per_usd(tokens, usd_of(machine), per_usd)


def test_figures_of_answers_are_those_of_todays_prices_and_of_equal_users() -> None:
    assert len(answers()) == 16
    for (_, users, sips, machine), (per_user, tokens, dollars, per_usd, _) in answers().items():
        assert per_user * users == pytest.approx(tokens, rel=0.02)  # 21 tokens/s per user are 20.8, 36 are 36.2
        assert dollars == pytest.approx(usd_of(machine, sips).value, rel=0.001)
        _assert_per_usd(tokens, usd_of(machine, sips), per_usd)


def test_six_wafers_have_six_batches_of_the_figures_of_one() -> None:
    few, many = answers()["70B", 8, 6, WAFER], answers()["70B", 48, 6, WAFER]
    assert many[0] == few[0]
    assert many[1] == pytest.approx(6 * few[1], rel=0.001)


def test_prompts_have_the_gpu_like_machine_as_their_best_at_both_ends() -> None:
    for model in ("8B", "70B"):
        best = prompts()[model, GPU]
        for other in (ONE_DIE, WAFER):
            assert _leads(best[1], prompts()[model, other][1])
        assert _leads(best[2], prompts()[model, WAFER][2])


def test_answers_of_70b_have_an_hbm_machine_as_their_best_at_equal_users() -> None:
    for users in (8, 48):
        one, wafers = answers()["70B", users, 1, ONE_DIE], answers()["70B", users, 6, WAFER]
        assert _leads(one[3], wafers[3])
        assert one[4].value > 2 * wafers[4].value
        assert wafers[0] > 35 * one[0]


def test_answers_of_8b_have_the_wafer_as_their_best_per_dollar_by_less_with_more_users() -> None:
    lead = {
        users: answers()["8B", users, 1, WAFER][3].value / answers()["8B", users, 1, ONE_DIE][3].value
        for users in (8, 48)
    }
    assert lead[8] == pytest.approx(1.7, abs=0.05)
    assert lead[48] == pytest.approx(1.2, abs=0.05)
    assert answers()["8B", 128, 1, ONE_DIE][3].value > answers()["8B", 48, 1, WAFER][3].value


def _leads(better: FigureRange, worse: FigureRange) -> bool:
    return all(a > b for a, b in zip(_ends(better), _ends(worse), strict=True))


def ratios(wafer_only: bool = False, **coefficients: float) -> list[float]:
    """The ratios of tokens per second per dollar of the table of coefficients."""
    one = usd_of(ONE_DIE, **({} if wafer_only else coefficients)).value
    gpu = usd_of(GPU, **({} if wafer_only else coefficients)).value
    wafer = usd_of(WAFER, **coefficients).value
    of = answers()
    return [
        prompts()["8B", GPU][0] / prompts()["8B", ONE_DIE][0] * one / gpu,
        of["8B", 8, 1, WAFER][1] / of["8B", 8, 1, ONE_DIE][1] * one / wafer,
        of["8B", 48, 1, WAFER][1] / of["8B", 48, 1, ONE_DIE][1] * one / wafer,
        of["70B", 48, 6, WAFER][1] / of["70B", 48, 1, ONE_DIE][1] * one / (6 * wafer),
    ]


def table_of_coefficients() -> str:
    """The rows that the guide should have: `python tests/unit/report/test_three_machines.py` prints them."""
    now = ratios()
    rows = ["| all at their values | | " + " | ".join(f"{ratio:.2f}" for ratio in now) + " |"]
    for key, only, low, high, *_ in COEFFICIENT.findall(page()):
        at = [ratios(bool(only), **{key.replace(".", "__"): float(end)}) for end in (low, high)]
        cells = [
            " / ".join(f"**{ratio:.2f}**" if (ratio > 1) != (base > 1) else f"{ratio:.2f}" for ratio in pair)
            for *pair, base in zip(*at, now, strict=True)
        ]
        rows.append(f"| `{key}`{only} | {low} / {high} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def test_each_coefficient_alone_has_the_ratios_of_the_guide_and_flips_what_it_says() -> None:
    assert len(COEFFICIENT.findall(page())) == 7
    assert table_of_coefficients() in page()


if __name__ == "__main__":
    print(table_of_coefficients())
