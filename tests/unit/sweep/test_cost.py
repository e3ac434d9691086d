"""The simple cost model."""

from __future__ import annotations

import pytest

from kernbench.sweep.cost import WEIGHTS, default_cost, resources_of
from kernbench.topology import load_spec
from kernbench.topology.machine_hash import machine_hash


def test_the_shipped_machine_costs_one_and_half_of_it_a_half() -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1)
    assert default_cost(load_spec()) == pytest.approx(1)
    assert default_cost(load_spec(None, {"system.sips.count": 1})) == pytest.approx(0.5)


def test_each_thing_counts_with_its_weight() -> None:
    faster = load_spec(None, {"cube.pe_template.components.pe_gemm.attrs.macs_per_ns": 8192})
    assert default_cost(faster) == pytest.approx(1 + 0.4)  # twice the products
    smaller = load_spec(None, {"cube.memory_map.sram_mb_per_cube": 8})
    # per cube: 8 PEs x 2 MB + 32 MB = 48 MB, now 16 + 8 = 24 MB, half of it
    assert default_cost(smaller) == pytest.approx(1 - 0.2 / 2)


def test_what_the_shipped_machine_has() -> None:
    # 2 SIPs x 16 cubes x 8 PEs = 256 PEs, 32 cubes
    assert resources_of(load_spec()) == {
        "macs_per_ns": 256 * 4096,
        "sram_mb": 256 * 2 + 32 * 32,
        "hbm_gbs": 256 * 256,
        "die_to_die_gbs": 32 * 4 * 4 * 128,
    }


def test_the_hash_of_a_machine_does_not_depend_on_how_it_was_described() -> None:
    shipped = load_spec()
    assert machine_hash(shipped) == machine_hash(load_spec({"system": {"sips": {"count": 2}}}))
    assert machine_hash(shipped) != machine_hash(load_spec(None, {"system.sips.count": 1}))
