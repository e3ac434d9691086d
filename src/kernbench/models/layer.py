"""One decoder layer on the SIPs of a tensor-parallel group, part by part. The parts:

norm1 qkv [rope] attention out_proj all_reduce norm2 [router take_rows] mlp_up mlp_down [combine] all_reduce add

Where a product's input must first be copied to the PEs that use it, a part `spread` precedes it. With sequence
parallelism norms work on a rank's own rows: all_gather precedes products and reduce_scatter replaces all_reduce.

Experts work on rows sorted by expert. The host reads the routing between `router` and `take_rows`; neither that nor the
sorting takes simulated time. A layer without numbers distributes tokens over experts evenly.

A part begins when all PEs have ended the previous one: the host launches them one by one, and that takes time too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from kernbench.models import attention, block_kernels, column_kernels, kernels, online_attention, prefill_attention
from kernbench.models.block_plans import BlocksPlan, Chunks
from kernbench.models.bounds import CENTRE_PASSES, F32_LANES, NORM_PASSES, Need
from kernbench.models.expert_routing import Routing, routing_of
from kernbench.models.fused_decode import LayerForm, decode_layer
from kernbench.models.fused_plan import FusedPlan
from kernbench.models.layer_job import LayerProduct
from kernbench.models.layouts import KParts, RowMajor
from kernbench.models.mapping import SplitKPlan
from kernbench.models.needs import attention_need, corner_rows, product_needs, spread_need
from kernbench.models.plans import F32_BYTES, ColumnsPlan, Job
from kernbench.models.quantised import CACHE_SCALE_BYTES
from kernbench.models.row_pieces import AHEAD, element_bytes, row_pieces
from kernbench.models.split_k import product_split_k, relay_rows
from kernbench.models.streamed_attention import attend_streamed
from kernbench.models.tensors import LayerTensors
from kernbench.runtime_api.launches import Launch
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import LaunchedWork
from kernbench.tp.launches import rows_at_once

EPS = 1e-5


@dataclass
class LayerPart:
    """A part as one rank ran it. `need` counts every operand once; `mapped` is the mapping's work."""

    name: str
    need: Need
    mapped: Need
    launches: list[Launch] = field(default_factory=list)
    is_communication: bool = False

    @property
    def exec_ns(self) -> float:
        return sum(launch.exec_ns for launch in self.launches)


class DecoderLayer:
    """A rank's layer. `forward` runs it once; then `parts` has the launches of each part."""

    def __init__(self, tensors: LayerTensors) -> None:
        self.t, self.job, self.model = tensors, tensors.job, tensors.job.model
        self.torch, self.group = tensors.torch, tensors.group
        self.parts: list[LayerPart] = []

    def forward(self) -> Tensor:
        """x becomes the layer's output, which is returned. Of a job for one part only that is run, on what is there."""
        t, m = self.t, self.model
        if self.job.only:
            self._run_only(self.job.only)
            return t.x
        if self.job.fused is not None:
            self._run_fused(self.job.fused)
            return t.x
        self._norm("norm1", None)
        self._gather()
        self._qkv()
        if t.angles is not None:
            self._rope(t.angles)
        if self.job.phase == "prefill":
            self._attend_prefill()
        else:
            self._attend_decode()
        self._product(t.out_product)
        self._reduce()
        self._norm("norm2", t.y)
        self._gather()
        if m.has_experts:
            self._experts()
        else:
            self._mlp(None)
        self._reduce()
        size = _size(t.x)
        self._begin("add", Need(lanes=3 * size, read_bytes=2 * size * t.item, written_bytes=size * t.item))
        self._launch(kernels.add_rows, t.x, t.y)
        return t.x

    def _qkv(self) -> None:
        """The first product; at prefill its results are by head."""
        t = self.t
        self._product(t.qkv_product)
        if t.by_head and isinstance(t.qkv_product.plan, SplitKPlan):
            split = partial(kernels.split_heads, layout=t.head_layout)
            self._launch(split, t.qkv, *t.by_head, self._at_once(t.qkv.shape[1], 2))

    def _run_only(self, part: str) -> None:
        t = self.t
        whole = {"qkv": self._qkv, "attention": self._attend_prefill}
        if part in whole:
            whole[part]()
            return
        products = {each.name: each for each in (t.out_product, t.up_product, t.down_product)}
        self._product(products[part], self._activation if part == "mlp_up" else None)

    @property
    def _activation(self) -> str:
        return "silu" if self.model.is_gated else "gelu"

    # ---- parts

    def _begin(self, name: str, need: Need, mapped: Need | None = None) -> None:
        self.parts.append(LayerPart(name, need, mapped or need))

    def _launch(self, kernel: Callable[..., None], *args: object, **named: object) -> None:
        part = self.parts[-1]
        part.launches.append(self.t.grid.launch(self.torch, part.name, kernel, *args, **named))

    @property
    def _share_bytes(self) -> float:
        """Of the layer's rows, what other ranks have if each has as many."""
        n = self.group.size
        return self.job.rows * self.model.hidden * self.t.item * (n - 1) / n

    def _collective(self, name: str, factor: float, start: Callable[[], object]) -> None:
        n = self.group.size
        if n == 1:
            return
        self._begin(name, Need(sip_bytes=factor * self._share_bytes))
        work = start()
        assert isinstance(work, LaunchedWork)
        work.wait()
        self.parts[-1].launches.append(work.launch)
        self.parts[-1].is_communication = True

    def _gather(self) -> None:
        if self.t.is_split:
            gather = self.torch.distributed.all_gather_into_tensor
            tensors = self.t.gathered, self.t.normal
            self._collective("all_gather", 1.0, partial(gather, *tensors, group=self.group.handle, async_op=True))

    def _reduce(self) -> None:
        dist, handle = self.torch.distributed, self.group.handle
        if self.t.is_split:
            tensors = self.t.y, self.t.projected
            scatter = partial(dist.reduce_scatter_tensor, *tensors, group=handle, async_op=True)
            self._collective("reduce_scatter", 1.0, scatter)
        else:
            reduce = partial(dist.all_reduce, self.t.projected, group=handle, async_op=True, per="sip")
            self._collective("all_reduce", 2.0, reduce)

    def _at_once(self, width: int, copies: int = 8) -> int:
        return rows_at_once(self.torch, width, copies)

    def _pieces(self, rows: int, width: int, tensors: int) -> tuple[int, int]:
        sip = self.t.sip
        return row_pieces(self.torch, -(-rows // (sip.cubes * sip.pes)), width, tensors, self.t.item)

    def _norm(self, name: str, added: Tensor | None) -> None:
        t, size = self.t, _size(self.t.x)
        tensors = 1 if added is None else 2  # read, and as many written
        gain, *shift = t.gains[name]
        residual = 0.0 if added is None else F32_LANES * t.item / 2  # a sum in the tensors' type
        passes = NORM_PASSES + (CENTRE_PASSES if shift else 0) + residual
        nbytes = tensors * size * t.item
        self._begin(name, Need(lanes=passes * size, read_bytes=nbytes, written_bytes=nbytes))
        given: dict[str, object] = {"shift": shift[0]} if shift else {}
        if added is not None:
            given["residual"] = added
        pieces = self._pieces(t.x.shape[0], self.model.hidden, tensors)
        self._launch(kernels.add_norm, t.x, t.normal, gain, *pieces, EPS, **given)

    def _rope(self, angles: Tensor) -> None:
        t, m = self.t, self.model
        heads = t.heads + t.kv_heads
        size = self.job.rows * heads * m.head_dim
        nbytes = size * t.item
        heads_of_tables = t.heads * m.head_dim // t.head_layout.width + t.kv_heads if t.by_head else 1
        once = Need(lanes=5 * size, read_bytes=nbytes + _size(angles) * F32_BYTES, written_bytes=nbytes)
        mapped = replace(once, read_bytes=nbytes + heads_of_tables * self.job.rows * m.head_dim * F32_BYTES)
        self._begin("rope", once, mapped)
        if t.by_head:
            at_once = t.sip.tcm_bytes // (element_bytes(1, t.item) + 2 * (AHEAD + 1) * F32_BYTES)  # with angles
            rope = partial(prefill_attention.rope_blocks, plan=t.prefill)
            self._launch(rope, *t.by_head[:2], angles, t.head_layout.width, at_once)
        else:
            width, pieces = (heads + t.kv_heads) * m.head_dim, self._pieces(self.job.rows, heads * m.head_dim, 1)
            self._launch(kernels.rope, t.qkv, angles, width, heads, m.head_dim, *pieces)

    def _run_fused(self, plan: FusedPlan) -> None:
        """All parts in one launch."""
        t, m = self.t, self.model
        qkv, out, up, down = t.qkv_product, t.out_product, t.up_product, t.down_product
        works = [
            product_needs(each.plan, (Job(0, 0, each.plan.rows),), len(each.weights), t.item, each.form)[0]
            for each in (qkv, out, up, down)
        ]
        summed = Need(sip_bytes=2 * 2.0 * self._share_bytes)  # two all-reduces
        self._begin("layer in one launch", sum(works, self._cache_need() + summed))
        gate, *more = up.stored
        norms = [tensor for name in ("norm1", "norm2") for tensor in t.gains[name]]
        others = [] if t.angles is None else [t.angles]
        has_shift, has_rope = m.norm == "layernorm", t.angles is not None
        form = LayerForm(t.heads, m.head_dim, self._activation, m.is_gated, has_shift, has_rope)
        caches = [[each] for each in t.caches] if t.cache_form is None else zip(t.caches, t.cache_scales, strict=True)
        stored = [tensor for each in (*caches, *qkv.stored, *out.stored, gate, *down.stored, *more) for tensor in each]
        kernel = partial(decode_layer, plan=plan, form=form, rank=self.group.rank)
        self._launch(kernel, t.x, *stored, *norms, *others, communicator=t.communicator_of_launch(plan))

    # ---- products

    def _product(self, product: LayerProduct, activation: str | None = None, jobs: Sequence[Job] | None = None) -> None:
        plan, item = product.plan, self.t.item
        work = tuple(jobs) if jobs is not None else (Job(0, 0, plan.rows),)
        need, mapped = product_needs(plan, work, len(product.weights), item, product.form)
        if isinstance(plan, ColumnsPlan):
            self._spread(product, plan)
            self._begin(product.name, need, mapped)
            self._by_columns(product, plan, work, activation)
            return
        if isinstance(plan, BlocksPlan):
            self._deal(product, plan)
            self._begin(product.name, need, mapped)
            self._by_blocks(product, plan, activation)
            return
        given: dict[str, object] = {"up": product.weights[1]} if len(product.weights) > 1 else {}
        if product.copies is not None:
            self._relay(product, plan)
            given["parts"] = product.copies
        given |= dict(zip(("scales", "up_scales"), product.scales, strict=False))
        self._begin(product.name, need, mapped)
        kernel = partial(product_split_k, plan=plan, jobs=work, activation=activation, form=product.form)
        communicator = self.t.communicator("sums")
        self._launch(kernel, product.x, product.weights[0], product.outs[0], communicator=communicator, **given)

    def _by_columns(
        self, product: LayerProduct, plan: ColumnsPlan, jobs: Sequence[Job], activation: str | None
    ) -> None:
        """Launch the product on every PE, and the kernels that move its results."""
        assert product.layout is not None
        multiply = partial(column_kernels.multiply, plan=plan, jobs=jobs, activation=activation)
        found, *more = (product.outs if product.is_in_place else []) + product.room
        given = {"up": product.weights[1], "factors": more[0]} if more else {}
        self._launch(multiply, product.copies, product.weights[0], found, **given)
        if product.is_in_place:
            return
        outs = dict(zip(("out", "keys", "values"), product.outs, strict=False))
        factors = {"factors": more[0]} if more and plan.splits_k else {}
        if product.shares is None:
            deliver = partial(column_kernels.deliver, plan=plan, layout=product.layout, activation=activation)
            self._launch(deliver, found, **outs, **factors)
            return
        self._launch(partial(column_kernels.add_up, plan=plan, activation=activation), found, product.shares, **factors)
        if isinstance(product.layout, RowMajor):
            self._launch(partial(column_kernels.take_shares, plan=plan), product.shares, **outs)
        else:
            self._launch(partial(column_kernels.hand_out, plan=plan, layout=product.layout), product.shares, **outs)

    def _deal(self, product: LayerProduct, plan: BlocksPlan) -> None:
        """Copy a product's input to the layout that its blocks read, unless the previous part has stored it so."""
        if product.x is None:
            return
        nbytes = plan.rows * plan.k * self.t.item
        self._begin(f"spread {product.name}", Need(), Need(read_bytes=nbytes, written_bytes=nbytes))
        self.parts[-1].is_communication = plan.cubes_per_group > 1
        deal = partial(block_kernels.deal_rows, layout=Chunks(plan))
        self._launch(deal, product.x, product.copies, self._at_once(plan.k, 2))

    def _by_blocks(self, product: LayerProduct, plan: BlocksPlan, activation: str | None) -> None:
        assert product.layout is not None
        source = Chunks(plan)
        kernel = partial(block_kernels.multiply_blocks, source=source, layout=product.layout, activation=activation)
        outs = dict(zip(("out", "keys", "values"), product.outs, strict=False))
        given: dict[str, object] = {"up": product.weights[1]} if len(product.weights) > 1 else {}
        if plan.passes:
            given["communicator"] = self.t.communicator("chunks")
        self._launch(kernel, product.copies, product.weights[0], **outs, **given)

    def _relay(self, product: LayerProduct, plan: SplitKPlan) -> None:
        """Copy each PE's K part of a product's input to its own slice."""
        row_bytes = plan.k * self.t.item
        received = max(plan.rows - rows for rows in corner_rows(plan.sip, plan.rows)) * row_bytes
        nbytes = plan.rows * row_bytes
        mapped = Need(cube_bytes=received, read_bytes=nbytes, written_bytes=plan.sip.cubes * nbytes)
        self._begin(f"spread {product.name}", Need(), mapped)
        self.parts[-1].is_communication = True
        relay = partial(relay_rows, plan=plan)
        self._launch(relay, product.x, product.copies, communicator=self.t.communicator("rows"))

    def _spread(self, product: LayerProduct, plan: ColumnsPlan) -> None:
        """Copy each PE's part of a product's input to its own slice."""
        others = plan.cubes_per_group - 1
        if product.x is None and not others:
            return
        self._begin(f"spread {product.name}", Need(), spread_need(plan, self.t.item, from_rows=product.x is not None))
        self.parts[-1].is_communication = others > 0
        if product.x is not None:
            self._launch(partial(column_kernels.collect, plan=plan), product.x, product.copies)
        for step in range(1, plan.cubes_per_group):
            self._launch(partial(column_kernels.pass_on, plan=plan), product.copies, step)

    def _mlp(self, jobs: Sequence[Job] | None) -> None:
        self._product(self.t.up_product, self._activation, jobs)
        self._product(self.t.down_product, None, jobs)

    # ---- attention

    def _attend_prefill(self) -> None:
        t, m, job = self.t, self.model, self.job
        scores = job.batch * t.heads * job.tokens * (job.tokens + 1) // 2
        head_bytes = job.rows * m.head_dim * t.item
        read, written = (t.heads + 2 * t.kv_heads) * head_bytes, t.heads * head_bytes
        self._begin("attention", attention_need(scores, m.head_dim, read, written))
        plan, (queries, *heads) = t.prefill, t.by_head
        width = t.head_layout.width
        if plan.keys_at_once:
            is_stored = not isinstance(t.attended_layout, KParts)
            attend = partial(online_attention.attend_online, plan=plan, layout=t.attended_layout if is_stored else None)
            self._launch(attend, queries, *heads, width, t.attended if is_stored else None)
            if is_stored:
                return
        else:
            if plan.cubes_per_team > 1:
                self._launch(partial(prefill_attention.take_heads, plan=plan), *heads, *t.head_copies)
            self._launch(partial(prefill_attention.share_heads, plan=plan), *heads, *t.head_copies)
            attend = partial(prefill_attention.attend_blocks, plan=plan)
            self._launch(attend, queries, *t.head_copies, *t.scores, t.masks, width)
        if isinstance(t.attended_layout, KParts):
            hand_over = partial(prefill_attention.take_results, plan=plan, layout=t.attended_layout)
        else:
            hand_over = partial(prefill_attention.hand_over, plan=plan, layout=t.attended_layout)
        self._launch(hand_over, queries, t.attended, width)

    def _cache_need(self) -> Need:
        """The work of attention at decode."""
        t, m, job = self.t, self.model, self.job
        cache = 2 * job.batch * t.kv_heads * job.context * m.head_dim
        form = t.cache_form
        cached = cache * t.item if form is None else cache + 2 * job.batch * t.kv_heads * CACHE_SCALE_BYTES
        read, written = cached + _size(t.qkv) * t.item, _size(t.attended) * t.item
        scores = job.batch * t.heads * (job.context + 1)
        need = attention_need(scores, m.head_dim, read, written)
        if form is not None:
            need = replace(need, lanes=need.lanes + form.passes * cache * F32_LANES)
        return need

    def _attend_decode(self) -> None:
        t, m, form = self.t, self.model, self.t.cache_form
        self._begin("attention", self._cache_need())
        by_plan = attend_streamed if t.decode.streamed else attention.attend_decode
        kernel = partial(by_plan, heads=t.heads, head_dim=m.head_dim, plan=t.decode)
        given: dict[str, object] = {} if t.partial is None else {"parts": t.partial}
        if form is not None:
            kernel = partial(kernel, form=form)
            given |= dict(zip(("key_scales", "value_scales"), t.cache_scales, strict=True))
        self._launch(kernel, t.qkv, *t.caches, t.attended, **given)
        if t.partial is None:
            return
        merge = partial(attention.merge_parts, heads=t.heads, head_dim=m.head_dim, plan=t.decode)
        self._launch(merge, t.partial, t.attended)

    # ---- experts

    def _experts(self) -> None:
        t, m, job = self.t, self.model, self.job
        size = job.rows * m.hidden
        nbytes = size * t.item
        self._begin("router", Need(macs=size * m.experts, read_bytes=nbytes))
        self._launch(kernels.route, t.gathered, t.router, t.gates, t.ids, m.experts_per_token, self._at_once(m.hidden))
        routing = self._routing()
        copied = nbytes * m.experts_per_token
        written = Need(read_bytes=nbytes, written_bytes=copied)
        self._begin("take_rows", written, Need(read_bytes=copied, written_bytes=copied))
        take = partial(kernels.take_rows, rows=routing.tokens)
        self._launch(take, t.gathered, t.up_product.x, self._at_once(m.hidden, 2))
        self._mlp(routing.jobs)
        lanes = 2 * size * m.experts_per_token
        self._begin("combine", Need(lanes=lanes, read_bytes=copied, written_bytes=nbytes))
        combine = partial(kernels.combine, places=routing.places)
        self._launch(combine, t.down_product.outs[0], t.gates, t.projected, self._at_once(m.hidden))

    def _routing(self) -> Routing:
        m, rows = self.model, self.job.rows
        if self.job.weights is not None and self.torch.engine.data:
            chosen = self.t.ids.numpy().tolist()
        else:
            k = m.experts_per_token
            chosen = [[(token * k + at) % m.experts for at in range(k)] for token in range(rows)]
        return routing_of(chosen, m.experts)


def _size(tensor: Tensor) -> int:
    return int(np.prod(tensor.shape))
