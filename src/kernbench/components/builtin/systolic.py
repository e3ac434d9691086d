"""PE_GEMM as a systolic array of `rows` x `columns` MACs that fills and drains.

Output stationary (`os`): each MAC keeps one result; a fold of rows x columns results takes k steps, and the operands
reach its far corner rows + columns - 2 steps later. Weight stationary (`ws`): rows x columns weights are loaded in
`rows` steps, then m rows of the other operand pass, and leave behind rows + columns - 2 further ones. Folds follow one
another. These are the cycles of SCALE-Sim. A step is a clock for f16; f32 takes two, one-byte types half of one.
Operands and result are in registers: the arrays' own buffers, and folds that overlap, are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np

from kernbench.common.array_types import Floats, Ints
from kernbench.common.dtypes import dtype_of
from kernbench.common.engine_declaration import Attribute, EngineDeclaration
from kernbench.common.frozen import frozen
from kernbench.common.units import on_grid
from kernbench.components.builtin.engine_cycles import PRODUCT_ATTRS
from kernbench.components.builtin.pe_gemm import PeGemmComponent


@frozen
class SystolicArray:
    """What a product costs on such an array: a `ProductCost`."""

    rows: int
    columns: int
    dataflow: str
    clock_ghz: float

    @property
    def macs_per_ns(self) -> float:
        return self.rows * self.columns * self.clock_ghz

    def steps(self, m: int, k: int, n: int) -> int:
        """Cycles of a product, one MAC per cycle and place."""
        if self.dataflow == "os":
            return ceil(m / self.rows) * ceil(n / self.columns) * (k + self.rows + self.columns - 2) - 1
        return ceil(k / self.rows) * ceil(n / self.columns) * (m + 2 * self.rows + self.columns - 2) - 1

    def product_ns(self, m: int, k: int, n: int, dtype: str) -> float:
        return on_grid(max(ceil(self.steps(m, k, n) / dtype_of(dtype).compute_scale), 1) / self.clock_ghz)

    def product_ns_each(self, m: Ints, k: Ints, n: Ints, dtype: str) -> Floats:
        along, streamed, fill = (m, k, self.rows) if self.dataflow == "os" else (k, m, 2 * self.rows)
        folds = np.ceil(along / self.rows) * np.ceil(n / self.columns)
        steps = folds * (streamed + fill + self.columns - 2) - 1
        return np.asarray(np.maximum(np.ceil(steps / dtype_of(dtype).compute_scale), 1.0) / self.clock_ghz)


class SystolicComponent(PeGemmComponent):
    """Serves GEMM stages. `macs_per_ns` is the peak, rows x columns x clock_ghz."""

    declaration = EngineDeclaration(
        {
            **PRODUCT_ATTRS,
            "rows": Attribute.whole(1, 1 << 14),
            "columns": Attribute.whole(1, 1 << 14),
            "dataflow": Attribute.choice("os", "ws"),
        }
    )

    __slots__ = ()

    @classmethod
    def cost_of(cls, attrs: Mapping[str, float | int | str | bool]) -> SystolicArray:
        clock_ghz = float(attrs.get("clock_ghz", 1.0))
        return SystolicArray(int(attrs["rows"]), int(attrs["columns"]), str(attrs["dataflow"]), clock_ghz)
