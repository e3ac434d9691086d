"""Our side of `docs/results/published.md`, taken anew, beside what was published."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kernbench.benches.milestones import milestone_1h_gemm, pe_dma_perf
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.topology import load_topology

PAGE = (Path(__file__).parents[2] / "docs/results/published.md").read_text(encoding="utf-8")


def measured(point: Callable[..., Mapping[str, float]], figure: str, **setting: object) -> float:
    result = run_bench(point, load_topology(), RunOptions(device="whole"), name="point", params=setting)
    (found,) = result.returned
    return float(found[figure])


def row_of(what: str) -> list[str]:
    """The cells of the page's row that begins so."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {what}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def number_in(cell: str) -> float:
    return float(re.search(r"[\d.,]+", cell)[0].replace(",", ""))  # type: ignore[index]  # cells have one


@pytest.mark.needs("n_to_one", reason="figures of the shipped machine")
@pytest.mark.parametrize(
    ("what", "published", "ours"),
    [
        (
            "8 PEs of a cube",
            963,
            lambda: measured(
                pe_dma_perf.point, "latency_ns",
                part="contention", place="next-cube", direction="write", size_bytes=16384, issuers=8,
            ),
        ),
        (
            "a PE to the same PE",
            409,
            lambda: measured(
                pe_dma_perf.point, "latency_ns", part="distance", place="other SIP", direction="write", size_bytes=16384
            ),
        ),
        (
            "GEMM 32 x 3072 x 32",
            992,
            lambda: measured(milestone_1h_gemm.point, "window_ns", part="shapes", m=32, k=3072, n=32),
        ),
    ],
)  # fmt: skip
def test_the_page_has_our_figure_beside_the_published_one(
    what: str, published: float, ours: Callable[[], float]
) -> None:
    _, was, shown, difference, why = row_of(what)
    now = ours()
    assert number_in(was) == published
    assert number_in(shown) == round(now)
    assert number_in(difference) == round(100 * abs(now / published - 1))
    assert len(why) > 40
