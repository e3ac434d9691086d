"""The most that a set of flows can move together: max-min fair shares of the links they take, by progressive filling.

All rates grow together until a link is full; the flows on it keep their rate and the others grow on. For flows of equal
size no schedule beats the sum: finishing all by time T gives each at least bytes / T, and no allocation has a larger
least rate. An HBM slice's channels are together as fast as its link, so the link stands for both.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Link = TypeVar("Link", bound=Hashable)


def fair_shares_gbs(flows: Sequence[Sequence[Link]], capacity_gbs: Mapping[Link, float]) -> list[float]:
    """The max-min fair rate of each flow, which is given by the links it takes. A link taken twice counts twice."""
    growing: dict[Link, dict[int, int]] = {}  # link -> flow that still grows -> how often it takes the link
    for flow, links in enumerate(flows):
        for link in links:
            takers = growing.setdefault(link, {})
            takers[flow] = takers.get(flow, 0) + 1
    left = {link: capacity_gbs[link] for link in growing}
    rates = [0.0] * len(flows)
    level = 0.0
    while growing:
        step, full = min(
            (
                (left[link] / sum(takers.values()), number, link)
                for number, (link, takers) in enumerate(growing.items())
            ),
            key=lambda found: found[:2],
        )[::2]
        level += step
        for link, takers in growing.items():
            left[link] -= step * sum(takers.values())
        done = list(growing[full])
        for flow in done:
            rates[flow] = level
            for link in dict.fromkeys(flows[flow]):
                del growing[link][flow]
                if not growing[link]:
                    del growing[link]
    return rates


def aggregate_peak_gbs(flows: Sequence[Sequence[Link]], capacity_gbs: Mapping[Link, float]) -> float:
    """What all flows move together at their fair rates."""
    return sum(fair_shares_gbs(flows, capacity_gbs))
