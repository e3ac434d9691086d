"""Rows sorted by expert: where each token's row goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.models.plans import Job


class Routing(NamedTuple):
    """Rows by expert: which tokens, in order; how many for each expert; and where each token's i-th choice went."""

    tokens: tuple[int, ...]
    jobs: tuple[Job, ...]
    places: tuple[tuple[int, ...], ...]


def routing_of(chosen: Sequence[Sequence[int]], experts: int) -> Routing:
    """Tokens in the order of their experts, of one expert in their own order."""
    tokens: list[int] = []
    jobs: list[Job] = []
    places = [[0] * len(chosen) for _ in chosen[0]]
    for expert in range(experts):
        first = len(tokens)
        for token, choices in enumerate(chosen):
            if expert in choices:
                places[list(choices).index(expert)][token] = len(tokens)
                tokens.append(token)
        if len(tokens) > first:
            jobs.append(Job(expert, first, len(tokens) - first))
    return Routing(tuple(tokens), tuple(jobs), tuple(map(tuple, places)))
