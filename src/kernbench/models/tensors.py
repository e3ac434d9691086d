"""The tensors of a decoder layer on one SIP, placed, mapped and written before the layer runs: set-up.

A rank has some of the query heads with their key heads, and some of the MLP's columns, of every expert. Activations are
row-major, rows over cubes and PEs, or have the layout of the part that reads them next (`layouts.py`); the placement of
weights follows the mapping's plans (`packing.py`). Weights and cache of a layer without numbers are preset zeros: times
do not depend on contents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from kernbench.ccl.topologies import group_of
from kernbench.common.errors import UsageError
from kernbench.common.ipcq import RingConfig
from kernbench.models import kernels
from kernbench.models.block_plans import PASSING_RINGS, PASSING_SLOTS, BlocksPlan, Chunks
from kernbench.models.fused_plan import SLOTS, FusedPlan
from kernbench.models.layer_job import LayerJob, LayerProduct
from kernbench.models.layouts import ByHead, KParts, ResultLayout, RowMajor
from kernbench.models.mapper import MappedLayer
from kernbench.models.mapping import InputOrder, ProductPlan, SplitKPlan, by_blocks, stages_of
from kernbench.models.numbers import parts_by_patches
from kernbench.models.packing import packed, packed_shape
from kernbench.models.plans import F32_BYTES, ColumnsPlan, SipShape
from kernbench.models.product_size import attended_by
from kernbench.models.quantised import CACHES, QuantisedForm
from kernbench.models.quantised_product import sip_for
from kernbench.models.shapes import rope_table
from kernbench.models.tensor_maker import TensorMaker
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.parallel_state import ParallelGroup
from kernbench.values.bytes_of import Patch
from kernbench.values.graph import Value

AT_ONCE = 16  # tensors of a launch


class LayerTensors(TensorMaker):
    """One rank's part of a layer; every rank of the group makes one."""

    def __init__(self, torch: RuntimeContext, group: ParallelGroup, job: LayerJob, x: Value | None = None) -> None:
        super().__init__(torch, group, job)
        self._allocate(x)

    # ---- set-up

    def _allocate(self, x: Value | None) -> None:
        job, m = self.job, self.job.model
        rows, own = job.rows, self.own_rows
        self.x = self._input(x)
        is_spread = job.phase == "decode" and not (self.is_split or m.has_experts)
        self.normal = (self._shared_rows if is_spread else self._rows)("normal", own, m.hidden)
        self.gathered = self._rows("gathered", rows, m.hidden) if self.is_split else self.normal
        self.gains = {name: self._norm_weights(name) for name in ("norm1", "norm2")}
        self.projected = self._rows("projected", rows, m.hidden)
        self.y = self._rows("y", own, m.hidden) if self.is_split else self.projected
        self.angles = self._angles() if m.positions == "rope" else None
        sizes = rows, self.heads * m.head_dim, m.hidden
        self.out_product = self._product(
            "out_proj", sizes, {"out": partial(self._own, axis=1)}, x_by=attended_by(job.phase)
        )
        self._lead_to(self.out_product, [self.projected], RowMajor(m.hidden))
        self._allocate_qkv()
        self._allocate_attention()
        self._allocate_mlp()
        self._touch()

    def _input(self, x: Value | None) -> Tensor:
        """The rows that enter the layer, and leave it."""
        dp = None
        if self.job.fused:  # a cube has the columns that it adds products to
            dp = DPPolicy(cube="column_wise", num_cubes=self.grid.cubes, num_pes=1)
        return self._held("x", self._parts(x), (self.own_rows, self.job.model.hidden), dp)

    def communicator(self, what: Literal["rows", "sums", "chunks"]) -> str:
        """The communicator of this SIP's PEs, for rows or sums at decode, or for chunks of a product by blocks.
        Messages are long, so slots are as large as the rings of a kernel allow.
        """
        sip = self.torch.ahbm.current_device()
        sums = max(1, sum(count - 1 for _, count in stages_of(self.sip.pes)))
        rings, slots = {"rows": (2, 2), "sums": (sums, 2), "chunks": (PASSING_RINGS, PASSING_SLOTS)}[what]
        most = max(self.torch.communicators.ring_bytes // (slots * rings + 1), 256)
        return self._installed(f"{what} of SIP {sip}", [sip], RingConfig(slots, 1 << most.bit_length() - 1))

    def communicator_of_launch(self, plan: FusedPlan) -> str:
        """The communicator of all SIPs of the group, for a layer in one launch."""
        sips = list(self.group.ranks)  # rank r is on SIP r
        name = f"a layer of SIPs {sips} in slots of {plan.slot_bytes} B"
        return self._installed(name, sips, RingConfig(SLOTS, plan.slot_bytes))

    def _installed(self, name: str, sips: list[int], config: RingConfig) -> str:
        communicators = self.torch.communicators
        if not communicators.has(name):
            communicators.install(name, group_of(self.torch.spec, sips), config)
        return name

    def _input_of(self, product: LayerProduct, name: str) -> Tensor:
        """The row-major input of a product; shared, if every PE reads it from where it is."""
        plan = product.plan
        make = self._shared_rows if isinstance(plan, SplitKPlan) and not plan.is_relayed else self._rows
        return make(name, plan.rows, plan.k)

    def _norm_weights(self, name: str) -> list[Tensor]:
        """The gain, and of a layernorm the shift, on every PE."""
        names = [name, f"{name}_shift"] if self.job.model.norm == "layernorm" else [name]
        hidden = self.job.model.hidden
        return [self._held(n, self._parts(self._whole(n)), (hidden,), self.grid.everywhere) for n in names]

    def _angles(self) -> Tensor:
        """At prefill the table of all tokens, on every PE; at decode a row per activation row, placed with it, or on
        every PE if the layer is one launch.
        """
        m, job, is_prefill = self.job.model, self.job, self.job.phase == "prefill"
        table: Value | None = None
        if job.weights is not None:
            positions = np.arange(job.tokens) + job.context
            if not is_prefill:
                positions = np.tile(positions, job.batch)
            table = self.values.constant(rope_table(m, positions))
        if is_prefill or job.fused:
            rows = job.tokens if is_prefill else job.rows
            return self._held("angles", self._parts(table), (rows, m.head_dim), self.grid.everywhere, "f32")
        return self._held("angles", self._parts(table), (job.rows, m.head_dim), dtype="f32")

    # ---- products

    def _product(
        self, name: str, sizes: tuple[int, int, int], weights: Mapping[str, Callable[[str], Value | None]],
        experts: int = 1, x_by: InputOrder = "columns",
    ) -> LayerProduct:  # fmt: skip
        """A product of (rows, K) by (K, N), with its weights placed: by name, how a rank's part of one is found."""
        form = self.forms.get(next(iter(weights)))
        sip = self.sip if self.job.fused else sip_for(self.sip, form)
        plan = self._plan(name, sip, sizes, x_by, experts)
        if not isinstance(plan, ColumnsPlan):
            plan = plan if self.job.fused else plan.for_weights(len(weights), self.item)
        if form is None:
            placed = [
                self._placed(f"{name}.weight{at}", plan, experts, of(each))
                for at, (each, of) in enumerate(weights.items())
            ]
            product = LayerProduct(name, plan, experts, placed)
        else:
            product = self._quantised(name, plan, weights, experts, form)
        if isinstance(plan, ColumnsPlan):
            product.copies = self._empty(f"{name}.copies", (self.sip.size, KParts(plan).room))
        elif isinstance(plan, BlocksPlan):
            product.copies = self._empty(f"{name}.chunks", (self.sip.size, Chunks(plan).room))
        elif plan.is_relayed:
            product.copies = self._empty(f"{name}.parts", (self.sip.size, plan.part_elements))
        return product

    def _plan(
        self, name: str, sip: SipShape, sizes: tuple[int, int, int], x_by: InputOrder, experts: int
    ) -> ProductPlan:
        """What the mapping chose for the product of this name, or has for its sizes; raises UsageError for blocks of
        several experts, which no kernel computes.
        """
        mapping = self.job.mapping
        plan = mapping.plan_of(name, sip, *sizes) if isinstance(mapping, MappedLayer) else None
        plan = plan or mapping.product(sip, *sizes, self.item, x_by=x_by)
        if experts > 1 and isinstance(plan, BlocksPlan):
            raise UsageError(
                f"{name}: products by blocks have weights of one expert, and the model has {experts}",
                where=f"mapping '{mapping.name}'",
                hint="return a ColumnsPlan or a SplitKPlan for the products of experts",
            )
        return plan

    def _placed(
        self, name: str, plan: ProductPlan, experts: int, held: Value | None, dtype: str | None = None
    ) -> Tensor:
        """A weight as a plan places it."""
        contents = None if held is None else packed(self.values, plan, held)
        return self._held(name, contents, packed_shape(plan, experts), dtype=dtype)

    def _quantised(
        self, name: str, plan: ProductPlan, weights: Mapping[str, Callable[[str], Value | None]], experts: int,
        form: QuantisedForm,
    ) -> LayerProduct:  # fmt: skip
        """Elements and scales, placed as weights of fewer rows; raises UsageError for a plan that has no kernel."""
        if not isinstance(plan, SplitKPlan):
            raise UsageError(
                f"{name}: weights in {form.name} and a mapping other than decode",
                where="parameter 'weight_type'",
                hint="use phase=decode with at most 64 rows, or weight_type=same",
            )
        bits, scales = (replace(plan, k=plan.k // rows) for rows in (form.per_byte, form.group))
        product = LayerProduct(name, plan, experts, [], form=form)
        for at, (each, of) in enumerate(weights.items()):
            placed = f"{name}.weight{at}"
            product.weights.append(self._placed(placed, bits, experts, of(f"{each}:bits"), form.dtype))
            product.scales.append(self._placed(f"{placed}.scales", scales, experts, of(f"{each}:scales"), "f16"))
        return product

    def _lead_to(self, product: LayerProduct, outs: list[Tensor], layout: ResultLayout) -> None:
        """Set the destination of a product's results, and allocate its intermediate buffers."""
        product.outs, product.layout = outs, layout
        plan = product.plan
        if isinstance(plan, ColumnsPlan):
            room = self.sip.size, plan.most_rows * plan.most_columns
            dtype = "f32" if plan.splits_k else None
            given = range(1 if product.is_in_place else 0, len(product.weights))
            product.room = [self._empty(f"{product.name}.room{at}", room, dtype) for at in given]
            is_cut = isinstance(layout, ByHead) or (isinstance(layout, RowMajor) and plan.cubes_per_group > 1)
            if plan.splits_k and is_cut:
                shares = self.sip.size, -(-plan.most_rows // plan.k_parts) * plan.most_columns
                product.shares = self._empty(f"{product.name}.shares", shares)

    def _allocate_qkv(self) -> None:
        """Row-major at decode, and if the product needs it; for prefill also queries, keys and values by head."""
        m, job = self.job.model, self.job
        width = (self.heads + 2 * self.kv_heads) * m.head_dim
        sizes = job.rows, m.hidden, width
        self.qkv_product = self._product("qkv", sizes, {"qkv": self._qkv_weights}, x_by="rows")
        self.qkv_product.x = self.gathered
        self.by_head: list[Tensor] = []
        if job.phase == "prefill":
            plan = self.prefill = job.mapping.prefill_attention(
                self.sip, job.batch, job.tokens, self.heads, self.kv_heads, m.head_dim, self.item
            )
            layout = self.head_layout = ByHead(plan, self.heads // self.kv_heads, m.head_dim)
            queries = self._empty("queries", (self.sip.size, plan.most_tokens * layout.width))
            self.by_head = [queries, *(self._rows(name, plan.all_keys, m.head_dim) for name in ("keys", "values"))]
            if not isinstance(self.qkv_product.plan, SplitKPlan):
                self._lead_to(self.qkv_product, self.by_head, self.head_layout)
                return
        make = self._rows if self.by_head else self._shared_rows
        self.qkv = make("qkv", job.rows, width)
        self._lead_to(self.qkv_product, [self.qkv], RowMajor(width))

    def _result_of_heads(self) -> tuple[Tensor, ResultLayout]:
        """The destination of attention's results: the next product's input, or a row-major matrix."""
        product, parts = self.out_product, self.out_product.input_layout
        if parts is not None and self.job.phase == "prefill":
            assert product.copies is not None
            return product.copies, parts
        width = self.heads * self.job.model.head_dim
        product.x = self._input_of(product, "attended")
        return product.x, RowMajor(width)

    def _allocate_attention(self) -> None:
        m, job = self.job.model, self.job
        self.attended, self.attended_layout = self._result_of_heads()
        shape = self.sip, job.batch
        self.caches: list[Tensor] = []
        if job.phase == "prefill":
            plan = self.prefill
            if plan.keys_at_once:
                return
            copies = self.sip.size, plan.team_rows * m.head_dim
            self.head_copies = [self._empty(name, copies) for name in ("key_copies", "value_copies")]
            scores = self.sip.size, plan.most_queries * self.head_layout.shared * job.tokens
            self.scores = [self._empty("scores", scores, "f32"), self._empty("powers", scores)]
            table = plan.mask_table(self.head_layout.shared)
            masks = None if job.weights is None else self._parts(self.values.constant(table))
            self.masks = self._held("masks", masks, table.shape, self.grid.everywhere, "f32")
            return
        decode = job.mapping.decode_attention(*shape, job.context, self.heads, self.kv_heads, m.head_dim, self.item)
        form = self.cache_form
        is_streamed = form is None or job.fused is not None
        decode = decode if is_streamed else by_blocks(decode, self.sip, m.head_dim, self.item)
        self.decode = decode
        self.caches = [self._cache(name, form) for name in CACHES]
        self.cache_scales = [] if form is None else [self._cache_scales(name) for name in CACHES]
        self.partial: Tensor | None = None
        if decode.splits > 1:
            shared = self.heads // self.kv_heads
            self.partial = self._empty("partial", (decode.units, shared * (m.head_dim + 2)), "f32")

    def _cache(self, name: str, form: QuantisedForm | None) -> Tensor:
        """(units, rows of a unit, head_dim): whole units on each PE."""
        plan, m = self.decode, self.job.model
        whole = self._whole(name if form is None else f"{name}:bits")
        row_bytes = m.head_dim * (self.item if form is None else 1)

        def patches_of(number: int, offset: int) -> list[Patch]:
            sequence, head, split = plan.unit(number)
            first, run = split * plan.part, plan.keys_of(split) * row_bytes
            row = (sequence * m.kv_heads + self.first_kv_head + head) * self.job.context + first
            return [(row * row_bytes, run, offset, run, 1, run)] if run > 0 else []

        contents = None if whole is None else parts_by_patches(self.values, whole, patches_of)
        dtype = None if form is None else form.dtype
        return self._held(name, contents, (plan.units, plan.room, m.head_dim), dtype=dtype)

    def _cache_scales(self, name: str) -> Tensor:
        """(units, 1), placed as the cache."""
        plan, m, whole = self.decode, self.job.model, self._whole(f"{name}:scales")

        def patches_of(number: int, offset: int) -> list[Patch]:
            sequence, head, _ = plan.unit(number)
            at = (sequence * m.kv_heads + self.first_kv_head + head) * F32_BYTES
            return [(at, F32_BYTES, offset, F32_BYTES, 1, F32_BYTES)]

        contents = None if whole is None else parts_by_patches(self.values, whole, patches_of)
        return self._held(f"{name}.scales", contents, (plan.units, 1), dtype="f32")

    @property
    def cache_form(self) -> QuantisedForm | None:
        """How the cache is stored, if it is quantised."""
        return None if self.job.cache_type == "same" else QuantisedForm(self.job.cache_type)

    def _allocate_mlp(self) -> None:
        m, job = self.job.model, self.job
        rows = job.rows * m.experts_per_token
        x = out = None
        if m.has_experts:
            self.router = self._held(
                "router", self._parts(self._whole("router")), (m.hidden, m.experts), self.grid.everywhere
            )
            self.gates = self._empty("gates", (job.rows, m.experts_per_token), "f32")
            self.ids = self._empty("ids", (job.rows, m.experts_per_token), "i32")
            x, out = self._rows("by_expert", rows, m.hidden), self._rows("of_experts", rows, m.hidden)
        names = ("gate", "up") if m.is_gated else ("gate",)
        first = {name: partial(self._own, axis=2) for name in names}
        up = self.up_product = self._product("mlp_up", (rows, m.hidden, self.ffn), first, m.experts, "rows")
        down = self.down_product = self._product(
            "mlp_down", (rows, self.ffn, m.hidden), {"down": partial(self._own, axis=1)}, m.experts
        )
        up.x = self.gathered if x is None else x
        parts = None if isinstance(up.plan, SplitKPlan) else down.input_layout
        if parts is not None:
            assert down.copies is not None
            self._lead_to(up, [down.copies], parts)
        else:
            down.x = self._input_of(down, "ffn")
            self._lead_to(up, [down.x], RowMajor(self.ffn))
        self._lead_to(down, [self.projected if out is None else out], RowMajor(m.hidden))

    def _touch(self) -> None:
        """Map all tensors on every PE, so that no part waits for mappings."""
        tensors = [value for value in vars(self).values() if isinstance(value, Tensor)]
        products = (self.qkv_product, self.out_product, self.up_product, self.down_product)
        tensors += [tensor for product in products for tensor in product.tensors]
        tensors += [tensor for held in self.gains.values() for tensor in held]
        tensors += [
            tensor
            for value in vars(self).values()
            if isinstance(value, list)
            for tensor in value
            if isinstance(tensor, Tensor)
        ]
        self._on_all(kernels.touch, list({id(tensor): tensor for tensor in tensors}.values()))
        for tensor, contents in self._preset:
            self.torch.preset(tensor, contents)

    def _on_all(self, kernel: Callable[..., None], tensors: Sequence[Tensor]) -> None:
        for at in range(0, len(tensors), AT_ONCE):
            self.grid.launch(self.torch, "set-up", kernel, *tensors[at : at + AT_ONCE])
