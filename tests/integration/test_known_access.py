"""Sparse, repeated and unordered accesses, and blocks of split columns, cost the same with fast paths and without."""

from __future__ import annotations

import pytest

import kernbench
from kernbench import repeatable
from kernbench.policy.placement.dp import DPPolicy

SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}


@repeatable
def accesses(x, y, tl):
    tl.store(y.local, tl.load(x.local, (64,), strides=(2,)), strides=(2,))
    tl.store(x.local, tl.load(x.local, rows=[3, 1, 3]), rows=[0, 2, 1])
    tl.load(x.local, (8, 16), mask=tl.arange(0, 16) % 3 == 0)
    tl.load(y, (2, 64), strides=(256, 1))
    tl.load(y)


@pytest.mark.needs("addresses", reason="its kernels read the parts of other PEs")
def test_a_run_with_fast_paths_is_the_run_without():
    def bench(torch):
        x = torch.zeros(64, 256, dp=DPPolicy(cube="row_wise", pe="row_wise"))
        y = torch.zeros(64, 256, dp=DPPolicy(cube="row_wise", pe="column_wise"))
        for _ in range(2):
            torch.launch(accesses, x, y)

    assert kernbench.run(bench, None, SMALL, check_fast=True).ok
