"""Peaks of products are asked of the engine: of each builtin, and by all that compare with a peak."""

from __future__ import annotations

import pytest

from kernbench.components.builtin.engine_cycles import PRODUCT_ATTRS, MacArray
from kernbench.components.builtin.pe_gemm import PeGemmComponent
from kernbench.components.builtin.product_cost import peak_macs, product_cost
from kernbench.models.bounds import rates_of
from kernbench.report.roofline import peak_of
from kernbench.report.silicon import dies_of
from kernbench.sweep.cost import resources_of
from kernbench.topology import load_topology

GEMM = "cube.pe_template.components.pe_gemm"
ARRAY = {"rows": 32, "columns": 16, "clock_ghz": 2.0, "macs_per_ns": 1024.0}
ENGINES = {
    "builtin.pe_gemm": {"macs_per_ns": 3000.0},
    "builtin.systolic": ARRAY,
    "builtin.unit_group": {"macs_per_ns": 3000.0, "units": 4, "unit_m": 64, "unit_n": 64, "unit_least": 16},
    "builtin.core_group": {**ARRAY, "cores": 3, "arrays": 2, "local_kb": 64, "feed_gbs": 512.0, "macs_per_ns": 6144.0},
}


class TwiceComponent(PeGemmComponent):
    """Does twice the MACs of its description."""

    @classmethod
    def cost_of(cls, attrs):
        return MacArray(2 * float(attrs["macs_per_ns"]))


class SilentComponent(PeGemmComponent):
    """Has a cost of its own that names no peak."""

    class Cost:
        def product_ns(self, m, k, n, dtype):
            return 1.0

    @classmethod
    def cost_of(cls, attrs):
        return cls.Cost()


def machine(impl, attrs=None):
    return load_topology(None, {f"{GEMM}.impl": impl} | {f"{GEMM}.attrs.{key}": v for key, v in (attrs or {}).items()})


def engine(graph):
    return graph.spec.cube.pe_template.components.pe_gemm


@pytest.mark.parametrize("impl", ENGINES)
def test_the_peak_of_a_builtin_is_that_of_its_description(impl):
    graph = machine(impl, ENGINES[impl])
    assert peak_macs(engine(graph)) == ENGINES[impl]["macs_per_ns"]
    macs, ns = 4096.0**3, product_cost(engine(graph)).product_ns(4096, 4096, 4096, "f16")
    assert macs / ns <= peak_macs(engine(graph)) * (1 + 1e-9)


def test_all_that_compare_with_a_peak_ask_the_engine():
    plain, twice = (machine(impl) for impl in ("builtin.pe_gemm", f"{__name__}:TwiceComponent"))
    assert engine(plain).attrs["macs_per_ns"] == engine(twice).attrs["macs_per_ns"]

    def figures(graph):
        return (
            rates_of(graph.spec).macs,
            peak_of(graph.spec).gflops,
            resources_of(graph.spec)["macs_per_ns"],
            sum(die.blocks_mm2["macs"].value for die in dies_of(graph) if "macs" in die.blocks_mm2),
        )

    assert figures(twice) == tuple(2 * each for each in figures(plain))


def test_an_engine_that_names_no_peak_has_that_of_its_description():
    assert peak_macs(engine(machine(f"{__name__}:SilentComponent"))) == 4096.0


def test_engines_for_products_share_their_keys():
    from kernbench.common.impls import imported

    for impl in ENGINES:
        declared = imported(impl).declaration.attrs
        assert {key: declared[key] for key in PRODUCT_ATTRS} == dict(PRODUCT_ATTRS)
