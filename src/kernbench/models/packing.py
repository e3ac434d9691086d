"""Weights by PE: each PE's matrices one after the other in its own slice, as a plan says.

A packed weight is a matrix with a row for each PE, rows over cubes and PEs. All rows have the length of the longest
one; shorter ones are padded.
"""

from __future__ import annotations

from kernbench.models.mapping import ProductPlan
from kernbench.models.numbers import parts_by_patches
from kernbench.runtime_api.tensor_store import Contents
from kernbench.values.bytes_of import Patch
from kernbench.values.graph import Value, ValueGraph


def packed_shape(plan: ProductPlan, experts: int) -> tuple[int, int]:
    """The number of PEs, and of elements of the PE with the most."""
    sip = plan.sip
    sizes = [_elements(plan, cube, pe) for cube in range(sip.cubes) for pe in range(sip.pes)]
    return sip.size, max(1, experts * max(sizes))


def packed(graph: ValueGraph, plan: ProductPlan, weights: Value) -> Contents:
    """What each PE holds of (experts, K, N)."""
    experts, k, n = weights.shape
    item = weights.dtype.itemsize

    def patches_of(row: int, offset: int) -> list[Patch]:
        found: list[Patch] = []
        for expert in range(experts):
            for (a, b), (c, d) in plan.blocks_of(*divmod(row, plan.sip.pes)):
                run = (d - c) * item
                if run and b > a:
                    found.append((((expert * k + a) * n + c) * item, n * item, offset, run, b - a, run))
                    offset += (b - a) * run
        return found

    return parts_by_patches(graph, weights, patches_of)


def _elements(plan: ProductPlan, cube: int, pe: int) -> int:
    return sum((b - a) * (d - c) for (a, b), (c, d) in plan.blocks_of(cube, pe))
