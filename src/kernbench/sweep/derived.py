"""Figures of a row that other figures give: what a layer of a model comes to, and what that costs.

layer_ns              time of one layer, without setting up
tokens_per_s          of all users of the machine, over all layers
ttft_ms               time to the first token: of all layers, at prefill
latency_ms            time of a batch through all layers, of the best plan
plan_users            sequences in service, of the best plan
plan                  the name of the best plan
limited_by            the largest term of the roofline (`bound`) where half of it is reached, else latency
mj_per_token          energy of counted work, and static power of the machine over the token's share of time: the
                      bench's own figure
tokens_per_s_per_usd  tokens per second over the price of the machine

Energy per token and tokens per second per USD have a low and a high end (`ENDS`), from the ranges of coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MORE_IS_BETTER = ("tokens_per_s", "tokens_per_s_per_usd")
PLAN, LIMIT, TTFT_MS = "plan", "limited_by", "ttft_ms"
DERIVED = ("layer_ns", "tokens_per_s", TTFT_MS, "latency_ms", "plan_users", "mj_per_token", "tokens_per_s_per_usd")
ENDS = ("mj_per_token_low", "mj_per_token_high", "tokens_per_s_per_usd_low", "tokens_per_s_per_usd_high")
WORDS = (PLAN, LIMIT)  # that are no numbers
COLUMNS = (*DERIVED, *ENDS, *WORDS)

ResultTable = Sequence[Mapping[str, object]]


def derived(
    table: ResultTable,
    returned: Mapping[str, float],
    phase: object,
    cost_usd: Sequence[float | None] = (None, None, None),
) -> dict[str, float | str]:
    """The figures that a bench's table gives; a number that the bench returned under such a name is taken as it is.
    `cost_usd` has the low end, the value and the high end of the price.
    """
    found: dict[str, float | str] = {}
    layer = _cell(table, "part", "layer", "time_us")
    if layer is not None:
        found["layer_ns"] = layer * 1000
    tokens = _cell(table, "figure", "tokens per second in total", "value")
    if tokens:
        found["tokens_per_s"] = tokens
    step = next((row for row in table if str(row.get("figure", "")).startswith("time of ")), None)
    if step is not None and phase == "prefill":
        found[TTFT_MS] = _number(step.get("value")) or 0.0
    for name, figure in (("latency_ms", "latency of a batch"), ("plan_users", "users")):
        value = _cell(table, "figure", figure, "value")
        found |= {} if value is None else {name: value}
    plan = next((row.get("value") for row in table if row.get("figure") == "best plan"), None)
    found |= {PLAN: plan} if isinstance(plan, str) else {}
    for name, column in (("mj_per_token", "value"), ("mj_per_token_low", "low"), ("mj_per_token_high", "high")):
        energy = _cell(table, "figure", "energy per token", column)
        found |= {} if energy is None else {name: energy}
    found |= {name: returned[name] for name in COLUMNS if name in returned}
    low_usd, usd, high_usd = cost_usd
    prices = {"tokens_per_s_per_usd": usd, "tokens_per_s_per_usd_low": high_usd, "tokens_per_s_per_usd_high": low_usd}
    rate = found.get("tokens_per_s")
    for name, price in prices.items():
        if isinstance(rate, float | int) and price:
            found.setdefault(name, rate / price)
    return {name: found[name] for name in COLUMNS if name in found}


def _cell(table: ResultTable, key: str, name: str, column: str) -> float | None:
    return next((_number(row.get(column)) for row in table if row.get(key) == name), None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
