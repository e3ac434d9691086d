"""The request for a decoder layer, and its products on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernbench.models.block_plans import BlocksPlan, Chunks
from kernbench.models.fused_plan import FusedPlan
from kernbench.models.layouts import KParts, ResultLayout
from kernbench.models.mapper import MappedLayer
from kernbench.models.mapping import Mapping as Strategy
from kernbench.models.mapping import ProductPlan
from kernbench.models.plans import ColumnsPlan
from kernbench.models.quantised import CacheName, QuantisedForm, WeightName
from kernbench.models.shapes import ModelShape
from kernbench.runtime_api.tensor import Tensor
from kernbench.values.graph import Value

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class LayerJob:
    """The request. `tokens` of a sequence are processed, after `context` earlier ones."""

    model: ModelShape
    phase: Phase
    batch: int
    tokens: int
    context: int
    dtype: str
    mapping: Strategy
    sequence_parallel: bool = False
    weights: Mapping[str, Value] | None = None  # full weights by name; None: a layer without numbers
    preset: bool = False  # numbers are preset; otherwise the host writes them
    weight_type: WeightName = "same"  # as `dtype`, or quantised
    cache_type: CacheName = "same"
    only: str = ""  # one part, a product or attention; otherwise the whole layer

    @property
    def fused(self) -> FusedPlan | None:
        """The plan of a decode step in one launch, if it is one."""
        return self.mapping.fused if isinstance(self.mapping, MappedLayer) else None

    @property
    def rows(self) -> int:
        return self.batch * self.tokens


@dataclass
class LayerProduct:
    """A product's plan and tensors on a rank: row-major x times weights, stored in `outs` with this layout."""

    name: str
    plan: ProductPlan
    experts: int
    weights: list[Tensor]  # the second one is that of a gated product
    x: Tensor | None = None  # None: the previous part writes to `copies`
    outs: list[Tensor] = field(default_factory=list)
    layout: ResultLayout | None = None
    copies: Tensor | None = None  # each PE's part of x, in its own slice
    room: list[Tensor] = field(default_factory=list)  # sums or results, in each PE's own slice
    shares: Tensor | None = None  # each PE's reduced rows, if results would be stored in short pieces
    form: QuantisedForm | None = None  # of its weights
    scales: list[Tensor] = field(default_factory=list)  # of quantised weights, one for each

    @property
    def stored(self) -> list[tuple[Tensor, ...]]:
        """Each weight, with its scales if it is quantised."""
        return list(zip(self.weights, self.scales, strict=True)) if self.scales else [(each,) for each in self.weights]

    @property
    def tensors(self) -> list[Tensor]:
        own = [tensor for tensor in (self.x, self.copies, self.shares) if tensor is not None]
        return [*self.weights, *self.scales, *own, *self.outs, *self.room]

    @property
    def input_layout(self) -> KParts | Chunks | None:
        """The layout in which the previous part may store this product's input, if the plan supports it."""
        if isinstance(self.plan, BlocksPlan):
            return Chunks(self.plan)
        return KParts(self.plan) if isinstance(self.plan, ColumnsPlan) and self.plan.splits_k else None

    @property
    def is_in_place(self) -> bool:
        """Whether each PE's results are its own input of the next product."""
        own, layout = self.plan, self.layout
        if not isinstance(own, ColumnsPlan) or not isinstance(layout, KParts):
            return False
        is_split_alike = own.k_parts == 1 and layout.plan.k_parts == own.sip.pes
        return is_split_alike and own.cubes_per_group == layout.plan.cubes_per_group == 1
