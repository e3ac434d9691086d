"""PE_GEMM: the MAC array. A product of m x k by k x n takes m * k * n / rate; f32 runs at half the rate, one-byte
types at double.

What counts is the tile actually computed, so an edge tile is cheaper. Operands and result are in registers. Not
modelled: fill and drain of the array, and the loss on tiles that its geometry does not divide.
"""

from __future__ import annotations

from kernbench.common.dtypes import dtype_of
from kernbench.components.base import Context
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.components.builtin.pipeline import GemmStage, MathStage, Params, TileToken, work_ns
from kernbench.topology.graph import Node


def gemm_ns(m: int, k: int, n: int, macs_per_ns: float, dtype: str) -> float:
    """How long a product takes; `macs_per_ns` is for f16."""
    return work_ns(m * k * n, macs_per_ns * dtype_of(dtype).compute_scale)


class PeGemmComponent(ComputeEngine):
    """Serves GEMM stages."""

    op_kind = "gemm"
    tile_name = "TileToken/GEMM"

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._macs_per_ns = float(node.attrs["macs_per_ns"])
        self._known: dict[tuple[int, int, int, str], float] = {}

    def stage_ns(self, stage: GemmStage | MathStage) -> float:
        assert isinstance(stage, GemmStage)
        key = (stage.m, stage.k, stage.n, stage.dtype)
        ns = self._known.get(key)
        if ns is None:
            ns = self._known[key] = gemm_ns(stage.m, stage.k, stage.n, self._macs_per_ns, stage.dtype)
        return ns

    def describe(self, token: TileToken, stage: GemmStage | MathStage) -> Params:
        assert isinstance(stage, GemmStage)
        m, k, n = stage.m, stage.k, stage.n
        return {"stage_type": "GEMM", "tile_id": token.tile_id, "m": m, "k": k, "n": n, "dtype": stage.dtype}
