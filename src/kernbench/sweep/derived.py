"""Figures of a row that other figures give: what a layer of a model comes to, and what that costs.

layer_ns              time of one layer, without setting up
tokens_per_s          of all users of the machine, over all layers
ttft_ms               time to the first token: of all layers, at prefill
mj_per_token          energy of counted work, and static power of the machine over the token's share of time
tokens_per_s_per_usd  tokens per second over the price of the machine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MORE_IS_BETTER = ("tokens_per_s", "tokens_per_s_per_usd")
DERIVED = ("layer_ns", "tokens_per_s", "ttft_ms", "mj_per_token", "tokens_per_s_per_usd")

Table = Sequence[Mapping[str, object]]


def derived(
    table: Table, returned: Mapping[str, float], phase: object, static_w: float | None, cost_usd: float | None
) -> dict[str, float]:
    """The figures that a bench's table gives; a number that the bench returned under such a name is taken as it is."""
    found: dict[str, float] = {}
    layer = _cell(table, "part", "layer", "time_us")
    if layer is not None:
        found["layer_ns"] = layer * 1000
    tokens = _cell(table, "figure", "tokens per second in total", "value")
    if tokens:
        found["tokens_per_s"] = tokens
    step = next((row for row in table if str(row.get("figure", "")).startswith("time of ")), None)
    if step is not None and phase == "prefill":
        found["ttft_ms"] = _number(step.get("value")) or 0.0
    energy = _cell(table, "figure", "energy per token", "value")
    if energy is not None and tokens:
        found["mj_per_token"] = energy + 1000 * (static_w or 0.0) / tokens
    found |= {name: returned[name] for name in DERIVED if name in returned}
    if "tokens_per_s" in found and cost_usd:
        found.setdefault("tokens_per_s_per_usd", found["tokens_per_s"] / cost_usd)
    return {name: found[name] for name in DERIVED if name in found}


def _cell(table: Table, key: str, name: str, column: str) -> float | None:
    return next((_number(row.get(column)) for row in table if row.get(key) == name), None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
