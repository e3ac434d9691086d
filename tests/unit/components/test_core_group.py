"""A group of cores with arrays and local buffers: times by hand, rounds, buffers, and what chooses tiles for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import TopologyError
from kernbench.common.ids import PeId
from kernbench.components.builtin.core_group import CoreGroup
from kernbench.components.builtin.tile_choice import rates_of
from kernbench.testing import run_kernel
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

GEMM = "cube.pe_template.components.pe_gemm"
SMALL: dict[str, object] = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
ATTRS = {"cores": 4, "arrays": 4, "rows": 16, "columns": 16, "local_kb": 192, "feed_gbs": 160.0, "macs_per_ns": 4096.0}
FAST = 1e9  # GB/s: operands cost nothing to move


def machine(**other: float) -> TopologyGraph:
    given = {f"{GEMM}.attrs.{name}": value for name, value in {**ATTRS, **other}.items()}
    return load_topology(None, {**SMALL, f"{GEMM}.impl": "builtin.core_group", **given})


def core(cores: int = 1, arrays: int = 1, side: int = 16, kb: int = 192, feed: float = FAST) -> CoreGroup:
    return CoreGroup(cores, arrays, side, side, kb << 10, feed, 1.0)


def test_one_fold_takes_k_and_the_fill_of_the_array() -> None:
    assert core().product_ns(16, 100, 16, "f16") == 100 + 16 + 16 - 2
    assert core(side=128).product_ns(16, 100, 16, "f16") == 100 + 128 + 128 - 2  # however little of it is used


def test_folds_are_dealt_over_the_arrays_of_a_core_in_whole_rounds() -> None:
    assert core(arrays=4).product_ns(32, 100, 32, "f16") == 130
    assert core(arrays=4).product_ns(80, 100, 16, "f16") == 2 * 130  # five folds


def test_tiles_are_dealt_over_cores_in_whole_rounds() -> None:
    small = core(cores=4, kb=14)  # tiles of 16 x 16 with all of k, or larger ones with less
    assert small.product_ns(64, 100, 16, "f16") == 130
    assert small.product_ns(80, 100, 16, "f16") == 2 * 130


def test_a_small_buffer_fills_the_array_more_often() -> None:
    """A tile of 16 x 16: 1024 bytes of sums, and 128 bytes for each step of k, twice both operands in f16."""
    assert core(kb=9).product_ns(16, 128, 16, "f16") == 128 + 2 * 30  # 64 steps at a time
    assert core(kb=17).product_ns(16, 128, 16, "f16") == 128 + 30


def test_operands_are_moved_at_the_cores_share_of_the_memory() -> None:
    """A tile of 16 x 16 needs 64 bytes for each step of k; a core has a byte per ns of four."""
    assert core(cores=4, feed=4.0).product_ns(16, 100, 16, "f16") == 6400
    assert core(cores=4, feed=4.0).product_ns(16, 100, 16, "f8e4m3") == 3200


def test_larger_tiles_are_taken_where_the_memory_is_slow() -> None:
    """64 x 64 results: 16 folds of 130 cycles as one tile, for which (64 + 64) x 2 bytes are moved at each of 100
    steps. Tiles of 16 x 16 would move four times as much.
    """
    assert core(feed=12.8).product_ns(64, 100, 64, "f16") == max(16 * 130, 128 * 2 * 100 / 12.8)


def test_a_buffer_without_room_for_a_tile_still_computes() -> None:
    assert core(side=64, kb=1).product_ns(64, 2, 64, "f16") == 2 * (1 + 126)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300), st.sampled_from([1, 3, 4]))
def test_more_of_anything_is_never_slower(m: int, k: int, n: int, cores: int) -> None:
    ns = core(cores, kb=32, feed=64.0).product_ns(m, k, n, "f16")
    assert core(cores, kb=64, feed=64.0).product_ns(m, k, n, "f16") <= ns
    assert core(cores, kb=32, feed=128.0).product_ns(m, k, n, "f16") <= ns
    assert core(cores, 2, kb=32, feed=64.0).product_ns(m, k, n, "f16") <= ns
    assert ns >= m * k * n / (cores * 256)


def test_several_products_take_what_each_takes() -> None:
    group = core(cores=3, feed=64.0)
    m, k, n = np.array([16, 100]), np.array([64, 0]), np.array([[40], [16]])
    each = group.product_ns_each(m, k, n, "f16")
    assert each.tolist() == [[group.product_ns(16, 64, 40, "f16"), 1.0], [group.product_ns(16, 64, 16, "f16"), 1.0]]


def test_a_kernels_product_takes_the_time_of_the_group() -> None:
    def product(x, *, tl):  # type: ignore[no-untyped-def]
        a = tl.load(x, (320, 16))
        tl.dot(a, tl.zeros((16, 32), "f16"))

    x = np.zeros((320, 16), np.float16)
    rate = run_kernel(product, x, topology=load_topology(None, SMALL)).time_ns
    grouped = run_kernel(product, x, topology=machine()).time_ns
    cost = CoreGroup(4, 4, 16, 16, 192 << 10, 160.0, 1.0)
    assert grouped - rate == cost.product_ns(320, 16, 32, "f16") - 320 * 16 * 32 / 4096


def test_the_model_that_chooses_tiles_asks_the_group() -> None:
    cost = rates_of(machine(), PeId(0, 0, 0)).product
    assert cost == CoreGroup(4, 4, 16, 16, 192 << 10, 160.0, 1.0)


@pytest.mark.parametrize(("name", "value"), [("cores", 0), ("local_kb", 0), ("core_x", 1)])
def test_what_is_no_group_is_refused(name: str, value: float) -> None:
    with pytest.raises(TopologyError, match=rf"attrs\.{name}|attr '{name}'"):
        machine(**{name: value})


def test_a_peak_that_is_not_that_of_the_arrays_is_refused() -> None:
    with pytest.raises(TopologyError, match="2 x 4 x 16 x 16 MACs at 1 GHz are not 4096 MACs per ns"):
        machine(cores=2)
