"""The least time that a product on one PE can take, from the machine alone: bandwidths, rates and sizes of tiles.

The slowest engine of the pipeline is busy without a gap; before it is the time in which the first tile reaches it,
after it the time of the stages behind it for the last tile. Latencies and queues are left out, so it is a lower bound.
"""

from __future__ import annotations

from math import ceil

from kernbench.benches.gemm import VARIANTS, Variant
from kernbench.common.dtypes import dtype_of
from kernbench.components.builtin.product_cost import peak_macs
from kernbench.topology.spec import MachineSpec

ProductShape = tuple[int, int, int]  # m, k, n


def out_dtype(dtype: str) -> str:
    """The output type: sums of one-byte types need a wider one."""
    return dtype if dtype_of(dtype).itemsize > 1 else "f16"


def mac_rate(spec: MachineSpec, dtype: str) -> float:
    """Multiply-accumulates per ns of one PE."""
    return peak_macs(spec.cube.pe_template.components.pe_gemm) * dtype_of(dtype).compute_scale


def mac_ns(spec: MachineSpec, shape: ProductShape, dtype: str) -> float:
    m, k, n = shape
    return m * k * n / mac_rate(spec, dtype)


def hbm_gbs(spec: MachineSpec) -> float:
    """Bandwidth of one PE to its own slice, in one direction."""
    return min(spec.cube.hbm_link_bw_gbs, spec.cube.links.pe_dma_to_router_bw_gbs)


def pipeline_bound_ns(
    spec: MachineSpec, shape: ProductShape, tile: ProductShape, variant: Variant, dtype: str
) -> float:
    """The least time of a composite on this machine, whatever its latencies and queues."""
    first = Shape3(min(shape[0], tile[0]), min(shape[1], tile[1]), min(shape[2], tile[2]))
    counts = [ceil(size / side) for size, side in zip(shape, tile, strict=True)]
    last = Shape3(*(size - (count - 1) * side for size, count, side in zip(shape, counts, tile, strict=True)))
    (m, k, n), (rows, _, columns) = shape, counts
    item, out_item = dtype_of(dtype).itemsize, dtype_of(out_dtype(dtype)).itemsize
    links, streamed = spec.cube.pe_template.links, VARIANTS.index(variant)  # of a and b, how many come from HBM
    gbs, rate = hbm_gbs(spec), mac_rate(spec, dtype)

    def read_ns(a_elements: int, b_elements: int) -> float:
        return (a_elements * (streamed >= 2) + b_elements * (streamed >= 1)) * item / gbs

    def fetch_ns(a_elements: int, b_elements: int) -> float:
        return (a_elements + b_elements) * item / links.tcm_read_bw_gbs

    out_ns = last.out * out_item * (1 / links.tcm_write_bw_gbs + 1 / gbs)
    last_mac_ns = last.macs / rate
    all_a, all_b = m * k * columns, k * n * rows  # a tile of a is read again for every column of tiles
    return max(
        read_ns(all_a, all_b) + fetch_ns(last.a, last.b) + last_mac_ns + out_ns,
        read_ns(first.a, first.b) + fetch_ns(all_a, all_b) + last_mac_ns + out_ns,
        read_ns(first.a, first.b) + fetch_ns(first.a, first.b) + m * k * n / rate + out_ns,
        m * n * out_item / gbs + m * n * out_item / links.tcm_write_bw_gbs * (rows * columns == 1),
    )


class Shape3:
    """A tile's sizes: elements of its operands and its result, and products."""

    def __init__(self, m: int, k: int, n: int) -> None:
        self.a, self.b, self.out, self.macs = m * k, k * n, m * n, m * k * n
