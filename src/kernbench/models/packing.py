"""Weights by PE: each PE's matrices one after the other in its own slice, as a plan says.

A packed weight is a matrix with a row for each PE, rows over cubes and PEs. Rows are as long as the longest; the
rest of a shorter one is not used.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.models.mapping import ProductPlan

Array: TypeAlias = NDArray[np.generic]


def packed_shape(plan: ProductPlan, experts: int) -> tuple[int, int]:
    """PEs, and elements of the one with the most."""
    sip = plan.sip
    sizes = [_elements(plan, cube, pe) for cube in range(sip.cubes) for pe in range(sip.pes)]
    return sip.size, max(1, experts * max(sizes))


def pack(plan: ProductPlan, weights: Array) -> Array:
    """(experts, K, N) as a row for each PE."""
    sip = plan.sip
    rows = np.zeros(packed_shape(plan, weights.shape[0]), weights.dtype)
    for at, (cube, pe) in enumerate(np.ndindex(sip.cubes, sip.pes)):
        blocks = plan.blocks_of(cube, pe)
        found = [expert[a:b, c:d].ravel() for expert in weights for (a, b), (c, d) in blocks]
        flat = np.concatenate(found) if found else rows[at, :0]
        rows[at, : flat.size] = flat
    return rows


def _elements(plan: ProductPlan, cube: int, pe: int) -> int:
    return sum((b - a) * (d - c) for (a, b), (c, d) in plan.blocks_of(cube, pe))
