"""Chooses how the products and the attention of a layer are mapped, from a closed model of the machine.

For each product the candidates are (`candidates_of`)

blocks    sums of a block stay in TCM while K passes in chunks (`block_plans.py`): groups of cubes, the grid of PEs, the
          rows, columns and K of a block; whether every PE reads its chunks, or PEs of a cube pass them on;
columns   weights are streamed past rows in TCM (`plans.py`): groups of cubes, parts of K, rows at a time;

besides the plan of a mapping by rules (`mapping.choose_mapping`), one by `split_k` also in the number of rounds that is
fastest (`split_k_estimate.py`). Each has an estimate: copies of the input, the product, moving the results, launches.
The least is chosen, if it is less than that of the usual plan by a margin, larger for large products.
Everything is a function of sizes and of the model, so a choice is the same in every run, and it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product

from kernbench.common.errors import UsageError
from kernbench.models.attention_estimate import attention_ns
from kernbench.models.block_estimate import blocks_ns
from kernbench.models.block_plans import (
    PASSING_AHEAD,
    PASSING_RINGS,
    PASSING_SLOTS,
    PASSING_STRIPS,
    BlocksPlan,
    most_columns,
    round_of,
)
from kernbench.models.fused_plan import FusedPlan
from kernbench.models.machine_model import EVEN_SHARE, LAUNCH_NS, MachineModel
from kernbench.models.mapping import DecodeAttention, InputOrder, Mapping, ProductPlan, SplitKPlan
from kernbench.models.plans import F32_BYTES, ColumnsPlan, SipShape, columns_plan
from kernbench.models.product_size import PRODUCTS, ProductSize
from kernbench.models.quantised import form_of_weight
from kernbench.models.quantised_product import sip_for
from kernbench.models.query_blocks import PrefillAttention, online_attention
from kernbench.models.split_k_estimate import fastest_rounds, split_k_ns

BLOCK_ROWS = (1024, 768, 512, 384, 256, 192, 128, 64)
BLOCK_K = (512, 256, 128, 64)
PASSED_K = (256, 192, 128, 96, 64)
COLUMN_PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
STREAMED_ROWS = (64, 128, 256)
KEPT = 5  # candidates of a report besides the usual plan
LEAST_TCM = 16 * 1024  # bytes
MARGIN, ATTENTION_MARGIN = 0.05, 0.1  # what is faster by less is not taken instead of the usual plan
LARGE_MACS = 1 << 32  # from here on another plan takes several times as long to simulate, and has to be faster by
LARGE_MARGIN, LARGE_ATTENTION_MARGIN = 0.25, 0.3  # so much


@dataclass(frozen=True)
class Candidate:
    """A plan and its estimated time, in ns by cause. `is_usual`: it is the plan by rules."""

    plan: ProductPlan
    times_ns: dict[str, float] = field(hash=False)
    is_usual: bool = False
    simulated_ns: float | None = None

    @property
    def total_ns(self) -> float:
        return sum(self.times_ns.values())


@lru_cache(maxsize=256)
def candidates_of(machine: MachineModel, size: ProductSize, most_copies: int) -> tuple[Candidate, ...]:
    """All candidates for many rows, the fastest first; blocks that do not fit TCM are none."""
    found: list[Candidate] = []
    groups = [g for g in range(1, machine.sip.cubes + 1) if machine.sip.cubes % g == 0 and g <= max(1, most_copies)]
    for count in groups:
        plans: list[ProductPlan] = [*_column_plans(machine.sip, size, count)]
        if size.experts == 1:
            plans += _block_plans(machine.sip, size, count)
            if machine.message_gbs(PASSING_RINGS, PASSING_SLOTS):
                plans += _passing_plans(machine.sip, size, count)
        found += [Candidate(plan, estimate(machine, plan, size)) for plan in plans]
    return tuple(sorted(found, key=lambda each: each.total_ns))


def estimate(machine: MachineModel, plan: ProductPlan, size: ProductSize) -> dict[str, float]:
    """The time of a plan, in ns by cause."""
    if isinstance(plan, BlocksPlan):
        return blocks_ns(machine, plan, size)
    return split_k_ns(machine, plan, size) if isinstance(plan, SplitKPlan) else _columns_ns(machine, plan, size)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


# ---- blocks


def _block_plans(sip: SipShape, size: ProductSize, groups: int) -> Iterator[BlocksPlan]:
    """Blocks that are read by the PE that computes them."""
    for row_parts in _divisors(sip.size // groups):
        for rows, columns, k in _block_sizes(sip, size, groups, row_parts, BLOCK_K):
            yield BlocksPlan(sip, size.rows, size.k, size.n, groups, row_parts, rows, columns, k)


def _passing_plans(sip: SipShape, size: ProductSize, groups: int) -> Iterator[BlocksPlan]:
    """Blocks whose chunks PEs of a cube pass on."""
    how = PASSING_STRIPS, PASSING_AHEAD
    for row_parts in _divisors(sip.size // groups) if sip.pes > 1 else ():
        seen = set[tuple[int, int, int]]()  # chunks are whole rounds: several sizes may make as many
        for sizes in _block_sizes(sip, size, groups, row_parts, PASSED_K, *how, round_of(sip, row_parts)):
            plan = BlocksPlan(sip, size.rows, size.k, size.n, groups, row_parts, *sizes, how[0], 1, how[1])
            made = plan.block_rows, plan.block_columns, plan.chunk_count
            if plan.for_weights(size.weights, size.itemsize).passes and made not in seen:
                seen.add(made)
                yield plan


def _block_sizes(
    sip: SipShape,
    size: ProductSize,
    groups: int,
    row_parts: int,
    depths: Sequence[int],
    strips: int = 2,
    ahead: int = 1,
    chunks_of_round: int = 1,
) -> Iterator[tuple[int, int, int]]:
    """For each chunk, a few numbers of rows and columns, those that fit: rows, columns of all weights together, K."""
    own_rows = -(-size.rows // groups // row_parts)
    own_columns = -(-size.n // (sip.size // groups // row_parts))
    if own_rows < 16 or own_columns * size.weights < 16:
        return
    sizes = sorted({-(-own_rows // -(-own_rows // most)) for most in BLOCK_ROWS})
    for rows, k in product(sizes, [k for k in depths if k < 2 * size.k]):
        depth = min(k, size.k)
        chunks = -(-size.k // (depth * chunks_of_round)) * chunks_of_round
        is_even = size.k % chunks == 0 and size.rows % (groups * row_parts * rows) == 0
        most, least = (
            most_columns(sip, rows, depth, size.itemsize, strips, ahead, is_even=each) for each in (True, False)
        )
        for parts in COLUMN_PARTS:  # the same for every TCM: a larger one has all candidates of a smaller one
            columns = -(-own_columns // parts) * size.weights
            if 16 <= columns <= (most if is_even and own_columns % parts == 0 else least):
                yield rows, columns, depth


# ---- columns


def _column_plans(sip: SipShape, size: ProductSize, groups: int) -> Iterator[ColumnsPlan]:
    rows = -(-size.rows // groups)
    for k_parts in _divisors(sip.pes):
        seen: dict[int, ColumnsPlan] = {}
        for most in STREAMED_ROWS:
            plan = columns_plan(sip, size.rows, size.k, size.n, size.itemsize, groups, k_parts=k_parts, block_rows=most)
            if most <= 64 or plan.block_rows <= rows:
                seen.setdefault(plan.block_rows, plan)
        yield from seen.values()


def _columns_ns(machine: MachineModel, plan: ColumnsPlan, size: ProductSize) -> dict[str, float]:
    """Copies of the rows to every PE, the streamed product, and moving its results."""
    item, rows, k, n = size.itemsize, plan.most_rows, plan.most_k, plan.most_columns
    dtype, out = size.dtype, "f32" if plan.splits_k else size.dtype
    experts = min(size.experts, rows)  # with as many rows each, and weights of their own
    each = -(-rows // experts)
    block = plan.block_rows or each
    blocks = experts * -(-each // block)
    one = machine.stream_ns(min(block, each), k, n, dtype, out, x_in_tcm=bool(plan.block_rows))
    streamed = blocks * size.weights * one + (rows * k * item / machine.hbm if plan.block_rows else 0.0)
    own_rows = -(-size.rows // machine.sip.cubes)
    others = plan.cubes_per_group - 1
    from_rows = size.x_by == "rows" or not plan.splits_k
    copied = (own_rows if from_rows else 0) + others * own_rows
    received = machine.sip.pes * own_rows * k * item / machine.cube_link
    copies = max(2 * copied * k * item / machine.hbm, others * received) + LAUNCH_NS * (from_rows + others)
    copies += from_rows * min(machine.sip.pes, own_rows) * machine.latency_ns  # the rows of one PE after the other
    sums = rows * n * size.weights
    results = sums / plan.k_parts  # of a PE
    if plan.splits_k:  # sums of one PE are read while those of another are added
        moved = sums * F32_BYTES / machine.hbm / EVEN_SHARE + plan.k_parts * machine.latency_ns
        moved += results * (1 / machine.lanes + item / machine.hbm)
        moved += (2 * results * item / machine.hbm + LAUNCH_NS) * (others > 0)
    else:
        moved = 2 * rows * n * item / machine.hbm
    return {"copies": copies, "product": streamed, "results": moved + LAUNCH_NS, "launches": LAUNCH_NS}


# ---- a layer


@dataclass(frozen=True)
class MappedLayer:
    """A mapping with a plan for each product, by its sizes, and a kind of attention; the rest is as `base` has it. With
    `fused`, its plans are those of the products.
    """

    base: Mapping
    plans: tuple[tuple[ProductSize, ProductPlan], ...] = ()
    is_online: bool = False
    name: str = "auto"
    fused: FusedPlan | None = None  # a decode step in one launch

    def product(self, sip: SipShape, rows: int, k: int, n: int, itemsize: int, *, x_by: InputOrder) -> ProductPlan:
        return self.base.product(sip, rows, k, n, itemsize, x_by=x_by)

    def plan_of(self, name: str, sip: SipShape, rows: int, k: int, n: int) -> ProductPlan | None:
        """The plan that was chosen for a product, by its name: others may be of the same size. None if there is none of
        this size on such a SIP.
        """
        fused = dict(zip(PRODUCTS, self.fused.products, strict=True)) if self.fused else {}
        plan = fused.get(name) or next((plan for size, plan in self.plans if size.name == name), None)
        if plan is None or (plan.rows, plan.k, plan.n, plan.sip) != (rows, k, n, sip):
            return None
        return plan

    def prefill_attention(
        self, sip: SipShape, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> PrefillAttention:
        make = online_attention if self.is_online else self.base.prefill_attention
        return make(sip, batch, seq, heads, kv_heads, head_dim, itemsize)

    def decode_attention(
        self, sip: SipShape, batch: int, context: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> DecodeAttention:
        if self.fused is not None:
            return self.fused.attention
        return self.base.decode_attention(sip, batch, context, heads, kv_heads, head_dim, itemsize)

    def with_plan(self, size: ProductSize, plan: ProductPlan) -> MappedLayer:
        """A copy with another plan for one product."""
        return replace(self, plans=tuple((one, plan if one == size else had) for one, had in self.plans))

    @property
    def has_blocks(self) -> bool:
        """Whether a product is computed by blocks, which use all TCM that there is."""
        return any(isinstance(plan, BlocksPlan) for _, plan in self.plans)

    @property
    def has_messages(self) -> bool:
        """Whether PEs pass on chunks of blocks, for which they need rings."""
        return any(isinstance(plan, BlocksPlan) and plan.passes for _, plan in self.plans)


@dataclass(frozen=True)
class LayerSize:
    """The products of a layer, and its causal attention if it has one: sequences, tokens, heads, key heads and the size
    of a head.
    """

    products: tuple[ProductSize, ...]
    attention: tuple[int, int, int, int, int] | None = None

    @property
    def itemsize(self) -> int:
        return max((product.itemsize for product in self.products), default=2)


@dataclass(frozen=True)
class LayerChoice:
    """The chosen mapping, and what it was chosen from: for each product its candidates, the chosen one first, and the
    estimates of both kinds of attention, and their simulated times if they were simulated.
    """

    mapping: MappedLayer
    products: tuple[tuple[ProductSize, tuple[Candidate, ...]], ...]
    sip: SipShape
    attention_ns: dict[str, float] = field(hash=False)
    attention_simulated_ns: dict[str, float] = field(hash=False, default_factory=dict)
    not_fused: str = ""  # why a decode step is not one launch

    @property
    def usual(self) -> LayerChoice:
        """A copy with the plans by rules, where there are any."""
        found = tuple((one, tuple(sorted(some, key=lambda each: not each.is_usual))) for one, some in self.products)
        plans = tuple((one, some[0].plan) for one, some in found)
        return replace(self, mapping=replace(self.mapping, plans=plans), products=found)

    @property
    def products_ns(self) -> float:
        """The estimate of all products."""
        return sum(candidates[0].total_ns for _, candidates in self.products)


@lru_cache(maxsize=64)
def choose_layer(machine: MachineModel, size: LayerSize, base: Mapping, most_copies: int) -> LayerChoice:
    """For each product the fastest candidate, if it is faster than the plan of `base` by the margin for its size; there
    are at most `most_copies` of the weights.
    """
    ranked = [(one, _ranked(machine, one, base, most_copies)) for one in size.products]
    found = tuple((one, candidates) for one, candidates in ranked if candidates)
    times = attention_ns(machine, *size.attention, size.itemsize) if size.attention else {}
    batch, tokens, heads, _, head_dim = size.attention or (0, 0, 0, 0, 0)
    is_large = batch * heads * tokens * tokens * head_dim >= LARGE_MACS
    margin = LARGE_ATTENTION_MARGIN if is_large else ATTENTION_MARGIN
    is_online = "online" in times and times["online"] < (1 - margin) * times["stored"]
    plans = tuple((one, candidates[0].plan) for one, candidates in found)
    return LayerChoice(MappedLayer(base, plans, is_online), found, machine.sip, times)


def _ranked(machine: MachineModel, size: ProductSize, base: Mapping, most_copies: int) -> tuple[Candidate, ...]:
    """The candidates of a product, the chosen one first: for quantised weights the plan of `base`. None if that does
    not fit, and so little TCM has no room for norms either: the layer refuses it when its tensors are made.
    """
    usual: tuple[Candidate, ...] = ()
    with suppress(UsageError):
        sip = sip_for(machine.sip, form_of_weight(size.weight_type, size.name, size.k, machine.sip.pes))
        plan = base.product(sip, size.rows, size.k, size.n, size.itemsize, x_by=size.x_by)
        usual = (Candidate(plan, estimate(machine, plan, size), is_usual=True),)
        if size.weight_type != "same":
            return usual
        rounds = fastest_rounds(machine, plan, size) if isinstance(plan, SplitKPlan) else plan
        if rounds != plan:
            usual = (Candidate(rounds, estimate(machine, rounds, size)), *usual)
    if not usual and (machine.sip.tcm_bytes < LEAST_TCM or size.weight_type != "same"):
        return ()
    best = candidates_of(machine, size, most_copies)[:KEPT]
    others = tuple(each for each in best if all(each.plan != one.plan for one in usual))
    margin = LARGE_MARGIN if size.macs >= LARGE_MACS else MARGIN
    least = (1 - margin) * usual[0].total_ns if usual else 0.0
    is_better = not usual or (others and others[0].total_ns < least)
    return (*others, *usual) if is_better else (*usual, *others)
