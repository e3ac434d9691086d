"""The choice of a mapper as a file that pins it: `mapping=FILE.yaml` takes it again.

sip: {mesh_w: 2, mesh_h: 2, pes: 16, tcm_bytes: 1011456}
work: {model: llama3-8b, phase: prefill, batch: 1, tokens: 2048, context: 0, tp: 1, itemsize: 2, weight_type: same,
  cache_type: same}
attention: online
products:
  qkv: {kind: blocks, rows: 2048, k: 4096, n: 6144, x_by: rows, groups: 4, row_parts: 2, ...}

A file is refused for another SIP and for other work, and where a plan cannot be run or does not fit TCM. A decode step
in one launch has a section `fused`: how its attention is split, and the pieces in which weights are read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from kernbench.common.errors import UsageError
from kernbench.common.units import counted, format_bytes
from kernbench.models.block_plans import PASSING_RINGS, PASSING_SLOTS, BlocksPlan, most_columns
from kernbench.models.fused_plan import (
    LEAST_BYTES,
    LEAST_PIECES,
    LEAST_SLOT,
    DecodeSize,
    FusedPlan,
    NotFused,
    forms_of,
    in_blocks,
    other_bytes,
    slot_bytes,
    spare_pieces,
)
from kernbench.models.machine_model import MachineModel
from kernbench.models.mapper import LayerChoice, LayerSize, MappedLayer
from kernbench.models.mapping import Mapping, ProductPlan, SplitKPlan, split_k_plan
from kernbench.models.pinned_file import PinnedFile
from kernbench.models.pinned_records import BlocksEntry, ColumnsEntry, FusedEntry, SplitKEntry
from kernbench.models.plans import PINNED_ROWS, columns_plan
from kernbench.models.product_size import ProductSize
from kernbench.models.quantised import CacheName, WeightName, form_of_weight
from kernbench.models.quantised_product import sip_for
from kernbench.models.query_blocks import online_attention
from kernbench.models.rank_sums import ONE_RANK, RankSums
from kernbench.topology.record import Loc

SIZES = ("sip", "rows", "k", "n")
OF_LAUNCH = ("qkv", "out", "up", "down", "forms", "cache_form")  # of a plan in one launch: follow from the work


@dataclass(frozen=True)
class PinnedWork:
    """What a choice is made for: a file of another choice is not taken for it."""

    model: str
    phase: str
    batch: int
    tokens: int
    context: int
    tp: int
    itemsize: int
    weight_type: WeightName = "same"
    cache_type: CacheName = "same"


def kind_of(plan: ProductPlan) -> str:
    """The name of a kind of plan."""
    if isinstance(plan, SplitKPlan):
        return "split_k"
    return "blocks" if isinstance(plan, BlocksPlan) else "columns"


def numbers_of(plan: ProductPlan) -> dict[str, int]:
    """What defines a plan besides its sizes; one by `split_k` follows from them but for its blocks, if it has some."""
    if isinstance(plan, SplitKPlan):
        return {"blocks": plan.blocks} if plan.blocks else {}
    return {each.name: int(getattr(plan, each.name)) for each in fields(plan) if each.name not in SIZES}


def write_choice(path: str, choice: LayerChoice, work: PinnedWork) -> None:
    """Write the chosen plans to a file; raises UsageError where that fails."""
    chosen = choice.mapping.plans
    if not chosen:
        raise UsageError("there is no choice to write", hint="use mapping=auto")
    sip = choice.sip
    pinned: dict[str, Any] = {
        "sip": {each.name: getattr(sip, each.name) for each in fields(sip)},
        "work": asdict(work),
        "attention": "online" if choice.mapping.is_online else "stored",
        "products": {
            size.name: {"kind": kind_of(plan), "rows": size.rows, "k": size.k, "n": size.n, "x_by": size.x_by}
            | numbers_of(plan)
            for size, plan in chosen
        },
    }
    if choice.mapping.fused is not None:
        pinned["fused"] = {key: value for key, value in asdict(choice.mapping.fused).items() if key not in OF_LAUNCH}
    try:
        Path(path).write_text(yaml.safe_dump(pinned, sort_keys=False))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="give a file in a folder that exists") from None


def pinned_layer(
    file: PinnedFile, machine: MachineModel, size: LayerSize, decode: DecodeSize | NotFused, base: Mapping
) -> MappedLayer:
    """The mapping that a file pins for this work, which was checked, on a SIP with the file's TCM; `decode`: the
    sizes of a decode step in one launch, or why it cannot be one. Raises UsageError for a plan that cannot
    be run, CapacityError for one that does not fit TCM.
    """
    plans = tuple((one, _plan(file, machine, one)) for one in size.products)
    is_online = file.entry.attention == "online"
    if is_online and size.attention is not None:
        try:
            online_attention(machine.sip, *size.attention, size.products[0].itemsize)
        except UsageError as error:
            raise file.capacity(("attention",), error) from None
    fused = None
    if file.entry.fused is not None:
        fused = _fused(file, file.entry.fused, machine, plans, decode, base)
    return MappedLayer(base, plans, is_online, file.path, fused)


def _plan(file: PinnedFile, machine: MachineModel, size: ProductSize) -> ProductPlan:
    """The plan of a product."""
    entry, loc = file.products[size.name], ("products", size.name)
    if size.weight_type != "same" and not isinstance(entry, SplitKEntry):
        what = f"kind: {entry.kind} with weights in {size.weight_type}"
        raise file.fault((*loc, "kind"), what, "write kind: split_k and its sizes, or take weight_type=same")
    if isinstance(entry, BlocksEntry):
        return _blocks(file, entry, machine, size, loc)
    if isinstance(entry, ColumnsEntry):
        return _columns(file, entry, machine, size, loc)
    assert isinstance(entry, SplitKEntry)
    most = max(1, -(-size.n // machine.sip.cubes) // machine.sip.pes)
    file.check_whole((*loc, "blocks"), entry.blocks, 0, most, "columns of a cube for each of its PEs; 0: by TCM")
    try:
        sip = sip_for(machine.sip, form_of_weight(size.weight_type, size.name, size.k, machine.sip.pes))
        plan = split_k_plan(sip, size.rows, size.k, size.n, size.itemsize)
    except UsageError as error:
        raise file.capacity(loc, error) from None
    return replace(plan, blocks=entry.blocks)


def _columns(file: PinnedFile, entry: ColumnsEntry, machine: MachineModel, size: ProductSize, loc: Loc) -> ProductPlan:
    sip, rows = machine.sip, entry.block_rows
    file.check_divides((*loc, "groups"), entry.groups, sip.cubes, "cubes of a SIP")
    file.check_divides((*loc, "k_parts"), entry.k_parts, sip.pes, "PEs of a cube")
    most = max(PINNED_ROWS, size.rows)
    file.check_whole((*loc, "block_rows"), rows, 0, most, f"the product has {size.rows} rows; 0: none stay in TCM")
    sizes = size.rows, size.k, size.n, size.itemsize, entry.groups
    plan = columns_plan(sip, *sizes, k_parts=entry.k_parts, block_rows=rows)
    if plan.block_rows != rows:
        what = f"{rows} rows of {plan.most_k} do not fit the {format_bytes(sip.tcm_bytes)} of TCM that kernels have"
        raise file.too_large((*loc, "block_rows"), what, f"use at most {plan.block_rows} rows, or more k_parts")
    return plan


def _blocks(file: PinnedFile, entry: BlocksEntry, machine: MachineModel, size: ProductSize, loc: Loc) -> ProductPlan:
    sip, of_all = machine.sip, size.n * size.weights
    file.check_divides((*loc, "groups"), entry.groups, sip.cubes, "cubes of a SIP")
    file.check_divides((*loc, "row_parts"), entry.row_parts, sip.size // entry.groups, "PEs of a group")
    limits = {
        "block_rows": (size.rows, f"the product has {size.rows} rows"),
        "block_columns": (of_all, f"the product has {size.n} columns of {counted(size.weights, 'weight')}"),
        "block_k": (size.k, f"the product has {size.k} of K"),
        "strips": (entry.block_rows, "a strip has a row or more of block_rows"),
        "ahead": (size.k, "a chunk has one of K or more"),
    }
    for key, (most, why) in limits.items():
        low = size.weights if key == "block_columns" else 1
        file.check_whole((*loc, key), getattr(entry, key), low, most, why)
    numbers = {each.name: getattr(entry, each.name) for each in fields(BlocksPlan) if each.name not in SIZES}
    plan = BlocksPlan(sip, size.rows, size.k, size.n, **numbers)
    if plan.passes:
        _check_passing(file, plan, machine, size, (*loc, "passes"))
    rows, depth, columns = plan.block_rows, min(plan.block_k, size.k), max(1, plan.block_columns // size.weights)
    is_even = size.k % plan.chunk_count == 0 and size.rows % (plan.groups * plan.row_parts * rows) == 0
    is_even = is_even and -(-size.n // plan.column_parts) % columns == 0
    most = most_columns(sip, rows, depth, size.itemsize, plan.strips, plan.ahead, is_even=is_even)
    if plan.block_columns > most:
        what = f"blocks of {rows} rows by {plan.block_columns} columns, with chunks of {depth}, do not fit the "
        what += f"{format_bytes(sip.tcm_bytes)} of TCM that kernels have"
        hint = f"use at most {most} columns, or" if most >= size.weights else "use"
        raise file.too_large((*loc, "block_columns"), what, f"{hint} fewer block_rows or a smaller block_k")
    return plan


def _check_passing(file: PinnedFile, plan: BlocksPlan, machine: MachineModel, size: ProductSize, loc: Loc) -> None:
    """Raise UsageError where PEs of a cube cannot pass on the chunks of a plan."""
    if not machine.message_gbs(PASSING_RINGS, PASSING_SLOTS):
        kernels, rings = format_bytes(machine.sip.tcm_bytes), format_bytes(machine.ring_bytes)
        what = f"passes: 1 needs {PASSING_RINGS} rings of {PASSING_SLOTS} slots for messages, and the TCM of the file "
        what += f"({kernels} for kernels) leaves {rings} for rings"
        raise file.fault(
            loc, what, "set passes: 0, or choose again: mapping=auto keeps TCM for rings where passing is faster"
        )
    if not plan.for_weights(size.weights, size.itemsize).passes or machine.sip.pes == 1:
        what = "passes: 1, and PEs of a cube do not use the same chunks in the same order"
        hint = "set passes: 0, or take row_parts of which one of it and the PEs of a cube is a multiple of the other, "
        raise file.fault(loc, what, hint + "and blocks of which all PEs have as many")


def _fused(
    file: PinnedFile,
    entry: FusedEntry,
    machine: MachineModel,
    plans: tuple[tuple[ProductSize, ProductPlan], ...],
    decode: DecodeSize | NotFused,
    base: Mapping,
) -> FusedPlan:
    """The plan in one launch of pinned products."""
    at, sip = "fused", machine.sip
    if isinstance(decode, NotFused):
        raise file.fault((at,), f"a layer in one launch: {decode.reason}", "delete the section fused")
    found: list[SplitKPlan] = []
    for size, plan in plans:
        loc = "products", size.name
        if not isinstance(plan, SplitKPlan):
            raise file.fault((*loc, "kind"), f"kind: {kind_of(plan)} with a section fused", "use split_k, or no fused")
        if plan.k < sip.pes or plan.n < sip.size:
            raise file.fault((at,), f"'{size.name}' has less than a row or column for each PE", "delete fused")
        found.append(in_blocks(replace(plan, sip=sip)))
    split = entry.attention
    for key in ("batch", "context", "kv_heads"):
        if getattr(split, key) != getattr(decode, key):
            what = f"{key} is {getattr(split, key)}, in this run {getattr(decode, key)}"
            raise file.fault((at, "attention", key), what, f"write {key}: {getattr(decode, key)}")
    if split.streamed:
        raise file.fault((at, "attention", "streamed"), "streamed: true in one launch", "write streamed: false")
    sizes = decode.heads, decode.kv_heads, decode.head_dim, decode.itemsize
    usual = base.decode_attention(sip, decode.batch, decode.context, *sizes)
    attention = split.plan
    file.check_whole((at, "attention", "splits"), split.splits, 1, min(sip.size, split.context), "PEs and tokens")
    if (split.splits - 1) * attention.part >= split.context:
        what = f"{split.splits} splits of {split.context} tokens leave parts without a token"
        raise file.fault((at, "attention", "splits"), what, f"use {-(-split.context // attention.part)}")
    file.check_whole((at, "attention", "block_keys"), split.block_keys, 1, attention.part, "keys of a part")
    file.check_whole((at, "attention", "units_at_once"), split.units_at_once, 1, usual.units_at_once, "those in TCM")
    sums = ONE_RANK if entry.sums is None else entry.sums.plan
    if sums.ranks != decode.ranks:
        what = f"ranks is {sums.ranks}, in this run {decode.ranks}"
        raise file.fault((at, "sums"), what, f"write ranks: {decode.ranks}")
    _check_pieces(file, entry, machine, found, sums, decode)
    qkv, out, up, down = found
    most = slot_bytes(machine, (qkv, out, up, down), attention, decode)
    if entry.slot_bytes not in [1 << bits for bits in range(LEAST_SLOT.bit_length() - 1, most.bit_length())]:
        what = f"slot_bytes: {entry.slot_bytes} is no power of two from {LEAST_SLOT} to {most}"
        raise file.fault((at, "slot_bytes"), what, f"write {most}")
    pieces, forms = (entry.piece_bytes, entry.room_bytes, entry.slot_bytes), forms_of(decode, found)
    return FusedPlan(qkv, out, up, down, attention, *pieces, sums, forms, decode.cache_form)


def _check_pieces(
    file: PinnedFile,
    entry: FusedEntry,
    machine: MachineModel,
    products: list[SplitKPlan],
    sums: RankSums,
    decode: DecodeSize,
) -> None:
    """Raise an error where pieces of weights and caches do not fit TCM."""
    sip, item, split = machine.sip, decode.itemsize, entry.attention
    least = max(LEAST_BYTES, split.block_keys * decode.head_dim * decode.cache_itemsize)
    file.check_whole(("fused", "piece_bytes"), entry.piece_bytes, least, sip.tcm_bytes, "a block of keys, and TCM")
    longest = max(plan.block_columns * item for plan in products)  # a piece has one row of weights at least
    low = max(LEAST_PIECES * entry.piece_bytes, longest)
    if entry.room_bytes < low:
        what = f"room_bytes: {entry.room_bytes} is less than {LEAST_PIECES} pieces"
        raise file.fault(("fused", "room_bytes"), what, f"use {low} or more, or smaller pieces")
    others = other_bytes(decode, products, sums, split.block_keys) + spare_pieces(decode) * entry.piece_bytes
    most = sip.tcm_bytes * 15 // 16 - others
    if entry.room_bytes > most:
        what = f"room_bytes: {entry.room_bytes} and what else is in TCM do not fit its {format_bytes(sip.tcm_bytes)}"
        hint = f"use at most {most}" if most >= low else "use smaller pieces"
        raise file.too_large(("fused", "room_bytes"), what, hint)
