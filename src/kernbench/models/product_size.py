"""What a product of a layer is, for the closed estimates of its mappings."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.models.mapping import InputOrder
from kernbench.models.quantised import WeightName

PRODUCTS = ("qkv", "out_proj", "mlp_up", "mlp_down")  # of a layer, in the order in which they run


@dataclass(frozen=True)
class ProductSize:
    """A product (rows, k) by `weights` matrices (k, n) of each of `experts`. `x_by`: whether x is produced by rows, as
    by a norm, or by columns, as by heads or another product.
    """

    name: str
    rows: int
    k: int
    n: int
    weights: int = 1
    x_by: InputOrder = "rows"
    experts: int = 1
    itemsize: int = 2
    weight_type: WeightName = "same"  # quantised ones are for `split_k`

    @property
    def macs(self) -> int:
        return self.rows * self.k * self.n * self.weights

    @property
    def dtype(self) -> str:
        return type_of(self.itemsize)


def type_of(itemsize: int) -> str:
    """A type of this size: rates of engines depend on it."""
    return "f16" if itemsize == 2 else "f32"


def attended_by(phase: str) -> InputOrder:
    """How the result of attention is produced: by heads at prefill; at decode row by row, as a matrix."""
    return "columns" if phase == "prefill" else "rows"
