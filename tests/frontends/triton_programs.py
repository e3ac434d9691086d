"""Triton programs on a small machine, for tests: one SIP of one cube with 8 PEs unless another is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
from packaging import version

from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

WHY = "needs kernbench[triton]"
torch = pytest.importorskip("torch", reason=WHY)
triton = pytest.importorskip("triton", reason=WHY, exc_type=ImportError)
tl = pytest.importorskip("triton.language", reason=WHY, exc_type=ImportError)

NEEDS_BLOCK_POINTERS = pytest.mark.skipif(
    version.parse(triton.__version__) >= version.parse("3.9"),
    reason="Triton 3.9 has removed block pointers in favour of descriptors",
)
SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
ONE_PE = {**SMALL, "cube.pe_layout.pe_per_corner": 1}


@lru_cache(maxsize=4)
def machine(one_pe: bool = False) -> TopologyGraph:
    return load_topology(None, ONE_PE if one_pe else SMALL)


@contextmanager
def simulated(**options: Any) -> Iterator[Any]:
    import kernbench.triton

    with kernbench.triton.simulate(options.pop("machine", None) or machine(), **options) as sim:
        yield sim
