"""A group of matrix units: tiles in rounds, against a count tile by tile, and what chooses tiles for it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import TopologyError
from kernbench.common.ids import PeId
from kernbench.components.builtin.tile_choice import rates_of
from kernbench.components.builtin.unit_group import UnitGroup
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

GEMM = "cube.pe_template.components.pe_gemm"
SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
ATTRS = {"units": 4, "unit_m": 64, "unit_n": 32, "unit_least": 16, "macs_per_ns": 4096.0}


def machine(**other):
    given = {f"{GEMM}.attrs.{name}": value for name, value in {**ATTRS, **other}.items()}
    return load_topology(None, {**SMALL, f"{GEMM}.impl": "builtin.unit_group", **given})


def counted_ns(group, m, k, n):
    """The tiles one by one: the next unit in turn takes each, and a round ends when all of its units have."""
    height, width = group.tile(m, n)
    busy = [0.0] * group.units
    unit_rate = group.macs_per_ns / group.units
    tiles = [(top, left) for top in range(0, m, height) for left in range(0, n, width)]
    for number, _ in enumerate(tiles):
        busy[number % group.units] += height * width * k / unit_rate
    return max(busy)


@given(st.integers(1, 700), st.integers(1, 64), st.integers(1, 700), st.integers(1, 9))
def test_rounds_are_those_of_tiles_dealt_one_by_one(m, k, n, units):
    group = UnitGroup(float(1024 * units), units, 128, 64, 32, 1.0)
    assert group.product_ns(m, k, n, "f16") == max(np.ceil(counted_ns(group, m, k, n)), 1.0)
    each = group.product_ns_each(np.array([m, m]), np.array([k, k]), np.array([n, 1]), "f16")
    assert each.tolist() == [group.product_ns(m, k, columns, "f16") for columns in (n, 1)]


def test_a_side_is_halved_while_one_tile_covers_the_product():
    group = UnitGroup(1024.0, 1, 128, 256, 64, 1.0)
    assert [group.tile(m, 4096)[0] for m in (1, 64, 65, 128, 129)] == [64, 64, 128, 128, 128]
    assert [group.tile(128, n)[1] for n in (8, 65, 128, 129)] == [64, 128, 128, 256]


def test_the_last_round_takes_as_long_as_a_full_one():
    group = UnitGroup(27 * 1024.0, 27, 128, 256, 64, 1.0)
    tile_ns = 128 * 256 * 64 / 1024
    assert group.product_ns(27 * 128, 64, 256, "f16") == tile_ns
    assert group.product_ns(28 * 128, 64, 256, "f16") == 2 * tile_ns
    assert group.product_ns(28 * 128, 64, 256, "f32") == 4 * tile_ns


def test_a_kernels_product_takes_the_rounds_of_the_group():
    def product(x, *, tl):
        a = tl.load(x, (320, 16))
        tl.dot(a, tl.zeros((16, 32), "f16"))

    x = np.zeros((320, 16), np.float16)
    rate = run_kernel(product, x, topology=load_topology(None, SMALL)).time_ns
    grouped = run_kernel(product, x, topology=machine()).time_ns
    # five tiles of 64 x 32 on four units: two rounds, where all MACs at once take 320 * 16 * 32 / 4096 = 40 ns
    assert grouped - rate == 2 * 64 * 32 * 16 / 1024 - 40


def test_the_model_that_chooses_tiles_asks_the_group():
    cost = rates_of(machine(), PeId(0, 0, 0)).product
    assert cost == UnitGroup(4096.0, 4, 64, 32, 16, 1.0)


@pytest.mark.parametrize(("name", "value"), [("units", 0), ("unit_m", 0), ("unit_x", 1)])
def test_what_is_no_group_is_refused(name, value):
    with pytest.raises(TopologyError, match=rf"attrs\.{name}|attr '{name}'"):
        machine(**{name: value})
