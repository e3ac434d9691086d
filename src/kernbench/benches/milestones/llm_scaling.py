"""Large models over more SIPs: where a layer's time goes, what share is communication, how many tokens per second.

One decoder layer of each model, tensor parallel over all SIPs of trays of growing size, at prefill and at decode.
The next wall is what bounds most of the time that is left. Whether a model fits is shown, not required: a layer is
timed also where all layers together need more memory than there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from kernbench.benches._numbers import Size
from kernbench.benches.milestones._layers import BOUNDS, GROUPS, PHASES, Phase, timed_layer
from kernbench.benches.registry import evaluation_bench
from kernbench.evaluation.contract import Evaluation, Rows, Setting, curve, number, values_of, where
from kernbench.models.shapes import load_model
from kernbench.report.charts import BarPanel, Bars, Chart, Line, LinePanel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.graph import TopologyGraph

SIPS = (1, 2, 4, 8, 16)


def points(
    machine: TopologyGraph,
    *,
    models: Annotated[str, "models of models.yaml, with commas between"] = "llama3-8b",
    most_sips: Annotated[Size, "the largest tray: 1, 2, 4, 8 or 16 SIPs up to that"] = 4,
    tokens: Annotated[Size, "of a sequence at prefill"] = 64,
    batch: Annotated[Size, "sequences at decode"] = 1,
    context: Annotated[Size, "tokens in the cache at decode"] = 2048,
) -> list[Setting]:
    return [
        {
            "model": load_model(model.strip()).name,
            "phase": phase,
            "sips": count,
            "batch": 1 if phase == "prefill" else batch,
            "tokens": tokens,
            "context": context,
            "machine:system.sips.count": count,
            "machine:system.sips.topology": "ring_1d",
        }
        for model in models.split(",")
        for phase in PHASES
        for count in SIPS
        if count <= most_sips
    ]


def point(
    torch: RuntimeContext, *, model: str, phase: Phase, sips: int, batch: int, tokens: int, context: int
) -> Mapping[str, float]:
    return timed_layer(torch, model, phase, batch=batch, tokens=tokens, context=context, tp=sips)


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    return [_parts(rows), _speed(rows), _walls(rows)]


def _parts(rows: Rows) -> Chart:
    panels = []
    for phase in PHASES:
        for model in [str(name) for name in values_of(rows, "model")]:
            some = where(rows, phase=phase, model=model)
            bars = tuple(
                Bars(group, tuple(number(row, f"{group.replace(' ', '_')}_us") for row in some)) for group in GROUPS
            )
            names = tuple(f"{number(row, 'sips'):g}" for row in some)
            panels.append(
                BarPanel("time of a layer (us)", names, bars, f"{model}, {phase}", stacked=True, x_label="SIPs")
            )
    return Chart(
        "layer-time",
        "Where a layer's time goes as SIPs are added: products shrink, communication and launching stay",
        "One decoder layer, tensor parallel over all SIPs of the tray. Communication is collectives between SIPs and "
        "copies between cubes; launching is the host's requests and answers.",
        tuple(panels),
        height_in=2.7,
    )


def _speed(rows: Rows) -> Chart:
    models = [str(name) for name in values_of(rows, "model")]
    panels = []
    for phase in PHASES:
        lines = []
        for model in models:
            some = where(rows, phase=phase, model=model)
            measured = curve(some, "sips", "tokens_per_s")
            lines.append(Line(model, measured))
            first, rate = measured[0]
            lines.append(Line(f"{model}, linear", tuple((n, rate * n / first) for n, _ in measured), "theory"))
        panels.append(LinePanel("SIPs", "tokens per second", tuple(lines), phase, log="xy", every_x=True))
    shares = [{**row, "share": 100 * number(row, "communication_us") / number(row, "layer_us")} for row in rows]
    for phase in PHASES:
        lines = [Line(model, curve(where(shares, phase=phase, model=model), "sips", "share")) for model in models]
        panels.append(
            LinePanel(
                "SIPs",
                "communication (% of layer)",
                tuple(lines),
                phase,
                log="x",
                y_unit="percent",
                from_zero=True,
                every_x=True,
            )
        )
    return Chart(
        "tokens-per-second",
        "Tokens per second over SIPs: how far from linear, and how much of it is communication",
        "Tokens per second of all layers, one after the other, without embedding and last product. Linear is the "
        "smallest tray's rate times the number of SIPs.",
        tuple(panels),
        height_in=2.6,
    )  # fmt: skip


def _walls(rows: Rows) -> Chart:
    models = [str(name) for name in values_of(rows, "model")]
    panels = []
    for phase in PHASES:
        largest = [max(where(rows, phase=phase, model=m), key=lambda row: number(row, "sips")) for m in models]
        smallest = [min(where(rows, phase=phase, model=m), key=lambda row: number(row, "sips")) for m in models]
        chosen = [row for pair in zip(smallest, largest, strict=True) for row in pair]
        names = tuple(f"{row['model']}, {number(row, 'sips'):g} SIPs" for row in chosen)
        bars = tuple(
            Bars(
                f"bound by {name}",
                tuple(100 * number(row, f"bound_{name}_us") / number(row, "layer_us") for row in chosen),
            )
            for name in BOUNDS
        )
        panels.append(BarPanel("of the layer's time (%)", names, bars, phase, stacked=True, y_unit="percent"))
    return Chart(
        "next-wall",
        "Where the next wall is: what bounds the parts that take the time",
        "Time of the parts of a layer by what bounds each of them: products and vector work, HBM, links between cubes, "
        "or the SIPs' links to the switch. What is missing to the whole is launching.",
        tuple(panels),
        height_in=3.0,
    )


def seconds(setting: Setting) -> float:
    count = int(setting["sips"])
    if str(setting["model"]).startswith("tiny"):
        return 2.0 * count
    return (33.0 if setting["phase"] == "decode" else 2.0 * int(setting["tokens"])) * count


EVALUATION = evaluation_bench(
    name="llm-scaling",
    description="Evaluation: a layer of large models over 1 to 16 SIPs: time per part, communication, tokens per s.",
    evaluation=Evaluation(
        points,
        point,
        figures,
        seconds,
        ("launches and mappings", "messages between PEs", "host side", "HBM timing", "vector functions"),
    ),
)
