"""The choice of a mapper as rows to read, and as a file that pins it: `mapping=FILE.yaml` takes it again.

sip: {mesh_w: 2, mesh_h: 2, pes: 16, tcm_bytes: 1011456}
work: {model: llama3-8b, phase: prefill, batch: 1, tokens: 2048, context: 0, tp: 1, itemsize: 2, is_quantised: false}
attention: online
products:
  qkv: {kind: blocks, rows: 2048, k: 4096, n: 6144, x_by: rows, groups: 4, row_parts: 2, ...}

A file is refused for another SIP and for other work. A decode step in one launch has a section `fused`: how its
attention is split, and the pieces in which weights are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from kernbench.common.errors import UsageError
from kernbench.models.block_plans import BlocksPlan
from kernbench.models.fused_plan import FusedPlan
from kernbench.models.mapper import Candidate, LayerChoice, LayerSize, MappedLayer, ProductSize
from kernbench.models.mapping import DecodeAttention, Mapping, ProductPlan, SplitKPlan, split_k_plan
from kernbench.models.plans import ColumnsPlan, SipShape

KINDS: dict[str, type[BlocksPlan] | type[ColumnsPlan]] = {"blocks": BlocksPlan, "columns": ColumnsPlan}
SIZES = ("sip", "rows", "k", "n")
PRODUCTS = {"qkv": "qkv", "out_proj": "out", "mlp_up": "up", "mlp_down": "down"}  # of a plan in one launch, by name


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
    is_quantised: bool = False


def kind_of(plan: ProductPlan) -> str:
    """The name of a kind of plan."""
    if isinstance(plan, SplitKPlan):
        return "split_k"
    return "blocks" if isinstance(plan, BlocksPlan) else "columns"


def numbers_of(plan: ProductPlan) -> dict[str, int]:
    """What defines a plan besides its sizes; one by `split_k` follows from them."""
    if isinstance(plan, SplitKPlan):
        return {}
    return {each.name: int(getattr(plan, each.name)) for each in fields(plan) if each.name not in SIZES}


def report_rows(choice: LayerChoice) -> list[dict[str, object]]:
    """A row for each candidate: its estimate by cause in us, whether it is taken."""
    rows: list[dict[str, object]] = []
    for size, candidates in choice.products:
        rows += [_row(size.name, each, is_chosen=at == 0) for at, each in enumerate(candidates)]
    fused = choice.mapping.fused
    if fused is not None:
        pieces = f"piece_bytes={fused.piece_bytes} room_bytes={fused.room_bytes} in_sram={fused.in_sram}"
        rows.append({"choice of": "layer", "kind": "fused", "chosen": "yes", "blocking": pieces})
    for name, ns in choice.attention_ns.items():
        is_chosen = (name == "online") == choice.mapping.is_online
        rows.append(_of("attention", name, f"scores in {'TCM' if name == 'online' else 'HBM'}", is_chosen, ns, {}))
    if fused is None:
        others = ("norms",) if choice.attention_ns else ("norms", "attention")
        rows += [{"choice of": name, "kind": "one way", "chosen": "-"} for name in others]
    return rows


def _row(name: str, candidate: Candidate, *, is_chosen: bool) -> dict[str, object]:
    text = " ".join(f"{key}={value}" for key, value in numbers_of(candidate.plan).items())
    row = _of(name, kind_of(candidate.plan), text, is_chosen, candidate.total_ns, candidate.times_ns)
    return row if candidate.simulated_ns is None else {**row, "simulated_us": candidate.simulated_ns / 1000}


def _of(
    name: str, kind: str, text: str, is_chosen: bool, total_ns: float, times_ns: dict[str, float]
) -> dict[str, object]:
    causes = {f"{cause}_us": times_ns.get(cause, 0.0) / 1000 for cause in ("copies", "product", "results")}
    chosen = "yes" if is_chosen else "-"
    return {
        "choice of": name,
        "kind": kind,
        "chosen": chosen,
        "estimate_us": total_ns / 1000,
        **causes,
        "blocking": text,
    }


def write_choice(path: str, choice: LayerChoice, work: PinnedWork) -> None:
    """Write the chosen plans to a file; raises UsageError where that fails."""
    chosen = choice.mapping.plans
    if not chosen:
        raise UsageError("there is no choice to write", hint="use mapping=auto")
    sip = chosen[0][1].sip
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
        pinned["fused"] = fused_numbers(choice.mapping.fused)
    try:
        Path(path).write_text(yaml.safe_dump(pinned, sort_keys=False))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="give a file in a folder that exists") from None


def read_choice(path: str, sip: SipShape, work: PinnedWork, size: LayerSize, base: Mapping) -> MappedLayer:
    """The mapping that a file pins for this work on a SIP of that shape; raises UsageError for a file of another."""
    given = _read(path)
    there = {each.name: getattr(sip, each.name) for each in fields(sip)}
    if given.get("sip") != there:
        raise UsageError(
            f"{path} is for a SIP of {given.get('sip')}, this one is {there}", hint="let mapping=auto choose again"
        )
    plans: list[tuple[ProductSize, ProductPlan]] = []
    for name, found in given["products"].items():
        try:
            numbers = dict(found)
            kind, x_by = numbers.pop("kind"), numbers.pop("x_by")
            rows, k, n = (int(numbers.pop(key)) for key in ("rows", "k", "n"))
            plan: ProductPlan
            if kind == "split_k":
                plan = split_k_plan(sip, rows, k, n, work.itemsize)
            else:
                plan = KINDS[kind](sip, rows, k, n, **{key: int(value) for key, value in numbers.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: product '{name}': {error}", hint="see docs/guides/time-a-layer.md") from None
        plans.append((ProductSize(str(name), rows, k, n, x_by=x_by), plan))
    _check_work(path, given.get("work"), work)
    _check_sizes(path, [one for one, _ in plans], size)
    fused = None if "fused" not in given else _read_fused(path, given["fused"], plans)
    return MappedLayer(base, tuple(plans), given.get("attention") == "online", path, fused)


def _check_work(path: str, given: object, work: PinnedWork) -> None:
    """Raise UsageError for a file that was written for other work."""
    found = given if isinstance(given, dict) else {}
    there = asdict(work)
    other = [name for name in there if found.get(name) != there[name]]
    if other:
        of_file, of_run = (", ".join(f"{name} {of.get(name, 'not given')}" for name in other) for of in (found, there))
        raise UsageError(f"{path} is for {of_file}, this run has {of_run}", hint="let mapping=auto choose again")


def _check_sizes(path: str, pinned: Sequence[ProductSize], size: LayerSize) -> None:
    """Raise UsageError for a plan of a product that the layer does not have: nothing would use it."""
    there = {each.name: each for each in size.products}
    for one in pinned:
        own = there.get(one.name)
        if own is None:
            raise UsageError(f"{path}: no product '{one.name}'", hint=f"use {', '.join(there)}")
        if (one.rows, one.k, one.n, one.x_by) != (own.rows, own.k, own.n, own.x_by):
            raise UsageError(
                f"{path}: product '{one.name}' is {_size(one)}, in this run {_size(own)}",
                hint="let mapping=auto choose again",
            )


def _size(product: ProductSize) -> str:
    return f"{product.rows} rows by {product.k} by {product.n}, input by {product.x_by}"


def fused_numbers(plan: FusedPlan) -> dict[str, Any]:
    """What defines a plan in one launch besides its products."""
    return {name: value for name, value in asdict(plan).items() if name not in PRODUCTS.values()}


def _read_fused(path: str, given: object, plans: Sequence[tuple[ProductSize, ProductPlan]]) -> FusedPlan:
    """The plan in one launch of pinned products; raises UsageError for one that is none."""
    found = {size.name: replace(plan, is_relayed=False) for size, plan in plans if isinstance(plan, SplitKPlan)}
    try:
        numbers = dict(given)  # type: ignore[call-overload]  # from a YAML file: what is no mapping is refused below
        attention = DecodeAttention(**numbers.pop("attention"))
        qkv, out, up, down = (found[name] for name in PRODUCTS)
        return FusedPlan(qkv, out, up, down, attention, **numbers)
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(f"{path}: fused: {error}", hint="see docs/guides/time-a-layer.md") from None


def is_fused(path: str) -> bool:
    """Whether a file pins a decode step in one launch."""
    return "fused" in _read(path)


def uses_blocks(path: str) -> bool:
    """Whether a file pins a product by blocks."""
    return any(isinstance(each, dict) and each.get("kind") == "blocks" for each in _read(path)["products"].values())


def uses_messages(path: str) -> bool:
    """Whether a file pins a product whose PEs pass chunks on."""
    return any(isinstance(each, dict) and bool(each.get("passes")) for each in _read(path)["products"].values())


def _read(path: str) -> dict[str, Any]:
    try:
        given = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read {path}: {error}"[:300], hint="give a file that --mapping-report wrote") from None
    if not isinstance(given, dict) or not isinstance(given.get("products"), dict):
        raise UsageError(f"{path} pins no products", hint="give a file that --mapping-report wrote")
    return given
