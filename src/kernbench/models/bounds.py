"""What a part of a layer takes at least, by hand: its flops, its bytes in HBM, its bytes on the links it must cross.

compute      products over the GEMM engines, and element-wise work over the MATH lanes, which take turns with them
HBM          weights and the cache once for every copy that is read, activations once in and once out, over all slices
link         copies between cubes: what a cube has to receive, over the links of a cube at the mesh's corner
collective   what must cross each SIP's link to the switch, whatever the algorithm

Each assumes that work is spread evenly and that nothing is waited for; the largest is the part's bound.
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
    hbm_bytes: float
    cube_bytes: float
    sip_bytes: float


@dataclass(frozen=True, slots=True)
class Need:
    """What a part needs of one SIP."""

    macs: float = 0.0
    lanes: float = 0.0  # f32 elements that MATH works on
    hbm_bytes: float = 0.0
    cube_bytes: float = 0.0  # that one cube receives from others
    sip_bytes: float = 0.0  # that cross the SIP's link one way

    def times_ns(self, rates: Rates) -> dict[BoundName, float]:
        return {
            "compute": self.macs / rates.macs + self.lanes / rates.f32_lanes,
            "HBM": self.hbm_bytes / rates.hbm_bytes,
            "link": self.cube_bytes / rates.cube_bytes,
            "collective": self.sip_bytes / rates.sip_bytes,
        }

    def bound(self, rates: Rates) -> tuple[BoundName, float]:
        """Which of them is largest, and how long it takes."""
        times = self.times_ns(rates)
        name = max(times, key=lambda each: times[each])
        return name, times[name]

    def plus(self, other: Need) -> Need:
        return Need(
            self.macs + other.macs,
            self.lanes + other.lanes,
            self.hbm_bytes + other.hbm_bytes,
            self.cube_bytes + other.cube_bytes,
            self.sip_bytes + other.sip_bytes,
        )


def rates_of(spec: MachineSpec) -> Rates:
    """Of one SIP of a machine."""
    pes, parts = spec.sip.n_cubes * spec.cube.n_pes, spec.cube.pe_template.components
    mesh = spec.sip.cube_mesh
    neighbours = min(mesh.w - 1, 1) + min(mesh.h - 1, 1)  # of the cube at a corner
    link = spec.sip.links.cube_to_cube.bw_gbs
    return Rates(
        macs=pes * parts.pe_gemm.number_attr("macs_per_ns"),
        f32_lanes=pes * parts.pe_math.number_attr("lanes_per_ns") * F32_LANES,
        hbm_bytes=pes * spec.cube.hbm_link_bw_gbs,
        cube_bytes=max(neighbours, 1) * float(link or 1.0),
        sip_bytes=float(spec.system.links.io_ep_to_switch.bw_gbs or 1.0),
    )
