"""Vector functions: passes, trees and sorts, and that nothing changes where a description is silent."""

import numpy as np
import pytest

from kernbench.components.builtin.engine_cycles import compute_ns
from kernbench.components.builtin.vector_functions import CONSISTS_OF, SORTS, TREES, VectorUnit
from kernbench.testing import run_kernel
from kernbench.topology import load_topology
from kernbench.values.ops import OPS

MATH = "cube.pe_template.components.pe_math.attrs"
SMALL = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
UNIT = VectorUnit(256.0, 1.0, exp_passes=4, div_passes=6, erf_passes=9, reduction="tree", sorting="n_log_n")


def test_by_default_every_op_is_one_pass():
    unit = VectorUnit(256.0)
    assert {unit.op_ns(op, 5000, "f16", 100) for op in OPS} == {compute_ns(5000, 256.0, "f16")}


def test_what_ops_consist_of_names_ops_that_there_are():
    assert {*CONSISTS_OF, *TREES, *SORTS} <= set(OPS)


@pytest.mark.parametrize(
    ("op", "cycles"),
    [
        ("add", 4),
        ("exp", 4 * 4),
        ("div", 4 * 6),
        ("gelu", 4 * 9),
        ("sigmoid", 4 * (1 + 3 + 5)),  # one pass, three more for the exponential, five more for the division
        ("sum", 4 + 6),  # 64 results along the axis are combined in six steps
        ("softmax", 4 * (1 + 3 + 5) + 2 * 6),
        ("sort", 4 * 6),  # log2(64) passes
    ],
)
def test_an_op_of_1024_elements_in_rows_of_64_on_256_lanes(op, cycles):
    assert UNIT.op_ns(op, 1024, "f16", 64) == cycles


def test_a_tree_has_no_more_leaves_than_lanes():
    assert UNIT.op_ns("sum", 1 << 16, "f16") == 256 + 8
    assert UNIT.op_ns("sum", 1 << 16, "f32") == 512 + 7  # f32 has half the lanes


def test_many_at_once_cost_what_each_does():
    elements = np.array([1, 255, 256, 1000])
    for op in ("add", "exp", "gelu"):
        assert list(UNIT.op_ns_each(op, elements, "f32")) == [UNIT.op_ns(op, int(n), "f32") for n in elements]


def test_a_kernel_pays_what_the_description_says():
    def kernel(x, *, tl):
        tl.softmax(tl.load(x, (16, 64)), axis=1)

    def took(**attrs):
        machine = load_topology(None, {**SMALL, **{f"{MATH}.{name}": value for name, value in attrs.items()}})
        return run_kernel(kernel, np.zeros((16, 64), np.float16), topology=machine).time_ns

    assert took(exp_passes=4, div_passes=6, reduction="tree") - took() == 4 * (3 + 5) + 2 * 6
