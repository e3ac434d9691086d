"""The peak aggregate bandwidth of a set of flows: max-min fair shares of their links, by progressive filling.

All rates grow together until a link is saturated; its flows keep their rate and the others continue to grow. For flows
of equal size no schedule beats the sum: finishing all by time T gives each at least bytes / T, and no allocation has a
larger minimum rate. An HBM slice's channels are together as fast as its link, so the link stands for both.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Link = TypeVar("Link", bound=Hashable)


def fair_shares_gbs(flows: Sequence[Sequence[Link]], capacity_gbs: Mapping[Link, float]) -> list[float]:
    """The max-min fair rate of each flow, which is given by its links. A link used twice counts twice."""
    growing: dict[Link, dict[int, int]] = {}  # link -> flow that still grows -> how often it uses the link
    for flow, links in enumerate(flows):
        for link in links:
            users = growing.setdefault(link, {})
            users[flow] = users.get(flow, 0) + 1
    left = {link: capacity_gbs[link] for link in growing}
    rates = [0.0] * len(flows)
    level = 0.0
    while growing:
        step, full = min(
            ((left[link] / sum(users.values()), number, link) for number, (link, users) in enumerate(growing.items())),
            key=lambda found: found[:2],
        )[::2]
        level += step
        for link, users in growing.items():
            left[link] -= step * sum(users.values())
        done = list(growing[full])
        for flow in done:
            rates[flow] = level
            for link in dict.fromkeys(flows[flow]):
                del growing[link][flow]
                if not growing[link]:
                    del growing[link]
    return rates


def aggregate_peak_gbs(flows: Sequence[Sequence[Link]], capacity_gbs: Mapping[Link, float]) -> float:
    """The sum of the fair rates of all flows."""
    return sum(fair_shares_gbs(flows, capacity_gbs))
