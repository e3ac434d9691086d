"""Figures of attention over ranks: time over context, what each PE does, what limits it, what a query token costs."""

from __future__ import annotations

from kernbench.evaluation.contract import Row, Rows, curve, number, text, values_of, where
from kernbench.report.charts import BarPanel, Bars, Chart, Line, LinePanel
from kernbench.report.references import reference
from kernbench.topology.graph import TopologyGraph

MODEL = "llama2-70b"
DTYPE = "f16"
PANELS = {
    "single-prefill": "one user, prefill",
    "single-decode": "one user, decode",
    "multi-prefill": "a user per SIP, prefill",
    "multi-decode": "a user per SIP, decode",
}
REFERENCES = ("h100-flash-attention-3", "h100-flash-attention-2")
COUNTED = {"gemms": "GEMM", "sends": "send", "receives": "receive", "reads": "DMA read", "writes": "DMA write"}


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    timed = where(rows, part="timed")
    panels = [panel for panel in PANELS if where(timed, panel=panel)]
    charts = [_times(timed, panels), _counts(timed, panels), _compared(timed, panels), _token_cost(timed, panels)]
    queries, users = where(rows, part="queries"), where(rows, part="users")
    charts += [_queries(queries)] if queries else []
    return [*charts, _users(users)] if users else charts


def _times(rows: Rows, panels: list[str]) -> Chart:
    made = []
    for panel in panels:
        some = where(rows, panel=panel)
        lines = (
            Line("measured", curve(some, "context", "time_ns", 1e-3)),
            Line("bound: products", curve(some, "context", "compute_bound_ns", 1e-3), "theory"),
            Line("bound: HBM", curve(some, "context", "hbm_bound_ns", 1e-3), "theory"),
            Line("bound: ring", tuple(at for at in curve(some, "context", "ring_bound_ns", 1e-3) if at[1]), "theory"),
        )
        shown = tuple(line for line in lines if line.points)
        made.append(LinePanel("context (tokens)", "time (us)", shown, PANELS[panel], log="xy", every_x=True))
    return Chart(
        "attention-time",
        "Grouped-query attention of Llama-70B: time over context in four panels",
        f"One layer's attention: query heads in groups on their KV head, with {MODEL}'s heads, in {DTYPE}. "
        "Prefill: a chunk of query tokens against the context, keys and values going around the ring of ranks. Decode: "
        "one token, partial results merged along a tree. Bounds are from the machine: products over the MAC arrays, "
        "cache over HBM, what goes around the ring over its links.",
        tuple(made),
        height_in=2.6,
    )


def _counts(rows: Rows, panels: list[str]) -> Chart:
    made = []
    for panel in panels:
        some = sorted(where(rows, panel=panel), key=lambda row: number(row, "context"))
        names = {name: label for name, label in COUNTED.items() if name in some[0]}
        bars = tuple(Bars(f"context {row['context']}", tuple(number(row, name) for name in names)) for row in some)
        made.append(
            BarPanel("operations per PE", tuple(names.values()), bars, PANELS[panel], log=True, with_values=True)
        )
    return Chart(
        "operation-counts",
        "What each PE does: decode issues two products whatever the context, prefill two for every block of keys",
        "Operations of the op log per PE (a receive and a send of a merge are those of an average PE). A composite "
        "product counts once, its DMA requests one by one.",
        tuple(made),
        height_in=2.6,
    )  # fmt: skip


def _compared(rows: Rows, panels: list[str]) -> Chart:
    longest = [_longest(rows, panel) for panel in panels]
    kinds = {"MAC array": "mac_share", "vector unit": "math_share", "HBM": "hbm_share", "messages": "ipcq_share"}
    bars = tuple(Bars(label, tuple(100 * number(row, name) for row in longest)) for label, name in kinds.items())
    names = tuple(f"{PANELS[text(row, 'panel')]}, {row['context']}" for row in longest)
    published = tuple(map(reference, REFERENCES))
    marks = tuple(
        Bars(each.title, tuple(100 * each.share if text(row, "panel").endswith("prefill") else None for row in longest))
        for each in published
    )
    return Chart(
        "panels-compared",
        "What limits each panel: products and softmax at prefill, and the ring between cubes; HBM at decode",
        "At each panel's longest context: products over the MAC arrays' peak, bytes over HBM's bandwidth, how long the "
        "vector unit of an average PE was busy, and how long its messages took, of which several may be under way at a "
        "time. References are for the MAC array at prefill.",
        (BarPanel("of the time, or of peak (%)", names, bars, marks=marks, y_unit="percent", with_values=True),),
        columns=1,
        references=published,
    )


def _token_cost(rows: Rows, panels: list[str]) -> Chart:
    longest = [_longest(rows, panel) for panel in panels]
    names = tuple(f"{PANELS[text(row, 'panel')]}, {row['context']}" for row in longest)
    pe_us = tuple(number(row, "ranks") * number(row, "time_ns") / number(row, "query_tokens") / 1000 for row in longest)
    joules = tuple(
        1e6 * number(row, "attention_j") / number(row, "query_tokens") / number(row, "heads") for row in longest
    )
    return Chart(
        "query-token-cost",
        "What a query token costs: prefill shares keys and values among its tokens, decode reads them for one",
        "At each panel's longest context, over query tokens and KV heads: time of all PEs that work for one KV head, "
        "and energy of the kernel by the coefficients that are known (`kernbench fidelity` says what is not).",
        (
            BarPanel("PE time (us)", names, (Bars("per query token and KV head", pe_us),), log=True, with_values=True),
            BarPanel("energy (uJ)", names, (Bars("per query token and KV head", joules),), log=True, with_values=True),
        ),
        height_in=3.4,
    )


def _longest(rows: Rows, panel: str) -> Row:
    return max(where(rows, panel=panel), key=lambda row: number(row, "context"))


def _queries(rows: Rows) -> Chart:
    made: list[LinePanel] = []
    for y_label, name, scale, unit in (
        ("PE time per token and 1,024 keys (us)", "per_token", 1024 / 1000, "number"),
        ("MAC array used (%)", "mac_share", 100.0, "percent"),
    ):
        lines = []
        for panel in [str(value) for value in values_of(rows, "panel")]:
            some = [
                {
                    **row,
                    "per_token": number(row, "time_ns")
                    * number(row, "ranks")
                    / number(row, "tokens")
                    / number(row, "context"),
                }
                for row in where(rows, panel=panel)
            ]
            lines.append(Line(f"{PANELS[panel]}, context {some[0]['context']}", curve(some, "tokens", name, scale)))
        made.append(
            LinePanel(
                "query tokens in the chunk",
                y_label,
                tuple(lines),
                log="x",
                y_unit="percent" if unit == "percent" else "number",
                from_zero=True,
                every_x=True,
            )
        )
    return Chart(
        "queries-per-chunk",
        "More query tokens per chunk share the way of keys and values: a token costs less until the engines are full",
        "Prefill by number of query tokens in the chunk: of one user over the PEs of a cube, and over the cubes of a "
        "SIP (on 16 cubes, 16, 32 and 64 tokens are 1, 2 and 4 queries per cube). PE time is the time of all PEs that "
        "work for one KV head, over query tokens and keys.",
        tuple(made),
    )


def _users(rows: Rows) -> Chart:
    lines, rates = [], []
    for panel in [str(value) for value in values_of(rows, "panel")]:
        some = where(rows, panel=panel)
        label = f"{PANELS[panel]}, context {some[0]['context']}"
        together = [
            {**row, "rate": number(row, "users") * number(row, "query_tokens") / number(row, "time_ns")} for row in some
        ]
        lines.append(Line(label, curve(some, "users", "time_ns", 1e-3)))
        rates.append(Line(label, curve(together, "users", "rate", 1e3)))
    return Chart(
        "users",
        "Several users, one per SIP: each takes as long as one alone, and throughput grows with the SIPs",
        "The same attention for one user on each of so many SIPs at once. Left: from the start to the end of the user "
        "that ends last. Right: query tokens of all users over that time.",
        (
            LinePanel("users, one per SIP", "time (us)", tuple(lines), from_zero=True, every_x=True),
            LinePanel("users, one per SIP", "query tokens per us", tuple(rates), log="y", every_x=True),
        ),
    )
