"""The tables of the guide *Choose a machine*: figures per dollar follow from prices, the answer from both."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from kernbench.report.price import price_of
from kernbench.report.ranges import FigureRange
from kernbench.topology import load_topology

ROOT = Path(__file__).parents[3]
PROMPTS = re.compile(
    r"^\| (8B|70B) prompts \| `([\w-]+)`[^|]*\| ([\d,]+) \| \d+ \| ([^|]+) \| ([^|]+) \| [\d,]+ \|$", re.MULTILINE
)
ANSWERS = re.compile(
    r"^\| (8B|70B) answers \| (\d+) \| (\d) `([\w-]+)` \| (\d+)" + r" \| ([\d,]+)" * 3 + r" \| ([^|]+) \| ([^|]+) \|$",
    re.MULTILINE,
)
WAFER_LAYER = re.compile(r"^\| (8B|70B) \| (\d+) \| ([\d.]+) \| \d+ \|$", re.MULTILINE)
COEFFICIENT = re.compile(
    r"^\| `([\w.]+)`(, wafer only)? \| ([\d.]+) / ([\d.]+) \|" + r" ([\d./* ]+) \|" * 4 + "$", re.MULTILINE
)
RANGE = re.compile(r"([\d.,]+) \(([\d.,]+) to ([\d.,]+)\)")
ONE_DIE, GPU, WAFER = "one-die-64", "gpu-like", "wafer-like"
LAYERS = {"8B": 32, "70B": 80}


class Answer(NamedTuple):
    """A row of answers: users in a batch, tokens per second per user and in total, dollars, and the ranges per dollar
    and per joule.
    """

    batch: int
    per_user: float
    tokens: float
    usd: float
    per_usd: FigureRange
    per_j: FigureRange


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
def answers() -> dict[tuple[str, int, int, str], Answer]:
    """The rows of answers by model, users, SIPs and machine."""
    return {
        (model, int(users), int(sips), machine): Answer(
            int(batch), _number(per_user), _number(tokens), _number(usd), _range(per_usd), _range(per_j)
        )
        for model, users, sips, machine, batch, per_user, tokens, usd, per_usd, per_j in ANSWERS.findall(page())
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
    assert len(answers()) == 19
    for (_, users, sips, machine), row in answers().items():
        assert row.per_user * users == pytest.approx(row.tokens, rel=0.02)  # 20 tokens/s per user are 19.7, 36 are 36.2
        assert row.usd == pytest.approx(usd_of(machine, sips).value, rel=0.001)
        _assert_per_usd(row.tokens, usd_of(machine, sips), row.per_usd)


def test_wafers_work_on_batches_at_the_same_time_and_one_wafer_on_its_batches_one_after_another() -> None:
    layer_us = {(model, int(batch)): float(us) for model, batch, us in WAFER_LAYER.findall(page())}
    used = set()
    for (model, users, sips, machine), row in answers().items():
        if machine != WAFER:
            assert row.batch == users
            continue
        rounds = max(1.0, users / row.batch / sips)
        step_s = LAYERS[model] * layer_us[model, row.batch] * 1e-6 * rounds
        assert row.tokens == pytest.approx(users / step_s, rel=0.0005)
        used.add((model, row.batch))
    assert used == set(layer_us)


def test_prompts_have_the_gpu_like_machine_as_their_best_at_both_ends() -> None:
    for model in ("8B", "70B"):
        best = prompts()[model, GPU]
        for other in (ONE_DIE, WAFER):
            assert _leads(best[1], prompts()[model, other][1])
        assert _leads(best[2], prompts()[model, WAFER][2])


def test_answers_of_70b_per_dollar_are_a_tie_for_48_users_and_an_hbm_machine_for_8_and_96() -> None:
    assert _over(ONE_DIE, "70B", 8, 6) == pytest.approx(0.93, abs=0.005)
    assert _over(GPU, "70B", 96, 7) == pytest.approx(0.76, abs=0.005)
    assert _over(ONE_DIE, "70B", 96, 7) == pytest.approx(0.84, abs=0.005)
    tie = _over(GPU, "70B", 48, 6)
    assert _over(ONE_DIE, "70B", 48, 6) == pytest.approx(1.10, abs=0.005)
    assert tie == pytest.approx(1.06, abs=0.005)
    assert tie * 80 / (6 * 14) == pytest.approx(1.01, abs=0.005)  # with 14 of 80 layers on the fullest of six wafers


def test_answers_of_70b_take_least_energy_on_an_hbm_machine_and_least_time_on_wafers() -> None:
    for users, wafers, machine, share in ((8, 6, ONE_DIE, 0.47), (48, 6, ONE_DIE, 0.55), (96, 7, ONE_DIE, 0.48)):
        ours, theirs = answers()["70B", users, wafers, WAFER], answers()["70B", users, 1, machine]
        assert ours.per_j.value / theirs.per_j.value == pytest.approx(share, abs=0.005)
        assert ours.per_user > 55 * theirs.per_user


def test_answers_of_8b_have_the_wafer_as_their_best_per_dollar_by_less_with_more_users() -> None:
    assert _over(ONE_DIE, "8B", 8, 1) == pytest.approx(2.56, abs=0.005)
    for machine in (ONE_DIE, GPU):
        assert _over(machine, "8B", 48, 1) == pytest.approx(1.20, abs=0.01)
    many = answers()["8B", 128, 1, GPU].per_usd.value
    assert many / answers()["8B", 48, 1, WAFER].per_usd.value == pytest.approx(1.19, abs=0.005)


def test_hbm_machines_tie_per_dollar_up_to_48_users_and_the_gpu_like_one_leads_with_more() -> None:
    for model in ("8B", "70B"):
        for users in (8, 48):
            one, gpu = answers()[model, users, 1, ONE_DIE], answers()[model, users, 1, GPU]
            assert gpu.per_usd.value / one.per_usd.value == pytest.approx(1, abs=0.055)
            assert 1.1 < one.per_j.value / gpu.per_j.value < 1.2
    one, gpu = answers()["70B", 96, 1, ONE_DIE], answers()["70B", 96, 1, GPU]
    assert gpu.per_usd.value / one.per_usd.value == pytest.approx(1.09, abs=0.005)
    assert gpu.per_j.value / one.per_j.value == pytest.approx(0.93, abs=0.005)


def _over(machine: str, model: str, users: int, wafers: int) -> float:
    """Tokens per second per dollar of wafers, over those of one SIP of an HBM machine."""
    ours, theirs = answers()[model, users, wafers, WAFER], answers()[model, users, 1, machine]
    return ours.tokens / theirs.tokens * usd_of(machine).value / usd_of(WAFER, wafers).value


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
        of["8B", 8, 1, WAFER].tokens / of["8B", 8, 1, ONE_DIE].tokens * one / wafer,
        of["8B", 48, 1, WAFER].tokens / of["8B", 48, 1, ONE_DIE].tokens * one / wafer,
        of["70B", 48, 6, WAFER].tokens / of["70B", 48, 1, ONE_DIE].tokens * one / (6 * wafer),
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
