"""A systolic array: its cycles step by step, what chooses tiles for it, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import TopologyError
from kernbench.common.ids import PeId
from kernbench.components.builtin.engine_cycles import MacArray
from kernbench.components.builtin.systolic import SystolicArray
from kernbench.components.builtin.tile_choice import rates_of
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

ATTRS = "cube.pe_template.components.pe_gemm.attrs"
SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}


def machine(rows=64, columns=64, dataflow="os", macs=4096.0):
    given = {"rows": rows, "columns": columns, "dataflow": dataflow, "macs_per_ns": macs}
    impl = {"cube.pe_template.components.pe_gemm.impl": "builtin.systolic"}
    return load_topology(None, {**SMALL, **impl, **{f"{ATTRS}.{name}": value for name, value in given.items()}})


def stepped(array, m, k, n):
    """Cycles of a product, fold by fold, as the wave front passes: the naive model."""
    cycles = 0
    rows, columns = array.rows, array.columns
    if array.dataflow == "os":
        for _ in range(0, m, rows):
            for _ in range(0, n, columns):
                # the MAC at (r, c) gets operand pair i in cycle i + r + c; the last is in the far corner
                cycles += max(i + r + c for i in (k - 1,) for r in (rows - 1,) for c in (columns - 1,)) + 1
    else:
        for _ in range(0, k, rows):
            for _ in range(0, n, columns):
                loaded = rows  # weights enter row by row
                # row i of the other operand reaches row r of the array r cycles later, its sum leaves c further on
                cycles += loaded + (m - 1) + (rows - 1) + (columns - 1) + 1
    return cycles - 1  # the last cycle of all is counted by its beginning


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200), st.integers(1, 40), st.integers(1, 40),
       st.sampled_from(["os", "ws"]))  # fmt: skip
def test_the_closed_forms_are_the_folds_one_after_another(m, k, n, rows, columns, dataflow):
    array = SystolicArray(rows, columns, dataflow, 1.0)
    assert array.steps(m, k, n) == stepped(array, m, k, n)
    one = np.array([m]), np.array([k]), np.array([n])
    for dtype in ("f16", "f32", "i8"):
        assert array.product_ns_each(*one, dtype)[0] == array.product_ns(m, k, n, dtype)


def test_f32_takes_two_clocks_for_a_step_and_i8_half_of_one():
    array = SystolicArray(4, 4, "os", 2.0)  # one fold of 4 + 4 + 4 - 2 - 1 = 9 steps at 2 GHz
    assert [array.product_ns(4, 4, 4, dtype) for dtype in ("f16", "f32", "i8")] == [4.5, 9.0, 2.5]


def test_a_kernels_product_takes_the_cycles_of_the_array():
    def product(x, *, tl):
        a = tl.load(x, (64, 64))
        tl.dot(a, a)

    x = np.zeros((64, 64), np.float16)
    rate = run_kernel(product, x, topology=load_topology(None, SMALL)).time_ns
    array = run_kernel(product, x, topology=machine()).time_ns
    assert array - rate == (64 + 64 + 64 - 2 - 1) - 64**3 / 4096


def test_the_model_that_chooses_tiles_asks_the_engine():
    pe = PeId(0, 0, 0)
    assert rates_of(machine(), pe).product == SystolicArray(64, 64, "os", 1.0)
    assert rates_of(load_topology(None, SMALL), pe).product == MacArray(4096.0, 1.0)


def test_a_peak_that_is_not_that_of_the_array_is_refused():
    with pytest.raises(TopologyError, match="32 x 64 MACs at 1 GHz are not 4096 MACs per ns"):
        machine(rows=32)
