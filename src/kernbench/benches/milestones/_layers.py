"""One decoder layer as a point of an evaluation: the rows of `llm-layer` as numbers by name."""

from __future__ import annotations

from typing import Literal

from kernbench.benches.llm_layer import llm_layer
from kernbench.runtime_api.context import RuntimeContext

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
GROUPS = {  # where the time of a layer goes -> the parts of it
    "products": ("qkv", "out_proj", "mlp_up", "mlp_down"),
    "attention": ("attention",),
    "other compute": ("norm1", "norm2", "rope", "router", "combine", "add"),
    "communication": ("all_reduce", "reduce_scatter", "all_gather", "spread"),
    "launching": ("launching",),
}
BOUNDS = ("compute", "HBM", "link", "collective")


def timed_layer(
    torch: RuntimeContext, model: str, phase: Phase, *, batch: int, tokens: int, context: int, tp: int = 0
) -> dict[str, float]:
    """Times in us: of the layer, of each group of parts and of parts by what bounds them; tokens per second of all
    layers, memory that a SIP needs.
    """
    now, before = (tokens, 0) if phase == "prefill" else (0, context)
    rows = llm_layer(torch, model=model, phase=phase, batch=batch, tokens=now, context=before, tp=tp)
    found = {f"{group.replace(' ', '_')}_us": 0.0 for group in GROUPS}
    found |= {f"bound_{name}_us": 0.0 for name in BOUNDS}
    group_of = {part: group for group, parts in GROUPS.items() for part in parts}
    for row in rows:
        if "figure" in row:
            continue
        name, time_us = str(row["part"]), _number(row["time_us"])
        if name == "layer":
            found |= {"layer_us": time_us, "layer_bound_us": _number(row["bound_us"])}
            continue
        group = group_of.get(name.rstrip("0123456789"), group_of.get(name, "other compute"))
        found[f"{group.replace(' ', '_')}_us"] += time_us
        if row["bound"] in BOUNDS:
            found[f"bound_{row['bound']}_us"] += time_us
    by_name = {str(row["figure"]): _number(row["value"]) for row in rows if "figure" in row}
    return {
        **found,
        "tokens_per_s": by_name["tokens per second in total"],
        "tokens_per_s_user": by_name["tokens per second per user"],
        "memory_needed_gb": by_name["memory needed per SIP"],
        "memory_there_gb": by_name["memory there per SIP"],
    }


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
