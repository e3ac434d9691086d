"""A closed model of one SIP, from which mappings are chosen: rates of engines, memories and links, latencies, TCM.

No clock and no events: the time of a candidate mapping is a few sums over these rates (`mapper.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.common.commands import CompositeCmd, Operand
from kernbench.common.composite_use import PathTiming
from kernbench.common.ids import PeId
from kernbench.components.builtin.hbm_ctrl import burst_ns
from kernbench.components.builtin.product_cost import peak_macs
from kernbench.components.builtin.tile_choice import TileLimits, fastest_tile, limits_of, rates_of
from kernbench.components.builtin.tile_model import PeRates, composite_ns
from kernbench.models.bounds import F32_LANES
from kernbench.models.bounds import rates_of as sip_rates
from kernbench.models.chunk_rounds import crowded_links
from kernbench.models.plans import SipShape
from kernbench.sim_engine.paths import latency_ns
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.mesh import build_mesh
from kernbench.topology.spec_cube import CubeSpec

LAUNCH_NS = 200.0  # between the end of one launch and the start of the next: host, PCIe and control path
FAR_SHARE = 0.5  # of the links' bandwidth: routes along x first do not use all links alike
LEAST_SLOT = 4096  # bytes of messages between PEs that share chunks
EVEN_SHARE = 0.8  # of a memory's bandwidth that PEs get which take turns at it


@dataclass(frozen=True)
class MachineModel:
    """A SIP: rates are per PE and ns, unless they are of a cube."""

    sip: SipShape
    macs: float
    lanes: float  # f32 elements of MATH
    hbm: float  # bytes of a slice, reads and writes together; without HBM, of TCM or its part of the SRAM's port, read
    port: float  # bytes of the DMA, each way
    cube_link: float  # bytes that a cube receives from its neighbours
    link: float  # bytes of one link between cubes
    router: float  # bytes of a link between routers of a cube
    latency_ns: float  # of a read within the cube
    places: int  # transfers under way per direction
    limits: TileLimits
    engines: PeRates
    own_slice: PathTiming
    slot: float  # bytes of a message's slot in TCM
    message_ns: float  # for a message within the cube, and its credit, besides their bytes
    ring_bytes: int = 0  # of TCM, for messages
    sip_link: float = 0.0  # bytes that leave the SIP
    rank_ns: float = 0.0  # for a message to the farthest of the SIPs that share the layer, besides its bytes
    passing: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()  # by rows of a cube's grid: `crowded_links`

    def macs_of(self, dtype: str) -> float:
        """The MACs per ns of a large product of this type."""
        edge = 1024
        return (
            self.macs
            * self.engines.product.product_ns(edge, edge, edge, "f16")
            / self.engines.product.product_ns(edge, edge, edge, dtype)
        )

    @property
    def own_gbs(self) -> float:
        """What a PE reads of its own slice."""
        return self.own_slice.gbs

    def far_latency_ns(self, cubes: int) -> float:
        """Of a write to some PE of so many cubes: each cube on the way takes about as long as one by itself, and its
        ports half as much.
        """
        hops = (min(cubes, self.sip.mesh_w) + -(-cubes // self.sip.mesh_w)) / 3 if cubes > 1 else 0.0
        return self.latency_ns * (1 + 1.5 * hops)

    def source_link(self, cubes: int) -> float:
        """Bytes that one of so many cubes, one row of the mesh after the other, sends to the others."""
        w, h = min(cubes, self.sip.mesh_w), -(-cubes // self.sip.mesh_w)
        return FAR_SHARE * self.link * max(1, (w > 1) + (h > 1))

    def team_link(self, cubes: int) -> float:
        """Bytes that each of so many cubes, one row of the mesh after the other, receives from all of them alike, where
        several PEs want them at a time.
        """
        w, h = min(cubes, self.sip.mesh_w), -(-cubes // self.sip.mesh_w)
        wires = max(1, 2 * (w * (h - 1) + h * (w - 1)))  # in both directions
        return FAR_SHARE * wires * self.link / (cubes * (w + h) / 3)

    def crowded_ns(self, rows: int, x_bytes: float, weight_bytes: float) -> float:
        """How long the link between routers with most bytes takes when all PEs of a cube, in so many rows of a grid,
        pass a chunk of x and one of the weights on.
        """
        pairs = dict(self.passing).get(rows, ())
        return max((x * x_bytes + weights * weight_bytes for x, weights in pairs), default=0.0) / self.router

    def load_ns(self, requests: float, nbytes: float) -> float:
        """Loads by one PE, as many at a time as its DMA has places."""
        one_by_one = requests * self.latency_ns + nbytes / min(self.port, self.hbm)
        return max(nbytes / self.port, one_by_one / self.places)

    def message_gbs(self, rings: int, slots: int) -> float:
        """What a ring of the cube moves per ns, if a PE has so many rings of so many slots; 0 if slots are too short to
        be worth it.
        """
        size = self.ring_bytes // (rings * slots + 1)
        if size < LEAST_SLOT:
            return 0.0
        return slots * size / (size / self.port + 2 * size / self.slot + self.message_ns)

    def stream_ns(self, rows: int, k: int, n: int, dtype: str, out_dtype: str, *, x_in_tcm: bool) -> float:
        """A composite product of x, in TCM or streamed, by weights that are streamed from the PE's own slice; that gets
        the result too.
        """
        if not rows or not k or not n:
            return 0.0
        x = Operand(0, (rows, k), dtype, "hbm", pinned=x_in_tcm)
        cmd = CompositeCmd(
            "gemm",
            (x, Operand(1, (k, n), dtype, "hbm")),
            Operand(2, (rows, n), out_dtype, "hbm"),
            "auto",
            "",
            "f32",
            (),
            (),
        )
        paths = (None if x_in_tcm else self.own_slice, self.own_slice, self.own_slice)
        tile = np.array([fastest_tile(cmd, self.limits, self.engines, paths)])
        return float(composite_ns(cmd, tile, self.engines, paths)[0])


def machine_model(graph: TopologyGraph, sip: SipShape, ring_bytes: int = 0, ranks: int = 1) -> MachineModel:
    """The model of one of the first `ranks` SIPs, which share a layer; its kernels have the TCM of `sip`, and
    `ring_bytes` for messages.
    """
    spec, first = graph.spec, PeId(0, 0, 0)
    cube, parts = spec.cube, spec.cube.pe_template.components
    ucie, mesh = cube.ucie, spec.sip.cube_mesh
    neighbours = min(mesh.w - 1, 1) + min(mesh.h - 1, 1)
    link = min(spec.sip.links.cube_to_cube.bw_gbs, ucie.n_connections * ucie.per_connection_bw_gbs)
    engines = rates_of(graph, first)
    router = cube.components.router.number_attr("overhead_ns")
    memory = cube.home.component(cube).number_attr("overhead_ns")
    channels, burst = (cube.hbm_channels_per_pe, cube.hbm_burst_bytes) if cube.has_hbm else (0, 0)
    round_ns = burst_ns(channels, burst, cube.hbm_channel_bw_gbs) if channels else 0.0
    flit_ns = spec.system.flit_bytes / cube.links.pe_dma_to_router_bw_gbs
    near = 2 * router + memory + round_ns + flit_ns
    own_ns, gbs = near if cube.home.passes_router else memory, cube.home_read_gbs
    own = PathTiming(own_ns, gbs, "own", channels * burst, round_ns) if channels else PathTiming(own_ns, gbs, "own")
    hops = 2 * (cube.n_pes / 2) ** 0.5  # between two PEs of a cube, about
    return MachineModel(
        sip,
        macs=peak_macs(parts.pe_gemm),
        lanes=parts.pe_math.number_attr("lanes_per_ns") * F32_LANES,
        hbm=cube.home.read_gbs(cube),
        port=cube.links.pe_dma_to_router_bw_gbs,
        cube_link=max(neighbours, 1) * link,
        link=link,
        router=cube.links.router_bw_gbs,
        latency_ns=near + 2 * hops * (router + flit_ns),
        places=engines.dma_places,
        limits=limits_of(graph, first),
        engines=engines,
        own_slice=own,
        slot=parts.pe_ipcq.number_attr("tcm_gbs"),
        message_ns=2 * hops * (router + flit_ns) + parts.pe_ipcq.number_attr("wake_ns"),
        ring_bytes=ring_bytes,
        sip_link=sip_rates(spec).sip_bytes,
        rank_ns=max((latency_ns(graph, (0, 0, 0), (rank, 0, 0)) for rank in range(1, ranks)), default=0.0),
        passing=_passing(cube) if ring_bytes and sip.pes > 1 else (),
    )


def _passing(cube: CubeSpec) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
    pes = build_mesh(cube).pes
    return tuple((rows, crowded_links(pes, rows)) for rows in range(1, len(pes) + 1) if len(pes) % rows == 0)
