"""One decoder layer as a point of an evaluation: the rows of `llm-layer` as numbers by name, and lists of models and
SIPs as parameters have them.
"""

from __future__ import annotations

from kernbench.benches.llm_layer import llm_layer
from kernbench.common.errors import UsageError
from kernbench.evaluation.contract import Rows, Setting, where
from kernbench.models.layer_job import Phase
from kernbench.models.shapes import ModelShape, load_model
from kernbench.runtime_api.context import RuntimeContext

PHASES: tuple[Phase, ...] = ("prefill", "decode")
GROUPS = {  # where the time of a layer goes -> the parts of it
    "one launch": ("layer in one launch",),  # decode steps, where auto has them so
    "products": ("qkv", "out_proj", "mlp_up", "mlp_down"),
    "attention": ("attention",),
    "other compute": ("norm1", "norm2", "rope", "router", "combine", "add"),
    "copies": ("spread", "take_rows"),  # of a product's input, to the PEs that need it
    "communication": ("all_reduce", "reduce_scatter", "all_gather"),  # between SIPs
    "launching": ("launching",),
}
BOUNDS = ("compute", "HBM", "link", "collective")


def models_of(text: str) -> dict[str, ModelShape]:
    """Models by name, with commas between, each once; raises UsageError for an unknown one."""
    return {name: load_model(name) for name in (name.strip() for name in text.split(","))}


def counts_of(name: str, text: str) -> list[int]:
    """Numbers of SIPs with commas between, the least first; raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"{name} is '{text}'", hint="give whole numbers, 1 or more, with commas between: 1,2,4")
    return sorted({int(word) for word in words})


def timed_layer(
    torch: RuntimeContext,
    model: str,
    phase: Phase,
    *,
    batch: int,
    tokens: int,
    context: int,
    tp: int = 0,
    mapping: str = "auto",
) -> dict[str, float]:
    """Times in us: of the layer, of each group of parts and of parts by what bounds them as they are mapped; tokens per
    second and energy of counted work per token of all layers, memory that a SIP needs, and whether it has it (1 or 0).
    """
    rows = llm_layer(
        torch, model=model, phase=phase, batch=batch, tokens=tokens, context=context, tp=tp, mapping=mapping
    )
    found = {f"{group.replace(' ', '_')}_us": 0.0 for group in GROUPS}
    found |= {f"bound_{name}_us": 0.0 for name in BOUNDS}
    group_of = {part: group for group, parts in GROUPS.items() for part in parts}
    for row in rows:
        if "figure" in row:
            continue
        name, time_us = str(row["part"]), _number(row["time_us"])
        if name == "layer":
            found |= {"layer_us": time_us, "layer_bound_us": _number(row["bound_us"])}
            found["layer_mapping_bound_us"] = _number(row["mapping_bound_us"])
            continue
        group = group_of.get(name) or group_of[name.rstrip("0123456789").split()[0]]
        found[f"{group.replace(' ', '_')}_us"] += time_us
        if row["mapping_bound"] in BOUNDS:
            found[f"bound_{row['mapping_bound']}_us"] += time_us
    by_name = {str(row["figure"]): row["value"] for row in rows if "figure" in row}
    return {
        **found,
        "tokens_per_s": _number(by_name["tokens per second in total"]),
        "tokens_per_s_user": _number(by_name["tokens per second per user"]),
        "energy_per_token_mj": _number(by_name["energy of work per token"]),
        "memory_needed_gb": _number(by_name["memory needed per SIP"]),
        "memory_there_gb": _number(by_name["memory there per SIP"]),
        "fits": _number(by_name["fits"]),
    }


def work_of(rows: Rows) -> str:
    """What the rows of both phases are about, for captions."""
    prefill, decode = where(rows, phase="prefill")[0], where(rows, phase="decode")[0]
    return (
        f"Prefill: one sequence of {prefill['tokens']} tokens. Decode: one token of {decode['batch']} sequence(s) "
        f"after a context of {decode['context']}."
    )


def layer_seconds(setting: Setting) -> float:
    """About how long a layer takes to simulate on each SIP that shares it."""
    if setting["phase"] == "decode":
        return 1.5 + 0.5 * int(setting["batch"])
    hidden = load_model(str(setting["model"])).hidden  # a few tokens take as many commands as many
    return 6 + 0.0028 * hidden + 3e-7 * int(setting["tokens"]) * hidden


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
