"""No product beats the roofline of the machine it ran on, and large ones come within a stated factor of it.

The roofline is max(bytes / bandwidth, MACs / peak). What must move at least is every operand and the result once; what
a tiled product moves is a tile of A and one of B for each tile, because nothing is kept between tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.testing import run_kernel
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

HBM_GBS = 256.0  # of one slice, and of the links on the way
PEAK = {"float16": 4096.0, "float32": 2048.0, "int8": 8192.0}  # MACs a ns
OUT = {"float16": np.float16, "float32": np.float32, "int8": np.int32}
TILE_M, TILE_K, TILE_N = 32, 64, 32
LATENCY_NS = 2 + 8 + 2 + 1  # of a read alone: request over the router, a burst, back over the router, a flit's time


@cache
def machine() -> TopologyGraph:
    """One cube, without wire delay: times are sums of the numbers above."""
    small = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "system.ns_per_mm": 0.0}
    return load_topology(None, small)


def streamed(a, b, c, tl):
    tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c))


def left_pinned(a, b, c, tl):
    tl.wait(tl.composite("gemm", tl.load(a), tl.ref(b), out_ptr=c))


def pinned(a, b, c, tl):
    tl.wait(tl.composite("gemm", tl.load(a), tl.load(b), out_ptr=c))


def by_hand(a, b, c, tl):
    tl.store(c, tl.dot(tl.load(a), tl.load(b), out_dtype=c.dtype))


KERNELS = [streamed, left_pinned, pinned, by_hand]
dtypes = st.sampled_from(sorted(PEAK))


def time_ns(kernel: Callable[..., None], m: int, k: int, n: int, dtype: str) -> tuple[float, int, float]:
    """How long a product took, the fewest bytes that it can move, and how long its MACs take at peak."""
    a, b, c = np.zeros((m, k), dtype), np.zeros((k, n), dtype), np.zeros((m, n), OUT[dtype])
    took = run_kernel(kernel, a, b, c, topology=machine()).time_ns
    return took, a.nbytes + b.nbytes + c.nbytes, m * k * n / PEAK[dtype]


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.integers(1, 150)] * 3), dtypes)
def test_no_product_is_faster_than_bytes_over_bandwidth_or_macs_over_peak(kernel, size, dtype):
    took, nbytes, compute_ns = time_ns(kernel, *size, dtype)
    assert took >= max(nbytes / HBM_GBS, compute_ns)


def in_tiles(m: int, k: int, n: int) -> tuple[int, int, int]:
    return m * TILE_M, k * TILE_K, n * TILE_N


large = st.builds(in_tiles, st.integers(4, 7), st.integers(2, 4), st.integers(4, 7))


@pytest.mark.needs("n_to_one", reason="bounds on times with one link per HBM slice")
@settings(max_examples=10, deadline=None)
@given(large, dtypes)
def test_a_large_streamed_product_pays_bandwidth_and_one_latency_a_tile(size, dtype):
    m, k, n = size
    took, _, compute_ns = time_ns(streamed, m, k, n, dtype)
    tiles = (m // TILE_M) * (k // TILE_K) * (n // TILE_N)
    tile_ns = TILE_M * TILE_K * np.dtype(dtype).itemsize / HBM_GBS  # 16 ns for f16; B's tile is as large as A's
    roof = max(2 * tiles * tile_ns, compute_ns)
    assert roof <= took
    # One request is under way at a time, so that each adds its latency: 29 / 16 = 1.8 for f16, 2.6 for i8, 1.4 for f32.
    # What the last tile does after its read, and writes that take HBM channels from reads, stay below a tenth.
    assert took <= 1.1 * roof * (tile_ns + LATENCY_NS) / tile_ns


@pytest.mark.needs("n_to_one", reason="bounds on times with one link per HBM slice")
@pytest.mark.parametrize("kernel", [pinned, by_hand])
@settings(max_examples=6, deadline=None)
@given(large, dtypes)
def test_a_large_pinned_product_takes_loads_and_products_one_after_the_other(kernel, size, dtype):
    """So it comes within 2 of the roofline, and a tenth for latencies."""
    took, nbytes, compute_ns = time_ns(kernel, *size, dtype)
    assert max(nbytes / HBM_GBS, compute_ns) <= took <= 1.1 * (nbytes / HBM_GBS + compute_ns)


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(2, 8))
def test_pes_that_share_a_slice_share_its_bandwidth(rows, depth, cols, pes):
    """Every PE multiplies its rows of A with all of B, and all of that lies in the first PE's slice."""
    m, k, n = in_tiles(rows, depth, cols)

    def kernel(a, b, c, height, tl):
        at = tl.program_id(0)
        left = tl.ref(a + at * height * k * 2, (height, k))
        tl.wait(tl.composite("gemm", left, tl.ref(b), out_ptr=c + at * height * n * 2))

    a, b, c = (np.zeros(shape, np.float16) for shape in ((pes * m, k), (k, n), (pes * m, n)))
    took = run_kernel(kernel, a, b, c, m, grid=pes, topology=machine()).time_ns
    read = pes * 2 * (m * k * cols + k * n * rows)
    assert took >= max((read + c.nbytes) / HBM_GBS, m * k * n / PEAK["float16"])
