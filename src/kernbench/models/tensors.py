"""The tensors of a decoder layer on one SIP, placed, mapped and written before the layer runs: set-up.

A rank has some of the query heads with their key heads, and some of the perceptron's columns, of every expert.
Activations are row-major, rows over cubes and PEs; weights lie as the mapping's plans say (`packing.py`). Of a
layer without numbers weights and cache are zeros from the beginning: its times are those of any numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kernbench.ccl.topologies import group_of
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.common.ipcq import RingConfig
from kernbench.models import kernels
from kernbench.models.mapping import ColumnsPlan, ProductPlan, SipShape, SplitKPlan, stages_of
from kernbench.models.mapping import Mapping as Strategy
from kernbench.models.numbers import Contents, by_expert, cut, parts_by_box, parts_by_patches
from kernbench.models.packing import packed, packed_shape
from kernbench.models.shapes import ModelShape
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.launches import tcm_budget
from kernbench.tp.mappings import divide
from kernbench.tp.parallel_state import ParallelGroup
from kernbench.tp.placement import Grid
from kernbench.values.bytes_of import Patch
from kernbench.values.graph import Value

Phase = Literal["prefill", "decode"]
AT_ONCE = 16  # tensors of a launch
COPIES = DPPolicy(cube="replicate", pe="row_wise")  # every cube has all of it, over its slices


@dataclass(frozen=True)
class LayerJob:
    """What is asked for. `tokens` are those of a sequence that are worked on, `context` those before them."""

    model: ModelShape
    phase: Phase
    batch: int
    tokens: int
    context: int
    dtype: str
    mapping: Strategy
    sequence_parallel: bool = False
    weights: Mapping[str, Value] | None = None  # whole ones, by name; None: a layer without numbers
    preset: bool = False  # numbers are there from the beginning; else the host writes them

    @property
    def rows(self) -> int:
        return self.batch * self.tokens


@dataclass
class Product:
    """A product's plan and tensors on a rank."""

    name: str
    plan: ProductPlan
    experts: int
    weights: list[Tensor]  # the second one is that of a gated product
    x: Tensor
    out: Tensor
    copies: Tensor | None = None
    room: list[Tensor] = field(default_factory=list)

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.weights, self.x, self.out, *([self.copies] if self.copies else []), *self.room]


def sip_shape(torch: RuntimeContext) -> SipShape:
    """What a mapping may use of this machine's SIPs."""
    mesh = torch.spec.sip.cube_mesh
    return SipShape(mesh.w, mesh.h, torch.spec.cube.n_pes, tcm_budget(torch))


class LayerTensors:
    """One rank's part of a layer; made by every rank of the group alike."""

    def __init__(self, torch: RuntimeContext, group: ParallelGroup, job: LayerJob, x: Value | None = None) -> None:
        self.torch, self.group, self.job = torch, group, job
        self.values = torch.engine.values
        self.grid = Grid.of(torch)
        self.sip = sip_shape(torch)
        self.item = dtype_of(job.dtype).itemsize
        m, size = job.model, group.size
        self.heads = divide(m.heads, size, f"{m.name}: heads")
        if m.kv_heads % size and size % m.kv_heads:
            raise UsageError(f"{m.name}: {m.kv_heads} key heads over {size} ranks", hint="use another tp")
        self.kv_heads = max(1, m.kv_heads // size)
        self.first_kv_head = group.rank * m.kv_heads // size
        self.ffn = divide(m.ffn, size, f"{m.name}: ffn")
        self.own_rows = divide(job.rows, size, "tokens") if job.sequence_parallel else job.rows
        self._allocate(x)

    # ---- set-up

    def _allocate(self, x: Value | None) -> None:
        job, m = self.job, self.job.model
        rows, own = job.rows, self.own_rows
        self._preset: list[tuple[Tensor, Contents]] = []
        self.x = self._held("x", self._parts(x), (own, m.hidden))
        self.normal = self._rows("normal", own, m.hidden)
        self.gathered = self._rows("gathered", rows, m.hidden) if self.is_split else self.normal
        self.gains = {name: self._norm_weights(name) for name in ("norm1", "norm2")}
        width = (self.heads + 2 * self.kv_heads) * m.head_dim
        self.qkv = self._rows("qkv", rows, width)
        self.attended = self._rows("attended", rows, self.heads * m.head_dim)
        self.projected = self._rows("projected", rows, m.hidden)
        self.y = self._rows("y", own, m.hidden) if self.is_split else self.projected
        self.angles = self._angles() if m.positions == "rope" else None
        self.qkv_product = self._product("qkv", self.gathered, self.qkv, [self._qkv_weights()])
        self.out_product = self._product("out_proj", self.attended, self.projected, [self._own("out", 1)])
        self._allocate_attention()
        self._allocate_mlp()
        self._touch()

    @property
    def is_split(self) -> bool:
        return self.job.sequence_parallel and self.group.size > 1

    def communicator(self, what: Literal["rows", "sums"]) -> str:
        """The communicator of this SIP's PEs for rows or sums at decode. Messages are long, so slots are large;
        the rings that a kernel uses fit together.
        """
        communicators, device = self.torch.communicators, self.torch.ahbm.current_device()
        name = f"{what} of SIP {device}"
        if not communicators.has(name):
            rings = 2 if what == "rows" else max(1, sum(count - 1 for _, count in stages_of(self.sip.pes)))
            most = max(communicators.ring_bytes // (2 * rings + 1), 256)
            config = RingConfig(n_slots=2, slot_size=1 << most.bit_length() - 1)
            communicators.install(name, group_of(self.torch.spec, [device]), config)
        return name

    def _empty(self, name: str, shape: Sequence[int], dtype: str | None = None, dp: DPPolicy | None = None) -> Tensor:
        return self.torch.empty(*shape, dtype=dtype or self.job.dtype, dp=dp or self.grid.rows, name=name)

    def _blank(self, name: str, shape: Sequence[int], dtype: str | None = None, dp: DPPolicy | None = None) -> Tensor:
        """What a layer without numbers reads."""
        given = dtype or self.job.dtype
        return self.torch.zeros(*shape, dtype=given, dp=dp or self.grid.rows, name=name, preset=True)

    def _held(
        self,
        name: str,
        contents: Contents | None,
        shape: Sequence[int],
        dp: DPPolicy | None = None,
        dtype: str | None = None,
    ) -> Tensor:
        """What a layer reads, with numbers or without."""
        if contents is None or self.job.preset:
            tensor = self._blank(name, shape, dtype, dp)
            if contents is not None:
                self._preset.append((tensor, contents))
            return tensor
        given = dtype or self.job.dtype
        return self.torch.from_values(contents, shape, dtype=given, dp=dp or self.grid.rows, name=name)

    def _parts(self, whole: Value | None) -> Contents | None:
        return None if whole is None else parts_by_box(self.values, whole)

    def _rows(self, name: str, rows: int, columns: int) -> Tensor:
        return self._empty(name, (rows, columns))

    def _norm_weights(self, name: str) -> list[Tensor]:
        """The gain, and of a layernorm the shift, on every PE."""
        names = [name, f"{name}_shift"] if self.job.model.norm == "layernorm" else [name]
        hidden = self.job.model.hidden
        return [self._held(n, self._parts(self._whole(n)), (hidden,), self.grid.everywhere) for n in names]

    def _whole(self, name: str) -> Value | None:
        return None if self.job.weights is None else self.job.weights[name]

    def _angles(self) -> Tensor:
        m, job = self.job.model, self.job
        table: Value | None = None
        if job.weights is not None:
            positions = np.tile(np.arange(job.tokens) + job.context, job.batch)
            table = self.values.constant(rope_table(m, positions))
        return self._held("angles", self._parts(table), (job.rows, m.head_dim), dtype="f32")

    def _qkv_weights(self) -> Value | None:
        """The columns of this rank's query heads, then of its key heads, then of its value heads."""
        whole, m = self._whole("qkv"), self.job.model
        if whole is None:
            return None
        query, key = self.group.rank * self.heads, m.heads + self.first_kv_head
        starts = (query, self.heads), (key, self.kv_heads), (key + m.kv_heads, self.kv_heads)
        heads = [(first * m.head_dim, (first + count) * m.head_dim) for first, count in starts]
        return cut(self.values, by_expert(self.values, whole), 2, heads)

    def _own(self, name: str, axis: int) -> Value | None:
        """This rank's rows (axis 1) or columns (2) of a weight (K, N) or of one for each expert."""
        whole = self._whole(name)
        if whole is None:
            return None
        whole = by_expert(self.values, whole)
        size = whole.shape[axis] // self.group.size
        return cut(self.values, whole, axis, [(self.group.rank * size, (self.group.rank + 1) * size)])

    def _product(self, name: str, x: Tensor, out: Tensor, weights: Sequence[Value | None], experts: int = 1) -> Product:
        plan = self.job.mapping.product(self.sip, x.shape[0], x.shape[1], out.shape[1], self.item)
        if isinstance(plan, SplitKPlan):
            plan = plan.for_weights(len(weights), self.item)
        shape = packed_shape(plan, experts)
        placed = [
            self._held(f"{name}.weight{at}", None if held is None else packed(self.values, plan, held), shape)
            for at, held in enumerate(weights)
        ]
        product = Product(name, plan, experts, placed, x, out)
        if isinstance(plan, SplitKPlan):
            if plan.is_relayed:
                product.copies = self._empty(f"{name}.parts", (self.sip.size, plan.part_elements))
        elif isinstance(plan, ColumnsPlan):
            copied = plan.n_chunks, plan.most_rows, plan.chunk
            product.copies = self._empty(f"{name}.copies", copied, dp=COPIES)
            room = self.sip.size, plan.most_rows * plan.most_columns
            product.room = [self._empty(f"{name}.sums{at}", room, "f32") for at in range(len(weights))]
        return product

    def _allocate_attention(self) -> None:
        m, job = self.job.model, self.job
        shape = self.sip, job.batch
        self.caches: list[Tensor] = []
        if job.phase == "prefill":
            self.prefill = job.mapping.prefill_attention(
                *shape, job.tokens, self.heads, self.kv_heads, m.head_dim, self.item
            )
            return
        plan = job.mapping.decode_attention(*shape, job.context, self.heads, self.kv_heads, m.head_dim, self.item)
        self.decode = plan
        self.caches = [self._cache(name) for name in ("keys", "values")]
        self.partial: Tensor | None = None
        if plan.splits > 1:
            shared = self.heads // self.kv_heads
            self.partial = self._empty("partial", (plan.units, shared * (m.head_dim + 2)), "f32")

    def _cache(self, name: str) -> Tensor:
        """(units, keys and room for one more, head_dim): whole units on each PE."""
        plan, m, whole = self.decode, self.job.model, self._whole(name)
        row_bytes = m.head_dim * self.item

        def patches_of(number: int, offset: int) -> list[Patch]:
            sequence, head, split = plan.unit(number)
            first, run = split * plan.part, plan.keys_of(split) * row_bytes
            row = (sequence * m.kv_heads + self.first_kv_head + head) * self.job.context + first
            return [(row * row_bytes, run, offset, run, 1, run)] if run > 0 else []

        contents = None if whole is None else parts_by_patches(self.values, whole, patches_of)
        return self._held(name, contents, (plan.units, plan.room, m.head_dim))

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
        hidden = self._rows("ffn", rows, self.ffn)
        names = ("gate", "up") if m.is_gated else ("gate",)
        first = [self._own(name, 2) for name in names]
        self.up_product = self._product("mlp_up", x or self.gathered, hidden, first, m.experts)
        down = [self._own("down", 1)]
        self.down_product = self._product("mlp_down", hidden, out or self.projected, down, m.experts)

    def _touch(self) -> None:
        """Let every PE know where all tensors lie, so that no part waits for mappings."""
        tensors = [value for value in vars(self).values() if isinstance(value, Tensor)]
        products = (self.qkv_product, self.out_product, self.up_product, self.down_product)
        tensors += [tensor for product in products for tensor in product.tensors]
        tensors += [tensor for held in self.gains.values() for tensor in held]
        tensors += self.caches
        self._on_all(kernels.touch, list({id(tensor): tensor for tensor in tensors}.values()))
        for tensor, contents in self._preset:
            self.torch.preset(tensor, contents)

    def _on_all(self, kernel: Callable[..., None], tensors: Sequence[Tensor]) -> None:
        for at in range(0, len(tensors), AT_ONCE):
            self.grid.launch(self.torch, "set-up", kernel, *tensors[at : at + AT_ONCE])


def rope_table(model: ModelShape, positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """For each position the cosines of its pairs' angles, then the sines."""
    half = model.head_dim // 2
    angles = positions[:, None] * model.rope_base ** (-np.arange(half) / half)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
