"""What bounds a launch: the time its flops need, and the time its bytes need, if nothing else were in the way.

compute   the time that GEMM and MATH were busy, shared evenly by the PEs; as engines are charged by element type, so
          is this bound
memory    the bytes that HBM moved, over what the HBM slices in use can give; no more than the PEs' DMA ports can take,
          both ways

The larger is the bound. A launch is never faster than it; how near it came is `share`. Rates are over the time of the
slowest PE, without the way of the launch to the PEs and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernbench.runtime_api.launches import Launch
from kernbench.topology.spec import MachineSpec

Bound = Literal["compute", "memory", "neither"]
COMPUTE_ENGINES = ("pe_gemm", "pe_math")
FLOPS_PER_MAC = 2


@dataclass(frozen=True, slots=True)
class Peak:
    """What some PEs and HBM slices can do: f16 products, and bytes. GFLOP/s is flops per ns."""

    gflops: float
    gbs: float

    def as_json(self) -> dict[str, float]:
        return {"gflops_f16": self.gflops, "hbm_gbs": self.gbs}


@dataclass(frozen=True, slots=True)
class Roofline:
    """Where a launch sits. Shares are of `peak`, which is that of the PEs and slices in use; 0 where nothing ran."""

    exec_ns: float
    flops: int
    nbytes: int
    compute_ns: float
    memory_ns: float
    peak: Peak

    @property
    def bound(self) -> Bound:
        if not self.bound_ns:
            return "neither"
        return "compute" if self.compute_ns >= self.memory_ns else "memory"

    @property
    def bound_ns(self) -> float:
        return max(self.compute_ns, self.memory_ns)

    @property
    def share(self) -> float:
        """Of what the bound allows."""
        return _ratio(self.bound_ns, self.exec_ns)

    @property
    def gflops(self) -> float:
        return _ratio(self.flops, self.exec_ns)

    @property
    def gbs(self) -> float:
        return _ratio(self.nbytes, self.exec_ns)

    @property
    def intensity(self) -> float:
        """Flops per byte of HBM traffic."""
        return _ratio(self.flops, self.nbytes)

    @property
    def ridge(self) -> float:
        """The intensity from which on f16 products are bound by compute."""
        return _ratio(self.peak.gflops, self.peak.gbs)

    def as_json(self) -> dict[str, object]:
        return {
            "bound": self.bound,
            "bound_ns": self.bound_ns,
            "compute_ns": self.compute_ns,
            "memory_ns": self.memory_ns,
            "share": self.share,
            "gflops": self.gflops,
            "gbs": self.gbs,
            "share_of_peak_gflops": _ratio(self.gflops, self.peak.gflops),
            "share_of_peak_gbs": _ratio(self.gbs, self.peak.gbs),
            "intensity": self.intensity,
            "ridge": self.ridge,
            "peak": self.peak.as_json(),
        }


def peak_of(spec: MachineSpec, pes: int, slices: int | None = None) -> Peak:
    """The peak of `pes` PEs and `slices` HBM slices, as many as PEs if left out."""
    cube = spec.cube
    macs_per_ns = cube.pe_template.components.pe_gemm.number_attr("macs_per_ns")
    ports_gbs = 2 * pes * cube.links.pe_dma_to_router_bw_gbs
    slices_gbs = (pes if slices is None else slices) * cube.hbm_link_bw_gbs
    return Peak(FLOPS_PER_MAC * macs_per_ns * pes, min(ports_gbs, slices_gbs))


def roofline_of(launch: Launch, spec: MachineSpec, slices: int) -> Roofline:
    """Where a launch that is done sits, if its SIPs use `slices` HBM slices."""
    pes = len(launch.pes)
    peak = peak_of(spec, pes, slices)
    busy_ns = sum(launch.engines[kind].busy_ns for kind in COMPUTE_ENGINES if kind in launch.engines)
    return Roofline(
        exec_ns=launch.pe_exec_ns_max,
        flops=launch.flops,
        nbytes=launch.bytes_hbm,
        compute_ns=_ratio(busy_ns, pes),
        memory_ns=_ratio(launch.bytes_hbm, peak.gbs),
        peak=peak,
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
