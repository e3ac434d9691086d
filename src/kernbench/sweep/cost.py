"""The cost of a machine: a number to weigh its time against. The shipped machine costs 1.

The model is simple and meant to be replaced: a weighted sum of four resources of the machine, each relative to the
shipped machine. MACs per ns stand for logic area, bytes on the die for SRAM area, HBM bandwidth for stacks and
their PHYs, die-to-die bandwidth for the shoreline. Yield, package, power and price are not modelled.
A replacement is any function of a MachineSpec that returns a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import fsum

from kernbench.components.builtin.product_cost import peak_macs
from kernbench.topology import load_spec
from kernbench.topology.spec import MachineSpec

WEIGHTS: Mapping[str, float] = {"macs_per_ns": 0.4, "sram_mb": 0.2, "hbm_gbs": 0.3, "die_to_die_gbs": 0.1}
SIDES = 4


def default_cost(spec: MachineSpec) -> float:
    """The cost of a machine in units of the shipped one."""
    shipped, has = _shipped(), resources_of(spec)
    return fsum(weight * has[name] / shipped[name] for name, weight in WEIGHTS.items())


def resources_of(spec: MachineSpec) -> dict[str, float]:
    """The amount of each resource in the whole machine."""
    return {
        "macs_per_ns": spec.sum_over_cubes(lambda cube: cube.n_pes * peak_macs(cube.pe_template.components.pe_gemm)),
        "sram_mb": spec.sum_over_cubes(
            lambda cube: cube.n_pes * cube.memory_map.tcm_mb_per_pe + cube.memory_map.sram_mb_per_cube
        ),
        "hbm_gbs": spec.sum_over_cubes(lambda cube: cube.n_pes * cube.hbm_link_bw_gbs),
        "die_to_die_gbs": spec.sum_over_cubes(
            lambda cube: SIDES * cube.ucie.n_connections * cube.ucie.per_connection_bw_gbs
        ),
    }


@cache
def _shipped() -> dict[str, float]:
    return resources_of(load_spec())
