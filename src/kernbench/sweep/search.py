"""Searches: points that are drawn from the axes instead of all of them.

random    some points of the grid, each at most once; the seed says which
optuna    batches of trials, each proposed from the rows of the batches before (extra `dse`; see `optuna_plan.py`)
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kernbench.common.errors import UsageError
from kernbench.sweep.points import Axes, JsonValue, Point, grid_point, grid_size

Method = Literal["random", "optuna"]
METHODS: tuple[Method, ...] = ("random", "optuna")
TRIALS, BATCH = 100, 8


@dataclass(frozen=True, slots=True)
class Search:
    """How to search. `batch` trials are proposed at a time: the search depends on that, not on how many run at a time.
    `storage` is where Optuna keeps its study: a file or a URL; a file in the sweep's folder if left out.
    """

    method: Method
    trials: int = TRIALS
    seed: int = 0
    batch: int = BATCH
    storage: str | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"no search '{self.method}'", hint=f"use one of {', '.join(METHODS)}")
        for name in ("trials", "batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is {value!r}", hint="give a whole number, 1 or more")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise UsageError(f"the seed is {self.seed!r}", hint="give a whole number, 0 or more")
        if self.storage is not None and self.method != "optuna":
            raise UsageError(f"a {self.method} search has no storage", hint="--storage is for --search optuna")


def random_points(axes: Axes, params: Mapping[str, JsonValue], search: Search) -> list[Point]:
    """Points of the grid, none twice; all of it in some order when there are more trials than points."""
    size = grid_size(axes)
    draw = random.Random(search.seed)
    chosen = draw.sample(range(size), min(search.trials, size))
    points = [grid_point(axes, number, params) for number in chosen]
    return list({point.key: point for point in points}.values())
