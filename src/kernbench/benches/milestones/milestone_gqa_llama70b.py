"""Grouped-query attention at Llama-70B shapes, in four panels: one user or several, prefill or decode.

single    one user: a cube has one KV head and its query heads, and the sequence is spread over the cube's PEs. Eight
          cubes do the same for the other KV heads without contention, so one of them is simulated
multi     one user per SIP: a PE of every cube has one KV head, and the sequence is spread over the cubes of the SIP,
          in a ring of neighbours. SIPs do the same without contention: one of them is simulated for its times,
          and `users` points show that several take as long
prefill   a chunk of query tokens attends to a whole context; keys and values go around the ring of ranks
decode    one query token attends to the context; partial results are merged. Two products per rank

`timed`, `queries` and `users` points have zeros for contents, `validated` ones random numbers, whose result is compared
with numpy. Without a causal mask: the context lies before the chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.benches._numbers import Wide, draw, softmax, wide
from kernbench.benches.milestones._gqa import Axis, decode_kernel, mesh_ring, prefill_kernel
from kernbench.benches.milestones._gqa_figures import COUNTED, DTYPE, MODEL, PANELS, figures
from kernbench.benches.registry import evaluation_bench
from kernbench.common.dtypes import dtype_of
from kernbench.common.units import KIB
from kernbench.components.builtin.product_cost import peak_macs
from kernbench.evaluation.contract import Evaluation, Setting
from kernbench.models.shapes import load_model
from kernbench.policy.placement.dp import DPPolicy
from kernbench.report.energy import launches_energy
from kernbench.report.roofline import peak_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec

BLOCK = 128  # keys that go around the ring at a time
SLOTS, SLOT_BYTES = 4, 16 * KIB
ROWS = 64  # of queries on each rank, at prefill
CONTEXTS = (2048, 8192, 32768)
TOKENS = {"single-prefill": (4096, (8, 16, 32, 64, 128)), "multi-prefill": (1024, (16, 32, 64, 128, 256))}  # of a chunk
USERS = {"multi-prefill": 512, "multi-decode": 2048}  # context
VALIDATED = {"single-prefill": 256, "single-decode": 256, "multi-prefill": 512, "multi-decode": 512}  # context


class PanelLayout(NamedTuple):
    """Where a panel's ranks are: their axis and number, KV heads on the PEs of a cube, and how many SIPs take part."""

    axis: Axis
    ranks: int
    heads: int
    sips: int
    ring: tuple[int, ...]  # the ranks' places on the axis, each next to the one before

    @property
    def rows(self) -> DPPolicy:
        """Rows over ranks, heads over PEs where those are no ranks."""
        if self.axis == "pe":
            return DPPolicy(pe="row_wise", num_cubes=1)
        return DPPolicy(cube="row_wise", pe="column_wise")

    @property
    def same(self) -> DPPolicy:
        """The same on all ranks."""
        return DPPolicy(num_cubes=1) if self.axis == "pe" else DPPolicy(pe="column_wise")

    @property
    def first(self) -> DPPolicy:
        """On rank 0 only."""
        return DPPolicy(num_cubes=1, num_pes=1) if self.axis == "pe" else DPPolicy(num_cubes=1, pe="column_wise")


def layout_of(spec: MachineSpec, panel: str) -> PanelLayout:
    if panel.startswith("single"):
        return PanelLayout("pe", spec.cube.n_pes, 1, 1, tuple(range(spec.cube.n_pes)))
    mesh = spec.sip.cube_mesh
    return PanelLayout("cube", spec.sip.n_cubes, spec.cube.n_pes, spec.n_sips, mesh_ring(mesh.w, mesh.h))


# ------------------------------------------------------------------------------------------------------------- points


def points(
    machine: TopologyGraph,
    *,
    scale: Annotated[Literal["full", "small"], "contexts up to 32k, or two short ones"] = "full",
) -> list[Setting]:
    small, spec = scale == "small", machine.spec
    panels = [panel for panel in PANELS if layout_of(spec, panel).ranks > 1]

    def dealt(panel: str, context: int) -> int:
        """Tokens rounded so that every rank has the same number of blocks."""
        return context - context % layout_of(spec, panel).ranks

    found: list[Setting] = [
        {"part": "timed", "panel": panel, "context": dealt(panel, context)}
        for panel in panels
        for context in ((512, 1024) if small else CONTEXTS)
    ]
    found += [
        {
            "part": "validated",
            "panel": panel,
            "context": dealt(panel, VALIDATED[panel]),
            "users": layout_of(spec, panel).sips,
        }
        for panel in panels
    ]
    for panel, (context, tokens) in TOKENS.items():
        if panel in panels and not (small and panel != "single-prefill"):
            found += [
                {"part": "queries", "panel": panel, "context": dealt(panel, 512 if small else context), "tokens": count}
                for count in (tokens[2:4] if small else tokens)
            ]
    found += [
        {"part": "users", "panel": panel, "context": dealt(panel, context), "users": users}
        for panel, context in USERS.items()
        for users in range(1, spec.n_sips + 1)
        if panel in panels and not small
    ]
    return found


def point(
    torch: RuntimeContext, *, part: str, panel: str, context: int, tokens: int = 0, users: int = 1
) -> Mapping[str, float]:
    shape = load_model(MODEL)
    layout, d, group = layout_of(torch.spec, panel), shape.head_dim, shape.heads // shape.kv_heads
    is_prefill = panel.endswith("prefill")
    rows = group
    if is_prefill:
        rows = tokens * group if tokens else ROWS * layout.ranks
    torch.install_ipcq(SLOTS, SLOT_BYTES)
    launches: list[Launch] = []
    results: list[tuple[Tensor, Wide]] = []
    for sip in range(users):
        torch.ahbm.set_device(sip)
        rng = np.random.default_rng(sip)

        def tensor(n: int, dp: DPPolicy, name: str, rng: np.random.Generator = rng) -> tuple[Tensor, Wide | None]:
            columns = layout.heads * d
            if part != "validated":
                return torch.zeros(n, columns, dtype=DTYPE, dp=dp, name=name), None
            drawn = draw(rng, n, columns, dtype=DTYPE)
            return torch.from_numpy(drawn, dp=dp, name=name), wide(drawn)

        (q, q_is), (k, k_is), (v, v_is) = (
            tensor(rows, layout.rows if is_prefill else layout.same, "q"),
            tensor(context, layout.rows, "k"),
            tensor(context, layout.rows, "v"),
        )
        placed = layout.rows if is_prefill else layout.first
        out = torch.zeros(rows, layout.heads * d, dtype=DTYPE, dp=placed, name="out")
        kernel = (
            partial(prefill_kernel, axis=layout.axis, order=layout.ring, block=BLOCK)
            if is_prefill
            else partial(decode_kernel, axis=layout.axis, order=tuple(range(layout.ranks)))
        )
        launches.append(torch.launch(panel, kernel, q, k, v, out, wait=False))
        if q_is is not None and k_is is not None and v_is is not None:
            results.append((out, attention(q_is, k_is, v_is, d)))
    for launch in launches:
        torch.wait(launch)
    errors = [float(np.abs(wide(out.numpy()) - right).max()) for out, right in results]
    error = {"largest_error": max(errors)} if errors else {}
    work = PanelWork(rows, context, d, layout, rows // group)
    return {**_figures(torch, launches, work), **error}


def attention(q: Wide, k: Wide, v: Wide, d: int) -> Wide:
    """softmax(q k^T / sqrt(d)) v of each head, in f64; heads lie next to each other."""
    heads: list[NDArray[np.float64]] = []
    for first in range(0, q.shape[1], d):
        own = slice(first, first + d)
        heads.append(softmax(q[:, own] @ k[:, own].T * d**-0.5) @ v[:, own])
    return np.concatenate(heads, axis=1)


class PanelWork(NamedTuple):
    """What a panel computes on each SIP: query rows by context of every head."""

    rows: int
    context: int
    d: int
    layout: PanelLayout
    tokens: int  # of queries, whose heads of one KV head are rows

    @property
    def pes(self) -> int:
        return self.layout.ranks * self.layout.heads

    def bounds_ns(self, spec: MachineSpec, is_prefill: bool) -> dict[str, float]:
        """Least times from the machine: of the products, of HBM, and of what goes around the ring."""
        cube, item = spec.cube, dtype_of(DTYPE).itemsize
        macs = 2 * self.rows * self.context * self.d * self.layout.heads
        cached = 2 * self.context * self.d * self.layout.heads * item
        rate = self.pes * peak_macs(cube.pe_template.components.pe_gemm)
        ring_ns = 0.0
        if is_prefill:  # every rank sends on all that it has and gets, once less than there are ranks
            passed = cached * (self.layout.ranks - 1) / self.pes
            if self.layout.axis == "pe":
                gbs = cube.links.pe_dma_to_router_bw_gbs
            else:  # the PEs of a cube share the port to the next one
                port = min(
                    spec.sip.links.cube_to_cube.bw_gbs, cube.ucie.n_connections * cube.ucie.per_connection_bw_gbs
                )
                gbs = min(cube.links.pe_dma_to_router_bw_gbs, port / self.layout.heads)
            ring_ns = passed / gbs
        return {
            "compute_bound_ns": macs / rate,
            "hbm_bound_ns": cached / (self.pes * cube.hbm_link_bw_gbs),
            "ring_bound_ns": ring_ns,
        }


def _figures(torch: RuntimeContext, launches: list[Launch], work: PanelWork) -> dict[str, float]:
    """Counts are per rank and head: of the SIP's launch over its PEs."""
    log = torch.engine.log
    assert log is not None
    counts = dict.fromkeys((*COUNTED, "dmas"), 0)
    for _, record in log.items():
        name = record.op_name
        if record.component_id.startswith("sip0."):
            counts["gemms"] += name.startswith(("gemm_", "composite_gemm"))
            counts["sends"] += name == "ipcq_send"
            counts["receives"] += name == "ipcq_recv"
            counts["reads"] += name in ("dma_read", "TileToken/DMA_READ")
            counts["writes"] += name in ("dma_write", "TileToken/DMA_WRITE")
    counts["dmas"] = counts["reads"] + counts["writes"]
    time_ns = max(launch.exec_ns for launch in launches)
    bounds = work.bounds_ns(torch.spec, launches[0].name.endswith("prefill"))
    peak = peak_of(torch.spec, work.pes)
    return {
        "time_ns": time_ns,
        "pes": work.pes,
        "ranks": work.layout.ranks,
        "query_rows": work.rows,
        "query_tokens": work.tokens,
        "heads": work.layout.heads,
        **{name: count / work.pes for name, count in counts.items()},
        **bounds,
        "bound_ns": max(bounds.values()),
        "mac_share": launches[0].engines["pe_gemm"].flops / time_ns / peak.gflops,
        "attention_j": launches_energy(launches[:1], torch.engine.graph, launches[0].exec_ns),
        "hbm_share": launches[0].bytes_hbm / time_ns / peak.gbs,
        "math_share": launches[0].engines["pe_math"].busy_ns / work.pes / time_ns,
        "ipcq_share": launches[0].engines["pe_ipcq"].busy_ns / work.pes / time_ns,
    }


def seconds(setting: Setting) -> float:
    context, users = int(setting["context"]), int(setting.get("users", 1))
    if setting["panel"] == "multi-prefill":
        return 1.0 + 0.011 * context * users
    return 0.5 + (3.0 * users if setting["panel"] == "multi-decode" else 0.0004 * context)


EVALUATION = evaluation_bench(
    name="milestone-gqa-llama70b",
    description="Evaluation: grouped-query attention of Llama-70B, prefill and decode, for one user and for several.",
    evaluation=Evaluation(
        points,
        point,
        figures,
        seconds,
        ("messages between PEs", "vector functions", "MAC array", "simple commands", "HBM timing"),
    ),
)
