"""Lower bounds of the time of a layer's part, in closed form: its flops, its HBM bytes, its bytes on links.

compute      products over the GEMM engines, plus element-wise work over the MATH lanes, since they do not overlap
HBM          reads and writes together over all slices, and each of them over the PEs' DMA ports; without HBM, the same
             of SRAM or of TCM, whose ports carry each way; a PE's own TCM is reached without its port
link         copies between cubes: what a cube has to receive, over the links of a cube at the mesh's corner
collective   bytes that must cross each SIP's links to the switch, whatever the algorithm

Each assumes evenly spread work without stalls; the largest is the part's bound. A part has two bounds:

machine's    every operand once: weights and the cache read once, activations read once and written once
mapping's    with the traffic of the mapping: weights once for every group of cubes that has rows for them, and copies
             of a product's input (`spread`), which are not operands

The mapping's bound is never below the machine's. No part is faster than either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from kernbench.components.builtin.product_cost import peak_macs
from kernbench.topology.sip_links import port_sides
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_cube import CubeSpec

BoundName = Literal["compute", "HBM", "SRAM", "TCM", "link", "collective"]
NORM_PASSES = 6  # MATH passes over a row: widen, square, sum, over the root, times the gain, narrow
CENTRE_PASSES = 2  # sum, subtract: of a layernorm
SOFTMAX_PASSES = 6  # over a score: scale, largest, subtract, exponential, sum, narrow
F32_LANES = 0.5  # of the f16 rate


@dataclass(frozen=True, slots=True)
class SipRates:
    """The peak rates of a SIP, per ns."""

    macs: float
    f32_lanes: float
    hbm_bytes: float  # reads and writes together; without HBM, of the TCM or SRAM in which tensors lie
    port_bytes: float  # reads: over the PEs' DMA ports, or those of that memory where they are narrower
    written_bytes: float  # writes, the same
    cube_bytes: float
    sip_bytes: float
    memory: BoundName = "HBM"


@dataclass(frozen=True, slots=True)
class Need:
    """The work of a part on one SIP."""

    macs: float = 0.0
    lanes: float = 0.0  # f32 elements that MATH works on
    read_bytes: float = 0.0  # from HBM
    written_bytes: float = 0.0  # to HBM
    cube_bytes: float = 0.0  # that one cube receives from others
    sip_bytes: float = 0.0  # that cross the SIP's links one way

    def __add__(self, other: Need) -> Need:
        """The work of both."""
        return Need(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def times_ns(self, rates: SipRates) -> dict[BoundName, float]:
        return {
            "compute": self.macs / rates.macs + self.lanes / rates.f32_lanes,
            rates.memory: max(
                (self.read_bytes + self.written_bytes) / rates.hbm_bytes,
                self.read_bytes / rates.port_bytes,
                self.written_bytes / rates.written_bytes,
            ),
            "link": self.cube_bytes / rates.cube_bytes,
            "collective": self.sip_bytes / rates.sip_bytes,
        }

    def bound(self, rates: SipRates) -> tuple[BoundName, float]:
        """The largest of the bounds, and its time."""
        times = self.times_ns(rates)
        name = max(times, key=lambda each: times[each])
        return name, times[name]


def rates_of(spec: MachineSpec) -> SipRates:
    """The peak rates of one SIP of a machine; where SIPs differ, the most that any has, so that bounds hold for all."""
    mesh = spec.sip.cube_mesh
    closed = mesh.wrap != "none"  # the cube at a corner has a neighbour more on each axis that is closed
    neighbours = min(mesh.w - 1, 1 + (closed and "x" in mesh.wrap)) + min(mesh.h - 1, 1 + (closed and "y" in mesh.wrap))
    ports = [cube.ucie.n_connections * cube.ucie.per_connection_bw_gbs for cube, _ in spec.cubes_of()]
    link = min(spec.sip.links.cube_to_cube.bw_gbs, max(ports))

    def most(of_pe: Callable[[CubeSpec], float]) -> float:
        sips = range(spec.n_sips if spec.sip_types else 1)
        return max(spec.sum_over_cubes(lambda cube: cube.n_pes * of_pe(cube), sip) for sip in sips)

    return SipRates(
        macs=most(lambda cube: peak_macs(cube.pe_template.components.pe_gemm)),
        f32_lanes=most(lambda cube: cube.pe_template.components.pe_math.number_attr("lanes_per_ns")) * F32_LANES,
        hbm_bytes=most(lambda cube: cube.home_gbs),
        port_bytes=most(lambda cube: cube.home_read_gbs),
        written_bytes=most(lambda cube: cube.home_write_gbs),
        cube_bytes=max(neighbours, 1) * link,
        sip_bytes=_sip_bytes(spec),
        memory=spec.cube.home.name,
    )


def _sip_bytes(spec: MachineSpec) -> float:
    """What leaves a SIP per ns: over the switch, or over all of its direct links."""
    sips = spec.system.sips
    if sips.links is not None:
        return sips.links.bw_gbs * len(port_sides(sips))
    return spec.system.links.io_ep_to_switch.bw_gbs * len(spec.sip.io_chiplets)
