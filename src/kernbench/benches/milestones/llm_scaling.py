"""Large models over more SIPs: where a layer's time goes, what share is communication, how many tokens per second.

One decoder layer of each model, tensor parallel over all SIPs of trays of growing size, at prefill and at decode.
The next wall is the bound of most of the remaining time. Whether a model fits is shown, not required: a layer is
timed even where all layers need more memory than the machine has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from kernbench.benches._numbers import Size
from kernbench.benches.milestones._layers import (
    BOUNDS,
    GROUPS,
    PHASES,
    counts_of,
    layer_seconds,
    models_of,
    timed_layer,
    work_of,
)
from kernbench.benches.registry import evaluation_bench
from kernbench.evaluation.contract import Evaluation, Row, Rows, Setting, curve, number, values_of, where
from kernbench.models.layer_job import Phase
from kernbench.report.charts import AxisUnit, BarPanel, Bars, Chart, Line, LinePanel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.graph import TopologyGraph

PERCENT: AxisUnit = "percent"
LABELS = {"other compute": "vector work", "copies": "copies within a SIP"}  # labels of groups whose names are too short
NUMBER: AxisUnit = "number"
DEFAULT_MODELS, DEFAULT_SIPS = "llama3-8b,llama2-70b", "1,2,4,8"


def points(
    machine: TopologyGraph,
    *,
    models: Annotated[str, "models of models.yaml, with commas between"] = DEFAULT_MODELS,
    sips: Annotated[str, "trays: numbers of SIPs that share a layer, with commas between"] = DEFAULT_SIPS,
    tokens: Annotated[Size, "of a sequence at prefill"] = 256,
    batch: Annotated[Size, "sequences at decode"] = 16,
    context: Annotated[Size, "tokens in the cache at decode"] = 2048,
) -> list[Setting]:
    return [
        {
            "model": name,
            "phase": phase,
            "sips": count,
            "batch": 1 if phase == "prefill" else batch,
            "tokens": tokens if phase == "prefill" else 1,
            "context": 0 if phase == "prefill" else context,
            "machine:system.sips.count": count,
            "machine:system.sips.topology": "ring_1d",
        }
        for name, model in models_of(models).items()
        for phase in PHASES
        for count in counts_of("sips", sips)
        if model.can_be_split(count)
    ]


def point(
    torch: RuntimeContext, *, model: str, phase: Phase, sips: int, batch: int, tokens: int, context: int
) -> Mapping[str, float]:
    return timed_layer(torch, model, phase, batch=batch, tokens=tokens, context=context, tp=sips)


# ------------------------------------------------------------------------------------------------------------ figures


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    return [_parts(rows), _speed(rows), _communication(rows), _walls(rows)]


def _models(rows: Rows) -> list[str]:
    return [str(name) for name in values_of(rows, "model")]


def _work(rows: Rows) -> str:
    return f"One decoder layer, tensor parallel over all SIPs of a tray. {work_of(rows)}"


def _parts(rows: Rows) -> Chart:
    panels = []
    for model in _models(rows):
        for phase in PHASES:
            some = where(rows, phase=phase, model=model)
            bars = tuple(
                Bars(LABELS.get(group, group), tuple(number(row, f"{group.replace(' ', '_')}_us") for row in some))
                for group in GROUPS
            )
            names = tuple(f"{number(row, 'sips'):g}" for row in some)
            panels.append(
                BarPanel(
                    "time of a layer (us)",
                    names,
                    bars,
                    f"{model}, {phase}",
                    stacked=True,
                    x_label="SIPs",
                    with_values=True,
                )
            )
    return Chart(
        "layer-time",
        "Where a layer's time goes as SIPs are added",
        f"{_work(rows)} Copies bring a product's input to the PEs that "
        "need it; communication is collectives between SIPs; launching is the host's requests and answers. A decode "
        "step in one launch has no parts: SIPs exchange sums within it.",
        tuple(panels),
        height_in=2.7,
    )


def _speed(rows: Rows) -> Chart:
    panels = []
    for phase in PHASES:
        lines: list[Line] = []
        for model in _models(rows):
            measured = curve(where(rows, phase=phase, model=model), "sips", "tokens_per_s")
            first, rate = measured[0]
            linear = tuple((n, rate * n / first) for n, _ in measured)
            lines += [Line(model, measured), Line(f"{model}, linear", linear, "theory", like=model)]
        panels.append(LinePanel("SIPs", "tokens per second", tuple(lines), phase, log="xy", every_x=True))
    return Chart(
        "tokens-per-second",
        "Tokens per second over SIPs: how far from linear",
        f"{_work(rows)} Tokens per second are of all layers, one after the other, without embedding and last product. "
        "Linear is the smallest tray's rate times the number of SIPs.",
        tuple(panels),
    )


def _communication(rows: Rows) -> Chart:
    in_parts = [
        {**row, "share": 100 * number(row, "communication_us") / number(row, "layer_us")}
        for row in rows
        if not number(row, "one_launch_us")
    ]
    panels = tuple(
        LinePanel(
            "SIPs",
            y_label,
            tuple(Line(m, points) for m in _models(rows) if (points := curve(where(some, model=m), "sips", column))),
            phase,
            log="x",
            y_unit=unit,
            from_zero=True,
            every_x=True,
        )
        for y_label, column, unit, shown in (
            ("communication (% of layer)", "share", PERCENT, in_parts),
            ("energy per token (mJ)", "energy_per_token_mj", NUMBER, rows),
        )
        for phase in PHASES
        if (some := where(shown, phase=phase))
    )
    return Chart(
        "communication-and-energy",
        "What more SIPs cost: the share of the time that is communication, and energy per token",
        f"{_work(rows)} Communication is collectives between SIPs, of the layer's time; a decode step in one launch "
        "exchanges sums beside its other work, so that they have no share of their own. "
        "Energy is of all layers for one token, by the coefficients that are known.",
        panels,
        height_in=2.6,
    )


def _walls(rows: Rows) -> Chart:
    panels = []
    for model in _models(rows):
        for phase in PHASES:
            some = [_of_layer(row) for row in where(rows, phase=phase, model=model)]
            bars = tuple(Bars(label, tuple(shares[label] for shares in some)) for label in some[0])
            names = tuple(f"{number(row, 'sips'):g}" for row in where(rows, phase=phase, model=model))
            panels.append(
                BarPanel(
                    "of the layer's time (%)",
                    names,
                    bars,
                    f"{model}, {phase}",
                    stacked=True,
                    y_unit="percent",
                    x_label="SIPs",
                )
            )
    return Chart(
        "next-wall",
        "Where the next wall is: what bounds the parts that take the time, as SIPs are added",
        f"{_work(rows)} Time of the parts of a layer by what bounds each of them: products and vector work, HBM, links "
        "between cubes, or the SIPs' links to the switch; and launching. Of a decode step in one launch only the time "
        "of its bound counts as that; in the rest PEs wait for exchanges that their loads do not hide.",
        tuple(panels),
        height_in=2.7,
    )


def _of_layer(row: Row) -> dict[str, float]:
    """Shares of the layer's time, in percent."""
    layer, launch = number(row, "layer_us"), number(row, "one_launch_us")
    of_bound = number(row, "layer_mapping_bound_us") / launch if launch else 1.0
    return {
        **{f"bound by {name}": 100 * of_bound * number(row, f"bound_{name}_us") / layer for name in BOUNDS},
        "one launch, beyond its bound": 100 * (1 - of_bound) * launch / layer,
        "launching": 100 * number(row, "launching_us") / layer,
    }


def seconds(setting: Setting) -> float:
    sips, rows = int(setting["sips"]), int(setting["tokens"]) * int(setting["batch"])
    collectives = 0.5 + 0.0035 * rows  # of two all-reduces: every rank sends to every rank, however small the message
    return layer_seconds(setting) * sips + (collectives * sips**2 if sips > 1 else 0.0)


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
