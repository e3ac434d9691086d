"""What a part of a layer takes at least, by hand: its flops, its bytes in HBM, its bytes on the links it must cross.

compute      products over the GEMM engines, and element-wise work over the MATH lanes, which take turns with them
HBM          reads and writes together over all slices, and each of them over the PEs' DMA ports
link         copies between cubes: what a cube has to receive, over the links of a cube at the mesh's corner
collective   what must cross each SIP's links to the switch, whatever the algorithm

Each assumes that work is spread evenly and that nothing is waited for; the largest is the part's bound. A part has two:

machine's    every operand once: weights and the cache read once, activations read once and written once
mapping's    what the mapping makes of that: weights once for every group of cubes that has rows for them, and copies of
             a product's input, which no operand asks for (`spread`)

The mapping's bound is never below the machine's. No part is faster than either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernbench.topology.spec import MachineSpec

BoundName = Literal["compute", "HBM", "link", "collective"]
NORM_PASSES = 6  # MATH passes over a row: widen, square, sum, over the root, times the gain, narrow
CENTRE_PASSES = 2  # sum, subtract: of a layernorm
RESIDUAL_PASSES = 2  # add, narrow
SOFTMAX_PASSES = 6  # over a score: scale, largest, subtract, exponential, sum, narrow
F32_LANES = 0.5  # of the f16 rate


@dataclass(frozen=True, slots=True)
class Rates:
    """What a SIP can do per ns."""

    macs: float
    f32_lanes: float
    hbm_bytes: float  # reads and writes together
    port_bytes: float  # of the PEs' DMA, each way
    cube_bytes: float
    sip_bytes: float


@dataclass(frozen=True, slots=True)
class Need:
    """What a part needs of one SIP."""

    macs: float = 0.0
    lanes: float = 0.0  # f32 elements that MATH works on
    read_bytes: float = 0.0  # from HBM
    written_bytes: float = 0.0  # to HBM
    cube_bytes: float = 0.0  # that one cube receives from others
    sip_bytes: float = 0.0  # that cross the SIP's links one way

    def times_ns(self, rates: Rates) -> dict[BoundName, float]:
        return {
            "compute": self.macs / rates.macs + self.lanes / rates.f32_lanes,
            "HBM": max(
                (self.read_bytes + self.written_bytes) / rates.hbm_bytes,
                max(self.read_bytes, self.written_bytes) / rates.port_bytes,
            ),
            "link": self.cube_bytes / rates.cube_bytes,
            "collective": self.sip_bytes / rates.sip_bytes,
        }

    def bound(self, rates: Rates) -> tuple[BoundName, float]:
        """Which of them is largest, and how long it takes."""
        times = self.times_ns(rates)
        name = max(times, key=lambda each: times[each])
        return name, times[name]


def rates_of(spec: MachineSpec) -> Rates:
    """Of one SIP of a machine."""
    pes, parts = spec.sip.n_cubes * spec.cube.n_pes, spec.cube.pe_template.components
    mesh = spec.sip.cube_mesh
    neighbours = min(mesh.w - 1, 1) + min(mesh.h - 1, 1)  # of the cube at a corner
    ucie = spec.cube.ucie
    link = min(spec.sip.links.cube_to_cube.bw_gbs, ucie.n_connections * ucie.per_connection_bw_gbs)
    return Rates(
        macs=pes * parts.pe_gemm.number_attr("macs_per_ns"),
        f32_lanes=pes * parts.pe_math.number_attr("lanes_per_ns") * F32_LANES,
        hbm_bytes=pes * spec.cube.hbm_link_bw_gbs,
        port_bytes=pes * spec.cube.links.pe_dma_to_router_bw_gbs,
        cube_bytes=max(neighbours, 1) * link,
        sip_bytes=spec.system.links.io_ep_to_switch.bw_gbs * len(spec.sip.io_chiplets),
    )
