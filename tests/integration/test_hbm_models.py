"""Kernels on machines with other models of HBM: what short accesses and mixed streams cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.probes.cases import cases_of
from kernbench.probes.measure import measure_sizes
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

ROWS = 512
SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
CLOSED = {"hbm.model": "closed", "hbm.preset": "hbm2"}
BURST_NS, CHANNELS = 8.0, 8


def gather(x: Any, nbytes: int, *, tl: Any) -> None:
    """Rows of some bytes, each at the beginning of a burst of its own, in one request."""
    tl.load(x, (ROWS, nbytes), "i8", strides=(256, 1))


def gathered_ns(nbytes: int, **overrides: object) -> float:
    machine = load_topology(None, {**SMALL, **overrides})
    return run_kernel(gather, np.zeros((ROWS, 256), np.int8), nbytes, topology=machine).time_ns


@pytest.mark.parametrize(("nbytes", "granules"), [(64, 1), (65, 2), (128, 2), (200, 4), (256, 4)])
def test_a_short_row_pays_for_its_granules(nbytes: int, granules: int) -> None:
    """64 rows on each channel; whole bursts take 64 x 8 ns, rows of one granule a quarter of that."""
    whole, short = gathered_ns(nbytes), gathered_ns(nbytes, **{"hbm.granule_bytes": 64})
    assert whole - short == (4 - granules) / 4 * BURST_NS * ROWS / CHANNELS


def test_a_short_row_that_opens_a_row_of_the_memory_takes_a_quarter_of_the_activation_window() -> None:
    """7.5 ns for 64 bytes with tFAW = 30 ns, where the bytes take 2 ns: 64 times on each channel."""
    open_ns = gathered_ns(64, **{"hbm.model": "closed", "hbm.granule_bytes": 64, "hbm.faw_ns": 30.0})
    assert open_ns - gathered_ns(64, **{"hbm.granule_bytes": 64}) == (7.5 - 2.0) * ROWS / CHANNELS


@pytest.mark.parametrize("mode", ["n_to_one", "one_to_one"])
@pytest.mark.parametrize("case_name", ["pe-local-hbm", "pe-local-hbm-write"])
def test_the_probes_formula_knows_granules_and_rows(mode: str, case_name: str) -> None:
    graph = load_topology(None, {**SMALL, **CLOSED, "cube.memory_map.hbm_mapping_mode": mode})
    (case,) = [case for case in cases_of(graph, 4096) if case.name == case_name]
    _, points = measure_sizes(graph, case, [1, 64, 65, 200, 256, 300, 1000, 2048, 2100, 4096, 5000])
    for point in points:
        assert point.total_ns == pytest.approx(point.formula_ns, abs=0.01), point.nbytes
